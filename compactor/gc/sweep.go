package gc

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Sweeper decides and deletes. It sweeps once at a time; several Sweepers may work on one
// bucket, anywhere, at the same time.
type Sweeper struct {
	Root   *manifest.Root
	Bucket bucket.Bucket // the cluster's own
	Open   func(manifest.LocationID) (bucket.Bucket, error)
	Host   host.Host
	// Courtesy is the wait for dropped segments; 0 means Courtesy, the constant.
	Courtesy time.Duration
	// MaxDeletes bounds one sweep; 0 means 10,000. What is left is the next sweep's. While
	// segments wait too, logs take half of it at most.
	MaxDeletes int
	// Report is told of each object that goes, and of those that do not go yet; nil: nobody is.
	Report func(Verdict)

	// swept are the floors below which the logs are swept. What may go from a log grows
	// only when its floor moves: an epoch is open no longer when the floor passes it.
	swept map[manifest.ShardID]manifest.Position
	// paged is the root version up to which the pages in other locations are swept.
	paged manifest.Version
	// pinned are the pins that the last sweep saw; nil: there was none yet.
	pinned [][16]byte
	// heard are the reshardings under way.
	heard map[manifest.JobID]heard
	// orphansAfter is, for each location, the key at which the last look for orphans ended; "": it
	// saw all.
	orphansAfter map[manifest.LocationID]string
	// copied is the newest copy of the root; nil: there is none. copiedMillis is that of the root
	// when it was looked for.
	copied       *manifest.Image
	copiedMillis int64
	// awaited: the copy that the root tells of was not there.
	awaited bool
}

// Result is what a sweep did.
type Result struct {
	Plan    Plan
	Deleted int  // objects, of logs and segments; in a dry sweep those that would be
	Left    bool // there is more: the bound was reached
}

// Sweep reads the root and deletes what it shows to be garbage, or only looks for it when
// dry. Errors: those of the bucket and of the commit; whatever was deleted stays deleted,
// and the next sweep goes on.
func (s *Sweeper) Sweep(ctx context.Context, dry bool) (Result, error) {
	roots, err := s.roots(ctx)
	if err != nil {
		return Result{}, err
	}
	courtesy := s.Courtesy
	if courtesy == 0 {
		courtesy = Courtesy
	}
	w := &sweep{Sweeper: s, dry: dry, budget: s.MaxDeletes}
	if w.budget == 0 {
		w.budget = deletesMax
	}
	if err := w.silent(ctx, roots[0]); err != nil {
		return Result{}, err
	}
	if err := w.history(ctx, roots[0]); err != nil {
		return w.Result, err
	}
	w.Plan = Make(roots, s.Host.Wall().UnixMilli(), courtesy)
	switch {
	case s.copied != nil:
		w.Plan.Copied(s.copied.Version())
	case s.awaited:
		w.Plan.Copied(0)
	}
	w.explain(roots, courtesy)
	for _, shard := range logs(roots[0]) {
		low, ok := s.collectable(shard)
		if !ok {
			continue
		}
		if err := w.log(ctx, low, w.budget-min(len(w.Plan.Segments), (w.budget+1)/2)); err != nil {
			return w.Result, err
		}
	}
	if err := w.segments(ctx); err != nil {
		return w.Result, err
	}
	if err := w.pages(ctx, roots[0]); err != nil {
		return w.Result, err
	}
	if err := w.pins(ctx, roots[0]); err != nil {
		return w.Result, err
	}
	return w.Result, w.another(ctx, roots[0])
}

// roots are the root and, when there are segments to decide about, every pinned root.
func (s *Sweeper) roots(ctx context.Context) ([]*manifest.State, error) {
	root, _, err := s.Root.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("gc: read root: %w", err)
	}
	if len(root.Dropped()) == 0 {
		return []*manifest.State{root}, nil
	}
	return s.withPins(ctx, root)
}

// withPins are a root and every root that a pin in it keeps.
func (s *Sweeper) withPins(ctx context.Context, root *manifest.State) ([]*manifest.State, error) {
	roots := []*manifest.State{root}
	for _, pin := range root.Pins() {
		pinned, err := s.rootOf(ctx, pin)
		if err != nil {
			return nil, err
		}
		roots = append(roots, pinned)
	}
	return roots, nil
}

// at is the bucket of a location.
func (s *Sweeper) at(id manifest.LocationID) (bucket.Bucket, error) {
	if id == 0 {
		return s.Bucket, nil
	}
	return s.Open(id)
}

// sweep is one sweep under way.
type sweep struct {
	*Sweeper
	Result
	dry    bool
	budget int
}

// deletesAtOnce bounds the deletes that are under way together. One after another they would
// wait for the store, which takes new objects from many writers faster than that; deletePage is
// how many a log gathers before it waits for them.
const (
	deletesMax    = 10_000 // of one sweep
	deletesAtOnce = 8
	deletePage    = 1000
)

