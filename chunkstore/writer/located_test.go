package writer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// kept counts the objects under a prefix.
func kept(t testing.TB, b *membucket.Bucket, prefix string) int {
	t.Helper()
	list, _, err := b.List(context.Background(), prefix, "", 0)
	check(t, err)
	return len(list)
}

// The log and the segments of a shard with a location are there, also after a takeover, and
// nowhere else.
func TestLocatedShardWritesToItsLocation(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.located("eu")
		p := w.process("p").holds("eu")
		w.collection("eu")
		c := w.client()
		c.insert("{_id: 1, v: 1}", "{_id: 2, v: 1}", "{_id: 3, v: 1}")
		p.flushAll("eu")
		c.update(1, "{$set: {v: 2}}")
		c.remove(2)
		p.kill()
		q := w.process("q").holds("eu")
		c.want("{_id: 1, v: 2}", "{_id: 3, v: 1}")
		check(t, q.Release(t.Context(), "eu"))
		q.kill()
		w.process("r").holds("eu")
		c.want("{_id: 1, v: 2}", "{_id: 3, v: 1}")
		eu := w.elsewhere["mem:eu"]
		if kept(t, eu, "wal/") == 0 || kept(t, eu, "seg/") == 0 {
			t.Errorf("%d log objects and %d segments are in the location", kept(t, eu, "wal/"), kept(t, eu, "seg/"))
		}
		if n := kept(t, w.mem, "wal/") + kept(t, w.mem, "seg/"); n != 0 {
			t.Errorf("%d objects are in the cluster's own bucket", n)
		}
	})
}

// A document whose key changes goes from one location to another in one commit; what is left
// behind of it for retries tells only of what it was on either side.
func TestDocumentsCrossLocations(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.located("eu")
		w.process("p", longLease, quiet).holds("a", "eu")
		w.keyed("{k: 1}", "a,eu", 10)
		c := w.client()
		c.insert("{_id: 1, k: 1, v: 1}")
		update := c.op(w.rekeyOp("{_id: 1, k: 1}", "{$set: {k: 20, v: 2}}"))
		update.Return = rpc.ReturnAfter
		res := c.do(update)
		if res.Modified != 1 || !strings.Contains(res.Value.String(), "2") {
			t.Fatalf("got %+v", res)
		}
		again := c.do(update)
		if again.Modified != 1 || again.Value != nil {
			t.Errorf("sent again: %+v", again)
		}
		c.want("{_id: 1, k: 20, v: 2}")
		// One that cannot be there, since another one is: what is kept here does not say which.
		c.insert("{_id: 5, k: 1}", "{_id: 5, k: 777}")
		taken := c.op(w.rekeyOp("{_id: 5, k: 1}", "{$set: {k: 777}}"))
		if res := c.do(taken); res.Err == nil || !strings.Contains(res.Err.Message, "777") {
			t.Errorf("got %+v", res)
		}
		if res := c.do(taken); res.Err == nil || strings.Contains(res.Err.Message, "777") {
			t.Errorf("sent again: %+v", res)
		}
		c.want("{_id: 5, k: 1}", "{_id: 1, k: 20, v: 2}", "{_id: 5, k: 777}")
		for _, ref := range w.chunk(doc("{_id: 1, k: 20}")).Refs {
			if ref.Location != 1 {
				t.Errorf("%s is in location %d", ref.Segment, ref.Location)
			}
		}
	})
}

// relocated is a world with a chunk of five documents on shard a, some of them flushed.
func relocated(w *world) (*proc, *client) {
	w.located("eu")
	p := w.process("p").holds("a", "eu")
	w.collection("a,a", 100)
	c := w.client()
	c.insert("{_id: 1, v: 1}", "{_id: 2, v: 1}", "{_id: 3, v: 1}", "{_id: 101, v: 1}")
	p.flushAll("a")
	c.update(1, "{$set: {v: 2}}")
	c.remove(2)
	p.flushAll("a")
	c.insert("{_id: 4, v: 1}")
	return p, c
}

func (c *client) wantRelocated() {
	c.w.t.Helper()
	c.want("{_id: 1, v: 2}", "{_id: 3, v: 1}", "{_id: 4, v: 1}", "{_id: 101, v: 1}")
}

// relocate asks the owner of the chunk of 1 to hand it to another shard.
func (w *world) relocate(p *proc, to manifest.ShardID) error {
	chunk := w.chunk(1)
	_, err := p.Move(w.t.Context(), &rpc.MoveRequest{
		Header: rpc.Header{Shard: chunk.Shard, Collection: chunk.Collection}, Chunks: []manifest.ChunkAt{chunk.At()}, To: to,
	})
	return err
}

