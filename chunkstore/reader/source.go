package reader

import (
	"bytes"
	"context"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// source is one memtable or one reference of a scan, standing on a row. For one key, a
// memtable comes before older ones and before all references; references of one key come by
// seq, and where they agree by their place in the chunk.
type source struct {
	row   segment.Row // Key nil: none
	err   error
	age   int // memtables 0, 1, ...; all references the same
	place int

	mem MemIter // of a memtable

	ref         *manifest.SegmentRef // of a reference
	part        shardkey.Range       // what the scan wants of it
	first, last []byte               // no row before or after these, in scan order
	rows        *segment.Iter        // nil: not open
	sent        bool                 // has sent a request
	ahead       segment.Row          // reverse only: read, belongs to the next key
	reverse     bool
}

// await prepares a reference for a scan of r; false when it shows nothing there.
func (s *source) await(ref *manifest.SegmentRef, r shardkey.Range, reverse bool) bool {
	part, ok := r.Intersect(ref.Clip)
	if !ok || len(ref.MaxKey) == 0 {
		return false
	}
	if bytes.Compare(part.Min, ref.MinKey) < 0 {
		part.Min = ref.MinKey
	}
	low, high := part.Min, ref.MaxKey
	if len(part.Max) != 0 && bytes.Compare(part.Max, high) <= 0 {
		high = part.Max
	} else {
		part.Max = append(high[:len(high):len(high)], 0) // the least key above MaxKey
	}
	if bytes.Compare(low, high) > 0 || part.Empty() {
		return false
	}
	s.ref, s.part, s.first, s.last, s.reverse = ref, part, low, high, reverse
	if reverse {
		s.first, s.last = high, low
	}
	return true
}

// open opens the segment, unless it is open, and moves to the first row, if there is one.
func (s *source) open(ctx context.Context, it *Iter) error {
	if s.rows != nil {
		return nil
	}
	r, err := it.store.reader(ctx, s.ref)
	if err != nil {
		return err
	}
	return s.start(ctx, r, it)
}

// start moves to the first row.
func (s *source) start(ctx context.Context, r *segment.Reader, it *Iter) error {
	s.rows = r.Scan(it.collection, s.part, s.reverse)
	if s.reverse && s.fetch(ctx) {
		s.ahead = s.row
	}
	if s.err == nil {
		s.next(ctx)
	}
	return s.err
}

// reset makes a reference whose opening failed one that is not open.
func (s *source) reset() {
	s.rows, s.row, s.ahead, s.err, s.sent = nil, segment.Row{}, segment.Row{}, nil, false
}

// next moves to the next row; false at the end and after an error.
func (s *source) next(ctx context.Context) bool {
	switch {
	case s.mem != nil:
		if s.mem.Next() {
			s.row = s.mem.Row()
			return true
		}
		s.row = segment.Row{}
		return false
	case s.reverse:
		return s.back(ctx)
	}
	return s.fetch(ctx)
}

// back moves to the newest version of the key before. A segment's rows come from the oldest
// version to the newest then, so that it reads on to the next key, and keeps that row.
func (s *source) back(ctx context.Context) bool {
	newest := s.ahead
	s.ahead = segment.Row{}
	for newest.Key != nil && s.fetch(ctx) {
		if !bytes.Equal(s.row.Key, newest.Key) {
			s.ahead = s.row
			break
		}
		newest = s.row
	}
	if s.err != nil {
		newest = segment.Row{}
	}
	s.row = newest
	return s.row.Key != nil
}

// fetch takes the next row of the segment.
func (s *source) fetch(ctx context.Context) bool {
	if !s.rows.Next(ctx) {
		s.row, s.err = segment.Row{}, s.rows.Err()
		return false
	}
	s.row = s.rows.Row()
	s.err = admit(s.ref, &s.row)
	return s.err == nil
}
