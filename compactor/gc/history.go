package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// copiesKept is how many copies of the root are kept: with one a minute, the last hour and a
// half in which something changed.
const copiesKept = 100

// copyWait is how long after the last copy a sweep makes a commit of its own for another, when
// segments wait for one.
const copyWait = 60_000

// history looks at the copies of the root that commits leave, when there are new ones: it
// deletes all but the last, and finds the newest that can be read. What that one needs is kept,
// so that a root made of it and of the logs has all that was acknowledged:
//
//   - a log is collected up to the floor that the copy has, not up to the root's;
//   - a dropped segment waits until a copy is newer than its drop;
//   - pages of old roots wait while a copy is on its way: the root tells of it before it is there.
func (w *sweep) history(ctx context.Context, root *manifest.State) error {
	if root.CopiedMillis() == 0 || root.CopiedMillis() == w.copiedMillis {
		return nil
	}
	var keys []string
	for after, more := "", true; more; {
		page, further, err := w.Bucket.List(ctx, manifest.HistoryPrefix, after, 0)
		if err != nil {
			return fmt.Errorf("gc: list %s: %w", manifest.HistoryPrefix, err)
		}
		for _, o := range page {
			if _, err := manifest.ParseHistoryKey(o.Key); err == nil {
				keys = append(keys, o.Key)
			}
			after = o.Key
		}
		more = further && len(page) > 0
	}
	newest, err := w.newest(ctx, keys)
	if err != nil {
		return err
	}
	w.copied = newest
	if w.awaited = newest == nil || newest.CopiedMillis() != root.CopiedMillis(); !w.awaited {
		w.copiedMillis = root.CopiedMillis()
	}
	_, err = w.delete(ctx, w.Bucket, keys[:max(len(keys)-copiesKept, 0)], w.budget)
	return err
}

// newest is the newest copy that can be read; nil: none can.
func (s *Sweeper) newest(ctx context.Context, keys []string) (*manifest.Image, error) {
	for _, key := range slices.Backward(keys) {
		o, err := s.Bucket.Get(ctx, key, bucket.GetOptions{})
		if err == nil {
			var image *manifest.Image
			if image, err = manifest.DecodeRoot(o.Body); err == nil {
				return image, nil
			}
		}
		if !errors.Is(err, errkind.NotFound) && !errors.Is(err, errkind.Corrupt) {
			return nil, fmt.Errorf("gc: read %s: %w", key, err)
		}
	}
	return nil, nil
}

// collectable is the shard with the floor up to which its log may go; false when the newest copy
// does not have it, or the first is on its way.
func (s *Sweeper) collectable(shard *manifest.Shard) (*manifest.Shard, bool) {
	if s.copied == nil {
		return shard, !s.awaited
	}
	floor, ok := s.copied.Floor(shard.ID)
	if !ok {
		return nil, false
	}
	if !floor.Less(shard.Floor) {
		return shard, true
	}
	low := *shard
	low.Floor = floor
	return &low, true
}

// Copied takes those segments out of a plan that were dropped after the newest copy of the root
// was made: a root that is made of it refers to them.
func (p *Plan) Copied(version manifest.Version) {
	ready := p.Segments[:0:0]
	for _, d := range p.Segments {
		if d.Version <= version {
			ready = append(ready, d)
		}
	}
	p.Uncopied = len(p.Segments) - len(ready)
	p.Segments = ready
}

// another makes a commit that leaves a copy, when segments wait for one, or the last did not come,
// and no other commit has come along for a while: they are the next sweep's.
func (w *sweep) another(ctx context.Context, root *manifest.State) error {
	now := w.Host.Wall().UnixMilli()
	if w.Plan.Uncopied == 0 && !w.awaited || w.dry || now < root.CopiedMillis()+copyWait {
		return nil
	}
	next, err := w.Root.Commit(ctx, manifest.Edit{Op: w.Host.ID16(), Background: true, Millis: now})
	if err != nil {
		return fmt.Errorf("gc: have a copy of the root made: %w", err)
	}
	if next.CopiedMillis() == root.CopiedMillis() {
		w.copied, w.copiedMillis, w.awaited = nil, next.CopiedMillis(), false // nobody makes copies any more
	}
	return nil
}
