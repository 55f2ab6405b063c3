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
	for _, d := range state.Dropped() {
		keep(d.Location, d.Segment)
	}
	for _, pin := range state.Pins() {
		pinned, err := c.pinned(ctx, pin, r)
		if err != nil {
			return err
		}
		if pinned != nil {
			use(pinned)
		}
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
