package fsck

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// checkOrphans counts the segments that nothing refers to: neither the root, nor a pin, nor
// the list of what GC will delete.
func (c *Checker) checkOrphans(ctx context.Context, state *manifest.State, r *Report) error {
	used := map[manifest.LocationID]map[string]bool{}
	keep := func(at manifest.LocationID, s manifest.SegmentID) {
		if used[at] == nil {
			used[at] = map[string]bool{}
		}
		used[at][s.Key()] = true
	}
	use := func(s *manifest.State) {
		for chunk := range s.AllChunks() {
			for _, ref := range chunk.Refs {
				keep(ref.Location, ref.Segment)
			}
		}
	}
	use(state)
	for _, pin := range state.Pins() {
		pinned, err := c.pinned(ctx, pin, r)
		if err != nil {
			return err
		}
		if pinned == nil {
			continue
		}
		if err := c.checkPinned(ctx, pin, pinned, used, r); err != nil {
			return err
		}
		use(pinned)
	}
	for _, d := range state.Dropped() {
		keep(d.Location, d.Segment)
	}
	if err := c.checkCopies(ctx, r); err != nil {
		return err
	}
	return everywhere(state, func(at manifest.LocationID) error {
		return c.list(ctx, at, "seg/", func(a bucket.Attrs) error {
			if !used[at][a.Key] {
				r.Orphans++
				r.OrphanBytes += a.Size
			}
			return nil
		})
	})
}

// pinned reads the root version of a pin; nil when it cannot be read.
func (c *Checker) pinned(ctx context.Context, pin manifest.Pin, r *Report) (*manifest.State, error) {
	s, err := c.Root.Copy(ctx, manifest.PinKey(pin.ID))
	if err == nil {
		return s, nil
	}
	if !about(err) && !errors.Is(err, errkind.Invalid) {
		return nil, fmt.Errorf("fsck: pin %q: %w", pin.Name, err)
	}
	now, loadErr := c.load(ctx)
	if loadErr == nil && slices.ContainsFunc(now.Pins(), func(p manifest.Pin) bool { return p.ID == pin.ID }) {
		r.add(Problem{Rule: RulePin, Object: manifest.PinKey(pin.ID), Detail: fmt.Sprintf("pin %q of version %d: %v; GC stops", pin.Name, pin.Version, err)})
	}
	return nil, loadErr
}

// checkPinned opens or reads the segments that only a pin keeps; used are those that were
// looked at.
func (c *Checker) checkPinned(ctx context.Context, pin manifest.Pin, state *manifest.State, used map[manifest.LocationID]map[string]bool, r *Report) error {
	w, _ := newChunkCheck(c, state, &Report{}) // the counts are those of the root
	for id, views := range w.views {
		if used[views[0].ref.Location][id.Key()] {
			continue
		}
		err := w.segment(ctx, views[0].ref)
		if err == nil {
			continue
		}
		if !about(err) {
			return fmt.Errorf("fsck: %s of pin %q: %w", id, pin.Name, err)
		}
		now, loadErr := c.load(ctx)
		if loadErr != nil {
			return loadErr
		}
		if !slices.ContainsFunc(now.Pins(), func(p manifest.Pin) bool { return p.ID == pin.ID }) {
			return nil // it was given up meanwhile, and its segments with it
		}
		for _, v := range views {
			r.add(Problem{Rule: RulePinned, Object: id.Key(), Chunk: Name(state, v.chunk), AtStake: w.stake(v.chunk),
				Detail: fmt.Sprintf("pin %q of version %d: %v", pin.Name, pin.Version, err)})
		}
	}
	return nil
}

// checkCopies reads the copies of the root that a repair would begin with.
func (c *Checker) checkCopies(ctx context.Context, r *Report) error {
	return c.list(ctx, 0, manifest.HistoryPrefix, func(a bucket.Attrs) error {
		o, err := c.Bucket.Get(ctx, a.Key, bucket.GetOptions{})
		switch {
		case errors.Is(err, errkind.NotFound): // only the last ones are kept
			return nil
		case err != nil:
			return fmt.Errorf("fsck: read %s: %w", a.Key, err)
		}
		r.Copies++
		if _, err := manifest.DecodeRoot(o.Body); err != nil {
			r.add(Problem{Rule: RuleCopy, Object: a.Key, Detail: err.Error()})
		}
		return nil
	})
}
