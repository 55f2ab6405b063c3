package gc

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// copies are how many copies of pins there are.
func (w *world) copies() int {
	w.t.Helper()
	page, _, err := w.mem.List(context.Background(), manifest.PinPrefix, "", 0)
	w.must(err)
	return len(page)
}

// A pin keeps what was dropped since, until it is given up or its time is over; then its copy
// goes, and by the next sweep what it kept.
func TestPinsEndAndTheirCopiesGo(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pin := func(name string, keep time.Duration) manifest.Pin {
			now := w.host.Wall()
			p, err := w.root.Pin(t.Context(), name, now.Add(keep).Unix(), now.UnixMilli())
			w.must(err)
			return p
		}
		long, short := pin("long", time.Hour), pin("short", time.Minute)
		if n := w.copies(); n != 2 {
			t.Fatalf("%d copies", n)
		}
		s := w.sweeper(w.mem)
		sweep := func() {
			t.Helper()
			_, err := s.Sweep(t.Context(), false)
			w.must(err)
		}
		sweep()
		if n := w.copies(); n != 2 {
			t.Fatalf("%d copies of two pins in force", n)
		}
		time.Sleep(2 * time.Minute)
		sweep()
		if n := w.copies(); n != 1 || len(w.state().Pins()) != 1 || w.state().Pins()[0].ID != long.ID {
			t.Fatalf("%d copies, pins %v: the one for a minute is over", n, w.state().Pins())
		}
		if _, err := w.root.Pinned(t.Context(), short.Version); !errors.Is(err, errkind.SnapshotUnavailable) {
			t.Error("a pin that is over:", err)
		}
		kept, err := w.root.Pinned(t.Context(), long.Version)
		w.must(err)
		if kept.Version() != long.Version {
			t.Errorf("the copy is of version %d, the pin of %d", kept.Version(), long.Version)
		}
		w.must(w.root.Unpin(t.Context(), long.ID, 0))
		sweep()
		if n := w.copies(); n != 0 {
			t.Errorf("%d copies without a pin", n)
		}
	})
}

// Copies are listed by the first sweep, and when a pin has gone.
func TestSweepsListPinsSeldom(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		m := layer.Metrics(w.mem)
		s := w.sweeper(m)
		lists := func() int64 {
			t.Helper()
			before := m.Snapshot()
			_, err := s.Sweep(t.Context(), false)
			w.must(err)
			return m.Snapshot().Sub(before).Of(layer.List, layer.Other).Requests
		}
		if n := lists(); n != 1 {
			t.Errorf("the first sweep lists %d times", n)
		}
		p, err := w.root.Pin(t.Context(), "a", 0, 0)
		w.must(err)
		if n := lists(); n != 0 {
			t.Errorf("a new pin: listed %d times", n)
		}
		w.must(w.root.Unpin(t.Context(), p.ID, 0))
		if n := lists(); n != 1 || w.copies() != 0 {
			t.Errorf("a pin that has gone: listed %d times, %d copies are left", n, w.copies())
		}
	})
}

// A process may die between the commit of a pin and its copy: nothing is deleted then, until
// the pin is given up.
func TestAPinWithoutACopyStopsDeletes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commit("pin 09")
		if r, err := w.sweeper(w.mem).Sweep(t.Context(), false); err == nil || r.Deleted != 0 {
			t.Errorf("deleted %d, %v", r.Deleted, err)
		}
		w.must(w.root.Unpin(t.Context(), w.state().Pins()[0].ID, 0))
		if r, err := w.sweeper(w.mem).Sweep(t.Context(), false); err != nil || r.Deleted == 0 {
			t.Errorf("deleted %d, %v", r.Deleted, err)
		}
	})
}
