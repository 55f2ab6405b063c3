package gc

import (
	"context"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest"
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
		if !named[o.Key] {
			keys = append(keys, o.Key)
		}
	}
	done, err := w.delete(ctx, w.Bucket, keys, w.budget)
	return done < len(keys), err
}
