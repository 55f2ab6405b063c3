package bench

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// bill is a whole stack on a store that counts, in a bubble of virtual time that stands
// still unless a test sleeps: nothing asks the store but what the test does.
type bill struct {
	t     testing.TB
	inner bucket.Bucket
	store *layer.Metered
	stack *localstack.Stack
}

// quiet makes a stack do nothing by itself for a day.
var quiet = localstack.Options{Lease: 24 * time.Hour, CollectEvery: 24 * time.Hour}

// inBubble runs a test on a new stack.
func inBubble(t *testing.T, o localstack.Options, f func(x *bill)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f(open(t, membucket.New(), o))
	})
}

func open(t testing.TB, inner bucket.Bucket, o localstack.Options) *bill {
	t.Helper()
	x := &bill{t: t, inner: inner, store: layer.Metrics(inner)}
	x.stack = startStack(t, x.store, o)
	return x
}

// costs asserts what f asks of the store: "put wal=1 get seg=2", nothing is "".
func (x *bill) costs(what, want string, f func()) {
	x.t.Helper()
	if got := x.spent(f).String(); got != want {
		x.t.Errorf("%s: asked the store for %q, want %q", what, got, want)
	}
}

// spent is what f asks of the store.
func (x *bill) spent(f func()) layer.Snapshot {
	before := x.store.Snapshot()
	f()
	return x.store.Snapshot().Sub(before)
}

// do runs a command on the database "bench", which must succeed.
func (x *bill) do(command ...bson.E) bson.Raw {
	x.t.Helper()
	return x.on("bench", command...)
}

func (x *bill) on(db string, command ...bson.E) bson.Raw {
	x.t.Helper()
	raw, err := bson.Marshal(append(bson.D(command), bson.E{Key: "$db", Value: db}))
	if err != nil {
		x.t.Fatal(err)
	}
	reply := x.stack.Commands.Do(context.Background(), raw)
	if ok, _ := reply.Lookup("ok").AsInt64OK(); ok != 1 || reply.Lookup("writeErrors").Type != 0 {
		x.t.Fatalf("%v: %v", command[0], reply)
	}
	return reply
}

// insert stores documents {_id, k} with k = from, from+1, ...; k is the shard key of "docs".
func (x *bill) insert(from, n int) {
	x.t.Helper()
	var list bson.A
	for k := from; k < from+n; k++ {
		list = append(list, row(k))
	}
	x.do(bson.E{Key: "insert", Value: "docs"}, bson.E{Key: "documents", Value: list}, bson.E{Key: "ordered", Value: false})
}

// sharded makes "docs", cut at the points.
func (x *bill) sharded(points ...int32) {
	x.t.Helper()
	var at bson.A
	for _, k := range points {
		at = append(at, bson.D{{Key: "k", Value: k}})
	}
	x.on("admin", bson.E{Key: "shardCollection", Value: "bench.docs"}, bson.E{Key: "key", Value: bson.D{{Key: "k", Value: 1}}},
		bson.E{Key: "splitPoints", Value: at})
}

// row is the filter that names one row: shard key and _id.
func row(k int) bson.D {
	return bson.D{{Key: "k", Value: k}, {Key: "_id", Value: fmt.Sprintf("%06d", k)}}
}

func (x *bill) find(k int) {
	x.t.Helper()
	reply := x.do(bson.E{Key: "find", Value: "docs"}, bson.E{Key: "filter", Value: row(k)})
	if got := len(elements(x.t, reply.Lookup("cursor", "firstBatch"))); got != 1 {
		x.t.Errorf("find k = %d: %d documents", k, got)
	}
}

func elements(t testing.TB, array bson.RawValue) []bson.RawValue {
	t.Helper()
	list, err := array.Array().Values()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// chunks are those of "docs".
func (x *bill) chunks() (list []*manifest.Chunk) {
	st := x.stack.Root.State()
	for c := range st.Chunks(st.CollectionByName("bench", "docs").ID) {
		list = append(list, c)
	}
	return list
}

// flush has every shard bring what it acknowledged into segments.
func flush(tb testing.TB, s *localstack.Stack) {
	tb.Helper()
	for _, shard := range s.Root.State().Shards() {
		if _, err := s.Writer.Flush(context.Background(), &rpc.FlushRequest{Header: rpc.Header{Shard: shard.ID}}); err != nil {
			tb.Fatal(err)
		}
	}
}

// A batch is one PUT for each shard that it touches, whatever it does to how many chunks and
// documents; finding out what is there already costs nothing while that is in memory.
func TestRequestsOfWrites(t *testing.T) {
	inBubble(t, quiet, func(x *bill) {
		x.sharded(100, 200, 300, 400, 500)
		x.costs("insert into one chunk", "put wal=1", func() { x.insert(0, 100) })
		x.costs("insert into six chunks of three shards", "put wal=3", func() { x.insert(101, 499) })
		x.costs("update by key", "put wal=1", func() { x.update(statement(row(7), false)) })
		x.costs("update of all", "put wal=3", func() { x.update(statement(bson.D{}, true)) })
		x.costs("findAndModify", "put wal=1", func() {
			x.do(bson.E{Key: "findAndModify", Value: "docs"}, bson.E{Key: "query", Value: row(7)}, bson.E{Key: "update", Value: plusOne})
		})
		gone := bson.A{bson.D{{Key: "q", Value: row(7)}, {Key: "limit", Value: 1}}}
		x.costs("delete by key", "put wal=1", func() { x.do(bson.E{Key: "delete", Value: "docs"}, bson.E{Key: "deletes", Value: gone}) })
		x.costs("delete of what is not there, which a retry must not delete later", "put wal=1", func() {
			x.do(bson.E{Key: "delete", Value: "docs"}, bson.E{Key: "deletes", Value: gone})
		})
	})
}

// A write that its client may send again costs no more; what was done already, nothing. One
// that does not name the shard key leaves word at its home first of where it went.
func TestRequestsOfRetryableWrites(t *testing.T) {
	inBubble(t, quiet, func(x *bill) {
		x.sharded(100, 200, 300, 400, 500)
		x.insert(0, 600)
		lsid := bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}}
		send := func(txn int64, st bson.D) func() {
			return func() { x.update(st, lsid, bson.E{Key: "txnNumber", Value: txn}) }
		}
		x.costs("update by key", "put wal=1", send(1, statement(row(7), false)))
		x.costs("the same again", "", send(1, statement(row(7), false)))
		byID := bson.D{{Key: "_id", Value: "000007"}}
		x.costs("update by _id alone", "put wal=2", send(2, statement(byID, false)))
		x.costs("the same again", "", send(2, statement(byID, false)))
	})
}

