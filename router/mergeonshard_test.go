package router_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// TestNeighboursOfAShardBecomeOne merges 200 chunks of one shard, whose rows are partly in
// segments and partly in the log, in as many commits as halve them; a shard's chunks that do
// not touch stay apart.
func TestNeighboursOfAShardBecomeOne(t *testing.T) {
	in(t, routertest.Options{Shards: 1}, func(t *testing.T, c *routertest.Cluster) {
		var points []string
		for i := 1; i < 200; i++ {
			points = append(points, fmt.Sprintf(`{"_id": %d}`, i))
		}
		shard(t, c.Router, `{"_id": 1}`, points...)
		rows(t, c.Router, 200)
		before := c.State().Version()
		if err := c.Router.MergeOnShard(context.Background(), ns, "shard01", 0, 0); err != nil {
			t.Fatal(err)
		}
		coll := c.State().CollectionByName("db", "c")
		same(t, 1, c.State().NumChunks(coll.ID))
		if commits := c.State().Version() - before; commits > 10 {
			t.Fatalf("%d commits for 200 chunks", commits)
		}
		same(t, all(200), find(t, c.Router, `{}`, sorted(t, `{"_id": 1}`)))
	})
}

func TestAMergeIsBoundedAndSkipsOthersChunks(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"_id": 1}`, `{"_id": 10}`, `{"_id": 20}`, `{"_id": 30}`, `{"_id": 40}`)
		rows(t, c.Router, 50)
		coll := c.State().CollectionByName("db", "c")
		for _, at := range []int{5, 15, 35, 45} {
			if chunk := c.State().ChunkOf(coll.ID, key(t, coll, at)); chunk.Shard != "shard01" {
				c.Move(coll, key(t, coll, at), "shard01")
			}
		}
		if chunk := c.State().ChunkOf(coll.ID, key(t, coll, 25)); chunk.Shard == "shard01" {
			c.Move(coll, key(t, coll, 25), "shard02")
		}
		if err := c.Router.MergeOnShard(context.Background(), ns, "shard01", 2, 0); err != nil {
			t.Fatal(err)
		}
		var mins []string
		for chunk := range c.State().Chunks(coll.ID) {
			mins = append(mins, chunk.MinBSON.String())
		}
		same(t, []string{`{"_id": {"$minKey":1}}`, `{"_id": {"$numberInt":"20"}}`, `{"_id": {"$numberInt":"30"}}`}, mins)
		same(t, all(50), find(t, c.Router, `{}`, sorted(t, `{"_id": 1}`)))
	})
}

// TestAMergeStopsAtTheEndsOfZones: the chunks beside an end stay apart.
func TestAMergeStopsAtTheEndsOfZones(t *testing.T) {
	in(t, routertest.Options{Shards: 1}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"_id": 1}`, `{"_id": 10}`, `{"_id": 20}`, `{"_id": 30}`, `{"_id": 40}`)
		if err := c.Router.AddShardToZone(ctx, "shard01", "EU", 0); err != nil {
			t.Fatal(err)
		}
		z := router.ZoneBounds{Zone: "EU", Min: raw(t, `{"_id": 20}`), Max: raw(t, `{"_id": 40}`)}
		if err := c.Router.SetZoneRange(ctx, ns, z, 0); err != nil {
			t.Fatal(err)
		}
		if err := c.Router.MergeOnShard(ctx, ns, "shard01", 0, 0); err != nil {
			t.Fatal(err)
		}
		var mins []string
		for chunk := range c.State().AllChunks() {
			mins = append(mins, chunk.MinBSON.String())
		}
		same(t, []string{`{"_id": {"$minKey":1}}`, `{"_id": {"$numberInt":"20"}}`, `{"_id": {"$numberInt":"40"}}`}, mins)
	})
}

// TestFiguresCountWhatIsNotFlushed: documents are counted exactly before and after they are in
// segments, and their size is about what it is.
func TestFiguresCountWhatIsNotFlushed(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		size := int64(len(raw(t, doc(1, 1))))
		check := func(want int64, stored bool) {
			t.Helper()
			figures, err := c.Router.Figures(context.Background(), ns, 0)
			if err != nil || len(figures) != 3 {
				t.Fatalf("%+v, %v", figures, err)
			}
			var sum router.ShardFigures
			for _, f := range figures {
				sum.Chunks += f.Chunks
				sum.Documents += f.Documents
				sum.Bytes += f.Bytes
				sum.Stored += f.Stored
			}
			same(t, 3, sum.Chunks)
			same(t, want, sum.Documents)
			if sum.Bytes < want*size || sum.Bytes > want*(size+40) || stored != (sum.Stored > 0) {
				t.Fatalf("%+v for %d documents of %d bytes", sum, want, size)
			}
		}
		check(30, false)
		for _, h := range c.State().Shards() {
			c.Stop(h.ID)
		}
		check(30, true)
		write(t, c.Router, insertOf(t, doc(30, 0)), insertOf(t, doc(31, 1)), deleteOf(t, `{"_id": 3}`))
		check(31, true)
	})
}

// TestASplitOnAnOldMapIsRight cuts through a router that does not know what others did since:
// what it plans on its old map is refused and planned again, and what it says is of the newest.
func TestASplitOnAnOldMapIsRight(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		thirds(t, c.Router)
		old := c.NewRouter(router.Settings{})
		split := func(r *router.Router, at int) error {
			return r.SplitChunk(ctx, ns, router.Where{Middle: raw(t, fmt.Sprintf(`{"_id": %d}`, at))}, 0)
		}
		for _, at := range []int{3, 6, 13} {
			if err := split(c.Router, at); err != nil {
				t.Fatal(err)
			}
		}
		wantCode(t, split(old, 6), mongoerr.BadValue)
		old = c.NewRouter(router.Settings{})
		if err := split(c.Router, 16); err != nil {
			t.Fatal(err)
		}
		if err := split(old, 15); err != nil {
			t.Fatal(err)
		}
		coll := c.State().CollectionByName("db", "c")
		same(t, 8, c.State().NumChunks(coll.ID))
		if _, err := c.Router.Drop(ctx, ns, 0); err != nil {
			t.Fatal(err)
		}
		wantCode(t, split(old, 17), mongoerr.NamespaceNotSharded)
	})
}

// TestAChunkThatCameIsMerged: a chunk that moved to a shard has a floor of its own there, which
// nothing but a flush takes away, also when there is nothing to flush.
func TestAChunkThatCameIsMerged(t *testing.T) {
	in(t, routertest.Options{Shards: 2}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		thirds(t, c.Router)
		coll := c.State().CollectionByName("db", "c")
		place := func(at int, to manifest.ShardID) {
			if c.State().ChunkOf(coll.ID, key(t, coll, at)).Shard != to {
				c.Move(coll, key(t, coll, at), to)
			}
		}
		place(5, "shard01")
		place(15, "shard02")
		place(25, "shard01")
		rows(t, c.Router, 10) // shard01's log has something
		place(5, "shard02")   // and nothing of it is left there
		place(15, "shard01")
		if err := c.Router.MergeOnShard(ctx, ns, "shard01", 0, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		same(t, 2, c.State().NumChunks(coll.ID))
		same(t, all(10), find(t, c.Router, `{}`, sorted(t, `{"_id": 1}`)))
	})
}
