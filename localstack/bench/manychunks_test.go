package bench

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

var manyChunks = flag.Int("chunks", 100_000, "chunks of the collection in BenchmarkManyChunks")

// many is a bill whose collection "docs" has n chunks of one k each, dealt to three shards in
// turn: nothing may be merged, and nothing is uneven.
func many(t testing.TB, n int, o localstack.Options) *bill {
	t.Helper()
	x := open(t, membucket.New(), o)
	pattern := shardkey.Pattern{Fields: []shardkey.Field{{Path: "k"}}}
	bound := func(i int) manifest.Bound {
		d := bson.D{{Key: "k", Value: int32(i)}}
		switch i {
		case 0:
			d[0].Value = bson.MinKey{}
		case n:
			d[0].Value = bson.MaxKey{}
		}
		raw, err := bson.Marshal(d)
		if err != nil {
			x.t.Fatal(err)
		}
		key, full, err := pattern.Bound(raw)
		if err != nil {
			x.t.Fatal(err)
		}
		return manifest.Bound{Key: key, BSON: full}
	}
	h := host.System()
	c := manifest.CreateCollection{Collection: manifest.Collection{UUID: h.ID16(), Database: "bench", Name: "docs", Sharded: true, Key: pattern}}
	for i := range n {
		c.Chunks = append(c.Chunks, manifest.NewChunk{Min: bound(i), Max: bound(i + 1), Shard: manifest.ShardID(fmt.Sprintf("shard%02d", i%3+1))})
	}
	x.commit(c)
	return x
}

// someChunks are enough for many pages of the chunk list, and few enough for a test.
const someChunks = 5000

// What an operation asks of the store does not depend on how many chunks its collection has: a
// change writes the root, which carries the page that it touched, and now and then a page that
// leaves it; a router that knows an older root reads what changed; nobody asks anything to plan.
func TestRequestsAtManyChunks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := many(t, someChunks, quiet)
		x.costs("insert", "put wal=1", func() { x.insert(700, 1) })
		x.costs("find", "", func() { x.find(700) })
		x.costs("flush of one chunk", "put root=1 put seg=1", func() { flush(t, x.stack) })
		x.costs("find in a segment", "get seg=1", func() { x.find(700) })
		x.small("split", 1, func() {
			x.on("admin", bson.E{Key: "split", Value: "bench.docs"}, bson.E{Key: "middle", Value: bson.D{{Key: "k", Value: 700.5}}})
		})
		x.small("move", 1, func() { x.move(x.chunkOf(700), "shard03") })
		x.small("fifty splits", 50, func() {
			for i := range 50 {
				x.on("admin", bson.E{Key: "split", Value: "bench.docs"}, bson.E{Key: "middle", Value: bson.D{{Key: "k", Value: 100*float64(i) + 0.25}}})
			}
		})
		x.costs("a pass of the upkeep", "", func() {
			if _, err := x.stack.Upkeep().Pass(t.Context()); err != nil {
				t.Error(err)
			}
		})
		x.costs("a pass of the rewriter", "", func() {
			if more, err := x.stack.Rewriter().Pass(t.Context()); err != nil || more {
				t.Error(more, err)
			}
		})
		x.costs("a plan of the balancer", "get root=1", func() {
			if p, err := x.stack.Balancer.Plan(t.Context()); err != nil || len(p.Actions) > 0 {
				t.Errorf("%d actions, %v", len(p.Actions), err)
			}
		})
		x.costs("config.chunks, some", "get root=1", func() {
			x.on("config", bson.E{Key: "find", Value: "chunks"}, bson.E{Key: "limit", Value: 10})
		})
	})
}

// small asserts that f is n changes of the root: each no more than 128 KB together with the pages
// that it writes, of which there are few, and nothing is read but the root.
func (x *bill) small(what string, n int64, f func()) {
	x.t.Helper()
	got := x.spent(f)
	put := got.Total(layer.Put)
	pages := got.Of(layer.Put, layer.Page).Requests
	if got.Of(layer.Put, layer.Root).Requests != n || put.Requests-pages != n || pages > 2*n || put.Bytes > n*(128<<10) || got.Total(layer.Get).Requests > n ||
		got.Of(layer.Get, layer.Root) != got.Total(layer.Get) {
		x.t.Errorf("%s: asked the store for %v, %d bytes", what, got, put.Bytes)
	}
}

func (x *bill) chunkOf(k int) *manifest.Chunk {
	x.t.Helper()
	st := x.stack.Root.State()
	c := st.CollectionByName("bench", "docs")
	return st.ChunkOf(c.ID, x.bound(c.ID, k).Key)
}