// A move to another location takes along the rows of its chunk, and no other row of the
// segments that it shares; a move back does, too.
func TestMoveToAnotherLocationCopiesItsRowsOnly(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p, c := relocated(w)
		check(t, w.relocate(p, "eu"))
		c.wantRelocated()
		chunk := w.chunk(1)
		if chunk.Shard != "eu" || chunk.Rows != 3 || chunk.RowsEstimated {
			t.Errorf("the chunk is on %s with %d rows", chunk.Shard, chunk.Rows)
		}
		rows := uint64(0)
		for _, ref := range chunk.Refs {
			rows += ref.Rows
			if ref.Location != 1 {
				t.Errorf("%s is in location %d", ref.Segment, ref.Location)
			}
		}
		if rows != 3 {
			t.Errorf("%d rows were taken along, expected 1, 3 and 4", rows)
		}
		if jobs := w.state().Jobs(); len(jobs) > 0 {
			t.Errorf("jobs %v are left", jobs)
		}
		c.update(1, "{$set: {v: 7}}")
		check(t, w.relocate(p, "a"))
		c.want("{_id: 1, v: 7}", "{_id: 3, v: 1}", "{_id: 4, v: 1}", "{_id: 101, v: 1}")
	})
}

// While a move copies, its owner says how far it is.
func TestMoveToAnotherLocationTellsHowFarItIs(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.located("eu")
		p := w.process("p").holds("a", "eu")
		w.collection("a")
		c := w.client()
		for i := range 3 {
			c.insert(fmt.Sprintf(`{_id: %d, pad: "%s"}`, i, strings.Repeat("x", 2<<20)))
		}
		p.flushAll("a")
		done := make(chan error)
		go func() { done <- w.relocate(p, "eu") }()
		time.Sleep(50 * time.Millisecond) // it copies 32 MB a second
		chunk := w.chunk(1)
		reply, err := p.Loads(t.Context(), &rpc.LoadsRequest{Header: rpc.Header{Shard: "a"}})
		check(t, err)
		if len(reply.Copying) != 1 {
			t.Fatalf("%+v", reply)
		}
		got := reply.Copying[0]
		if got.Collection != chunk.Collection || got.Chunk != chunk.ID || got.Chunks != 1 || got.To != "eu" || got.Bytes < 2<<20 || got.Total < 6<<20 || got.Bytes > got.Total {
			t.Errorf("%+v", got)
		}
		check(t, <-done)
		reply, err = p.Loads(t.Context(), &rpc.LoadsRequest{Header: rpc.Header{Shard: "a"}})
		check(t, err)
		if len(reply.Copying) != 0 {
			t.Errorf("afterwards: %+v", reply.Copying)
		}
	})
}

// A zone that the destination is not in forbids the move, by name.
func TestMoveOutOfAZoneIsRefusedByTheCommit(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p, c := relocated(w)
		check(t, w.relocate(p, "eu"))
		st := w.state()
		coll := *st.CollectionByName("db", "c")
		zoned := coll
		chunk := w.chunk(1)
		zoned.Zones = []manifest.ZoneRange{{Zone: "EU", Range: chunk.Range, MinBSON: chunk.MinBSON, MaxBSON: chunk.MaxBSON}}
		check(t, w.commit(manifest.SetShardZones{ID: "eu", Zones: []string{"EU"}}, manifest.AlterCollection{Was: coll, Now: zoned}))
		if err := w.relocate(p, "a"); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "zone EU") {
			t.Errorf("got %v", err)
		}
		c.wantRelocated()
	})
}

// A process that is cut off at any request of a move to another location, before the request
// has its effect or after it, leaves the chunk with all its rows on one side or the other; the
// next holder goes on, and the move can be made again.
func TestMoveToAnotherLocationSurvivesACrashAtEveryRequest(t *testing.T) {
	t.Parallel()
	for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After} {
		for n := 0; ; n++ {
			if cutOff(t, kind, n) {
				if n < 10 {
					t.Errorf("%v: the move has %d requests", kind, n)
				}
				break
			}
		}
	}
}

// cutOff cuts a process off at the n-th request of a move; true: the move has fewer.
func cutOff(t *testing.T, kind faultbucket.Kind, n int) (over bool) {
	t.Helper()
	inWorld(t, func(t *testing.T, w *world) {
		p, c := relocated(w)
		var requests atomic.Int64
		cut := func(faultbucket.Call) faultbucket.Fault {
			switch at := int(requests.Add(1)); {
			case at <= n:
				return faultbucket.Fault{}
			case at == n+1:
				return faultbucket.Fault{Kind: kind}
			}
			return faultbucket.Fault{Kind: faultbucket.Before}
		}
		p.fault.SetPlan(cut)
		if p.plan = cut; p.away != nil {
			p.away.SetPlan(cut)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		chunk := w.chunk(1)
		_, err := p.Move(ctx, &rpc.MoveRequest{
			Header: rpc.Header{Shard: "a", Collection: chunk.Collection}, Chunks: []manifest.ChunkAt{chunk.At()}, To: "eu",
		})
		cancel()
		over = int(requests.Load()) <= n
		p.kill()
		q := w.process("q").holds("a", "eu")
		c.wantRelocated()
		if at := w.chunk(1); err == nil && at.Shard != "eu" {
			t.Errorf("%v at request %d: the chunk is on %s after a move that was done", kind, n, at.Shard)
		}
		if w.chunk(1).Shard == "a" {
			check(t, w.relocate(q, "eu"))
			c.wantRelocated()
		}
	})
	return over
}
