package writer

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// bulk makes one request of n inserts of 300 B, with ascending ids or random ones.
func bulk(st *manifest.State, session byte, txn int64, n int, id func() [12]byte) *rpc.WriteRequest {
	coll := st.CollectionByName("db", "c")
	r := &rpc.WriteRequest{Header: rpc.Header{Shard: "a", Collection: coll.ID, RootVersion: st.Version(), Deadline: 30 * time.Second}, Ordered: true}
	at := make(map[manifest.ChunkID]int)
	for i := range n {
		d := raw(bson.D{
			{Key: "_id", Value: bson.ObjectID(id())}, {Key: "customer", Value: "customer-0042-of-the-shop"}, {Key: "amount", Value: 12.5 * float64(i)},
			{Key: "city", Value: "Amsterdam"}, {Key: "text", Value: "some text that makes the document about as long as an order usually is, which is about three hundred bytes of BSON all in all"},
			{Key: "lines", Value: bson.A{1, 2, 3}}, {Key: "done", Value: false}, {Key: "at", Value: time.UnixMilli(int64(1e12) + int64(i))},
		})
		key, err := coll.Key.AppendKey(nil, d)
		if err != nil {
			panic(err)
		}
		chunk := st.ChunkOf(coll.ID, key)
		if _, ok := at[chunk.ID]; !ok {
			at[chunk.ID] = len(r.Targets)
			r.Targets = append(r.Targets, rpc.Target{ID: chunk.ID, Version: chunk.Version})
		}
		r.Ops = append(r.Ops, rpc.WriteOp{Kind: rpc.Insert, Target: at[chunk.ID], Doc: d, Op: rpc.OpID{Session: [32]byte{session}, Txn: txn, Stmt: int32(i)}})
	}
	return r
}

// Inserts in batches of 1000 from two clients, on a bucket in memory: the writer alone,
// flushes included.
func BenchmarkBulkInsert(b *testing.B) {
	for _, order := range []string{"ascending", "random"} {
		b.Run(order, func(b *testing.B) {
			w := newWorld(b)
			defer w.stop()
			p := w.process("p", func(s *Settings) { *s = Settings{} }).holds("a")
			w.collection("a")
			st := w.state()
			rng := rand.New(rand.NewPCG(1, 2))
			var n uint64
			var requests []*rpc.WriteRequest
			size := 0
			for i := range 400 {
				requests = append(requests, bulk(st, byte(1+i%2), int64(i+1), 1000, func() (id [12]byte) {
					n++
					binary.BigEndian.PutUint64(id[:], n)
					if order == "random" {
						binary.BigEndian.PutUint64(id[:], rng.Uint64())
					}
					return id
				}))
				size = len(requests[0].Ops[0].Doc)
			}
			b.SetBytes(int64(1000 * size))
			b.ResetTimer()
			start := time.Now()
			var both sync.WaitGroup
			for c := range 2 {
				both.Go(func() {
					for i := c; i < b.N; i += 2 {
						if i >= len(requests) {
							panic("run with -benchtime=400x at most")
						}
						if _, err := p.Write(context.Background(), requests[i]); err != nil {
							panic(err)
						}
					}
				})
			}
			both.Wait()
			b.ReportMetric(float64(1000*b.N)/time.Since(start).Seconds(), "docs/s")
			b.StopTimer()
			if s := p.Status().Shards[0].Counts; b.N > 100 {
				b.Logf("%d flushes, %d segments, %d batches", s.Flushes, s.Segments, s.Batches)
			}
		})
	}
}

// Point updates by key from several clients.
func BenchmarkUpdate(b *testing.B) {
	w := newWorld(b)
	defer w.stop()
	p := w.process("p", func(s *Settings) { *s = Settings{} }).holds("a")
	w.collection("a")
	c := w.client()
	for i := range 64 {
		c.insert(fmt.Sprintf("{_id: %d, v: 0}", i))
	}
	st := w.state()
	chunk := w.chunk(0)
	b.ResetTimer()
	var next sync.Mutex
	client := 0
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		next.Lock()
		client++
		id := client
		next.Unlock()
		op := updateOp(id, "{$inc: {v: 1}}")
		for n := int64(1); pb.Next(); n++ {
			op.Op = rpc.OpID{Session: [32]byte{byte(id + 10)}, Txn: n}
			r := &rpc.WriteRequest{
				Header:  rpc.Header{Shard: "a", Collection: chunk.Collection, RootVersion: st.Version(), Deadline: time.Second},
				Targets: []rpc.Target{{ID: chunk.ID, Version: chunk.Version}}, Ops: []rpc.WriteOp{op},
			}
			if _, err := p.Write(context.Background(), r); err != nil {
				panic(err)
			}
		}
	})
}

// A warm point read.
func BenchmarkPointRead(b *testing.B) {
	w := newWorld(b)
	defer w.stop()
	p := w.process("p", func(s *Settings) { s.Lease = time.Hour }).holds("a")
	w.collection("a")
	c := w.client()
	for i := range 1000 {
		c.insert(fmt.Sprintf("{_id: %d, v: 0}", i))
	}
	p.flushAll("a")
	st := w.state()
	chunk := w.chunk(0)
	r := &rpc.ReadRequest{
		Header:  rpc.Header{Shard: "a", Collection: chunk.Collection, RootVersion: st.Version(), Deadline: time.Second},
		Targets: []rpc.Target{{ID: chunk.ID, Version: chunk.Version}},
	}
	for b.Loop() {
		r.Targets[0].Ranges = pointRange(500)
		r.Query.Filter = doc500
		reply, err := p.Read(context.Background(), r)
		if err != nil || len(reply.Docs) != 1 {
			b.Fatal(reply, err)
		}
	}
}
