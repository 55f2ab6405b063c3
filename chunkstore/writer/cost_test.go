package writer

import (
	"fmt"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
)

// Requests to the bucket are money and time: each act costs exactly these.
func TestActsCostTheirRequests(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", longLease, quiet)
		w.collection("a")
		c := w.client()
		last := p.metered.Snapshot()
		cost := func(what, want string) {
			t.Helper()
			now := p.metered.Snapshot()
			if got := now.Sub(last).String(); got != want {
				t.Errorf("%s costs %q, want %q", what, got, want)
			}
			last = p.metered.Snapshot()
		}
		p.holds("a")
		cost("a claim of a free shard", "get root=1 put root=1")
		c.insert("{_id: 1}")
		cost("one durable write", "put wal=1")
		var ops []rpc.WriteOp
		for i := range 500 {
			ops = append(ops, c.op(insertOp(fmt.Sprintf("{_id: %d}", 10+i))))
		}
		_, err := c.send(t.Context(), ops...)
		check(t, err)
		cost("a batch of 500", "put wal=1")
		c.all()
		cost("a warm read", "")
		p.flushAll("a")
		cost("a flush", "put root=1 put seg=1")
		p.flushAll("a")
		cost("a flush of nothing", "")
		one := func(id any) {
			t.Helper()
			chunk := w.chunk(id)
			reply, err := p.Read(t.Context(), &rpc.ReadRequest{
				Header:  rpc.Header{Shard: "a", Collection: chunk.Collection, RootVersion: w.state().Version()},
				Targets: []rpc.Target{{ID: chunk.ID, Version: chunk.Version, Ranges: pointRange(id)}},
			})
			check(t, err)
			diff(t, len(reply.Docs), 1)
		}
		one(20)
		cost("a cold point read of one small segment", "get seg=1")
		one(20)
		cost("the same again", "")
		c.insert("{_id: 5}")
		p.flushAll("a")
		last = p.metered.Snapshot()
		check(t, p.Release(t.Context(), "a"))
		cost("a release of a drained shard", "put root=1")
		p.holds("a")
		last = p.metered.Snapshot()
		c.insert("{_id: 6}", "{_id: 7}")
		p.kill()

		q := w.process("q", longLease, quiet)
		r := w.process("r", longLease, quiet).holds("b")
		p, last = q, q.metered.Snapshot()
		q.holds("a")
		cost("a takeover with two WAL objects", "get root=1 get wal=3 head wal=9 put root=1 put wal=1") // three of them by Seal, to find the end
		rlast := r.metered.Snapshot()
		check(t, c.move(1, "b"))
		cost("a move of a chunk with unflushed rows, for the source", "put root=1 put seg=1")
		if got := r.metered.Snapshot().Sub(rlast).String(); got != "" && got != "get root=1" {
			t.Errorf("a move costs its destination %q", got)
		}
		time.Sleep(10 * time.Second)
		cost("ten idle seconds", "")
	})
}

// quiet keeps background work out of the count.
func quiet(s *Settings) { s.IdleFlush, s.RootPoll = 1e15, 1e15 }

// Clients that write at the same time share WAL objects: with a slow store nearly all of
// them ride in one.
func TestSlowStoreMakesLargeBatches(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", longLease, quiet).holds("a")
		w.collection("a")
		p.fault.SetPlan(slow(30 * time.Millisecond))
		done := make(chan bool)
		for i := range 64 {
			go func() {
				c := w.client()
				c.sid = byte(i + 1)
				for n := range 20 {
					c.insert(fmt.Sprintf("{_id: %d}", 1000*i+n))
				}
				done <- true
			}()
		}
		for range 64 {
			<-done
		}
		s := p.Status().Shards[0].Counts
		if per := s.Records / s.Batches; per < 20 {
			t.Errorf("%d records in %d batches", s.Records, s.Batches)
		}
	})
}
