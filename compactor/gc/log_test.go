package gc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// paged is a store with small pages.
type paged struct {
	bucket.Bucket
	max int
}

func (p *paged) List(ctx context.Context, prefix, after string, _ int) ([]bucket.Attrs, bool, error) {
	return p.Bucket.List(ctx, prefix, after, p.max)
}

// Where a page ends says nothing about where an epoch does: the seal stays wherever it lies
// in its page, and all the others go.
func TestSealsAreSparedAcrossPages(t *testing.T) {
	for size := 1; size <= 9; size++ {
		inWorld(t, func(t *testing.T, w *world) {
			r, err := w.sweeper(&paged{w.mem, size}).Sweep(t.Context(), false)
			w.must(err)
			if r.Deleted != 7 {
				t.Errorf("pages of %d: deleted %d, want 7", size, r.Deleted)
			}
			w.swept()
		})
	}
}

// All pages below the floor are read, and none above it.
func TestSweepReadsThePagesBelowTheFloor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for i := range 2*membucket.PageMax + 10 {
			w.put(manifest.WALKey("a", 1, uint64(i)))
			w.put(manifest.WALKey("a", 2, uint64(i))) // two are below the floor
		}
		m := layer.Metrics(w.mem)
		r, err := w.sweeper(m).Sweep(t.Context(), false)
		w.must(err)
		if want := 2*membucket.PageMax + 9 + 2 + 2; r.Deleted != want {
			t.Errorf("deleted %d, want %d", r.Deleted, want)
		}
		if n := m.Snapshot().Of(layer.List, layer.WAL).Requests; n != 3 {
			t.Errorf("%d pages, want 3", n)
		}
		if left := w.left(); !slices.Contains(left, fmt.Sprintf("a/1/%d", 2*membucket.PageMax+9)) {
			t.Errorf("the last object of epoch 1 is gone: %v", left)
		}
	})
}

// requests runs a sweep and tells what it asked for, but for deletes.
func (w *world) requests(s *Sweeper, b *faultbucket.Bucket) (asked []string) {
	w.t.Helper()
	b.SetPlan(func(c faultbucket.Call) faultbucket.Fault {
		if c.Verb != layer.Delete {
			asked = append(asked, c.Verb.String()+" "+c.Key)
		}
		return faultbucket.Fault{}
	})
	_, err := s.Sweep(w.t.Context(), false)
	w.must(err)
	return asked
}

// A log is listed when its floor has moved. Where nothing moves, a sweep is one read of the
// root.
func TestSweepListsWhereAFloorMoved(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		want := func(got []string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("requests, -want +got:\n%s", diff)
			}
		}
		b := w.faulty(nil)
		s := w.sweeper(b)
		w.commit("add-shards b c")
		w.commit("claim b epoch=0 holder=p3")
		_, err := s.Sweep(t.Context(), true)
		w.must(err)
		first := w.requests(s, b)
		want(slices.DeleteFunc(first, func(r string) bool { return !strings.Contains(r, "wal/") }), "list wal/a/") // dry sweeps teach nothing; b has no floor yet
		idle := "get " + manifest.RootKey
		want(w.requests(s, b), idle)
		w.commit("pin 09") // keeps segments, and is not read when none was dropped
		want(w.requests(s, b), idle)

		w.put(manifest.WALKey("b", 1, 0))
		w.commit("flush b epoch=1 snap=1,1 complete")
		want(w.requests(s, b), idle, "list wal/b/")
		want(w.requests(s, b), idle)

		w.commit("claim a epoch=2 holder=p4") // the end of epoch 2 is being looked for
		want(w.requests(s, b), idle)
		w.put(manifest.WALKey("a", 2, 3))
		w.commit("flush a epoch=3 snap=3,0 complete")
		want(w.requests(s, b), idle, "list wal/a/")
		want(w.requests(s, b), idle)
		if diff := cmp.Diff([]string{"03", "04", "05", "a/1/3", "a/2/3", "wal/strange"}, w.left()); diff != "" {
			t.Errorf("keys, -want +got:\n%s", diff)
		}
	})
}

// The listing goes on where the last one ended, so that the seals of epochs long past are
// not read again and again.
func TestSweepPassesOldSealsBy(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		m := layer.Metrics(&paged{w.mem, 2})
		s := w.sweeper(m)
		lists := func() int64 {
			before := m.Snapshot()
			_, err := s.Sweep(t.Context(), false)
			w.must(err)
			return m.Snapshot().Sub(before).Total(layer.List).Requests
		}
		for e := manifest.Epoch(2); e < 12; e++ {
			w.put(manifest.WALKey("a", e, 9)) // its seal
			w.commit(fmt.Sprintf("claim a epoch=%d holder=p4", e))
			w.commit(fmt.Sprintf("flush a epoch=%d snap=%d,0 complete", e+1, e+1))
			if n := lists(); e > 4 && n != 1 {
				t.Errorf("epoch %d: %d pages of 2, want 1", e, n)
			}
		}
	})
}

