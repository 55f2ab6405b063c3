package writer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// What a killed process acknowledged, the next holder has: flushed or not.
func TestTakeoverKeepsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1, v: 1}", "{_id: 2, v: 1}", "{_id: 3, v: 1}")
		p.flushAll("a")
		c.update(1, "{$set: {v: 2}}")
		c.remove(2)
		c.insert("{_id: 4, v: 1}")
		for i := range 4 {
			name := fmt.Sprint("q", i)
			for _, old := range w.procs {
				old.kill()
			}
			q := w.process(name).holds("a")
			c.want("{_id: 1, v: 2}", "{_id: 3, v: 1}", "{_id: 4, v: 1}")
			if i == 2 {
				q.flushAll("a")
				c.wantRows(1, 3)
				if open := w.state().Shard("a").OpenEpochs; len(open) != 0 {
					t.Errorf("open epochs %v", open)
				}
			}
		}
	})
}

// A successor serves only when the lease of the holder before has run out, counted from the
// seal and allowing for drift; a free shard is served at once.
func TestSuccessorWaitsForTheLease(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		lease := func(d time.Duration) func(*Settings) { return func(s *Settings) { s.Lease = d } }
		start := time.Now()
		p := w.process("p", lease(10*time.Second)).holds("a")
		if d := time.Since(start); d > time.Millisecond {
			t.Errorf("a free shard was held after %v", d)
		}
		p.kill()
		q := w.process("q", lease(time.Second)).holds("a")
		took := time.Since(start)
		if want := successorWait(10*time.Second, 0.01); took < want || took > want+time.Millisecond {
			t.Errorf("the successor served after %v, want %v", took, want)
		}
		start = time.Now()
		q.kill()
		w.process("r", lease(time.Second)).holds("a")
		if took := time.Since(start); took < successorWait(10*time.Second, 0.01) {
			t.Errorf("its successor served after %v: the root forgot the longer lease of an open epoch", took)
		}
	})
}

// While a successor takes over, the old holder answers reads from memory until its lease has
// run out, and not a moment later; a write of it is fenced by the seal, and its outcome
// unknown. The two never answer at the same time.
func TestZombieNeverAnswersBesideItsSuccessor(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1, v: 1}")
		old := w.client()
		old.mapped, old.at, old.sid = w.state(), p, 2
		q := w.process("q")
		held := make(chan error, 1)
		go func() { held <- q.Hold(t.Context(), "a") }()
		// Its world ends: whatever it asks of the root is lost.
		cut := faultbucket.Rule{Prefix: "meta/", Fault: faultbucket.Fault{Kind: faultbucket.Before}}
		p.fault.SetPlan(faultbucket.Rules(p.host, cut))
		read := func(cl *client) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			docs, _, err := cl.readOnce(ctx, rpc.Query{}, rpc.Lease)
			if err == nil && (len(docs) != 1 || show(docs[0]) != `{"_id":1,"v":1}`) {
				t.Errorf("read %v", docs)
			}
			return err
		}
		lastOld, firstNew := time.Duration(0), time.Duration(0)
		start := time.Now()
		for time.Since(start) < time.Second {
			if read(old) == nil {
				lastOld = time.Since(start)
			}
			c.mapped, c.at = w.state(), q
			if read(c) == nil && firstNew == 0 {
				firstNew = time.Since(start)
			}
			time.Sleep(time.Millisecond)
		}
		check(t, <-held)
		if lastOld == 0 || firstNew == 0 || lastOld >= firstNew {
			t.Errorf("old holder answered until %v, the new one from %v", lastOld, firstNew)
		}
		_, err := old.send(t.Context(), old.op(insertOp("{_id: 2}")))
		wantKind(t, err, errkind.UnknownOutcome)
		_, err = old.send(t.Context(), old.op(insertOp("{_id: 3}")))
		wantKind(t, err, errkind.Fenced)
		c.mapped, c.at = nil, nil
		c.want("{_id: 1, v: 1}")
	})
}

