package gc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
)

// Sweeper carries plans out.
type Sweeper struct {
	Root   *manifest.Root
	Bucket bucket.Bucket // the cluster's own
	Open   func(manifest.LocationID) (bucket.Bucket, error)
	Host   host.Host
	// Courtesy is the wait for dropped segments; 0 means Courtesy, the constant.
	Courtesy time.Duration
	// MaxDeletes bounds one sweep; 0 means 10,000. What is left is the next sweep's.
	MaxDeletes int
}

// Result is what a sweep did.
type Result struct {
	Plan    Plan
	Deleted int
	Left    int // planned, not done: the bound was reached
}

// Sweep makes a plan on a fresh root and carries it out, or only makes it when dry.
// Errors: those of the bucket and of the commit; whatever was deleted stays deleted, and
// the next sweep goes on.
func (s *Sweeper) Sweep(ctx context.Context, dry bool) (Result, error) {
	p, err := s.plan(ctx)
	r := Result{Plan: p}
	if err != nil || dry {
		return r, err
	}
	budget := s.MaxDeletes
	if budget == 0 {
		budget = 10_000
	}
	for _, key := range p.WAL {
		if r.Deleted == budget {
			r.Left++
			continue
		}
		if err := s.Bucket.Delete(ctx, key); err != nil {
			return r, fmt.Errorf("gc: delete %s: %w", key, err)
		}
		r.Deleted++
	}
	forget := slices.Clone(p.Shared)
	for _, d := range p.Segments {
		if r.Deleted == budget {
			r.Left++
			continue
		}
		if err := s.deleteSegment(ctx, d); err != nil {
			return r, err
		}
		r.Deleted++
		forget = append(forget, d)
	}
	if len(forget) == 0 {
		return r, nil
	}
	_, err = s.Root.Commit(ctx, manifest.Edit{
		Op:         s.Host.ID16(),
		Changes:    []manifest.Change{manifest.ForgetDropped{Segments: forget}},
		Millis:     s.Host.Wall().UnixMilli(),
		Background: true,
	})
	if err != nil {
		return r, fmt.Errorf("gc: forget %d dropped segments: %w", len(forget), err)
	}
	return r, nil
}

func (s *Sweeper) plan(ctx context.Context) (Plan, error) {
	// The listing comes first: what it shows is older than the root that judges it.
	keys, err := s.listWAL(ctx)
	if err != nil {
		return Plan{}, err
	}
	root, _, err := s.Root.Load(ctx)
	if err != nil {
		return Plan{}, fmt.Errorf("gc: read root: %w", err)
	}
	roots := []*manifest.State{root}
	for _, pin := range root.Pins() {
		pinned, err := manifest.ReadCopy(ctx, bucket.NewCell(s.Bucket), manifest.PinKey(pin.ID))
		if err != nil {
			return Plan{}, fmt.Errorf("gc: pin %q of version %d cannot be read, so nothing is deleted: %w", pin.Name, pin.Version, err)
		}
		roots = append(roots, pinned)
	}
	courtesy := s.Courtesy
	if courtesy == 0 {
		courtesy = Courtesy
	}
	return Make(roots, keys, s.Host.Wall().UnixMilli(), courtesy), nil
}

func (s *Sweeper) listWAL(ctx context.Context) ([]string, error) {
	var keys []string
	after := ""
	for {
		page, more, err := s.Bucket.List(ctx, "wal/", after, 0)
		if err != nil {
			return nil, fmt.Errorf("gc: list wal/ after %q: %w", after, err)
		}
		for _, a := range page {
			keys = append(keys, a.Key)
			after = a.Key
		}
		if !more || len(page) == 0 {
			return keys, nil
		}
	}
}

func (s *Sweeper) deleteSegment(ctx context.Context, d manifest.DroppedSegment) error {
	b, err := s.Open(d.Location)
	if err != nil {
		return fmt.Errorf("gc: location %d of %s: %w", d.Location, d.Segment, err)
	}
	if err := b.Delete(ctx, d.Segment.Key()); err != nil {
		return fmt.Errorf("gc: delete %s: %w", d.Segment, err)
	}
	return nil
}
