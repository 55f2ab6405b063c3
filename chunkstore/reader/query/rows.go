package query

import (
	"bytes"
	"context"

	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest/shardkey"
)

// rows walks over the live rows of all targets: target by target, range by range.
type rows struct {
	store   *reader.Store
	targets []Target
	reverse bool
	cost    *reader.Counter
	want    func() int64 // how many more rows are about to be taken, a guess

	row      segment.Row  // present
	scan     *reader.Iter // nil: none under way
	at       int          // the present target
	passed   int          // how many of its ranges were begun
	points   points
	examined int64
}

// next moves to the next row; false at the end.
func (r *rows) next(ctx context.Context) (bool, error) {
	for {
		if r.scan != nil {
			if r.scan.Next(ctx) {
				r.row = r.scan.Row()
				r.examined++
				return true, nil
			}
			if err := r.scan.Err(); err != nil {
				return false, err
			}
			r.scan = nil
		}
		t, part, ok := r.part()
		if !ok {
			return false, nil
		}
		r.passed++
		key, exact := exactKey(t.Key, part)
		if !exact {
			r.scan = r.store.Scan(ctx, t.View, part, r.reverse)
			r.scan.Want(r.want)
			continue
		}
		live, err := r.point(ctx, t, key)
		if err != nil {
			return false, err
		}
		if live {
			r.examined++
			return true, nil
		}
	}
}

// rest ends what is being read ahead of the scan under way.
func (r *rows) rest() {
	if r.scan != nil {
		r.scan.Rest()
	}
}

// part is the next range to read, of the target that it belongs to; false at the end.
func (r *rows) part() (*Target, shardkey.Range, bool) {
	for ; r.at < len(r.targets); r.at, r.passed = r.at+1, 0 {
		t := &r.targets[r.at]
		for ; r.passed < max(len(t.Ranges), 1); r.passed++ {
			if part, ok := t.part(r.passed, r.reverse); ok {
				return t, part, true
			}
		}
	}
	return nil, shardkey.Range{}, false
}

// part is the n-th range of a target as a query visits them, inside the chunk; false when
// it is empty there.
func (t *Target) part(n int, reverse bool) (shardkey.Range, bool) {
	if len(t.Ranges) == 0 {
		return t.View.Chunk.Range, true
	}
	if reverse {
		n = len(t.Ranges) - 1 - n
	}
	return t.Ranges[n].Intersect(t.View.Chunk.Range)
}

// exhausted reports whether there are no more rows, as far as is known without reading.
func (r *rows) exhausted() bool {
	if r.scan != nil {
		return false
	}
	_, _, ok := r.part()
	return !ok
}

// exactKey is the row key that a range consists of; not ok when it may hold several.
//
// Row keys end themselves: no key is the beginning of another one. So the range from a
// whole row key to that key with any byte after it has only this row.
func exactKey(p shardkey.Pattern, r shardkey.Range) (key []byte, ok bool) {
	n := len(r.Min)
	if n == 0 || len(r.Max) != n+1 || !bytes.Equal(r.Max[:n], r.Min) || len(p.Fields) == 0 {
		return nil, false
	}
	prefix, err := p.Prefix(r.Min)
	if err != nil {
		return nil, false
	}
	rest := r.Min[len(prefix):]
	if !p.HasID() { // the _id follows
		if rest, err = shardkey.SkipValue(rest); err != nil {
			return nil, false
		}
	}
	return r.Min, len(rest) == 0
}
