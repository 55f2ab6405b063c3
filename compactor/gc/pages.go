package gc

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/mutant"
)

// pages deletes the pages in other locations than the cluster's own bucket that no root refers
// to: there a page is written by every commit that touches its chunks. Nothing was planned on
// them since the last sweep, if the root has not moved.
//
// A page is garbage when a root that was read after the listing, no pin in it, and not the newest
// copy of the root refers to it, and that root is newer than the page's base: the one commit that
// could bring a reference to it was planned on its base, and never lands any more.
func (w *sweep) pages(ctx context.Context, root *manifest.State) error {
	if !root.Spread() || w.paged == root.Version() {
		return nil
	}
	found := 0
	listed := make(map[manifest.LocationID][]string)
	for _, l := range root.Locations() {
		b, err := w.at(l.ID)
		if err == nil {
			listed[l.ID], err = pageKeys(ctx, b)
		}
		if err != nil {
			return fmt.Errorf("gc: location %d, %s: %w", l.ID, l.URL, err)
		}
		found += len(listed[l.ID])
	}
	if found == 0 {
		return nil
	}
	used, now, err := w.used(ctx)
	if err != nil || used == nil {
		return err
	}
	for _, l := range root.Locations() {
		var garbage []string
		for _, key := range listed[l.ID] {
			if base, ok := manifest.PageBase(key); ok && base < now && !used[l.ID][key] {
				garbage = append(garbage, key)
			}
		}
		b, err := w.at(l.ID)
		if err != nil {
			return err
		}
		if done, err := w.delete(ctx, b, garbage, w.budget); err != nil || done < len(garbage) {
			return err
		}
	}
	if !w.dry {
		w.paged = root.Version()
	}
	return nil
}

// ownPages is pages in the cluster's own bucket, where most ride in the root: it is part of the look
// for orphans. None waits for a while: who is reading an older root, and misses one, reads the root
// again, and that is at least the one by which it went.
func (w *sweep) ownPages(ctx context.Context) (deleted int64, err error) {
	keys, err := pageKeys(ctx, w.Bucket)
	if err != nil {
		return 0, fmt.Errorf("gc: %w", err)
	}
	root, _, err := w.Root.Load(ctx)
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	if err := w.history(ctx, root); err != nil {
		return 0, err
	}
	used, now, err := w.used(ctx)
	if err != nil || used == nil {
		return 0, err
	}
	var garbage []string
	for _, key := range keys {
		if base, ok := manifest.PageBase(key); ok && base < now && !used[0][key] {
			garbage = append(garbage, key)
		}
	}
	before := w.Deleted
	_, err = w.delete(ctx, w.Bucket, garbage, w.budget)
	return int64(w.Deleted - before), err
}

// pageKeys lists the pages of a location.
func pageKeys(ctx context.Context, b bucket.Bucket) (keys []string, err error) {
	after := ""
	for {
		page, more, err := b.List(ctx, manifest.PagePrefix, after, 0)
		if err != nil {
			return nil, fmt.Errorf("list %s after %q: %w", manifest.PagePrefix, after, err)
		}
		for _, o := range page {
			keys, after = append(keys, o.Key), o.Key
		}
		if !more || len(page) == 0 {
			return keys, nil
		}
	}
}

// used are the pages that the root, the pins and the newest copy of the root refer to, by
// location, and the root's version; nil when there is a newer copy by now.
func (w *sweep) used(ctx context.Context) (map[manifest.LocationID]map[string]bool, manifest.Version, error) {
	root, _, err := w.Root.Load(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("gc: read root: %w", err)
	}
	roots, err := w.withPins(ctx, root)
	if err != nil {
		return nil, 0, err
	}
	if root.CopiedMillis() != w.copiedMillis {
		return nil, 0, nil
	}
	used := make(map[manifest.LocationID]map[string]bool)
	use := func(pages []manifest.PageRef) {
		for _, p := range pages {
			if used[p.Location] == nil {
				used[p.Location] = make(map[string]bool)
			}
			used[p.Location][p.Key()] = true
		}
	}
	for _, s := range roots {
		use(s.Pages())
	}
	if w.copied != nil && !mutant.Broken("located-page-swept") {
		use(w.copied.Missing(nil))
	}
	return used, root.Version(), nil
}
