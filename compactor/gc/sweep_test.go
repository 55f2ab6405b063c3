package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/manifesttest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a bucket with a root, in a bubble of virtual time.
type world struct {
	t    *testing.T
	mem  *membucket.Bucket
	host host.Host
	root *manifest.Root
}

// inWorld runs f on a cluster in which a sweep has everything to do: of shard a's log, the
// ended epoch 1 (its seal is 3) and objects 0 and 1 of epoch 2 are below the floor; segments
// 01 and 02 were compacted into 03 and have waited; 04 lost one of two references.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, mem: membucket.New(), host: manifesttest.Host(7)}
		_, err := manifest.Create(t.Context(), bucket.NewCell(w.mem), w.host, manifest.InitOptions{Shards: []manifest.ShardID{"a"}})
		w.must(err)
		w.root = manifest.NewRoot(bucket.NewCell(w.mem), w.host, nil)
		w.commit("create db.c chunks=a,m,a")
		w.commit("claim a epoch=0 holder=p1", "register 05")
		w.commit("flush a epoch=1 snap=1,3 complete c1{seg=01 keys=a..d seq=1..3 rows=3 delta=3} c2{seg=04 keys=p..x seq=1..9 rows=9 delta=9}")
		w.commit("claim a epoch=1 holder=p2")
		w.commit("flush a epoch=2 snap=2,2 complete c1{seg=02 keys=a..d seq=4..5 rows=2}")
		w.commit("compact 05 c1 in=01,02 oldest out={seg=03 keys=a..d seq=1..5 rows=3}")
		w.commit("split c2 at=t epoch=2")
		w.commit("compact 05 c3 in=04 oldest out={seg=05 keys=p..s seq=1..9 rows=4}")
		for _, key := range walKeys([]string{"a/1/0", "a/1/1", "a/1/2", "a/1/3", "a/2/0", "a/2/1", "a/2/2", "wal/strange"}) {
			w.put(key)
		}
		for _, id := range w.segments() {
			w.put(id.Key())
		}
		time.Sleep(Courtesy + time.Second)
		f(t, w)
		w.whole()
	})
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) put(key string) {
	w.t.Helper()
	_, err := w.mem.Put(w.t.Context(), key, []byte("x"), bucket.Condition{})
	w.must(err)
}

func (w *world) state() *manifest.State {
	w.t.Helper()
	s, _, err := w.root.Load(context.Background())
	w.must(err)
	return s
}

func (w *world) commit(lines ...string) {
	w.t.Helper()
	e, err := manifesttest.ParseEdit(w.state(), strings.Join(lines, "\n"))
	w.must(err)
	e.Op, e.Millis = w.host.ID16(), w.host.Wall().UnixMilli()
	_, err = w.root.Commit(w.t.Context(), e)
	w.must(err)
}

// segments are all that the root refers to or has dropped.
func (w *world) segments() (ids []manifest.SegmentID) {
	s := w.state()
	for c := range s.AllChunks() {
		for _, r := range c.Refs {
			ids = append(ids, r.Segment)
		}
	}
	for _, d := range s.Dropped() {
		ids = append(ids, d.Segment)
	}
	return ids
}

// sweeper works on the bucket through layers of its own, with its own view of the root.
func (w *world) sweeper(b bucket.Bucket) *Sweeper {
	return &Sweeper{
		Root: manifest.NewRoot(bucket.NewCell(b), w.host, nil), Bucket: b, Host: w.host,
		Open: func(manifest.LocationID) (bucket.Bucket, error) { return b, nil },
	}
}

func (w *world) faulty(plan faultbucket.Plan) *faultbucket.Bucket {
	b := faultbucket.New(w.mem, w.host, plan)
	w.t.Cleanup(b.Wait)
	return b
}

