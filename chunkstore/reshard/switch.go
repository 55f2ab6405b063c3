package reshard

import (
	"context"
	"errors"
	"time"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// replace makes the switch: what the image lacks, and the commit. seen is the image's snapshot
// before, now the one that it is of afterwards. Errors: Conflict (it can be tried again from
// now); as Run.
func (w *work) replace(ctx context.Context, seen shown) (s *manifest.State, now shown, err error) {
	w.progress.enter("switch")
	start := w.Host.Mono()
	now = seen
	marked, err := w.mark(ctx)
	if err != nil {
		return nil, now, err
	}
	last, owners, err := w.snapshot(ctx, marked)
	if err == nil && w.goal.Keep > 0 {
		last, err = w.keep(ctx)
	}
	if err != nil {
		return nil, now, err
	}
	if err := w.follow(ctx, seen, last); err != nil {
		w.broken = true // a part of the round may be in the image: it cannot be made again
		return nil, now, err
	}
	now = w.shownBy(last)
	if err := w.verifyCounts(now); err != nil {
		return nil, now, err
	}
	retries, err := w.storeRetries(ctx)
	if err != nil {
		return nil, now, err
	}
	change, with, err := w.change(last, owners, retries)
	if err != nil {
		return nil, now, err
	}
	renewed, err := w.renewed() // nobody has taken the job over
	if err != nil {
		return nil, now, err
	}
	// The mark must still be this one: an owner that saw none may have taken writes.
	changes := append(append(renewed, with...), manifest.AlterCollection{Was: w.coll, Now: w.coll}, change)
	if before, ok := w.coll.Undo(); ok {
		changes = append(changes, manifest.DropPin{ID: before.Pin}) // there is one way back
	}
	changes = append(changes, w.farewell(w.scrap(change))...)
	if s, err = w.commit(ctx, w.edit(changes...)); err != nil {
		return nil, now, err
	}
	w.marked, w.kept = false, nil
	stopped := w.Host.Mono() - start
	w.progress.change(func(p *Seen) { p.Stopped = stopped })
	w.Log.Info("a collection has another shard key", "ns", w.progress.ns, "key", w.goal.Key, "chunks", len(w.image.chunks), "rounds", w.round, "stopped", stopped)
	return s, now, nil
}

// commit commits e; while the outcome is unknown it commits the same Edit again, which happens
// once.
func (w *work) commit(ctx context.Context, e manifest.Edit) (s *manifest.State, err error) {
	for range commitsMax {
		if s, err = w.Root.Commit(ctx, e); !errors.Is(err, errkind.UnknownOutcome) {
			return s, err
		}
		if ctx.Err() != nil || w.Host.Sleep(ctx, w.Host.Jitter(time.Second)) != nil {
			break
		}
	}
	w.unclear = true
	return nil, err
}

// change is the collection as it shall be, made of what now shows, and what belongs with it.
func (w *work) change(now *manifest.State, owners []manifest.OwnerAt, retries []manifest.SegmentRef) (manifest.ReshapeCollection, []manifest.Change, error) {
	x := manifest.ReshapeCollection{Owners: owners, Rebuilt: &manifest.Rebuilt{Job: w.job}}
	final, err := w.goal.Finish(now, w.coll.WithoutReshaping(), w.image.points())
	if err != nil {
		return x, nil, err
	}
	x.Collection, x.Chunks = final.Collection, final.Chunks
	x.Collection.Key, x.Collection.Sharded, x.Collection.Unique = w.goal.Key, !w.goal.Unsharded, w.goal.Unique
	if x.Collection = x.Collection.WithoutUndo(); w.kept != nil {
		w.kept.MaxSeq, w.kept.DataVersion = w.seq(came), x.Collection.DataVersion
		x.Collection = x.Collection.WithUndo(*w.kept)
	}
	for k := range now.Chunks(w.coll.ID) {
		x.At = append(x.At, k.At())
		x.Rebuilt.From = append(x.Rebuilt.From, k.Refs)
	}
	for _, k := range w.image.chunks {
		added := k.added
		added.Refs = append(added.Refs[:len(added.Refs):len(added.Refs)], retries...)
		added.MaxSeq = w.seq(came)
		x.Rebuilt.Added = append(x.Rebuilt.Added, added)
	}
	return x, final.With, nil
}

// storeRetries writes what every chunk gets of retry entries; none: there are none.
func (w *work) storeRetries(ctx context.Context) ([]manifest.SegmentRef, error) {
	entries := w.carried.Entries()
	if len(entries) == 0 {
		return nil, nil
	}
	o := &output{w: w}
	if err := o.begin(ctx); err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := o.segment.AddRetry(e); err != nil {
			return nil, err
		}
	}
	if err := o.segment.Cut(segment.Part{Collection: w.id, Clip: shardkey.Range{}}); err != nil {
		return nil, err
	}
	return o.store(ctx)
}

// scrap is what was uploaded and is not part of the collection.
func (w *work) scrap(x manifest.ReshapeCollection) []manifest.SegmentRef {
	used := make(map[manifest.SegmentID]bool)
	for _, a := range x.Rebuilt.Added {
		for i := range a.Refs {
			used[a.Refs[i].Segment] = true
		}
	}
	var left []manifest.SegmentRef
	for _, r := range w.uploaded {
		if !used[r.Segment] {
			left = append(left, r)
		}
	}
	return left
}
