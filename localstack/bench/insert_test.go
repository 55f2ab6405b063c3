package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"
)

const (
	batchDocs = 1000
	// clients send batches at once: enough that one is at work while another waits for the
	// store.
	clients = 4
)

// BenchmarkInsert sends batches of 1000 documents of 300 bytes through the wire protocol to
// a directory store, every one durable when it is answered. An operation is a batch.
//
// Beside it, in the same run: the same documents handed to the writer without the wire and
// the router, and sent to a server that acknowledges without doing anything.
func BenchmarkInsert(b *testing.B) {
	for _, sharded := range []bool{false, true} {
		for _, ordered := range []bool{false, true} {
			name := map[bool]string{false: "unsharded", true: "6chunks"}[sharded] +
				map[bool]string{false: "/unordered", true: "/ordered"}[ordered]
			b.Run(name, func(b *testing.B) { benchmarkInsert(b, sharded, ordered) })
		}
	}
}

func benchmarkInsert(b *testing.B, sharded, ordered bool) {
	stack := startStack(b, openDir(b), localstack.Options{})
	client := serve(b, stack.Commands)
	for _, name := range []string{"wire", "writer"} {
		if sharded {
			shard(b, client, "bench."+name, "customer")
		} else if err := client.Database("bench").CreateCollection(context.Background(), name); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	n := 0
	whole := spread(b, "", func() bool { n++; return b.Loop() }, inserter(client, "wire", ordered))
	b.StopTimer()
	times := func() func() bool {
		left := n
		return func() bool { left--; return left > 0 }
	}
	share := spread(b, "writer-", times(), direct(b, stack, ordered))
	b.ReportMetric(share.Seconds()/whole.Seconds(), "writer-share")
	devNull := serve(b, acknowledging{stack.Commands})
	spread(b, "driver-", times(), inserter(devNull, "null", ordered))
}

// spread has the clients do one operation after another while there are more. It reports
// documents per second, to the last answer, and the processor time of a document.
func spread(b *testing.B, name string, more func() bool, do func(d *docs) error) (cpuPerDoc time.Duration) {
	work := make(chan struct{})
	wait := crew(b, work, do)
	n, start, cpu := 0, time.Now(), cpuTime()
	for more() {
		work <- struct{}{}
		n += batchDocs
	}
	close(work)
	wait()
	b.ReportMetric(float64(n)/time.Since(start).Seconds(), name+"docs/s")
	cpuPerDoc = (cpuTime() - cpu) / time.Duration(n)
	b.ReportMetric(float64(cpuPerDoc.Nanoseconds())/1e3, name+"cpu-µs/doc")
	return cpuPerDoc
}

// crew starts the clients; wait waits for them.
func crew(b *testing.B, work <-chan struct{}, do func(d *docs) error) (wait func()) {
	var all sync.WaitGroup
	for i := range clients {
		d := newDocs(uint64(i))
		all.Go(func() {
			for range work {
				if err := do(d); err != nil {
					b.Error(err)
				}
			}
		})
	}
	return all.Wait
}

func inserter(client *mongo.Client, collection string, ordered bool) func(d *docs) error {
	coll := client.Database("bench").Collection(collection)
	return func(d *docs) error {
		_, err := coll.InsertMany(context.Background(), d.batch(batchDocs), options.InsertMany().SetOrdered(ordered))
		return err
	}
}

// direct hands batches to the writer as a router does: each under a retry id of its own, all
// shards at once.
func direct(b *testing.B, stack *localstack.Stack, ordered bool) func(d *docs) error {
	coll := stack.Root.State().CollectionByName("bench", "writer")
	var txn atomic.Int64
	return func(d *docs) error {
		op := rpc.OpID{Session: [32]byte{1}, Txn: txn.Add(1)}
		var all errgroup.Group
		for shard, r := range writes(b, stack.Root.State(), coll, d.batch(batchDocs), op) {
			r.Shard, r.Ordered = shard, ordered
			all.Go(func() error { return write(stack, r) })
		}
		return all.Wait()
	}
}

func write(stack *localstack.Stack, r *rpc.WriteRequest) error {
	reply, err := stack.Writer.Write(context.Background(), r)
	if err != nil {
		return err
	}
	for _, res := range reply.Results {
		if res.Err != nil {
			return res.Err
		}
	}
	return nil
}

// writes are the requests that insert documents, by shard.
func writes(b *testing.B, st *manifest.State, coll *manifest.Collection, list []bson.Raw, op rpc.OpID) map[manifest.ShardID]*rpc.WriteRequest {
	requests := make(map[manifest.ShardID]*rpc.WriteRequest)
	targets := make(map[manifest.ChunkID]int)
	var key []byte
	for i, doc := range list {
		var err error
		if key, err = coll.Key.AppendKey(key[:0], doc); err != nil {
			b.Error(err)
		}
		c := st.ChunkOf(coll.ID, key)
		r := requests[c.Shard]
		if r == nil {
			r = &rpc.WriteRequest{Header: rpc.Header{Collection: coll.ID, RootVersion: st.Version()}}
			requests[c.Shard] = r
		}
		t, ok := targets[c.ID]
		if !ok {
			t = len(r.Targets)
			targets[c.ID] = t
			r.Targets = append(r.Targets, rpc.Target{ID: c.ID, Version: c.Version, Min: c.Range.Min})
		}
		op.Stmt = int32(i)
		r.Ops = append(r.Ops, rpc.WriteOp{Kind: rpc.Insert, Op: op, Target: t, Doc: doc})
	}
	return requests
}

// acknowledging answers inserts without doing them.
type acknowledging struct{ wire.Handler }

func (a acknowledging) Handle(ctx context.Context, c *wire.Conn, m *wire.Request) bson.Raw {
	if m.Command != "insert" {
		return a.Handler.Handle(ctx, c, m)
	}
	reply, err := bson.Marshal(bson.D{{Key: "n", Value: int32(len(m.Sequence("documents")))}, {Key: "ok", Value: 1.0}})
	if err != nil {
		panic(err)
	}
	return reply
}