// left are the keys under wal/ and seg/, shortened.
func (w *world) left() (keys []string) {
	w.t.Helper()
	for _, prefix := range []string{"seg/", "wal/"} {
		page, _, err := w.mem.List(context.Background(), prefix, "", 0)
		w.must(err)
		for _, a := range page {
			key := a.Key
			if id, err := manifest.ParseSegmentKey(key); err == nil {
				key = fmt.Sprintf("%02x", id.Random[15])
			}
			if shard, epoch, index, err := manifest.ParseWALKey(key); err == nil {
				key = fmt.Sprintf("%s/%d/%d", shard, epoch, index)
			}
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// whole fails when something that the root refers to is gone.
func (w *world) whole() {
	w.t.Helper()
	for c := range w.state().AllChunks() {
		for _, r := range c.Refs {
			if _, err := w.mem.Head(context.Background(), r.Segment.Key()); err != nil {
				w.t.Errorf("referenced segment: %v", err)
			}
		}
	}
}

// swept fails unless everything is gone that can go, and nothing else.
func (w *world) swept() {
	w.t.Helper()
	want := []string{"03", "04", "05", "a/1/3", "a/2/2", "wal/strange"}
	if diff := cmp.Diff(want, w.left()); diff != "" {
		w.t.Errorf("keys, -want +got:\n%s", diff)
	}
	if d := w.state().Dropped(); len(d) > 0 {
		w.t.Errorf("not forgotten: %v", d)
	}
}

func TestSweepDeletesWhatNothingRefersTo(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		before := w.left()
		s := w.sweeper(w.mem)
		r, err := s.Sweep(t.Context(), true)
		w.must(err)
		if r.Deleted != 7 || len(r.Plan.Segments) != 2 || len(r.Plan.Shared) != 1 {
			t.Errorf("dry, it would delete: %+v", r)
		}
		if diff := cmp.Diff(before, w.left()); diff != "" {
			t.Errorf("a dry sweep changed the bucket:\n%s", diff)
		}
		r, err = s.Sweep(t.Context(), false)
		w.must(err)
		if r.Deleted != 7 || r.Left {
			t.Errorf("%+v", r)
		}
		w.swept()
		if r, err = s.Sweep(t.Context(), false); err != nil || r.Deleted != 0 {
			t.Errorf("again: %+v, %v", r, err)
		}
	})
}

func TestSweepWaitsForReadersOnOlderRoots(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commit("compact 05 c1 in=03 oldest out={seg=06 keys=a..d seq=1..5 rows=3}")
		w.put(w.segments()[0].Key())
		r, err := w.sweeper(w.mem).Sweep(t.Context(), false)
		w.must(err)
		if r.Plan.Waiting != 1 || !slices.Contains(w.left(), "03") {
			t.Errorf("%+v, left %v", r, w.left())
		}
		s := w.sweeper(w.mem)
		s.Courtesy = time.Millisecond
		time.Sleep(time.Millisecond)
		_, err = s.Sweep(t.Context(), false)
		w.must(err)
		if slices.Contains(w.left(), "03") {
			t.Error("a shorter courtesy was not kept to")
		}
	})
}

func TestSweepIsBoundedAndTheNextGoesOn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := w.sweeper(w.mem)
		s.MaxDeletes = 3
		for _, want := range []Result{{Deleted: 3, Left: true}, {Deleted: 3, Left: true}, {Deleted: 1}} {
			r, err := s.Sweep(t.Context(), false)
			w.must(err)
			if r.Deleted != want.Deleted || r.Left != want.Left {
				t.Errorf("deleted %d, left %v, want %d and %v", r.Deleted, r.Left, want.Deleted, want.Left)
			}
			w.whole()
		}
		w.swept()
	})
}

// Several sweeps at once delete the same things twice and forget them twice.
func TestTwoSweepsAtOnceDoTheSame(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		slow := w.faulty(faultbucket.Rules(w.host, faultbucket.Rule{Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Second}}))
		var wg sync.WaitGroup
		for i := range 3 {
			s := w.sweeper(slow)
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 1700 * time.Millisecond)
				if _, err := s.Sweep(t.Context(), false); err != nil {
					t.Errorf("sweep %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		w.swept()
	})
}

// Every request of a sweep fails once, before its effect, after it, or with a late effect:
// whatever the sweep then says, nothing that is referenced is gone, and the same Sweeper's
// next one ends with the same bucket: it remembers nothing as done that was not.
func TestSweepThatDiesAnywhereGoesOn(t *testing.T) {
	for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Late, faultbucket.Twice, faultbucket.Throttle} {
		t.Run(kind.String(), func(t *testing.T) {
			for n, done := 1, false; !done; n++ {
				inWorld(t, func(t *testing.T, w *world) {
					b := w.faulty(faultbucket.FailAt(n, faultbucket.Fault{Kind: kind, Delay: time.Minute}))
					s := w.sweeper(b)
					_, err := s.Sweep(t.Context(), false)
					if err != nil && !errors.Is(err, faultbucket.ErrInjected) {
						t.Errorf("request %d: %v", n, err)
					}
					done = b.Calls() < n
					w.whole()
					b.SetPlan(nil)
					_, err = s.Sweep(t.Context(), false)
					w.must(err)
					b.Wait()
					w.swept()
				})
			}
		})
	}
}

