package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// A collection comes back from a snapshot as a new one: with the shard key, the options, the
// indexes and the chunks that it had, and its documents written once more. The snapshot's chunks
// are not taken as they are. Their rows would stand under an id of which logs still hold records,
// that a takeover of their shards replays.

// Undrop says which collection is to come back.
type Undrop struct {
	From Namespace
	// As is its name from now on; zero: the old one.
	As Namespace
	// Snapshot is the name of the one to take it from; "": the newest that has it.
	Snapshot string
	Dry      bool // only find it
	MaxTime  time.Duration
}

// Undropped is a collection that came back, or would.
type Undropped struct {
	NS        Namespace
	Snapshot  manifest.Pin
	Documents int64 // in a dry run as the root counts them
}

// Undrop makes a collection of what a snapshot has of one, whether that was dropped since or not.
// When it ends early, the new collection is there in part, and the error says so. Errors:
// mongoerr NamespaceNotFound when no snapshot has it, NamespaceExists.
func (r *Router) Undrop(ctx context.Context, u Undrop) (Undropped, error) {
	if u.As == (Namespace{}) {
		u.As = u.From
	}
	now, err := r.State(ctx, u.MaxTime)
	if err != nil {
		return Undropped{}, err
	}
	if now.CollectionByName(u.As.Database, u.As.Collection) != nil {
		return Undropped{}, mongoerr.New(mongoerr.NamespaceExists, "Collection %s already exists: choose another name with as: %q (granary undrop --as)", u.As, u.As.String()+"_restored")
	}
	pin, then, err := r.lastSnapshotOf(ctx, now, u)
	if err != nil {
		return Undropped{}, err
	}
	c := then.CollectionByName(u.From.Database, u.From.Collection)
	d := Undropped{NS: u.As, Snapshot: pin, Documents: rowsOf(then, c)}
	if u.Dry {
		return d, nil
	}
	if err := r.Create(ctx, u.As, likeThen(then, c), u.MaxTime); err != nil {
		return Undropped{}, err
	}
	d.Documents, err = r.copyFrom(ctx, r.Snapshot(pin, then), u.From, u.As, u.MaxTime)
	if err != nil {
		return d, fmt.Errorf("%s has %d documents of the snapshot so far: drop it, and try again: %w", u.As, d.Documents, err)
	}
	return d, nil
}

// likeThen is a collection to create like one of the past, which may have been marked to be dropped.
func likeThen(then *manifest.State, c *manifest.Collection) NewCollection {
	n := NewCollection{Unique: c.Unique, Options: c.UserOptions(), Indexes: c.Indexes, SplitWithinKey: c.SplitWithinKey}
	if !c.Sharded {
		return n
	}
	n.Key, n.Zones = c.Key, c.Zones
	for chunk := range then.Chunks(c.ID) {
		if len(chunk.Range.Min) > 0 {
			n.Points = append(n.Points, shardkey.Bound{Key: chunk.Range.Min, BSON: chunk.MinBSON})
		}
	}
	return n
}

// rowsOf is how many documents a collection has, as the root counts them.
func rowsOf(s *manifest.State, c *manifest.Collection) (n int64) {
	for chunk := range s.Chunks(c.ID) {
		n += chunk.Rows
	}
	return n
}

// lastSnapshotOf is the newest snapshot that has the collection, or the one that was named.
func (r *Router) lastSnapshotOf(ctx context.Context, now *manifest.State, u Undrop) (manifest.Pin, *manifest.State, error) {
	pins := slices.Clone(now.Pins())
	slices.SortFunc(pins, func(a, b manifest.Pin) int { return cmp.Compare(b.Version, a.Version) })
	for _, p := range pins {
		if u.Snapshot != "" && p.Name != u.Snapshot {
			continue
		}
		then, err := r.root.Pinned(ctx, p.Version)
		if errors.Is(err, errkind.SnapshotUnavailable) {
			continue // given up just now
		}
		if err != nil {
			return p, nil, err
		}
		if then.CollectionByName(u.From.Database, u.From.Collection) != nil {
			return p, then, nil
		}
	}
	return manifest.Pin{}, nil, mongoerr.New(mongoerr.NamespaceNotFound, "no snapshot has %s; the ones there are: db.adminCommand({ listSnapshots: 1 })", u.From)
}

// Dropped is a collection that a snapshot has and the cluster has no more.
type Dropped struct {
	NS       Namespace
	Snapshot manifest.Pin // the newest that has it
	Rows     int64        // as the root counts them
}

// DroppedCollections are those that can be undropped under their own names, by name.
func (r *Router) DroppedCollections(ctx context.Context, maxTime time.Duration) ([]Dropped, error) {
	now, err := r.State(ctx, maxTime)
	if err != nil {
		return nil, err
	}
	found := make(map[Namespace]Dropped)
	for _, p := range now.Pins() {
		then, err := r.root.Pinned(ctx, p.Version)
		if errors.Is(err, errkind.SnapshotUnavailable) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, c := range then.Collections() {
			ns := Namespace{Database: c.Database, Collection: c.Name}
			if now.CollectionByName(c.Database, c.Name) != nil || found[ns].Snapshot.Version > p.Version {
				continue
			}
			d := Dropped{NS: ns, Snapshot: p}
			for chunk := range then.Chunks(c.ID) {
				d.Rows += chunk.Rows
			}
			found[ns] = d
		}
	}
	var list []Dropped
	for _, d := range found {
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Dropped) int { return cmp.Compare(a.NS.String(), b.NS.String()) })
	return list, nil
}
