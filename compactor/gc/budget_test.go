package gc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/manifest"
)

// crowd is a store whose deletes take a second, and that counts how many are under way.
type crowd struct {
	bucket.Bucket
	now, most atomic.Int64
}

func (c *crowd) Delete(ctx context.Context, key string) error {
	n := c.now.Add(1)
	defer c.now.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	time.Sleep(time.Second)
	return c.Bucket.Delete(ctx, key)
}

// A log is deleted several objects at a time, at most deletesAtOnce.
func TestDeletesGoSideBySide(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for i := range 4 * deletesAtOnce {
			w.put(manifest.WALKey("a", 1, uint64(i)))
		}
		slow := &crowd{Bucket: w.mem}
		start := time.Now()
		r, err := w.sweeper(slow).Sweep(t.Context(), false)
		w.must(err)
		if took := time.Since(start); r.Deleted != 4*deletesAtOnce+3 || took > 8*time.Second {
			t.Errorf("deleted %d in %v", r.Deleted, took)
		}
		if most := slow.most.Load(); most != deletesAtOnce {
			t.Errorf("%d deletes at once, want %d", most, deletesAtOnce)
		}
	})
}

// Logs that always have more than a sweep may delete leave segments their half.
func TestSegmentsDoNotStarveBehindLogs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for i := range 100 {
			w.put(manifest.WALKey("a", 1, uint64(i)))
		}
		s := w.sweeper(w.mem)
		s.MaxDeletes = 4
		r, err := s.Sweep(t.Context(), false)
		w.must(err)
		left := w.left()
		if r.Deleted != 4 || !r.Left || slices.Contains(left, "01") || slices.Contains(left, "02") {
			t.Errorf("%+v, left %v", r, left)
		}
		if d := w.state().Dropped(); len(d) > 0 {
			t.Errorf("not forgotten: %v", d)
		}
		r, err = s.Sweep(t.Context(), false) // now the log has all of it
		w.must(err)
		if r.Deleted != 4 || !r.Left {
			t.Errorf("then %+v", r)
		}
	})
}

// What a sweep counts as deleted is what it deleted, also when some deletes fail or the process
// is stopped between them.
func TestFailedDeletesAreNotCounted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for i := range 100 {
			w.put(manifest.WALKey("a", 1, uint64(i)))
		}
		logs := func() (n int) {
			for _, key := range w.left() {
				if strings.HasPrefix(key, "a/") {
					n++
				}
			}
			return n
		}
		before := logs()
		b := w.faulty(faultbucket.Rules(w.host, faultbucket.Rule{
			Verbs: []layer.Verb{layer.Delete}, From: 10, To: 12, Fault: faultbucket.Fault{Kind: faultbucket.Before},
		}))
		r, err := w.sweeper(b).Sweep(t.Context(), false)
		if !errors.Is(err, faultbucket.ErrInjected) || r.Deleted != before-logs() || r.Deleted == 0 {
			t.Errorf("%+v, %v; %d are gone", r, err, before-logs())
		}
		before = logs()
		ctx, stop := context.WithCancel(t.Context())
		b.SetPlan(nil)
		stop()
		done, err := (&sweep{Sweeper: w.sweeper(b)}).delete(ctx, b, walKeys([]string{"a/1/50", "a/1/51", "a/1/52"}), 10)
		if !errors.Is(err, context.Canceled) || done != 3 || logs() != before {
			t.Errorf("stopped: %d, %v", done, err)
		}
	})
}