// Any root that shows another epoch ends a claim, also one that was read for something else.
func TestAnyRootEndsASupersededClaim(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a", "b")
		w.collection("a,b", 10)
		q := w.process("q")
		go func() { _ = q.Hold(context.Background(), "a") }()
		time.Sleep(100 * time.Millisecond)
		diff(t, p.Status().Shards[0].Phase, Serving)
		_, err := p.root.Commit(t.Context(), manifest.Edit{Op: w.host.ID16(), Changes: []manifest.Change{manifest.SetShardZones{ID: "c", Zones: []string{"x"}}}})
		check(t, err)
		diff(t, p.Status().Shards[0].Phase, Ended)
		diff(t, p.Status().Shards[1].Phase, Serving)
		time.Sleep(time.Second)
		// The process can hold it again.
		p.holds("a")
		diff(t, p.Status().Shards[0].Phase, Serving)
	})
}

// A claimant may die at any request; the next one finds everything.
func TestTakeoverMayDieAnywhere(t *testing.T) {
	t.Parallel()
	for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Late} {
		for n, died := 1, true; died; n++ {
			if n > 30 {
				t.Fatal("a takeover makes no more than 30 requests")
			}
			inWorld(t, func(t *testing.T, w *world) {
				p := w.process("p").holds("a")
				w.collection("a")
				c := w.client()
				c.insert("{_id: 1}", "{_id: 2}")
				p.flushAll("a")
				c.insert("{_id: 3}")
				p.kill()
				q := w.process("q")
				died = false
				q.fault.SetPlan(func(call faultbucket.Call) faultbucket.Fault {
					switch {
					case died:
						return faultbucket.Fault{Kind: faultbucket.Before}
					case call.N == n+1: // 1 was the first read of the root
						died = true
						return faultbucket.Fault{Kind: kind, Delay: 3 * time.Second}
					}
					return faultbucket.Fault{}
				})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				err := q.Hold(ctx, "a")
				if died {
					if err == nil {
						t.Errorf("held with a request lost at %d", n)
					}
					q.kill()
					w.process("r").holds("a")
				}
				q.fault.SetPlan(nil)
				c.want("{_id: 1}", "{_id: 2}", "{_id: 3}")
			})
		}
	}
}

// Release drains the shard: floor at the end of the WAL, no open epochs, everything in
// segments; what waits is told to look again. Nothing comes back at the next claim.
func TestReleaseLeavesADrainedShard(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1}", "{_id: 2}")
		c.remove(1)
		check(t, p.Release(t.Context(), "a"))
		sh := w.state().Shard("a")
		diff(t, sh.Status, manifest.ShardFree)
		diff(t, sh.Floor, manifest.Position{Epoch: 1, Next: 3})
		c.wantRows(1, 1)
		old := w.client()
		old.at = p
		_, err := old.send(t.Context(), old.op(insertOp("{_id: 5}")))
		wantStale(t, err)
		before := time.Now()
		w.process("q").holds("a")
		if d := time.Since(before); d > time.Millisecond {
			t.Errorf("held after %v: there is no wait after a free shard", d)
		}
		c.want("{_id: 2}")
		diff(t, w.procs["q"].Status().Shards[0].WALObjects, 0)
	})
}

// Close frees what it can, and leaves a shard with an unresolved PUT to a takeover.
func TestCloseLeavesAnUnresolvedAppendHeld(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a", "b")
		w.collection("a,b", 10)
		c := w.client()
		c.insert("{_id: 1}", "{_id: 11}")
		stuck := faultbucket.Rule{Prefix: "wal/a/", Fault: faultbucket.Fault{Kind: faultbucket.Late, Delay: 20 * time.Second}}
		p.fault.SetPlan(faultbucket.Rules(p.host, stuck))
		sent := make(chan error, 1)
		go func() {
			_, err := c.send(context.Background(), c.op(insertOp("{_id: 2}")))
			sent <- err
		}()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := p.Close(ctx); err == nil {
			t.Error("Close freed a shard with an unresolved PUT")
		}
		wantKind(t, <-sent, errkind.UnknownOutcome)
		diff(t, w.state().Shard("a").Status, manifest.ShardHeld)
		diff(t, w.state().Shard("b").Status, manifest.ShardFree)
		if err := p.Hold(t.Context(), "c"); err == nil {
			t.Error("a closed writer holds a shard")
		}
		q := w.process("q").holds("a", "b")
		p.fault.SetPlan(nil)
		got := c.all()
		time.Sleep(time.Minute) // the late PUT came, and found the seal
		diff(t, c.all(), got)
		_ = q
	})
}

