package gc

import (
	"context"
	"fmt"
	"iter"
	"path"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
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
	// MaxDeletes bounds one sweep; 0 means 10,000. What is left is the next sweep's.
	MaxDeletes int

	// swept are the floors below which the logs are swept. What may go from a log grows
	// only when its floor moves: an epoch is open no longer when the floor passes it.
	swept map[manifest.ShardID]manifest.Position
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
		w.budget = 10_000
	}
	w.Plan = Make(roots, s.Host.Wall().UnixMilli(), courtesy)
	for _, shard := range roots[0].Shards() {
		if err := w.log(ctx, shard); err != nil {
			return w.Result, err
		}
	}
	return w.Result, w.segments(ctx)
}

// roots are the root and, when there are segments to decide about, every pinned root.
func (s *Sweeper) roots(ctx context.Context) ([]*manifest.State, error) {
	root, _, err := s.Root.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("gc: read root: %w", err)
	}
	roots := []*manifest.State{root}
	if len(root.Dropped()) == 0 {
		return roots, nil
	}
	for _, pin := range root.Pins() {
		pinned, err := manifest.ReadCopy(ctx, bucket.NewCell(s.Bucket), manifest.PinKey(pin.ID))
		if err != nil {
			return nil, fmt.Errorf("gc: pin %q of version %d cannot be read, so nothing is deleted: %w", pin.Name, pin.Version, err)
		}
		roots = append(roots, pinned)
	}
	return roots, nil
}

// sweep is one sweep under way.
type sweep struct {
	*Sweeper
	Result
	dry    bool
	budget int
}

// log sweeps the log of one shard, unless its floor is where it was. The listing may be
// younger than the root: what a floor covers stays covered.
func (w *sweep) log(ctx context.Context, shard *manifest.Shard) error {
	if w.Left || shard.Floor == w.swept[shard.ID] {
		return nil
	}
	plan := logPlan{shard: shard}
	for key, err := range w.keys(ctx, shard.ID) {
		if err != nil {
			return err
		}
		garbage, past := plan.next(key)
		if garbage != "" {
			if done, err := w.delete(ctx, w.Bucket, garbage); err != nil || !done {
				return err
			}
		}
		if past {
			break
		}
	}
	if !w.dry {
		if w.swept == nil {
			w.swept = make(map[manifest.ShardID]manifest.Position)
		}
		w.swept[shard.ID] = shard.Floor
	}
	return nil
}

// keys lists a shard's log from the epoch on in which the last sweep ended: only seals are
// below, one for each takeover there ever was. (If a doubled PUT brings an object back
// there, it lies until another Sweeper's first sweep.)
func (w *sweep) keys(ctx context.Context, shard manifest.ShardID) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		prefix, after := "wal/"+string(shard)+"/", ""
		if from, ok := w.swept[shard]; ok {
			after = path.Dir(manifest.WALKey(shard, from.Epoch, 0))
		}
		for more := true; more; {
			page, further, err := w.Bucket.List(ctx, prefix, after, 0)
			if err != nil {
				yield("", fmt.Errorf("gc: list %s after %q: %w", prefix, after, err))
				return
			}
			for _, o := range page {
				if !yield(o.Key, nil) {
					return
				}
				after = o.Key
			}
			more = further && len(page) > 0
		}
	}
}

// delete deletes an object; false when the bound was reached before.
func (w *sweep) delete(ctx context.Context, b bucket.Bucket, key string) (bool, error) {
	if w.Deleted == w.budget {
		w.Left = true
		return false, nil
	}
	if !w.dry {
		if err := b.Delete(ctx, key); err != nil {
			return false, fmt.Errorf("gc: delete %s: %w", key, err)
		}
	}
	w.Deleted++
	return true, nil
}

// segments deletes dropped segments, and forgets those that are gone or shared.
func (w *sweep) segments(ctx context.Context) error {
	forget := slices.Clone(w.Plan.Shared)
	for _, d := range w.Plan.Segments {
		b, err := w.Open(d.Location)
		if err != nil {
			return fmt.Errorf("gc: location %d of %s: %w", d.Location, d.Segment, err)
		}
		done, err := w.delete(ctx, b, d.Segment.Key())
		if err != nil {
			return err
		}
		if !done {
			break
		}
		forget = append(forget, d)
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
