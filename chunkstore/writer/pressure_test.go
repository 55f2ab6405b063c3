package writer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

func slow(d time.Duration) faultbucket.Plan {
	return func(faultbucket.Call) faultbucket.Fault { return faultbucket.Fault{Kind: faultbucket.Slow, Delay: d} }
}

func big(id int) rpc.WriteOp {
	return insertOp(fmt.Sprintf(`{_id: %d, s: "%s"}`, id, strings.Repeat("x", 900)))
}

// When rows cannot leave memory, writes wait, then are refused with nothing done; memory
// stays within its bound, and everything goes on when the store heals.
func TestWritesWaitForMemory(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", func(s *Settings) { s.MemtableBytes, s.WaitersMax = 100_000, 3 }).holds("a", "b")
		w.collection("a,b", 500)
		c := w.client()
		p.fault.SetPlan(faultbucket.Rules(p.host, faultbucket.Rule{Prefix: "seg/", Fault: faultbucket.Fault{Kind: faultbucket.Throttle}}))
		stored, refused := 0, 0
		for i := range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			_, err := c.sendTo(ctx, 1000*(i%2), c.op(big(500*(i%2)+i/2)))
			cancel()
			if err == nil {
				stored++
				continue
			}
			wantKind(t, err, errkind.Throttled)
			refused++
			if p.Status().MemoryBytes > 110_000 {
				t.Fatalf("%d bytes in memory", p.Status().MemoryBytes)
			}
		}
		if stored < 50 || stored > 110 || refused == 0 {
			t.Errorf("%d stored, %d refused", stored, refused)
		}
		// Too many that wait are refused at once.
		for range 5 {
			go func() { _, _ = c.sendTo(context.Background(), 0, big(400)) }()
		}
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		_, err := c.sendTo(t.Context(), 0, big(401))
		wantKind(t, err, errkind.Throttled)
		if d := time.Since(start); d > 0 {
			t.Errorf("refused after %v", d)
		}
		p.fault.SetPlan(nil)
		time.Sleep(10 * time.Second)
		for i := range 50 {
			c.do(big(900 + i))
		}
		if p.Status().Shards[0].Counts.Throttled+p.Status().Shards[1].Counts.Throttled < int64(refused) {
			t.Errorf("counts %+v", p.Status())
		}
	})
}

// Who would wait for memory longer than it may is refused at once, once it is known how long
// that takes: nobody else waits for it meanwhile.
func TestWritesThatWouldBeTooLateAreRefused(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", func(s *Settings) { s.MemtableBytes, s.WaitersBytes = 100_000, 10_000 }).holds("a")
		w.collection("a")
		c := w.client()
		p.fault.SetPlan(faultbucket.Rules(p.host, faultbucket.Rule{Prefix: "seg/", Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: 2 * time.Second}}))
		send := func(id int, limit time.Duration) (time.Duration, error) {
			st := c.state()
			chunk := w.chunkIn(st, 0)
			start := time.Now()
			_, err := p.Write(t.Context(), &rpc.WriteRequest{
				Header:  rpc.Header{Shard: chunk.Shard, Collection: chunk.Collection, RootVersion: st.Version(), Deadline: limit},
				Targets: []rpc.Target{{ID: chunk.ID, Version: chunk.Version, Min: chunk.Range.Min}},
				Ops:     []rpc.WriteOp{big(id)}, Ordered: true,
			})
			return time.Since(start), err
		}
		id := 0
		for waited := time.Duration(0); waited < 500*time.Millisecond; id++ { // once it was full and had room again
			d, err := send(id, time.Minute)
			check(t, err)
			waited = max(waited, d)
		}
		for full := false; !full; id++ {
			d, err := send(id, 100*time.Millisecond)
			if full = err != nil; full {
				wantKind(t, err, admission.Overloaded)
				if d > 0 || !strings.Contains(err.Error(), "the time limit is 100ms") {
					t.Errorf("after %v: %v", d, err)
				}
			}
		}
		for range 20 { // of about 1 KB each
			go func() { _, _ = send(id, time.Minute) }()
		}
		time.Sleep(time.Millisecond)
		d, err := send(id, time.Minute)
		wantKind(t, err, admission.Overloaded)
		if waiting := p.Status().Waiting; d > 0 || waiting.Used > 10_000 || waiting.Waiting != 10 || waiting.Refused < 11 || !strings.Contains(err.Error(), "WaitersBytes") {
			t.Errorf("after %v: %v, %+v", d, err, waiting)
		}
		p.fault.SetPlan(nil)
		time.Sleep(time.Minute)
		if waiting := p.Status().Waiting; waiting.Used != 0 || waiting.Waiting != 0 {
			t.Errorf("%+v", waiting)
		}
		c.do(big(id + 1))
	})
}

// With many that wait already, who comes later is refused when that would take long.
func TestAFewMayWaitForLong(t *testing.T) {
	t.Parallel()
	var l line
	set := Settings{WaitMax: time.Second}.withDefaults()
	for range fewWait {
		check(t, l.enter(&set, 1, time.Hour, 0))
	}
	wantKind(t, l.enter(&set, 1, time.Hour, 0), admission.Overloaded)
	check(t, l.enter(&set, 1, time.Millisecond, 0))
	for range fewWait + 1 {
		l.leave(1)
	}
	if b := l.bound(&set); b.Used != 0 || b.Waiting != 0 || b.Refused != 1 {
		t.Errorf("%+v", b)
	}
}

