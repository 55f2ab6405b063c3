package gc

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/manifest"
)

// copying makes the world's commits leave copies of the root.
func (w *world) copying() {
	w.root = manifest.NewRoot(bucket.NewCell(w.mem), w.host, &manifest.RootOptions{HistoryEvery: time.Minute})
}

func (w *world) history() (keys []string) {
	w.t.Helper()
	page, _, err := w.mem.List(context.Background(), manifest.HistoryPrefix, "", 0)
	w.must(err)
	for _, o := range page {
		keys = append(keys, o.Key)
	}
	return keys
}

// What the newest copy of the root needs stays: segments that were dropped since, and the log
// above the floor that it has. When nothing else is committed, a sweep has another copy made, and
// the next one collects.
func TestWhatTheNewestCopyNeedsStays(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.copying()
		time.Sleep(time.Hour)
		w.commit("note one") // copied
		s := w.sweeper(w.mem)
		s.Root = w.root
		_, err := s.Sweep(t.Context(), false)
		w.must(err)
		before := w.left()
		w.put(manifest.WALKey("a", 2, 3))
		w.put(manifest.WALKey("a", 2, 4))
		w.commit("flush a epoch=2 snap=2,5 complete") // not copied, and neither is this:
		w.commit("drop db.c")
		time.Sleep(30 * time.Minute)
		r, err := s.Sweep(t.Context(), false)
		w.must(err)
		for _, key := range append(before, "a/2/3", "a/2/4") {
			if !slices.Contains(w.left(), key) {
				t.Errorf("%s is gone; the copy needs it", key)
			}
		}
		if r.Plan.Uncopied == 0 || len(w.history()) != 2 {
			t.Errorf("%+v, copies %v", r.Plan, w.history())
		}
		_, err = s.Sweep(t.Context(), false)
		w.must(err)
		for _, key := range []string{"a/2/3", "03", "04"} {
			if slices.Contains(w.left(), key) {
				t.Errorf("%s is there; no copy needs it: %v", key, w.left())
			}
		}
		if d := w.state().Dropped(); len(d) > 0 {
			t.Errorf("not forgotten: %v", d)
		}
	})
}

// The root tells of a copy before that is there. Until it is, nothing is deleted that it may need:
// it may be the first, and it may refer to pages of its own. One that never comes is made again.
func TestACopyOnItsWayIsWaitedFor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.copying()
		time.Sleep(time.Hour)
		w.commit("note one") // copied
		key := w.history()[0]
		o, err := w.mem.Get(t.Context(), key, bucket.GetOptions{})
		w.must(err)
		w.must(w.mem.Delete(t.Context(), key))
		w.commit("flush a epoch=2 snap=2,5 complete")
		w.commit("drop db.c")
		time.Sleep(30 * time.Second)
		s := w.sweeper(w.mem)
		s.Root = w.root
		before := w.left()
		_, err = s.Sweep(t.Context(), false)
		w.must(err)
		if got := w.left(); !slices.Equal(got, before) || !s.awaited {
			t.Errorf("left %v of %v", got, before)
		}
		_, err = w.mem.Put(t.Context(), key, o.Body, bucket.Condition{})
		w.must(err)
		_, err = s.Sweep(t.Context(), false)
		w.must(err)
		if s.awaited || manifest.HistoryKey(s.copied.Version()) != key {
			t.Errorf("the copy was not found")
		}
		// Its successor does not come either; some time later a sweep has one made.
		time.Sleep(time.Hour)
		w.commit("note two")
		keys := w.history()
		w.must(w.mem.Delete(t.Context(), keys[len(keys)-1]))
		time.Sleep(30 * time.Minute)
		for range 2 {
			_, err = s.Sweep(t.Context(), false)
			w.must(err)
		}
		if now := w.history(); s.awaited || len(now) != 2 || manifest.HistoryKey(s.copied.Version()) != now[1] {
			t.Errorf("copies %v, by version %d", now, s.copied.Version())
		}
	})
}

// A copy that cannot be read is passed over for the one before.
func TestADamagedCopyIsPassedOver(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.copying()
		w.commit("note one")
		time.Sleep(time.Hour)
		w.commit("drop db.c") // copied
		time.Sleep(time.Hour)
		keys := w.history()
		_, err := w.mem.Put(t.Context(), keys[1], []byte("junk"), bucket.Condition{})
		w.must(err)
		s := w.sweeper(w.mem)
		s.Root = w.root
		_, err = s.Sweep(t.Context(), false)
		w.must(err)
		if manifest.HistoryKey(s.copied.Version()) != keys[0] {
			t.Errorf("by version %d", s.copied.Version())
		}
		if left := w.left(); !slices.Contains(left, "04") {
			t.Errorf("the copy that can be read needs 04: %v", left)
		}
	})
}

// The last copies are kept; they are listed when there is a new one.
func TestTheLastCopiesAreKept(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.copying()
		for range copiesKept + 7 {
			time.Sleep(time.Minute)
			w.commit("note x")
		}
		all := w.history()
		m := layer.Metrics(w.mem)
		s := w.sweeper(m)
		lists := func() int64 {
			before := m.Snapshot()
			_, err := s.Sweep(t.Context(), false)
			w.must(err)
			return m.Snapshot().Sub(before).Of(layer.List, layer.Other).Requests
		}
		first := lists()
		if got := w.history(); !slices.Equal(got, all[7:]) {
			t.Errorf("%d copies of %d are left", len(got), len(all))
		}
		if again := lists(); first != 2 || again != 0 { // of copies, and of pins
			t.Errorf("%d lists, then %d", first, again)
		}
	})
}
