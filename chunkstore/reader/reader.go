// Package reader reads a chunk: its segments at one root version, and over them the rows
// that its owner has acknowledged and not flushed yet.
//
// # What a chunk is to a reader
//
// A View is a chunk's entry in one root version and its owner's unflushed rows. Both are
// immutable, so that everything read through one View is of one moment, however long it
// takes.
//
//	mems   newest   k1 k4            unflushed, each newer than the next,
//	         older  k1 k2 k9         all newer than any segment
//	refs     L   [----------------]  a segment, seen through the reference's clip;
//	           L      [-----]        references overlap in any order, and the
//	         L    [------------]     highest seq of a key is its present version
//
// A reference shows the rows of its segment that are inside its clip and between its
// MinKey and MaxKey; all others belong to another chunk, or to nobody since a split. With a
// FixedSeq, every row has that seq, whatever the file says. A deletion is a row: it hides
// older versions of its key and is then left out.
//
// # What reading costs
//
// A segment opens with one ranged GET of its tail (filter, index, footer), and a row is in
// one block, another GET. Tails and blocks stay in the cache, so that
//
//	point read, S segments may hold the key   S tails in parallel, then 1 block
//	many point reads (GetMany)                all tails in parallel, then all blocks, each once
//	the same again                            nothing
//	scan                                      tails and blocks of what it passes
//
// A scan opens a segment when it comes to the first key that it may hold, not before:
// where references follow one another in key order, a scan that ends early has opened only
// the first. Those that overlap are opened side by side, at most parallel at once.
//
// A scan that goes on does not wait for each GET: it reads the next blocks of its segments
// while it hands out the present ones, in reads that grow, and opens the segments that
// follow. What all that takes is bounded, for a scan by scanBytes and for the process by
// prefetchBytes; beyond that, blocks are read when they are needed. It reads no further ahead
// than its caller wants rows (Iter.Want), and a caller that pauses or leaves ends it
// (Iter.Rest). Otherwise a scan holds one block per open segment, and nothing that grows with
// the number of rows.
//
// # What goes wrong
//
// Nothing is ever read as empty because it could not be read. A segment that is missing is
// NotFound, with its name: the caller reads the root again, and a segment that is still
// referenced is lost, while one that is not was deleted under a reader that was too slow.
// Bytes that are not what was written, a segment that is shorter than its reference says, a
// row beyond the reference's bounds are Corrupt. Transient errors of the bucket are passed
// on: trying again is the business of the bucket's own layers.
//
// The package writes nothing and keeps no state but the cache: after a crash there is
// nothing to repair. The package may change with any release.
package reader

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Mem is an immutable snapshot of unflushed rows of one chunk: the newest version of each
// key only, deletions included. Safe for concurrent use.
type Mem interface {
	// Get finds a key's row, or its deletion.
	Get(key []byte) (segment.Row, bool)
	// Scan yields the rows inside r in key order, or backwards.
	Scan(r shardkey.Range, reverse bool) MemIter
}

// MemIter walks over rows of a Mem. It needs no closing.
type MemIter interface {
	// Next moves to the next row; it is called before the first.
	Next() bool
	// Row is the present row; its bytes never change.
	Row() segment.Row
}

// View is what a reader sees of one chunk. Immutable.
type View struct {
	Chunk *manifest.Chunk
	// Mems are the owner's unflushed rows of the chunk, newest first; none for whoever
	// reads a chunk of a free shard.
	Mems []Mem
	// Moment says which rows are expired: they count as deletions. Nil: none.
	Moment *expiry.Moment
}

// live reports whether a row, the newest of its key, is there.
func (v *View) live(row *segment.Row) bool {
	return !row.Delete && !v.Moment.Expired(row.Doc)
}

// CountsRight reports whether the chunk's own count of its rows in segments is exact, and none
// of them can be expired.
func (v *View) CountsRight() bool {
	return !v.Chunk.RowsEstimated && (v.Moment == nil || !slices.ContainsFunc(v.Chunk.Refs, func(r manifest.SegmentRef) bool { return v.Moment.Some(&r) }))
}

// Store reads any number of chunks through one cache. Safe for concurrent use.
//
// It keeps no list of open segments of its own: the cache holds the tails within its budget,
// joins concurrent loads of one, and opening what it holds costs two small allocations.
type Store struct {
	bucket   func(manifest.LocationID) (bucket.Bucket, error)
	cache    *segment.Cache
	prefetch *segment.Prefetch
	whole    uint64 // wholeBytes
}