// A WAL that would take long to replay is flushed, and while it cannot be, writes wait.
func TestWritesWaitForAShorterWAL(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", func(s *Settings) { s.WALObjects = 20 }).holds("a")
		w.collection("a")
		c := w.client()
		p.fault.SetPlan(faultbucket.Rules(p.host, faultbucket.Rule{Prefix: "seg/", Fault: faultbucket.Fault{Kind: faultbucket.Throttle}}))
		stored := 0
		for i := range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := c.sendTo(ctx, 0, c.op(insertOp(fmt.Sprintf("{_id: %d}", i))))
			cancel()
			if err != nil {
				wantKind(t, err, errkind.Throttled)
				break
			}
			stored++
		}
		diff(t, stored, 40)
		p.fault.SetPlan(nil)
		for i := range 100 {
			c.do(insertOp(fmt.Sprintf("{_id: %d}", 100+i)))
		}
		time.Sleep(2 * time.Second)
		if s := p.Status().Shards[0]; s.WALObjects > 20 || s.Counts.Flushes < 3 {
			t.Errorf("status %+v", s)
		}
	})
}

// A shard that nobody writes to is drained after a while, open epochs included.
func TestIdleShardIsDrained(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		idle := func(s *Settings) { s.IdleFlush = 30 * time.Second }
		p := w.process("p", idle).holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1}")
		time.Sleep(20 * time.Second)
		diff(t, w.state().Shard("a").Floor, manifest.Position{})
		time.Sleep(20 * time.Second)
		diff(t, w.state().Shard("a").Floor, manifest.Position{Epoch: 1, Next: 1})
		p.kill()
		w.process("q", idle).holds("a")
		diff(t, w.state().Shard("a").OpenEpochs, []manifest.Epoch{1})
		time.Sleep(40 * time.Second)
		diff(t, len(w.state().Shard("a").OpenEpochs), 0)
		c.want("{_id: 1}")
	})
}

// With the bucket gone, reads go on while the lease is proved, then fail; writes whose batch
// was sent have an unknown outcome, later ones had no effect. Nothing is lost when it is back.
func TestBucketGoneAndBack(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", func(s *Settings) { s.Lease = 5 * time.Second }).holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1, v: 0}")
		p.fault.SetPlan(func(faultbucket.Call) faultbucket.Fault { return faultbucket.Fault{Kind: faultbucket.Stuck} })
		start := time.Now()
		read := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, _, err := c.readOnce(ctx, rpc.Query{}, rpc.Lease)
			return err
		}
		for time.Since(start) < 4900*time.Millisecond {
			check(t, read())
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		wantKind(t, read(), errkind.Throttled)
		op := c.op(updateOp(1, "{$inc: {v: 1}}"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.send(ctx, op)
		wantKind(t, err, errkind.UnknownOutcome)
		p.fault.SetPlan(nil)
		diff(t, c.do(op), rpc.WriteResult{N: 1, Modified: 1})
		c.want("{_id: 1, v: 1}")
	})
}

// A flush that fails keeps its rows where they were, under newer ones.
func TestFailedFlushKeepsRows(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", func(s *Settings) { s.SegmentBytes = 300 }).holds("a")
		w.collection("a,a", 10)
		c := w.client()
		c.insert("{_id: 1, v: 1}", "{_id: 2, v: 1}", "{_id: 11, v: 1}", "{_id: 12, v: 1}")
		n := 0
		p.fault.SetPlan(func(call faultbucket.Call) faultbucket.Fault {
			if n++; call.Verb == layer.Put && strings.HasPrefix(call.Key, "seg/") {
				return faultbucket.Fault{Kind: faultbucket.Throttle}
			}
			return faultbucket.Fault{Kind: faultbucket.Slow, Delay: 50 * time.Millisecond}
		})
		failed := make(chan error, 1)
		go func() {
			_, err := p.Flush(t.Context(), &rpc.FlushRequest{Header: rpc.Header{Shard: "a", Deadline: 20 * time.Second}})
			failed <- err
		}()
		time.Sleep(10 * time.Millisecond)
		c.update(1, "{$set: {v: 2}}")
		c.remove(2)
		c.insert("{_id: 3, v: 1}")
		if err := <-failed; err == nil {
			t.Error("flushed without a segment")
		}
		c.want("{_id: 1, v: 2}", "{_id: 3, v: 1}", "{_id: 11, v: 1}", "{_id: 12, v: 1}")
		p.fault.SetPlan(nil)
		p.flushAll("a")
		c.want("{_id: 1, v: 2}", "{_id: 3, v: 1}", "{_id: 11, v: 1}", "{_id: 12, v: 1}")
		c.wantRows(1, 2)
		c.wantRows(11, 2)
		diff(t, p.Status().MemoryBytes, int64(0))
	})
}