// TestARouterAtManyChunksReadsWhatChanged: a router that knows the root of before a split reads the
// new root, and no page; and a writer that takes a shard over that has a third of the chunks reads
// none either.
func TestARouterAtManyChunksReadsWhatChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := many(t, someChunks, localstack.Options{Lease: time.Second, CollectEvery: quiet.CollectEvery})
		other := manifest.NewRoot(bucket.NewCell(x.store), host.System(), nil)
		load := func() {
			if _, _, err := other.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		pages := int64(len(x.stack.Root.State().Pages()))
		if got := x.spent(load).Of(layer.Get, layer.Page).Requests; got == 0 || got > pages {
			t.Errorf("a router that knows nothing reads %d of %d pages", got, pages)
		}
		x.on("admin", bson.E{Key: "split", Value: "bench.docs"}, bson.E{Key: "middle", Value: bson.D{{Key: "k", Value: 700.5}}})
		x.costs("a refresh after a split", "get root=1", load)
		x.insert(700, 1)
		x.insert(701, 1)

		location := func(manifest.LocationID) (bucket.Bucket, error) { return x.store, nil }
		w := writer.New(writer.Config{
			Root: other, Bucket: x.store, Store: reader.NewStore(location, segment.NewCache(1<<20)), Host: host.System(), Holder: "another",
			Dial: rpc.NewLocal(nil), Settings: writer.Settings{Lease: time.Second},
		})
		defer w.Abandon()
		shard := x.chunkOf(700).Shard
		got := x.spent(func() {
			if err := w.Hold(t.Context(), shard); err != nil {
				t.Fatal(err)
			}
		})
		if got.Of(layer.Get, layer.Page).Requests > 1 || got.Of(layer.Put, layer.Root).Requests != 1 || got.Of(layer.Put, layer.Segment).Requests != 0 {
			t.Errorf("a takeover of a third of the chunks asked the store for %v", got)
		}
		if n := w.Status().Shards[0]; n.Chunks < someChunks/3 || n.Rows != 1 {
			t.Errorf("%d chunks and %d rows were taken over", n.Chunks, n.Rows)
		}
	})
}

// BenchmarkManyChunks is what is done per operation, per second and per event, on a collection of
// -chunks chunks. Processor time is of the whole process, in which every shard is. On a busy
// machine of two cores, with 100,000:
//
//	insert, find by key               0.2 ms, 0.1 ms
//	flush of one chunk, three shards  4 ms
//	split, move                       2.6 ms each, 21 KB put
//	pass of the upkeep, the rewriter  11 ms, 15 ms; at most once a second, without garbage
//	plan of the balancer              34 ms, every 10 s
//	config.chunks                     0.05 ms for one, 21 ms for a count by shard
//	start of a process                0.45 s, of which most is reading 1,040 pages
func BenchmarkManyChunks(b *testing.B) {
	o := quiet
	o.Lease = time.Second
	x := many(b, *manyChunks, o)
	rnd := rand.New(rand.NewPCG(1, 2))
	next := 1 << 24
	ctx := context.Background()
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			before, n := x.store.Snapshot(), 0
			cpu := cpuTime()
			for b.Loop() {
				f()
				n++
			}
			spent := x.store.Snapshot().Sub(before)
			b.ReportMetric(float64(cpuTime()-cpu)/float64(time.Microsecond)/float64(n), "cpu-µs/op")
			b.ReportMetric(float64(spent.Total(layer.Put).Bytes)/float64(n), "put-bytes/op")
			b.ReportMetric(float64(spent.Total(layer.Put).Requests)/float64(n), "puts/op")
			b.ReportMetric(float64(spent.Total(layer.Get).Requests)/float64(n), "gets/op")
		})
	}
	insert := func() {
		next++
		x.do(bson.E{Key: "insert", Value: "docs"}, bson.E{Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: rnd.IntN(*manyChunks)}, {Key: "_id", Value: next}}}})
	}
	run("insert", insert)
	x.insert(7, 1)
	run("find", func() { x.find(7) })
	run("flush", func() { insert(); flush(b, x.stack) })
	run("move", func() {
		c := x.chunkOf(rnd.IntN(*manyChunks))
		x.move(c, manifest.ShardID(fmt.Sprintf("shard%02d", int(c.Shard[6]-'0')%3+1)))
	})
	run("split", func() {
		x.on("admin", bson.E{Key: "split", Value: "bench.docs"}, bson.E{Key: "middle", Value: bson.D{{Key: "k", Value: float64(rnd.IntN(*manyChunks)) + rnd.Float64()}}})
	})
	run("upkeep pass", func() {
		if _, err := x.stack.Upkeep().Pass(ctx); err != nil {
			b.Fatal(err)
		}
	})
	run("rewriter pass", func() {
		x.stack.Rewriter().Plan(x.stack.Root.State())
	})
	run("balancer plan", func() {
		if _, err := x.stack.Balancer.Plan(ctx); err != nil {
			b.Fatal(err)
		}
	})
	uuid := x.stack.Root.State().CollectionByName("bench", "docs").UUID
	run("config.chunks of one shard, counted", func() {
		x.on("config", bson.E{Key: "count", Value: "chunks"}, bson.E{Key: "query", Value: bson.D{{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: uuid[:]}}, {Key: "shard", Value: "shard01"}}})
	})
	run("config.chunks, one", func() {
		x.on("config", bson.E{Key: "find", Value: "chunks"}, bson.E{Key: "filter", Value: bson.D{{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: uuid[:]}}}}, bson.E{Key: "limit", Value: 1})
	})
	run("takeover", func() {
		x.stack.Writer.Abandon()
		x.stack = startStack(b, x.store, o)
	})
}
