package query

import (
	"context"
	"sync"

	"github.com/granarydb/granary/chunkstore/reader"
)

// A list of keys ($in) is read one after another while the rows are cached; after one that
// was not, the next aheadMin together, then twice as many each time, up to aheadMax.
const (
	aheadMin = 8
	aheadMax = 128
	// pollEvery is after how many points a query looks whether its context has ended; scans
	// look by themselves.
	pollEvery = 64
)

// points reads single rows. While they are cached it reads one after another; after one that
// was not, the next few together.
type points struct {
	read   uint
	cold   bool           // the last read went to the bucket
	window int            // how many to read together next
	ahead  []reader.Found // read before their turn, in order
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
		r.row = next.Row
		return next.Live, next.Err
	}
	r.row, live, err = r.store.Get(ctx, t.View, key)
	p.cold = r.cost.Requests() != sent
	return live, err
}

// readAhead reads a point and those that directly follow it, as many as the caller is about
// to take: those of one target together, targets side by side.
func (r *rows) readAhead(ctx context.Context, t *Target, key []byte) {
	p := &r.points
	p.window = min(max(2*p.window, aheadMin), aheadMax)
	most := int(max(min(int64(p.window), r.want()), 1))
	lists := []list{{target: t, keys: [][]byte{key}}}
	look := rows{targets: r.targets, reverse: r.reverse, at: r.at, passed: r.passed}
	for n := 1; n < most; n++ {
		t, part, ok := look.part()
		if !ok {
			break
		}
		key, ok := exactKey(t.Key, part)
		if !ok {
			break
		}
		look.passed++
		if last := &lists[len(lists)-1]; last.target == t {
			last.keys = append(last.keys, key)
		} else if len(lists) < aheadMin {
			lists = append(lists, list{target: t, keys: [][]byte{key}})
		} else {
			break
		}
	}
	var wait sync.WaitGroup
	for i := range lists {
		l := &lists[i]
		wait.Go(func() { l.found = r.store.GetMany(ctx, l.target.View, l.keys) })
	}
	wait.Wait()
	p.ahead = nil
	for _, l := range lists {
		p.ahead = append(p.ahead, l.found...)
	}
}

// list is the points of one target that are read together.
type list struct {
	target *Target
	keys   [][]byte
	found  []reader.Found
}
