package router_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// alternating shards db.c by k at 10, 20 and 30, with the chunks on shard01, 02, 01, 02, and
// a document of each k below 40.
func alternating(t testing.TB, c *routertest.Cluster) {
	t.Helper()
	shard(t, c.Router, `{"k": 1}`, `{"k": 10}`, `{"k": 20}`, `{"k": 30}`)
	coll := c.State().CollectionByName("db", "c")
	i := 0
	for chunk := range c.State().Chunks(coll.ID) {
		if to := []manifest.ShardID{"shard01", "shard02"}[i%2]; chunk.Shard != to {
			c.Move(coll, chunk.Range.Min, to)
		}
		i++
	}
	var list []router.Statement
	for i := range 40 {
		list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "k": %d}`, i, i)))
	}
	write(t, c.Router, list...)
}

// refresh shows a router the newest root.
func refresh(t testing.TB, r *router.Router) {
	t.Helper()
	if _, _, err := r.Root().Load(context.Background()); err != nil {
		t.Error(err)
	}
}

// ids are those of a cursor's next documents.
func ids(t testing.TB, cur *router.Cursor, n int) (list []int) {
	t.Helper()
	docs, err := cur.Batch(context.Background(), n, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range docs {
		list = append(list, int(d.Lookup("_id").AsInt64()))
	}
	return list
}

// upTo is 0 to n-1, or back.
func upTo(n int, back bool) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	if back {
		slices.Reverse(list)
	}
	return list
}

// Documents go from chunk to chunk of one shard, without any change of the root, while a read
// in key order is between these chunks: it shows the moment at which it began.
func TestAnOrderedReadIsOfOneMomentWhileKeysChange(t *testing.T) {
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprint("back ", back), func(t *testing.T) {
			in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
				alternating(t, c)
				order := `{"k": 1}`
				if back {
					order = `{"k": -1}`
				}
				cursor := func(limit int64) *router.Cursor {
					cur, err := c.Router.Find(context.Background(), ns, router.Query{Sort: raw(t, order), First: 3, Limit: limit})
					if err != nil {
						t.Fatal(err)
					}
					return cur
				}
				first := cursor(0)
				seen := ids(t, first, 3)
				write(t, c.Router, updateOf(t, `{"k": 5}`, `{"$set": {"k": 25}}`)) // the first in the collection
				_, err := first.Batch(context.Background(), 0, 1<<20)
				wantCode(t, err, mongoerr.SnapshotUnavailable)
				write(t, c.Router, updateOf(t, `{"k": 25, "_id": 5}`, `{"$set": {"k": 5}}`))
				same(t, upTo(40, back)[:3], seen)

				refresh(t, c.Router)
				cur := cursor(0)
				seen = ids(t, cur, 3)
				for _, k := range [][2]int{{6, 26}, {25, 7}, {13, 33}, {36, 12}} {
					write(t, c.Router, updateOf(t, fmt.Sprintf(`{"k": %d}`, k[0]), fmt.Sprintf(`{"$set": {"k": %d}}`, k[1])))
				}
				same(t, upTo(40, back), append(seen, ids(t, cur, 0)...))

				c.Reset()
				cur = cursor(3) // the first chunk has three
				same(t, upTo(40, back)[:3], ids(t, cur, 0))
				same(t, 1, c.Sent("read"))
				n, err := c.Router.Count(context.Background(), ns, router.Query{})
				if err != nil || n != 40 {
					t.Fatalf("count %d, %v", n, err)
				}
			})
		})
	}
}

// A shard got a chunk after a scatter was planned, and moved a document between it and
// another of its chunks; the other shard was asked for that chunk before. The scatter is
// planned again.
func TestAScatterDoesNotMissADocumentThatFollowedItsChunk(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		alternating(t, c)
		write(t, c.Router, updateOf(t, `{"k": 5}`, `{"$set": {"k": 25}}`))
		coll := c.State().CollectionByName("db", "c")
		r := c.NewRouter(router.Settings{Fanout: 1})
		reads := 0
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb != "read" {
				return routertest.Deliver
			}
			if reads++; m.Shard == "shard02" && reads <= 2 {
				// shard01 has answered: its chunk below 10 follows to shard02, and a document
				// in it goes on to a chunk that was there all the time.
				c.Move(coll, nil, "shard02")
				refresh(t, c.Router)
				write(t, c.Router, updateOf(t, `{"k": 35}`, `{"$set": {"k": 4}}`))
			}
			return routertest.Deliver
		})
		n, err := r.Count(context.Background(), ns, router.Query{})
		if err != nil || n != 40 {
			t.Fatalf("count %d after %d reads, %v", n, reads, err)
		}
		if reads <= 2 {
			t.Fatal("it was not planned again")
		}
	})
}

// wantResults runs one statement and compares its counts.
func wantResult(t testing.TB, r *router.Router, s router.Statement, n, modified int64) rpc.WriteResult {
	t.Helper()
	res := write(t, r, s)[0].WriteResult
	if res.N != n || res.Modified != modified {
		t.Fatalf("matched %d, modified %d, want %d and %d", res.N, res.Modified, n, modified)
	}
	return res
}

// An update of many that moves documents ahead of itself into other chunks of the shard
// changes each once, whatever becomes of answers.
func TestAMultiMovesEveryMatchOnce(t *testing.T) {
	in(t, routertest.Options{Shards: 1}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`, `{"k": 10}`, `{"k": 20}`, `{"k": 30}`)
		var list []router.Statement
		for i := range 40 {
			list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "k": %d}`, i, i)))
		}
		write(t, c.Router, list...)
		lost := 0
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb == "write" && lost < 2 {
				lost++
				return routertest.LoseReply
			}
			return routertest.Deliver
		})
		wantResult(t, c.Router, many(updateOf(t, `{}`, `{"$inc": {"k": 15, "n": 1}}`)), 40, 40)
		same(t, 40, len(find(t, c.Router, `{"n": 1}`)))
		same(t, 15, len(find(t, c.Router, `{"k": {"$gte": 40}}`)))
	})
}
