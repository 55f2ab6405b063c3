package router_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// layout is the chunks of db.c: bounds and shards.
func layout(c *routertest.Cluster) (list []string) {
	st := c.State()
	for chunk := range st.Chunks(st.CollectionByName("db", "c").ID) {
		list = append(list, fmt.Sprintf("%s %s", bson.Raw(chunk.MinBSON), chunk.Shard))
	}
	return list
}

func at(key string, v int) string { return fmt.Sprintf(`{"%s": {"$numberInt":"%d"}}`, key, v) }

const lowest = `{"_id": {"$minKey":1}}`

func TestChunksAreCutMovedAndMergedByHand(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx, r := context.Background(), c.Router
		shard(t, r, `{"_id": 1}`)
		rows(t, r, 30)
		home := c.State().ChunkOf(c.State().CollectionByName("db", "c").ID, []byte{1}).Shard
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			same(t, 30, len(find(t, r, "{}")))
		}
		must(r.SplitChunk(ctx, ns, router.Where{Middle: raw(t, `{"_id": 20}`)}, 0))
		must(r.SplitChunk(ctx, ns, router.Where{Find: raw(t, `{"_id": 7}`)}, 0)) // at the median of 0 to 19
		h := string(home)
		same(t, []string{lowest + " " + h, at("_id", 10) + " " + h, at("_id", 20) + " " + h}, layout(c))
		wantCode(t, r.SplitChunk(ctx, ns, router.Where{Middle: raw(t, `{"_id": 20}`)}, 0), mongoerr.BadValue)

		var others []manifest.ShardID
		for _, s := range c.State().Shards() {
			if s.ID != home {
				others = append(others, s.ID)
			}
		}
		a, b := others[0], others[1]
		must(r.MoveChunk(ctx, ns, router.Where{Find: raw(t, `{"_id": 12}`)}, a, 0))
		must(r.MoveChunk(ctx, ns, router.Where{Find: raw(t, `{"_id": 12}`)}, a, 0)) // it is there
		must(r.MoveRange(ctx, ns, raw(t, `{"_id": 5}`), raw(t, `{"_id": 15}`), b, 0))
		same(t, []string{lowest + " " + h, at("_id", 5) + " " + string(b), at("_id", 10) + " " + string(b), at("_id", 15) + " " + string(a), at("_id", 20) + " " + h}, layout(c))
		five := [2]bson.Raw{raw(t, `{"_id": 5}`), raw(t, `{"_id": 15}`)}
		must(r.MergeChunks(ctx, ns, five, 0))
		must(r.MergeChunks(ctx, ns, five, 0))
		same(t, []string{lowest + " " + h, at("_id", 5) + " " + string(b), at("_id", 15) + " " + string(a), at("_id", 20) + " " + h}, layout(c))
		must(r.MoveRange(ctx, ns, raw(t, `{"_id": 15}`), nil, b, 0)) // to the end of its chunk
		must(r.MergeChunks(ctx, ns, [2]bson.Raw{five[0], raw(t, `{"_id": 20}`)}, 0))
		same(t, []string{lowest + " " + h, at("_id", 5) + " " + string(b), at("_id", 20) + " " + h}, layout(c))
	})
}

// A range of many chunks moves with one request to each owner.
func TestARangeMovesInOneRequestPerOwner(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx, r := context.Background(), c.Router
		thirds(t, r)
		rows(t, r, 30)
		for i := 1; i < 30; i++ {
			if i%10 == 0 {
				continue // a bound already
			}
			if err := r.SplitChunk(ctx, ns, router.Where{Middle: raw(t, fmt.Sprintf(`{"_id": %d}`, i))}, 0); err != nil {
				t.Fatal(err)
			}
		}
		to := c.State().Shards()[0].ID
		c.Reset()
		if err := r.MoveRange(ctx, ns, raw(t, `{"_id": 2}`), raw(t, `{"_id": 29}`), to, 0); err != nil {
			t.Fatal(err)
		}
		same(t, 2, c.Sent("move"))
		for i, chunk := range layout(c)[2:29] {
			same(t, at("_id", i+2)+" "+string(to), chunk)
		}
		same(t, 30, len(find(t, r, "{}")))
	})
}

