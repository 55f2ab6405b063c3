package reshard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// ErrWritten is the cause of a Restore that would lose writes, or cannot be made any more.
var ErrWritten = errors.New("it was written since, or changed so that its old chunks cannot be put back as they are")

// keep pins the present root, which is under the mark and flushed, and returns it.
func (w *work) keep(ctx context.Context) (*manifest.State, error) {
	now := w.Host.Wall()
	until := now.Add(w.goal.Keep).Unix()
	name := fmt.Sprintf("%s before it got the shard key %v", w.coll.Namespace(), w.goal.Key)
	pin, s, err := w.Root.PinState(ctx, name, until, now.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("keep the old version: %w", err)
	}
	w.kept = &manifest.Undo{Pin: pin.ID, Version: pin.Version, Until: until}
	_, err = w.present(s)
	return s, err
}

// Kept is a collection as it was before it got its key, while that is kept. Errors: mongoerr
// IllegalOperation when it is not.
func Kept(ctx context.Context, root *manifest.Root, c *manifest.Collection) (manifest.Undo, *manifest.State, *manifest.Collection, error) {
	u, ok := c.Undo()
	if !ok {
		return u, nil, nil, mongoerr.New(mongoerr.IllegalOperation, "nothing is kept of %s from before it got the key %v; "+
			"sh.reshardCollection(%q, { ... }) gives it another", c.Namespace(), c.Key, c.Namespace())
	}
	pinned, err := root.Pinned(ctx, u.Version)
	if errors.Is(err, errkind.SnapshotUnavailable) {
		return u, nil, nil, mongoerr.New(mongoerr.IllegalOperation, "what was kept of %s was given up, at %s or before; "+
			"sh.reshardCollection(%q, { ... }) gives it its old key again", c.Namespace(), time.Unix(u.Until, 0).UTC().Format(time.RFC3339), c.Namespace())
	}
	if err != nil {
		return u, nil, nil, err
	}
	for _, old := range pinned.Collections() {
		if old.UUID == c.UUID {
			return u, pinned, old, nil
		}
	}
	return u, nil, nil, fmt.Errorf("the pin of version %d that %s names: %w: the collection is not in it", u.Version, c.Namespace(), errkind.Corrupt)
}

// Restore puts a collection that got another key back as it was, in one commit and without a
// byte of its data. It keeps the indexes and options that it has now, but for what finish makes
// of them, which is given what it was. Errors: ErrWritten, with nothing changed: then it can be
// rewritten; those of finish; others as Run.
func Restore(ctx context.Context, c Config, ns string, finish func(c, old *manifest.Collection) error, progress *Progress) (*manifest.State, error) {
	w := start(c, Goal{Key: progress.Seen().Key}, progress)
	s, err := w.restore(ctx, finish)
	if err = w.ended(ctx, err); err != nil {
		return nil, fmt.Errorf("put %s back: %w", ns, err)
	}
	return s, nil
}

func (w *work) restore(ctx context.Context, finish func(c, old *manifest.Collection) error) (*manifest.State, error) {
	s, _, err := w.Root.Load(ctx)
	if err != nil {
		return nil, err
	}
	c := collectionOf(s, w.progress.ns)
	if c == nil {
		return nil, mongoerr.New(mongoerr.NamespaceNotFound, "ns does not exist: %s", w.progress.ns)
	}
	undo, pinned, old, err := Kept(ctx, w.Root, c)
	switch {
	case err != nil:
		return nil, err
	case !undo.Unwritten(s, c):
		return nil, ErrWritten
	}
	w.restores = old
	if err := w.register(ctx); err != nil {
		return nil, err
	}
	w.progress.enter("switch")
	begun := w.Host.Mono()
	marked, err := w.mark(ctx)
	if err != nil {
		return nil, err
	}
	now, owners, err := w.snapshot(ctx, marked)
	if err != nil {
		return nil, err
	}
	if c = now.Collection(w.coll.ID); !undo.Unwritten(now, c) {
		return nil, ErrWritten
	}
	x, err := w.back(ctx, now, pinned, undo, finish)
	if err != nil {
		return nil, err
	}
	x.Owners = owners
	changes := []manifest.Change{manifest.AlterCollection{Was: w.coll, Now: w.coll}, x, manifest.DropPin{ID: undo.Pin}}
	s, err = w.commit(ctx, w.edit(append(changes, w.farewell(nil)...)...))
	if errors.Is(err, errkind.Conflict) {
		return nil, fmt.Errorf("%w (%v)", ErrWritten, err) // also a shard that is not there any more
	}
	if err != nil {
		return nil, err
	}
	w.marked = false
	stopped := w.Host.Mono() - begun
	w.progress.change(func(p *Seen) { p.Stopped = stopped })
	w.Log.Info("a collection was put back as it was", "ns", w.progress.ns, "key", old.Key, "stopped", stopped)
	return s, nil
}

// back is the change that puts the old chunks in the place of those in now.
func (w *work) back(ctx context.Context, now, pinned *manifest.State, undo manifest.Undo, finish func(c, old *manifest.Collection) error) (x manifest.ReshapeCollection, err error) {
	r := &manifest.Restored{Pin: undo.Pin, ID: w.restores.ID, Job: w.job}
	for k := range now.Chunks(w.coll.ID) {
		if err := w.carry(ctx, reader.View{Chunk: k}); err != nil {
			return x, err
		}
		x.At = append(x.At, k.At())
		r.From = append(r.From, k.Refs)
	}
	for k := range pinned.Chunks(r.ID) {
		r.Chunks = append(r.Chunks, k)
	}
	if r.Retries, err = w.storeRetries(ctx); err != nil {
		return x, err
	}
	x.Restored = r
	x.Collection = w.coll.WithoutReshaping()
	x.Collection = x.Collection.WithoutUndo()
	if err := finish(&x.Collection, w.restores); err != nil {
		return x, err
	}
	x.Collection.Key, x.Collection.Sharded, x.Collection.Unique = w.restores.Key, w.restores.Sharded, w.restores.Unique
	x.Collection.Zones, x.Collection.DataVersion = w.restores.Zones, w.restores.DataVersion
	x.Collection.SplitWithinKey = w.restores.SplitWithinKey
	return x, nil
}

// start is a job that is about to run.
func start(c Config, goal Goal, progress *Progress) *work {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Settings = c.Settings.withDefaults()
	return &work{Config: c, goal: goal, progress: progress, store: c.Store.Apart(segment.NewCache(segmentCache))}
}

// ended is how a job ended: what did not come to its commit is given up.
func (w *work) ended(ctx context.Context, err error) error {
	switch {
	case err == nil:
		w.progress.enter("done")
	case w.unclear:
		w.progress.enter("unknown")
	default:
		w.abandon(ctx, err)
	}
	return err
}