// What scans read ahead, in bytes as stored: each, and all of the process together.
const (
	scanBytes     = 16 << 20
	prefetchBytes = 64 << 20
)

// NewStore makes a Store. open names the bucket of a location; it is asked before every
// request and does no I/O. A nil cache is allowed: everything is then read each time.
func NewStore(open func(manifest.LocationID) (bucket.Bucket, error), cache *segment.Cache) *Store {
	return &Store{bucket: open, cache: cache, prefetch: segment.NewPrefetch(prefetchBytes), whole: wholeBytes}
}

// Apart is a Store of the same buckets with a cache of its own: for work that reads much once,
// and would push out what others read again.
func (s *Store) Apart(cache *segment.Cache) *Store { return NewStore(s.bucket, cache) }

// Open opens the segment of a reference, whatever its clip: with one GET, or none.
func (s *Store) Open(ctx context.Context, ref *manifest.SegmentRef) (*segment.Reader, error) {
	return s.reader(ctx, ref)
}

// Get finds the newest row of a key. live is false when there is none, or when the newest is
// a deletion or expired, and that is then the row. Errors: Invalid (the key is outside the chunk),
// NotFound (a segment is gone), Corrupt, those of the bucket.
func (s *Store) Get(ctx context.Context, v View, key []byte) (row segment.Row, live bool, err error) {
	if row, ok, err := v.unflushed(key); ok || err != nil {
		return row, ok && v.live(&row), err
	}
	row, ok, err := s.find(ctx, v.Chunk, key)
	if err != nil || !ok {
		return segment.Row{}, false, err
	}
	return row, v.live(&row), nil
}

// unflushed looks a key up in the memtables. Errors: Invalid.
func (v *View) unflushed(key []byte) (row segment.Row, ok bool, err error) {
	if !v.Chunk.Range.Contains(key) {
		return segment.Row{}, false, fmt.Errorf("read key %x of chunk %d %s: %w: outside of it", key, v.Chunk.ID, v.Chunk.Range, errkind.Invalid)
	}
	for _, m := range v.Mems {
		if row, ok := m.Get(key); ok {
			return row, true, nil
		}
	}
	return segment.Row{}, false, nil
}

// find looks a key up in the segments. It goes from the newest reference to the oldest and
// passes over those that cannot hold a newer version than the one it has.
func (s *Store) find(ctx context.Context, c *manifest.Chunk, key []byte) (best segment.Row, found bool, err error) {
	var room [8]*manifest.SegmentRef
	refs := room[:0]
	for i := len(c.Refs) - 1; i >= 0; i-- {
		if ref := &c.Refs[i]; mayHold(ref, key) {
			refs = append(refs, ref)
		}
	}
	open := opener{store: s, refs: refs}
	for i, ref := range refs {
		if found && maxSeq(ref) <= best.Seq {
			continue
		}
		r, err := open.reader(ctx, i)
		if err != nil {
			return segment.Row{}, false, err
		}
		row, ok, err := r.Get(ctx, c.Collection, key)
		if err == nil && ok {
			err = admit(ref, &row)
		}
		if err != nil {
			return segment.Row{}, false, err
		}
		if ok && (!found || row.Seq > best.Seq) {
			best, found = row, true
		}
	}
	return best, found, nil
}

// mayHold reports whether a reference can show a row with this key.
func mayHold(ref *manifest.SegmentRef, key []byte) bool {
	return bytes.Compare(ref.MinKey, key) <= 0 && bytes.Compare(key, ref.MaxKey) <= 0 && ref.Clip.Contains(key)
}

// maxSeq is the highest seq that a row of the reference can have.
func maxSeq(ref *manifest.SegmentRef) manifest.Seq {
	if ref.FixedSeq != 0 {
		return ref.FixedSeq
	}
	return ref.MaxSeq
}

// admit gives a row the seq that it has in the chunk. A row above the reference's bound
// would be passed over by some reads and not by others: it is refused.
func admit(ref *manifest.SegmentRef, row *segment.Row) error {
	if ref.FixedSeq != 0 {
		row.Seq = ref.FixedSeq
		return nil
	}
	if row.Seq > ref.MaxSeq {
		return fmt.Errorf("read segment %s: %w: row %x has seq %d, its reference ends at %d", ref.Segment, errkind.Corrupt, row.Key, row.Seq, ref.MaxSeq)
	}
	return nil
}