// A sweep whose process is killed between two deletions leaves the rest to the next one.
func TestKilledSweepGoesOn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx, kill := context.WithCancel(t.Context())
		deletes := 0
		b := w.faulty(func(c faultbucket.Call) faultbucket.Fault {
			if c.Verb == layer.Delete {
				if deletes++; deletes == 3 {
					kill()
				}
			}
			return faultbucket.Fault{}
		})
		if r, err := w.sweeper(b).Sweep(ctx, false); err == nil || r.Deleted >= 7 {
			t.Errorf("%+v, %v", r, err)
		}
		w.whole()
		_, err := w.sweeper(w.mem).Sweep(t.Context(), false)
		w.must(err)
		w.swept()
	})
}

// A stale listing shows less, or what is gone already: nothing else comes of it.
func TestStaleListingDeletesNothingWrong(t *testing.T) {
	for pick := range uint64(64) {
		inWorld(t, func(t *testing.T, w *world) {
			for _, key := range walKeys([]string{"a/1/2", "a/1/3"}) { // written just now: a stale listing may lack them
				w.must(w.mem.Delete(t.Context(), key))
			}
			b := w.faulty(nil)
			for _, key := range walKeys([]string{"a/1/2", "a/1/3"}) {
				_, err := b.Put(t.Context(), key, []byte("x"), bucket.IfAbsent)
				w.must(err)
			}
			b.SetPlan(faultbucket.Rules(w.host, faultbucket.Rule{Verbs: []layer.Verb{layer.List}, Fault: faultbucket.Fault{Kind: faultbucket.StaleList, Pick: pick + 1}}))
			_, err := w.sweeper(b).Sweep(t.Context(), false)
			w.must(err)
			if !slices.Contains(w.left(), "a/1/3") {
				t.Errorf("pick %d: the seal was deleted", pick)
			}
		})
	}
}

func TestUnreadablePinStopsTheSweep(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commit("pin 09")
		before := w.left()
		pin := manifest.PinKey(w.state().Pins()[0].ID)
		s := w.sweeper(w.mem)
		if _, err := s.Sweep(t.Context(), false); !errors.Is(err, errkind.NotFound) || !strings.Contains(err.Error(), "nothing is deleted") {
			t.Errorf("pin without its copy: %v", err)
		}
		w.put(pin)
		if _, err := s.Sweep(t.Context(), false); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("pin with a broken copy: %v", err)
		}
		if diff := cmp.Diff(before, w.left()); diff != "" {
			t.Errorf("keys, -before +after:\n%s", diff)
		}
		o, err := w.mem.Get(t.Context(), manifest.RootKey, bucket.GetOptions{})
		w.must(err)
		_, err = w.mem.Put(t.Context(), pin, o.Body, bucket.Condition{})
		w.must(err)
		_, err = s.Sweep(t.Context(), false)
		w.must(err)
		w.swept()
	})
}

func TestSweepNamesWhatItCannotDo(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := w.sweeper(w.mem)
		s.Open = func(id manifest.LocationID) (bucket.Bucket, error) {
			return nil, fmt.Errorf("no bucket: %w", errkind.Invalid)
		}
		if _, err := s.Sweep(t.Context(), false); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "location 0 of seg/") {
			t.Errorf("unknown location: %v", err)
		}
		w.must(w.mem.Delete(t.Context(), manifest.RootKey))
		if _, err := s.Sweep(t.Context(), false); !errors.Is(err, errkind.NotFound) || !strings.Contains(err.Error(), "gc: read root") {
			t.Errorf("no root: %v", err)
		}
		o, _ := manifest.EncodeRoot(w.root.State()) // for whole
		_, err := w.mem.Put(t.Context(), manifest.RootKey, o, bucket.Condition{})
		w.must(err)
	})
}