func TestChunkCommandsSayWhatIsWrong(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx, r := context.Background(), c.Router
		other := router.Namespace{Database: "db", Collection: "unsharded"}
		wantCode(t, r.SplitChunk(ctx, other, router.Where{Middle: raw(t, `{"_id": 1}`)}, 0), mongoerr.NamespaceNotSharded)
		thirds(t, r)
		rows(t, r, 30)
		nine := router.Where{Find: raw(t, `{"_id": 9}`)}
		wantCode(t, r.MoveChunk(ctx, ns, nine, "nowhere", 0), mongoerr.ShardNotFound)
		wantCode(t, r.MoveChunk(ctx, ns, router.Where{Bounds: [2]bson.Raw{raw(t, `{"_id": 1}`), raw(t, `{"_id": 10}`)}}, "shard01", 0), mongoerr.BadValue)
		wantCode(t, r.SplitChunk(ctx, ns, router.Where{Middle: raw(t, `{"_id": {"$minKey": 1}}`)}, 0), mongoerr.BadValue)
		wantCode(t, r.SplitChunk(ctx, ns, router.Where{Middle: raw(t, `{"x": 1}`)}, 0), mongoerr.BadValue)
		wantCode(t, r.MergeChunks(ctx, ns, [2]bson.Raw{raw(t, `{"_id": 10}`), raw(t, `{"_id": {"$maxKey": 1}}`)}, 0), mongoerr.IllegalOperation)
		wantCode(t, r.MergeChunks(ctx, ns, [2]bson.Raw{raw(t, `{"_id": 11}`), raw(t, `{"_id": 20}`)}, 0), mongoerr.BadValue)
	})
}

// TestAChunkOfOneValueIsNotCut: it says why, and what would make it divisible.
func TestAChunkOfOneValueIsNotCut(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx, r := context.Background(), c.Router
		shard(t, r, `{"k": 1}`)
		for i := range 5 {
			write(t, r, insertOf(t, fmt.Sprintf(`{"_id": %d, "k": 7}`, i)))
		}
		seven := router.Where{Find: raw(t, `{"k": 7}`)}
		wantCode(t, r.SplitChunk(ctx, ns, seven, 0), mongoerr.OperationFailed)
		write(t, r, insertOf(t, `{"_id": 9, "k": 8}`))
		if err := r.SplitChunk(ctx, ns, seven, 0); err != nil {
			t.Fatal(err)
		}
		same(t, 2, len(layout(c)))
	})
}

// A median is asked of the chunk's owner, and that is another one by the time it is asked: the
// client does not hear of it.
func TestAChunkIsCutWhileItMoves(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"_id": 1}`)
		rows(t, c.Router, 30)
		coll := c.State().CollectionByName("db", "c")
		var asked atomic.Int64
		c.Fate(func(m routertest.Message) routertest.Fate {
			n := asked.Add(1)
			if m.Verb != "read" || n > 4 {
				return routertest.Deliver
			}
			for _, h := range c.State().Shards() {
				if h.ID != m.Shard {
					c.Move(coll, []byte{1}, h.ID)
					break
				}
			}
			if n%2 == 0 {
				return routertest.LoseRequest
			}
			return routertest.Deliver
		})
		if err := c.Router.SplitChunk(t.Context(), ns, router.Where{Find: raw(t, `{"_id": 7}`)}, 0); err != nil {
			t.Fatal(err)
		}
		c.Fate(nil)
		if n := asked.Load(); n < 4 || len(layout(c)) != 2 || counted(t, c.Router, `{}`) != 30 {
			t.Errorf("after %d messages: %v, %d documents", n, layout(c), counted(t, c.Router, `{}`))
		}
	})
}
