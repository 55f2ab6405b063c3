package router

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
)

// A cluster that has the setting history remembers what it was. Moments are snapshots that end by
// themselves and whose names say their time: one every so often while something changes, and one
// just before each drop. Reads at a time are as of the last moment before it, and what was dropped
// comes back as it was.
//
//	writer, every so often    changed since the last moment? -> flush, pin "at 2026-03-01T10:00:00Z"
//	drop, dropDatabase,       flush, pin "at 2026-03-01T10:03:12.5Z before drop of shop.orders",
//	dropRange                 then what was asked for
//
// One of the processes that hold shards looks, by a router of its own: they see each root anyway.
// Of two that take themselves for that one both make a moment, which does no harm. Where nothing
// changes no moment is made, and without the setting nobody asks for anything.

// lookEvery is the longest time between two looks at whether a moment is due.
const lookEvery = 10 * time.Second

// lastMoment is what a router knows of the newest moment.
type lastMoment struct {
	version manifest.Version
	data    uint64
}

// KeepHistory makes moments until ctx ends, while it is this process's turn. The router's view of
// the root must be one that somebody keeps new.
func (r *Router) KeepHistory(ctx context.Context, mine func() bool) error {
	var last lastMoment
	for {
		pause := lookEvery
		if s := r.root.State(); s != nil {
			if keep, every := s.HistoryKept(); keep > 0 && mine() {
				pause = min(pause, every/2)
				if err := r.momentDue(ctx, s, &last); err != nil && ctx.Err() == nil {
					r.log.Warn("no moment of the history was kept, the next try is soon", "cause", err)
				}
			}
		}
		if r.host.Sleep(ctx, r.host.Jitter(pause)) != nil {
			return nil
		}
	}
}

// momentDue makes a moment when the last is old enough and something has changed since. As long as
// that is not so it asks for nothing.
func (r *Router) momentDue(ctx context.Context, s *manifest.State, last *lastMoment) error {
	keep, every := s.HistoryKept()
	if list := s.Moments(); len(list) > 0 {
		newest := list[len(list)-1]
		// One of a clock far ahead of this one is no reason to wait for that time.
		if at, _ := newest.Moment(); r.host.Wall().Sub(at).Abs() < every {
			return nil
		}
		if last.version != newest.Version {
			then, err := r.root.Pinned(ctx, newest.Version)
			if err != nil {
				return err
			}
			*last = lastMoment{newest.Version, dataOf(then)}
		}
		if dataOf(s) == last.data {
			return nil
		}
	}
	pin, err := r.moment(ctx, keep, "", 0)
	if err == nil {
		r.log.Debug("a moment was kept", "name", pin.Name, "for", keep)
	}
	return err
}

// moment makes one, and gives up the oldest when there are too many.
func (r *Router) moment(ctx context.Context, keep time.Duration, why string, maxTime time.Duration) (manifest.Pin, error) {
	pin, err := r.CreateSnapshot(ctx, manifest.MomentName(r.host.Wall(), why), keep, maxTime)
	if err != nil {
		return pin, err
	}
	if list := r.root.State().Moments(); len(list) > manifest.MomentsMax {
		err = r.root.Unpin(ctx, list[0].ID, r.host.Wall().UnixMilli())
	}
	return pin, err
}

// dataOf changes when documents do, as far as they are in segments, and when collections or their
// chunks do. It does not when segments are merged or chunks move.
func dataOf(s *manifest.State) uint64 {
	h := fnv.New64a()
	var b []byte
	for c := range s.AllChunks() {
		b = binary.AppendUvarint(b[:0], uint64(c.ID))
		b = binary.AppendUvarint(b, uint64(c.Collection))
		b = binary.AppendUvarint(b, uint64(c.MaxSeq))
		_, _ = h.Write(b)
	}
	for _, c := range s.Collections() {
		_, _ = h.Write(fmt.Appendf(b[:0], "%d %s %x", c.ID, c.Namespace(), c.Options))
	}
	return h.Sum64()
}

// forGC is for how long a moment stays that only GC needs: as long as what is dropped waits anyway.
const forGC = 15 * time.Minute

// remember makes a moment before something is removed.
func (r *Router) remember(ctx context.Context, a *attempts, what string) error {
	s, err := a.state(ctx)
	if err != nil {
		return err
	}
	keep, _ := s.HistoryKept()
	if keep == 0 {
		keep = forGC
	}
	_, err = r.moment(ctx, keep, "before "+what, a.left())
	if a.remembered = err == nil; err != nil {
		return fmt.Errorf("nothing was dropped, since the history could not keep what there is: %w", err)
	}
	return nil
}

// SnapshotAt is the newest snapshot that says its time and is not younger than t. Errors: mongoerr
// SnapshotUnavailable, with what there is.
func (r *Router) SnapshotAt(ctx context.Context, t time.Time, maxTime time.Duration) (manifest.Pin, error) {
	s, err := r.State(ctx, maxTime)
	if err != nil {
		return manifest.Pin{}, err
	}
	return MomentOf(s, t)
}

// MomentOf is SnapshotAt in a root.
func MomentOf(s *manifest.State, t time.Time) (manifest.Pin, error) {
	if p, ok := s.MomentAt(t); ok {
		return p, nil
	}
	list := s.Moments()
	if len(list) == 0 {
		return manifest.Pin{}, mongoerr.New(mongoerr.SnapshotUnavailable,
			"nothing is kept of %s: the cluster keeps no history; granary history --keep 24h has it begin", t.UTC().Format(time.RFC3339))
	}
	oldest, _ := list[0].Moment()
	return manifest.Pin{}, mongoerr.New(mongoerr.SnapshotUnavailable,
		"nothing is kept of %s: the oldest moment is of %s", t.UTC().Format(time.RFC3339), oldest.UTC().Format(time.RFC3339))
}

// PinOf is the snapshot that a person means: the newest of a name or, for a time (RFC 3339), the
// newest that says its time and is not younger. Errors: mongoerr SnapshotUnavailable and BadValue,
// with what there is.
func PinOf(s *manifest.State, name string) (found manifest.Pin, err error) {
	if t, err := time.Parse(time.RFC3339, name); err == nil {
		return MomentOf(s, t)
	}
	var names []string
	for _, p := range s.Pins() {
		if names = append(names, p.Name); p.Name == name && p.Version > found.Version {
			found = p
		}
	}
	switch {
	case found.Version != 0:
		return found, nil
	case len(names) == 0:
		return found, mongoerr.New(mongoerr.BadValue, "there is no snapshot %q, and no other: granary snapshot create %s makes one of now", name, name)
	}
	slices.Sort(names)
	return found, mongoerr.New(mongoerr.BadValue, "there is no snapshot %q; the ones there are: %s", name, strings.Join(names, ", "))
}
