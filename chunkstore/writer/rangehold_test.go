package writer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// hold announces that documents with an _id from min up to max are about to go.
func (w *world) hold(id string, min, max any) manifest.RangeHold {
	w.t.Helper()
	h := manifest.RangeHold{ID: id, Collection: 1, Range: shardkey.Range{Min: idKey(min), Max: idKey(max)}}
	check(w.t, w.commit(manifest.PutRecord{Record: h.Record(), IfAbsent: true}))
	return h
}

// A write whose log object is on its way when the hold is set is in a segment after a flush
// under the hold, although nobody was told of it yet.
func TestFlushTakesAlongWhatIsOnItsWay(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", longLease, quiet).holds("a")
		w.collection("a")
		_, _, err := p.root.Load(t.Context())
		check(t, err)
		p.fault.SetPlan(faultbucket.Rules(p.host, faultbucket.Rule{Prefix: "wal/", Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Second}}))
		done := make(chan rpc.WriteResult, 1)
		go func() { done <- w.client().do(insertOp("{_id: 1}")) }()
		synctest.Wait()
		w.hold("h", 0, 9)
		_, err = p.Flush(t.Context(), &rpc.FlushRequest{Header: rpc.Header{Shard: "a", RootVersion: w.state().Version()}})
		check(t, err)
		if c := w.chunk(1); len(c.Refs) != 1 || c.Rows != 1 {
			t.Errorf("%d references, %d rows after the flush", len(c.Refs), c.Rows)
		}
		if r := <-done; r.N != 1 {
			t.Errorf("insert %+v", r)
		}
	})
}

// Under a hold nobody reads or writes the range; other chunks go on. When the range is dropped
// the waiting write is done on what there is then, and what was there before is gone for good,
// also after a takeover. An owner that was not asked makes the commit conflict.
func TestADroppedRangeStaysEmpty(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", longLease, quiet).holds("a")
		w.collection("a,a", 10)
		c := w.client()
		c.insert("{_id: 1}", "{_id: 3}", "{_id: 5}", "{_id: 11}")
		h := w.hold("h", 2, 9)
		_, _, err := p.root.Load(t.Context())
		check(t, err)
		written := make(chan rpc.WriteResult, 1)
		go func() { written <- w.client().do(insertOp("{_id: 5, new: true}")) }()
		other := &client{w: w, sid: 2}
		other.insert("{_id: 12}")
		time.Sleep(time.Second)
		select {
		case r := <-written:
			t.Fatalf("written under the hold: %+v", r)
		default:
		}
		p.flushAll("a")
		drop := manifest.DropRange{Hold: h, Min: manifest.Bound{Key: h.Range.Min, BSON: doc("{_id: 2}")}, Max: manifest.Bound{Key: h.Range.Max, BSON: doc("{_id: 9}")}}
		wantKind(t, w.commit(drop), errkind.Conflict)
		drop.Owners = []manifest.OwnerAt{{Shard: "a", Epoch: 1}}
		check(t, w.commit(drop))
		_, _, err = p.root.Load(t.Context())
		check(t, err)
		if r := <-written; r.N != 1 {
			t.Errorf("the write that waited: %+v", r)
		}
		c.want("{_id: 1}", "{_id: 5, new: true}", "{_id: 11}", "{_id: 12}")
		p.kill()
		w.process("q").holds("a")
		c.want("{_id: 1}", "{_id: 5, new: true}", "{_id: 11}", "{_id: 12}")
	})
}

// A write that was done before its range was dropped is not done again when it is sent again.
func TestRetriesAreKnownAfterTheirRangeWasDropped(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", longLease, quiet).holds("a")
		w.collection("a")
		c := w.client()
		op := c.op(insertOp("{_id: 5}"))
		if r := c.do(op); r.N != 1 {
			t.Fatalf("%+v", r)
		}
		h := w.hold("h", 0, 9)
		_, _, err := p.root.Load(t.Context())
		check(t, err)
		p.flushAll("a")
		check(t, w.commit(manifest.DropRange{
			Hold: h, Min: manifest.Bound{Key: h.Range.Min, BSON: doc("{_id: 0}")}, Max: manifest.Bound{Key: h.Range.Max, BSON: doc("{_id: 9}")},
			Owners: []manifest.OwnerAt{{Shard: "a", Epoch: 1}},
		}))
		p.kill()
		w.process("q").holds("a")
		if r := c.do(op); r.N != 1 {
			t.Errorf("sent again: %+v", r)
		}
		c.want()
	})
}

// A hold that nobody ends is taken back, and its commit is void.
func TestAForgottenHoldIsTakenBack(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p", longLease).holds("a")
		w.collection("a")
		w.hold("h", 0, 9)
		time.Sleep(2 * markMax)
		w.client().insert("{_id: 5}")
		if holds := w.state().RangeHolds(); len(holds) > 0 {
			t.Errorf("%v stand", holds)
		}
	})
}
