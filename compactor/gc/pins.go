package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// pins gives up pins that are over, and deletes the copies of those that were given up. They
// are listed only when a pin has gone since the last sweep, and by the first one.
func (w *sweep) pins(ctx context.Context, root *manifest.State) error {
	if over := w.over(root); len(over) > 0 && !w.dry {
		var changes []manifest.Change
		for _, p := range over {
			changes = append(changes, manifest.DropPin{ID: p.ID})
		}
		var err error
		root, err = w.Root.Commit(ctx, manifest.Edit{
			Op: w.Host.ID16(), Changes: changes, Background: true, Millis: w.Host.Wall().UnixMilli(),
		})
		if err != nil {
			return fmt.Errorf("gc: give up %d pins that are over: %w", len(over), err)
		}
	}
	now := pinIDs(root)
	if w.pinned != nil && !slices.ContainsFunc(w.pinned, func(id [16]byte) bool { return !slices.Contains(now, id) }) {
		w.pinned = now
		return nil
	}
	left, err := w.copies(ctx)
	if err == nil && left {
		return nil // the bound was reached: the next sweep lists again
	}
	if err == nil && !w.dry {
		w.pinned = now
	}
	return err
}

// over are the pins whose time has come.
func (w *sweep) over(root *manifest.State) (over []manifest.Pin) {
	now := w.Host.Wall().Unix()
	for _, p := range root.Pins() {
		if p.ExpiresAt != 0 && p.ExpiresAt <= now {
			over = append(over, p)
		}
	}
	return over
}

func pinIDs(root *manifest.State) [][16]byte {
	ids := make([][16]byte, 0, len(root.Pins()))
	for _, p := range root.Pins() {
		ids = append(ids, p.ID)
	}
	return ids
}

// copies deletes those that no pin names, in a root that is read after they were listed: a pin
// is in the root before its copy is written.
func (w *sweep) copies(ctx context.Context) (left bool, err error) {
	page, _, err := w.Bucket.List(ctx, manifest.PinPrefix, "", 0)
	if err != nil {
		return false, fmt.Errorf("gc: list %s: %w", manifest.PinPrefix, err)
	}
	if len(page) == 0 {
		return false, nil
	}
	root, _, err := w.Root.Load(ctx)
	if err != nil {
		return false, fmt.Errorf("gc: read root: %w", err)
	}
	named := make(map[string]bool)
	for _, p := range root.Pins() {
		named[manifest.PinKey(p.ID)] = true
	}
	var keys []string
	for _, o := range page {
		if named[o.Key] {
			continue
		}
		if done, err := w.alone(ctx, root, o.Key); err != nil || !done {
			return true, err
		}
		keys = append(keys, o.Key)
	}
	done, err := w.delete(ctx, w.Bucket, keys, w.budget)
	return done < len(keys), err
}

// alone deletes the segments that only a pin referred to which has gone, and that the root does not
// list as dropped: more were dropped at once than its list holds. They were referenced once, so
// nobody ever refers to them again, whether or not their creator is at work. false: they have to
// wait, and the copy of the pin with them.
func (w *sweep) alone(ctx context.Context, root *manifest.State, key string) (done bool, err error) {
	then, err := w.Root.Copy(ctx, key)
	if errors.Is(err, errkind.NotFound) || errors.Is(err, errkind.Corrupt) {
		return true, nil // what it alone had is for the look for orphans
	}
	if err != nil {
		return false, fmt.Errorf("gc: read a pin that has gone: %w", err)
	}
	left := references([]*manifest.State{then})
	without := func(used map[manifest.SegmentID]bool) {
		for id := range used {
			delete(left, id)
		}
	}
	without(references([]*manifest.State{root}))
	for _, d := range root.Dropped() {
		delete(left, d.Segment)
	}
	if len(left) == 0 {
		return true, nil
	}
	if rewrites(root, w.Host.Wall().UnixMilli()) {
		return false, nil
	}
	roots, err := w.withPins(ctx, root)
	if err != nil {
		return false, err
	}
	without(references(roots[1:]))
	if w.copied != nil {
		kept, err := w.Root.Copy(ctx, manifest.HistoryKey(w.copied.Version()))
		if err != nil {
			return false, fmt.Errorf("gc: read the newest copy of the root: %w", err)
		}
		without(references([]*manifest.State{kept}))
	}
	return w.deleteLeft(ctx, then, left)
}

// deleteLeft deletes those segments of a state that are left.
func (w *sweep) deleteLeft(ctx context.Context, s *manifest.State, left map[manifest.SegmentID]bool) (done bool, err error) {
	keys := make(map[manifest.LocationID][]string)
	for c := range s.AllChunks() {
		for i := range c.Refs {
			if r := &c.Refs[i]; left[r.Segment] {
				delete(left, r.Segment)
				keys[r.Location] = append(keys[r.Location], r.Segment.Key())
				w.report(Verdict{Key: r.Segment.Key(), Bytes: int64(r.Size), Delete: true, Why: "only a snapshot referred to it that has ended"})
			}
		}
	}
	for at, list := range keys {
		b, err := w.at(at)
		if err != nil {
			return false, fmt.Errorf("gc: location %d: %w", at, err)
		}
		if n, err := w.delete(ctx, b, list, w.budget); err != nil || n < len(list) {
			return false, err
		}
	}
	return true, nil
}
