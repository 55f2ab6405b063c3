package reader

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
)

// A store of objects takes some 25 ms to the first byte, and 3 ms for wholeBytes: a segment as
// small is fetched as a whole, so that a cold read of it waits once. Where more than wholeMax
// are opened together, most of them are only asked for their filters, which are in the tails.
const (
	wholeBytes = 256 << 10
	wholeMax   = 4
)

// reader opens a reference's segment, alone: from the cache, or with one GET.
func (s *Store) reader(ctx context.Context, ref *manifest.SegmentRef) (*segment.Reader, error) {
	return s.open(ctx, ref, 1)
}

// open opens one of so many segments that are opened together.
func (s *Store) open(ctx context.Context, ref *manifest.SegmentRef, together int) (*segment.Reader, error) {
	open := segment.Open
	if ref.Size <= s.whole && together <= wholeMax {
		open = segment.OpenWhole
	}
	return open(ctx, func(ctx context.Context, off, length int64) ([]byte, error) {
		return s.fetch(ctx, ref, off, length)
	}, *ref, s.cache)
}

// errDeclined is the answer to a fetch that is not wanted now. To the cache it is a load
// that was given up: whoever waits for the same tail fetches it itself.
var errDeclined = fmt.Errorf("not cached: %w", context.Canceled)

// cached opens a reference's segment if that needs no GET; else it returns nil. sent, unless
// nil, becomes true when the reader sends a request later on.
func (s *Store) cached(ctx context.Context, ref *manifest.SegmentRef, sent *bool) *segment.Reader {
	opened := false
	r, err := segment.Open(ctx, func(ctx context.Context, off, length int64) ([]byte, error) {
		if !opened {
			return nil, errDeclined
		}
		if sent != nil {
			*sent = true
		}
		return s.fetch(ctx, ref, off, length)
	}, *ref, s.cache)
	if err != nil {
		return nil
	}
	opened = true
	return r
}

// fetch is one ranged GET.
func (s *Store) fetch(ctx context.Context, ref *manifest.SegmentRef, off, length int64) ([]byte, error) {
	b, err := s.bucket(ref.Location)
	if err != nil {
		return nil, fmt.Errorf("location %d: %w", ref.Location, err)
	}
	count := counterOf(ctx)
	count.requests.Add(1)
	o, err := b.Get(ctx, ref.Segment.Key(), bucket.GetOptions{Offset: off, Length: length, Fresh: segment.Fresh(ctx)})
	if err != nil {
		return nil, err
	}
	count.bytes.Add(int64(len(o.Body)))
	return o.Body, nil
}

// opener opens the segments of references one by one while they are cached; at the first
// that is not, it opens all that follow together, so that a cold read waits for tails once.
type opener struct {
	store   *Store
	refs    []*manifest.SegmentRef
	first   int // of those in readers
	readers []*segment.Reader
}

// reader opens refs[i]. Requires: i grows from call to call.
func (o *opener) reader(ctx context.Context, i int) (*segment.Reader, error) {
	if o.readers == nil {
		if i == len(o.refs)-1 {
			return o.store.reader(ctx, o.refs[i])
		}
		if r := o.store.cached(ctx, o.refs[i], nil); r != nil {
			return r, nil
		}
		readers, err := o.store.openAll(ctx, append([]*manifest.SegmentRef(nil), o.refs[i:]...))
		if err != nil {
			return nil, err
		}
		o.first, o.readers = i, readers
	}
	return o.readers[i-o.first], nil
}

// openAll opens segments side by side. It keeps refs.
func (s *Store) openAll(ctx context.Context, refs []*manifest.SegmentRef) ([]*segment.Reader, error) {
	readers := make([]*segment.Reader, len(refs))
	err := inParallel(len(refs), func(i int) (err error) {
		readers[i], err = s.open(ctx, refs[i], len(refs))
		return err
	})
	return readers, err
}