// append stores a data object of a log, and seal its end.
func (w *world) append(shard manifest.ShardID, epoch manifest.Epoch, index uint64) {
	w.t.Helper()
	var b wal.Batch
	w.must(b.Add(wal.Record{Collection: 1, Key: []byte("k"), Op: wal.Delete, Seq: 1}))
	_, err := wal.NewLog(w.mem, w.host, w.state().ClusterID(), shard, epoch, index).Append(w.t.Context(), &b)
	w.must(err)
}

func (w *world) seal(shard manifest.ShardID, epoch manifest.Epoch, index uint64) {
	w.t.Helper()
	end, _, err := wal.Seal(w.t.Context(), w.mem, w.host, w.state().ClusterID(), shard, epoch, index, epoch+1)
	w.must(err)
	if end != index {
		w.t.Fatalf("the seal is at %d, not at %d", end, index)
	}
}

// Who is last in an epoch that ended is read, unless it is as small as a seal: data goes; a seal
// stays, as does what cannot be read or is not where it says, however large. What the store does
// not show is looked at by the next sweep.
func TestTheLastObjectOfAnEpochGoesWhenItIsData(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commit("add-shards b c d")
		for _, id := range []manifest.ShardID{"b", "c", "d"} {
			w.commit(fmt.Sprintf("claim %s epoch=0 holder=p3", id))
			w.append(id, 1, 0)
			w.append(id, 1, 1)
			w.commit(fmt.Sprintf("free %s epoch=1 snap=1,2", id), fmt.Sprintf("claim %s epoch=1 holder=p3", id))
		}
		rotten, moved := manifest.WALKey("c", 1, 1), manifest.WALKey("d", 1, 2)
		_, err := w.mem.Put(t.Context(), rotten, make([]byte, 300), bucket.Condition{})
		w.must(err)
		o, err := w.mem.Get(t.Context(), manifest.WALKey("d", 1, 1), bucket.GetOptions{})
		w.must(err)
		_, err = w.mem.Put(t.Context(), moved, o.Body, bucket.Condition{})
		w.must(err)
		w.commit("flush d epoch=2 snap=2,0 complete")
		faulty := w.faulty(func(c faultbucket.Call) faultbucket.Fault {
			if c.Verb == layer.Get && strings.HasPrefix(c.Key, "wal/") {
				return faultbucket.Fault{Kind: faultbucket.Throttle}
			}
			return faultbucket.Fault{}
		})
		s := w.sweeper(faulty)
		if _, err := s.Sweep(t.Context(), false); !errors.Is(err, errkind.Throttled) || !strings.Contains(err.Error(), "whether wal/b/") {
			t.Errorf("a log that cannot be read: %v", err)
		}
		faulty.SetPlan(nil)
		_, err = s.Sweep(t.Context(), false)
		w.must(err)
		if diff := cmp.Diff([]string{"a/1/3", "a/2/2", "c/1/1", "d/1/2", "wal/strange"}, w.logsLeft()); diff != "" {
			t.Errorf("log objects, -want +got:\n%s", diff)
		}
	})
}

// What removed shards left goes, but for seals, whether they were free or taken from their
// holder; and their names can come back.
func TestLogsOfRemovedShardsAreSwept(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commit("add-shards b c")
		w.commit("claim b epoch=0 holder=p3")
		w.append("b", 1, 0)
		w.commit("free b epoch=1 snap=1,1")
		w.commit("claim c epoch=0 holder=p3")
		w.append("c", 1, 0)
		w.commit("claim c epoch=1 holder=p4")
		w.seal("c", 1, 1)
		w.append("c", 2, 0)
		w.append("c", 2, 1)
		w.commit("draining c on")
		w.commit("remove-shard b", "remove-shard c")
		m := w.faulty(nil)
		s := w.sweeper(m)
		_, err := s.Sweep(t.Context(), false)
		w.must(err)
		if diff := cmp.Diff([]string{"a/1/3", "a/2/2", "c/1/1", "wal/strange"}, w.logsLeft()); diff != "" {
			t.Errorf("log objects, -want +got:\n%s", diff)
		}
		if asked := w.requests(s, m); len(asked) != 1 {
			t.Errorf("with nothing to do: %v", asked)
		}
		w.commit("add-shards b c")
		w.commit("claim c epoch=3 holder=p5")
		w.append("c", 4, 0)
		w.commit("flush c epoch=4 snap=4,0 complete")
		_, err = s.Sweep(t.Context(), false)
		w.must(err)
		if diff := cmp.Diff([]string{"a/1/3", "a/2/2", "c/1/1", "c/4/0", "wal/strange"}, w.logsLeft()); diff != "" {
			t.Errorf("log objects, -want +got:\n%s", diff)
		}
	})
}