// A release has succeeded when its root is seen, though whoever else looks at the root first
// takes so long that the release does not hear from its own commit, which another shared.
func TestReleaseIsKnownByItsRoot(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a", "b")
		w.collection("a,b", 10)
		w.client().insert("{_id: 1}", "{_id: 11}")
		p.root.AddObserver(func(*manifest.State) { time.Sleep(time.Second) })
		p.fault.SetPlan(faultbucket.Rules(p.host, faultbucket.Rule{
			Verbs: []layer.Verb{layer.Put}, Prefix: "meta/root", Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Second},
		}))
		go func() {
			_, _ = p.root.Commit(context.Background(), manifest.Edit{Op: w.host.ID16(), Changes: []manifest.Change{manifest.SetShardZones{ID: "c", Zones: []string{"x"}}}})
		}()
		time.Sleep(time.Millisecond) // both frees wait behind it, and go together
		check(t, p.Close(t.Context()))
		for _, id := range []manifest.ShardID{"a", "b"} {
			diff(t, w.state().Shard(id).Status, manifest.ShardFree)
		}
	})
}

// Waiting requests go on after a release that failed.
func TestFailedReleaseServesOn(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1}")
		c.do(insertOp(fmt.Sprintf("{_id: 0, pad: %q}", strings.Repeat("x", freeAtOnce)))) // flushed before the drain
		n := 0
		p.fault.SetPlan(func(call faultbucket.Call) faultbucket.Fault {
			if call.Verb == layer.Put && call.Key[:4] == "seg/" {
				if n++; n > 1 {
					return faultbucket.Fault{Kind: faultbucket.Throttle}
				}
				return faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Second}
			}
			return faultbucket.Fault{}
		})
		freed := make(chan error, 1)
		go func() { freed <- p.Release(context.Background(), "a") }()
		time.Sleep(500 * time.Millisecond)
		c.remove(0)
		c.insert("{_id: 2}") // while the first segment is on its way
		time.Sleep(510 * time.Millisecond)
		diff(t, p.Status().Shards[0].Phase, Draining)
		c.insert("{_id: 3}") // waits
		wantKind(t, <-freed, errkind.Throttled)
		diff(t, p.Status().Shards[0].Phase, Serving)
		c.want("{_id: 1}", "{_id: 2}", "{_id: 3}")
		p.fault.SetPlan(nil)
		check(t, p.Release(t.Context(), "a"))
		w.process("q").holds("a")
		c.want("{_id: 1}", "{_id: 2}", "{_id: 3}")
	})
}

// Holding needs a shard that exists, once at a time.
func TestHoldRefusesWhatCannotBeHeld(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p")
		wantKind(t, p.Hold(t.Context(), "nowhere"), errkind.Invalid)
		wantKind(t, p.Release(t.Context(), "a"), errkind.Invalid)
		first := make(chan error, 1)
		w.process("q").holds("b").kill()
		go func() { first <- p.Hold(context.Background(), "b") }()
		time.Sleep(50 * time.Millisecond)
		diff(t, p.Status().Shards[0].Phase, Waiting)
		check(t, p.Hold(t.Context(), "b")) // joins the takeover
		check(t, <-first)
		check(t, p.Hold(t.Context(), "b")) // held already
		diff(t, p.Status().Shards[0].Epoch, manifest.Epoch(2))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		w.process("r").holds("c").kill()
		if err := p.Hold(ctx, "c"); err == nil {
			t.Error("held without the wait for the lease")
		}
		check(t, p.Hold(t.Context(), "c"))
		diff(t, p.Status().Shards[1].Epoch, manifest.Epoch(2)) // the takeover had gone on
	})
}
