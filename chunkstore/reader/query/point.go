package query

import (
	"context"
	"sync"

	"github.com/granarydb/granary/chunkstore/segment"
)

const (
	// pointsAhead is how many points are read side by side after one that was not cached: a
	// list of keys ($in) then waits for the bucket once per pointsAhead keys.
	pointsAhead = 8
	// pollEvery is after how many points a query looks whether its context has ended; scans
	// look by themselves.
	pollEvery = 64
)

// points reads single rows. While they are cached it reads one after another; after one that
// was not, the next few together.
type points struct {
	read  uint
	cold  bool    // the last read went to the bucket
	ahead []point // read before their turn, in order
}

type point struct {
	target *Target
	key    []byte
	row    segment.Row
	live   bool
	err    error
}

// point reads the row of a key of the present target. live tells whether it is there, and
// then it is the present row.
func (r *rows) point(ctx context.Context, t *Target, key []byte) (live bool, err error) {
	p := &r.points
	if p.read++; p.read%pollEvery == 0 && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	sent := r.cost.Requests()
	if len(p.ahead) == 0 && p.cold {
		r.readAhead(ctx, t, key)
		p.cold = r.cost.Requests() != sent
	}
	if len(p.ahead) > 0 {
		next := &p.ahead[0]
		p.ahead = p.ahead[1:]
		r.row = next.row
		return next.live, next.err
	}
	r.row, live, err = r.store.Get(ctx, t.View, key)
	p.cold = r.cost.Requests() != sent
	return live, err
}

// readAhead reads a point and those that directly follow it.
func (r *rows) readAhead(ctx context.Context, t *Target, key []byte) {
	ahead := []point{{target: t, key: key}}
	look := rows{targets: r.targets, reverse: r.reverse, at: r.at, passed: r.passed}
	for len(ahead) < pointsAhead {
		t, part, ok := look.part()
		if !ok {
			break
		}
		key, ok := exactKey(t.Key, part)
		if !ok {
			break
		}
		look.passed++
		ahead = append(ahead, point{target: t, key: key})
	}
	var wait sync.WaitGroup
	for i := range ahead {
		p := &ahead[i]
		wait.Go(func() { p.row, p.live, p.err = r.store.Get(ctx, p.target.View, p.key) })
	}
	wait.Wait()
	r.points.ahead = ahead
}
