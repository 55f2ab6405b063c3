package query

import (
	"context"
	"math"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Count is the number of matches after Skip and Limit. Without a filter it looks at keys
// only, and where whole chunks are counted at as little of them as gives an exact number.
// Errors: as Next.
func (c *Cursor) Count(ctx context.Context) (int64, error) {
	if c.err == nil && c.mode != rpc.Count {
		c.err = mongoerr.New(mongoerr.IllegalOperation, "only a count can be counted")
	}
	if c.err != nil {
		return 0, c.err
	}
	defer c.rows.rest()
	n, err := c.matches(reader.WithCounter(ctx, &c.cost))
	if err != nil {
		c.err = err
		return 0, err
	}
	n = max(n-c.skip, 0)
	if c.limit >= 0 {
		n = min(n, c.limit)
	}
	return n, nil
}

// matches counts what the filter lets through, until more would make no difference.
func (c *Cursor) matches(ctx context.Context) (n int64, err error) {
	targets, most := c.rows.targets, int64(math.MaxInt64)
	if c.limit >= 0 && c.limit <= most-c.skip {
		most = c.skip + c.limit
	}
	for i := range targets {
		if whole, ok, err := c.whole(ctx, &targets[i]); err != nil {
			return 0, err
		} else if ok {
			n += whole
			continue
		}
		c.rows.targets, c.rows.at = targets[i:i+1], 0
		for n < most {
			ok, err := c.match(ctx)
			if err != nil {
				return 0, err
			}
			if !ok {
				break
			}
			n++
		}
	}
	return n, nil
}

// whole counts a target that is a whole chunk, without a filter; not ok when it is not that,
// or when counting row by row up to the limit is better.
func (c *Cursor) whole(ctx context.Context, t *Target) (n int64, ok bool, err error) {
	if c.filter != nil || !covers(t.Ranges, t.View.Chunk.Range) {
		return 0, false, nil
	}
	if n, ok := CountFast(t.View); ok {
		return n, true, nil
	}
	if c.limit >= 0 {
		return 0, false, nil
	}
	n, err = c.rows.store.Count(ctx, t.View)
	return n, err == nil, err
}

func covers(ranges []shardkey.Range, chunk shardkey.Range) bool {
	return len(ranges) == 0 || len(ranges) == 1 && ranges[0].Covers(chunk)
}

// CountFast is the exact number of live rows of a whole chunk, read from the chunk's entry
// alone. Not ok when that number is an estimate, when rows may have expired, or when there are unflushed rows.
func CountFast(v reader.View) (n int64, ok bool) {
	if !v.CountsRight() {
		return 0, false
	}
	for _, m := range v.Mems {
		if m.Scan(shardkey.Range{}, false).Next() {
			return 0, false
		}
	}
	return v.Chunk.Rows, true
}