var plusOne = bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}

// statement adds one to n.
func statement(filter bson.D, multi bool) bson.D {
	return bson.D{{Key: "q", Value: filter}, {Key: "u", Value: plusOne}, {Key: "multi", Value: multi}}
}

func (x *bill) update(st bson.D, more ...bson.E) {
	x.t.Helper()
	reply := x.do(append([]bson.E{{Key: "update", Value: "docs"}, {Key: "updates", Value: bson.A{st}}}, more...)...)
	if n, _ := reply.Lookup("n").AsInt64OK(); n == 0 {
		x.t.Errorf("%v: nothing was updated", st)
	}
}

// The owner answers from memory: rows that are not flushed always, those in segments once
// their blocks are in the cache.
func TestRequestsOfReadsAtTheOwner(t *testing.T) {
	inBubble(t, quiet, func(x *bill) {
		x.sharded(100, 200)
		x.insert(0, 300)
		x.costs("find in memory", "", func() { x.find(7) })
		x.costs("count in memory", "", func() { x.do(bson.E{Key: "count", Value: "docs"}) })
		flush(t, x.stack)
		x.costs("find in a small segment", "get seg=1", func() { x.find(7) })
		x.costs("find it again", "", func() { x.find(7) })
		x.costs("find its neighbour", "", func() { x.find(8) })
		x.costs("find what is not there", "", func() {
			x.do(bson.E{Key: "find", Value: "docs"}, bson.E{Key: "filter", Value: bson.D{{Key: "k", Value: 7}, {Key: "_id", Value: "x"}}})
		})
		x.costs("find verified", "get root=1", func() {
			x.do(bson.E{Key: "find", Value: "docs"}, bson.E{Key: "filter", Value: row(7)},
				bson.E{Key: "readConcern", Value: bson.D{{Key: "level", Value: "linearizable"}}})
		})
	})
}

// A point read opens each segment that may hold the key, and reads one block: S+1, or S while
// a few small ones come as a whole. A process that knows nothing reads the root before.
func TestRequestsOfColdPointReads(t *testing.T) {
	for segments, gets := range map[int]int{1: 1, 2: 2, 5: 6} {
		t.Run(fmt.Sprintf("%d segments", segments), func(t *testing.T) {
			inBubble(t, quiet, func(x *bill) {
				x.sharded(1 << 20)
				for i := range segments { // the range of each holds the keys of all others
					x.insert(1000*i, 50)
					x.insert(10_000+1000*i, 50)
					flush(x.t, x.stack)
				}
				const inOldest = 10_007 // the filters of the others say no
				if got := len(x.chunks()[0].Refs); got != segments {
					x.t.Fatalf("%d segments, want %d", got, segments)
				}
				x.close()
				x.costs("new process, nobody holds the shard", fmt.Sprintf("get root=1 get seg=%d", gets), func() { x.findAlone(inOldest) })
				x.reopen()
				x.costs("new owner", fmt.Sprintf("get seg=%d", gets), func() { x.find(inOldest) })
			})
		})
	}
}

// close is SIGTERM.
func (x *bill) close() {
	x.t.Helper()
	if err := x.stack.Close(context.Background()); err != nil {
		x.t.Fatal(err)
	}
}

// reopen is the next start, in a process that knows nothing.
func (x *bill) reopen() {
	x.t.Helper()
	x.stack = startStack(x.t, x.store, quiet)
}

// findAlone reads as a process does that is a router only, and was never here before.
func (x *bill) findAlone(k int) {
	x.t.Helper()
	h := host.System()
	location := func(manifest.LocationID) (bucket.Bucket, error) { return x.store, nil }
	r := router.New(router.Config{
		Root: manifest.NewRoot(bucket.NewCell(x.store), h, nil), Dialer: rpc.NewLocal(nil),
		Store: reader.NewStore(location, segment.NewCache(1<<20)), Host: h,
	})
	filter, err := bson.Marshal(row(k))
	if err != nil {
		x.t.Fatal(err)
	}
	cur, err := r.Find(context.Background(), router.Namespace{Database: "bench", Collection: "docs"}, router.Query{Filter: filter})
	if err != nil {
		x.t.Fatal(err)
	}
	defer cur.Close(context.Background())
	if doc, err := cur.Next(context.Background(), 1); doc == nil || err != nil {
		x.t.Errorf("find k = %d: %v, %v", k, doc, err)
	}
}