// logsLeft is w.left without segments.
func (w *world) logsLeft() []string {
	return slices.DeleteFunc(w.left(), func(key string) bool { return !strings.Contains(key, "/") })
}

// life is a shard that is written, flushed, taken over and freed at random.
type life struct {
	*world
	rng   *rand.Rand
	epoch manifest.Epoch
	next  uint64
	data  map[string]manifest.Position // the position that covers each object
	seals []string
}

func (l *life) key(index uint64) string { return manifest.WALKey("a", l.epoch, index) }

func (l *life) step(sweep func()) {
	floor := l.state().Shard("a").Floor
	end := manifest.Position{Epoch: l.epoch, Next: l.next}
	switch l.rng.IntN(9) {
	case 0, 1, 2, 3:
		l.data[l.key(l.next)] = manifest.Position{Epoch: l.epoch, Next: l.next + 1}
		l.append("a", l.epoch, l.next)
		l.next++
	case 4, 5: // a flush of some or all
		low := uint64(0)
		if floor.Epoch == l.epoch {
			low = floor.Next
		}
		at := low + l.rng.Uint64N(l.next-low+1)
		l.commit(fmt.Sprintf("flush a epoch=%d snap=%d,%d complete", l.epoch, l.epoch, at))
	case 6: // a takeover, which seals some time after its claim
		seal := l.key(l.next)
		l.commit(fmt.Sprintf("claim a epoch=%d holder=q", l.epoch))
		sweep()
		l.seal("a", l.epoch, l.next)
		l.seals = append(l.seals, seal)
		l.epoch, l.next = l.epoch+1, 0
	case 7: // an orderly change of hands
		l.commit(fmt.Sprintf("free a epoch=%d snap=%d,%d", l.epoch, end.Epoch, end.Next))
		sweep()
		l.commit(fmt.Sprintf("claim a epoch=%d holder=q", l.epoch))
		l.epoch, l.next = l.epoch+1, 0
	default:
		sweep()
	}
}

// check fails when an object is gone that may be needed: a seal, or what is above the floor.
func (l *life) check() {
	l.t.Helper()
	need := slices.Clone(l.seals)
	floor := l.state().Shard("a").Floor
	for key, p := range l.data {
		if floor.Less(p) {
			need = append(need, key)
		}
	}
	for _, key := range need {
		if _, err := l.mem.Head(context.Background(), key); err != nil {
			l.t.Fatalf("floor %v: %v", floor, err)
		}
	}
}

// Whatever happens to a shard, and to the requests of one Sweeper that looks at it now and
// then, seals and unflushed objects stay; in the end nothing else is there.
func TestSweepsAlongALifeLeaveSealsAndTheUnflushed(t *testing.T) {
	for seed := range uint64(60) {
		inWorld(t, func(t *testing.T, w *world) {
			l := &life{
				world: w, rng: rand.New(rand.NewPCG(seed, 5)), epoch: 2, next: 3,
				data: map[string]manifest.Position{manifest.WALKey("a", 2, 2): {Epoch: 2, Next: 3}}, seals: []string{manifest.WALKey("a", 1, 3)},
			}
			for i := range uint64(3) { // the others are no larger than a seal
				w.must(w.mem.Delete(t.Context(), l.key(i)))
				w.append("a", 2, i)
			}
			rule := func(k faultbucket.Kind) faultbucket.Rule {
				return faultbucket.Rule{OneIn: 12, Fault: faultbucket.Fault{Kind: k}}
			}
			faulty := w.faulty(faultbucket.Rules(w.host, rule(faultbucket.Before), rule(faultbucket.After), rule(faultbucket.Late)))
			s := w.sweeper(&paged{faulty, 1 + l.rng.IntN(4)})
			for range 60 {
				l.step(func() {
					_, _ = s.Sweep(t.Context(), false)
					l.check()
				})
			}
			faulty.SetPlan(nil)
			w.commit(fmt.Sprintf("flush a epoch=%d snap=%d,%d complete", l.epoch, l.epoch, l.next))
			_, err := s.Sweep(t.Context(), false)
			w.must(err)
			faulty.Wait()
			l.check()
			page, _, err := w.mem.List(t.Context(), "wal/a/", "", 0)
			w.must(err)
			for _, o := range page {
				if !slices.Contains(l.seals, o.Key) {
					t.Errorf("seed %d: %s is left, floor %v", seed, o.Key, w.state().Shard("a").Floor)
				}
			}
		})
	}
}