// log sweeps the log of one shard, unless its floor is where it was, as long as the sweep has
// deleted less than most. The listing may be younger than the root: what a floor covers stays
// covered.
func (w *sweep) log(ctx context.Context, shard *manifest.Shard, most int) error {
	if shard.Floor == w.swept[shard.ID] {
		return nil
	}
	b, err := w.at(shard.Location)
	if err != nil {
		return fmt.Errorf("gc: location %d of shard %s: %w", shard.Location, shard.ID, err)
	}
	plan := logPlan{shard: shard}
	var page []string
	for o, err := range w.objects(ctx, b, shard.ID) {
		if err != nil {
			return err
		}
		v := plan.next(o)
		if page, err = w.data(ctx, b, page, v.doubt); err != nil {
			return err
		}
		if v.garbage != "" {
			page = append(page, v.garbage)
		}
		if v.past {
			break
		}
		if len(page) >= deletePage {
			if done, err := w.delete(ctx, b, page, most); err != nil || done < len(page) {
				return err
			}
			page = page[:0]
		}
	}
	page, err = w.data(ctx, b, page, plan.end())
	if err != nil {
		return err
	}
	if done, err := w.delete(ctx, b, page, most); err != nil || done < len(page) || w.dry {
		return err
	}
	if w.swept == nil {
		w.swept = make(map[manifest.ShardID]manifest.Position)
	}
	w.swept[shard.ID] = shard.Floor
	return nil
}

// data adds a log object that is in doubt to those to delete, when it says that it is data and
// where it belongs. What cannot be read, or is anything else, stays: fsck says what it is. key may
// be "". Errors: those of the bucket.
func (w *sweep) data(ctx context.Context, b bucket.Bucket, page []string, key string) ([]string, error) {
	if key == "" {
		return page, nil
	}
	o, err := b.Get(ctx, key, bucket.GetOptions{})
	if errors.Is(err, errkind.NotFound) {
		return page, nil // another sweep was here
	}
	if err != nil {
		return page, fmt.Errorf("gc: look whether %s is a seal: %w", key, err)
	}
	h, _, err := wal.Decode(o.Body)
	if err == nil && h.Kind == wal.KindData && manifest.WALKey(h.Shard, h.Epoch, h.Index) == key {
		page = append(page, key)
	}
	return page, nil
}

// objects lists a shard's log from the epoch on in which the last sweep ended: only seals are
// below, one for each takeover there ever was. (If a doubled PUT brings an object back
// there, it lies until another Sweeper's first sweep.)
func (w *sweep) objects(ctx context.Context, b bucket.Bucket, shard manifest.ShardID) iter.Seq2[bucket.Attrs, error] {
	return func(yield func(bucket.Attrs, error) bool) {
		prefix, after := "wal/"+string(shard)+"/", ""
		if from, ok := w.swept[shard]; ok {
			after = path.Dir(manifest.WALKey(shard, from.Epoch, 0))
		}
		for more := true; more; {
			page, further, err := b.List(ctx, prefix, after, 0)
			if err != nil {
				yield(bucket.Attrs{}, fmt.Errorf("gc: list %s after %q: %w", prefix, after, err))
				return
			}
			for _, o := range page {
				if !yield(o, nil) {
					return
				}
				after = o.Key
			}
			more = further && len(page) > 0
		}
	}
}

// delete deletes the first of keys, several at a time, until the sweep has deleted most, and
// returns how many of them. It returns when none is under way.
func (w *sweep) delete(ctx context.Context, b bucket.Bucket, keys []string, most int) (done int, err error) {
	done = max(min(len(keys), most-w.Deleted), 0)
	if done < len(keys) {
		w.Left = true
	}
	for _, key := range keys[:done] {
		w.explained(key)
	}
	if w.dry {
		w.Deleted += done
		return done, nil
	}
	errs := make([]error, done)
	slots := make(chan struct{}, deletesAtOnce)
	var all sync.WaitGroup
	for i, key := range keys[:done] {
		slots <- struct{}{}
		if ctx.Err() != nil {
			errs[i] = fmt.Errorf("gc: delete %s: %w", key, context.Cause(ctx))
			errs = errs[:i+1]
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			if err := b.Delete(ctx, key); err != nil {
				errs[i] = fmt.Errorf("gc: delete %s: %w", key, err)
			}
		})
	}
	all.Wait()
	for _, e := range errs {
		if e == nil {
			w.Deleted++
		} else if err == nil {
			err = e
		}
	}
	return done, err
}

// segments deletes dropped segments, and forgets those that are gone or shared.
func (w *sweep) segments(ctx context.Context) error {
	forget := slices.Clone(w.Plan.Shared)
	for rest := w.Plan.Segments; len(rest) > 0; {
		n := 1 // as many as are in one place
		for n < len(rest) && rest[n].Location == rest[0].Location {
			n++
		}
		b, err := w.Open(rest[0].Location)
		if err != nil {
			return fmt.Errorf("gc: location %d of %s: %w", rest[0].Location, rest[0].Segment, err)
		}
		keys := make([]string, n)
		for i, d := range rest[:n] {
			keys[i] = d.Segment.Key()
		}
		done, err := w.delete(ctx, b, keys, w.budget)
		if err != nil {
			return err
		}
		forget = append(forget, rest[:done]...)
		if done < n {
			break
		}
		rest = rest[n:]
	}
	if len(forget) == 0 || w.dry {
		return nil
	}
	_, err := w.Root.Commit(ctx, manifest.Edit{
		Op:         w.Host.ID16(),
		Changes:    []manifest.Change{manifest.ForgetDropped{Segments: forget}},
		Millis:     w.Host.Wall().UnixMilli(),
		Background: true,
	})
	if err != nil {
		return fmt.Errorf("gc: forget %d dropped segments: %w", len(forget), err)
	}
	return nil
}
