package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Fetch reads length bytes at off of the segment's object: one ranged GET. It returns the
// errors of bucket.Bucket.Get, and fewer bytes only when the object ends earlier. The
// Reader may keep what it returns. When Fresh(ctx), it goes past every cache.
type Fetch func(ctx context.Context, off, length int64) ([]byte, error)

// Reader reads one segment. It has no state of its own beside the decoded tail, so opening
// again what is cached costs nothing; there is no Close. Safe for concurrent use.
//
// Errors of all its methods: those of Fetch (NotFound: the caller decides whether the
// segment may be gone); Corrupt, also when the object is shorter than the reference says;
// Invalid for a format newer than this program.
type Reader struct {
	id    manifest.SegmentID
	fetch Fetch
	cache *Cache
	tail  *tail
	whole []byte // of OpenWhole, when that took a Fetch
}

// Open reads the tail of the segment with exactly one Fetch, or none when it is cached.
// It does not look at the clip: that is whose rows are asked for.
func Open(ctx context.Context, fetch Fetch, ref manifest.SegmentRef, cache *Cache) (*Reader, error) {
	return openSegment(ctx, fetch, ref, cache, false)
}

// OpenWhole is Open for a small segment: when the tail is not cached, its one Fetch is of the
// whole object, and this Reader needs no other, nor do those that were opened with the same
// Fetch. The object is kept as long as they are.
func OpenWhole(ctx context.Context, fetch Fetch, ref manifest.SegmentRef, cache *Cache) (*Reader, error) {
	return openSegment(ctx, fetch, ref, cache, true)
}

func openSegment(ctx context.Context, fetch Fetch, ref manifest.SegmentRef, cache *Cache, whole bool) (*Reader, error) {
	r := &Reader{id: ref.Segment, fetch: fetch, cache: cache}
	v, err := cache.get(ctx, cacheKey{ref.Segment.Random, tailBlock}, func() (value, error) {
		if ref.TailLength > maxTailBytes || ref.TailOffset < headerSize || ref.TailOffset > 1<<62 {
			return nil, corruptf("reference to a tail at %d of %d bytes", ref.TailOffset, ref.TailLength)
		}
		if !whole {
			return r.readTail(ctx, &ref)
		}
		b, err := r.read(ctx, 0, ref.TailOffset+uint64(ref.TailLength))
		if err != nil {
			return nil, err
		}
		r.whole = b
		t, err := r.readTail(ctx, &ref)
		return opened{tail: t, whole: b}, err
	})
	if err != nil {
		return nil, fmt.Errorf("open segment %s: %w", ref.Segment, err)
	}
	switch v := v.(type) {
	case opened:
		r.tail, r.whole = v.tail, v.whole
	case *tail:
		r.tail = v
	}
	if r.tail.offset != ref.TailOffset {
		return nil, fmt.Errorf("open segment %s: %w", ref.Segment, corruptf("the tail is at %d, the reference says %d", r.tail.offset, ref.TailOffset))
	}
	return r, nil
}

// readTail reads the tail, and once more if it was Corrupt.
func (r *Reader) readTail(ctx context.Context, ref *manifest.SegmentRef) (*tail, error) {
	b, err := r.read(ctx, ref.TailOffset, uint64(ref.TailLength))
	if err != nil {
		return nil, err
	}
	t, err := parseTail(b, ref)
	if r.again(ctx, err, ref.TailOffset, uint64(ref.TailLength), &b) {
		t, err = parseTail(b, ref)
	}
	return t, err
}

// opened is what those who open a segment at the same moment share of OpenWhole. Its tail
// alone stays in the Cache.
type opened struct {
	*tail
	whole []byte
}

func (o opened) kept() value { return o.tail }

// Stats is what a segment says about itself.
type Stats struct {
	Blocks         int
	Rows, Deletes  int64 // Rows includes the Deletes
	Bytes          int64 // of keys and documents, before compression
	Stored         int64 // of the blocks
	MinSeq, MaxSeq manifest.Seq
	RetryEntries   int64
}

// Stats are the counts of the whole segment, whatever the reference's clip.
func (r *Reader) Stats() Stats {
	m := r.tail.meta
	return Stats{
		Blocks: r.tail.blocks.frames(), Rows: m.rows, Deletes: m.deletes, Bytes: m.bytes,
		MinSeq: manifest.Seq(m.minSeq), MaxSeq: manifest.Seq(m.maxSeq), RetryEntries: m.retryEntries,
		Stored: int64(r.tail.blocks.offs[r.tail.blocks.frames()] - r.tail.blocks.offs[0]),
	}
}

// Get returns the newest version of a row, tombstones included; false: the segment has none.
// Most keys that are absent are known to be so from the filter, without a Fetch; otherwise
// it takes one block, cached or by one Fetch. Row.Key is the caller's slice, and Row.Doc is
// valid for ever.
func (r *Reader) Get(ctx context.Context, c manifest.CollectionID, key []byte) (Row, bool, error) {
	if !r.tail.filter.mayContain(keyHash(c, key)) {
		return Row{}, false, nil
	}
	return r.get(ctx, c, key, r.block)
}

// get looks into the blocks that can hold the key.
func (r *Reader) get(ctx context.Context, c manifest.CollectionID, key []byte, load func(context.Context, int) (*block, error)) (Row, bool, error) {
	x := r.tail.blocks
	for i, end := x.first(c, key), x.frames(); i < end && x.compareSep(i, c, key) <= 0; i++ {
		b, err := load(ctx, i)
		if err != nil {
			return Row{}, false, fmt.Errorf("get from segment %s: %w", r.id, err)
		}
		if row, ok := b.get(key); ok {
			return row, true, nil
		}
	}
	return Row{}, false, nil
}

// read is one Fetch of exactly these bytes, or none when they are at hand.
func (r *Reader) read(ctx context.Context, off, length uint64) ([]byte, error) {
	if n := uint64(len(r.whole)); off <= n && length <= n-off {
		return r.whole[off : off+length : off+length], nil
	}
	b, err := r.fetch(ctx, int64(off), int64(length))
	if errors.Is(err, errkind.Invalid) { // the range begins beyond the end
		return nil, corruptf("nothing at %d: %v", off, err)
	}
	if err != nil {
		return nil, err
	}
	if uint64(len(b)) != length {
		return nil, corruptf("%d bytes at %d, of which %d are there", length, off, len(b))
	}
	return b, nil
}

// again reads bytes once more that were found to be Corrupt, from the store itself: what was
// wrong may be a cache's copy, or may have been damaged on its way, and then would stay wrong
// as long as it is kept. False: that is not the case, or they cannot be had.
func (r *Reader) again(ctx context.Context, found error, off, length uint64, b *[]byte) bool {
	if !errors.Is(found, errkind.Corrupt) {
		return false
	}
	fresh, err := r.fetch(context.WithValue(ctx, freshKey{}, true), int64(off), int64(length))
	if err != nil || uint64(len(fresh)) != length {
		return false
	}
	*b = fresh
	return true
}

type freshKey struct{}

// Fresh tells a Fetch that these bytes were wrong before.
func Fresh(ctx context.Context) bool { return ctx.Value(freshKey{}) != nil }

// block returns a block, from the cache or by one Fetch.
func (r *Reader) block(ctx context.Context, i int) (*block, error) {
	v, err := r.cache.get(ctx, r.key(i), func() (value, error) {
		from, to := r.extent(i, i+1)
		b, err := r.read(ctx, from, to-from)
		if err != nil {
			return nil, err
		}
		return r.decoded(ctx, i, b)
	})
	if err != nil {
		return nil, err
	}
	return v.(*block), nil
}

func (r *Reader) key(i int) cacheKey { return cacheKey{r.id.Random, int32(i)} }

// extent is where the bytes of blocks [i, j) are in the object. The header comes with the
// first block, so that a read of all blocks has seen all bytes.
func (r *Reader) extent(i, j int) (from, to uint64) {
	offs := r.tail.blocks.offs
	if i == 0 {
		return 0, offs[j]
	}
	return offs[i], offs[j]
}

// decoded decodes block i from the bytes of its extent.
func (r *Reader) decoded(ctx context.Context, i int, b []byte) (*block, error) {
	blk, err := r.decode(i, b)
	if from, to := r.extent(i, i+1); r.again(ctx, err, from, to-from, &b) {
		blk, err = r.decode(i, b)
	}
	return blk, err
}

func (r *Reader) decode(i int, b []byte) (*block, error) {
	if i == 0 {
		if !bytes.Equal(b[:headerSize], r.tail.meta.header) {
			return nil, corruptf("the header is not the one in the meta section")
		}
		b = b[headerSize:]
	}
	x := r.tail.blocks
	p, f, err := openFrame(b, r.id.Random, x.offs[i], maxBlockBytes, typeRows)
	if err != nil {
		return nil, err
	}
	if f.size() != len(b) {
		return nil, corruptf("block %d has %d bytes, the index says %d", i, f.size(), len(b))
	}
	if f.codec == Raw {
		p = bytes.Clone(p) // or a cached block would keep the whole read alive
	}
	blk, err := parseBlock(p)
	if err != nil {
		return nil, fmt.Errorf("block %d at %d: %w", i, x.offs[i], err)
	}
	if blk.rows != int(x.rows[i]) || blk.collection != x.collection(i) || x.compareSep(i, blk.collection, blk.restartKey(0)) > 0 {
		return nil, corruptf("block %d is not what the index says", i)
	}
	return blk, nil
}

// Retries returns the retry entries of a collection whose keys are in the range, ascending
// by key. A few come with the tail; of many, only the frames that the range touches are
// read, one Fetch each.
func (r *Reader) Retries(ctx context.Context, c manifest.CollectionID, rng shardkey.Range) ([]RetryEntry, error) {
	x := r.tail.retries
	if x == nil {
		return nil, nil
	}
	var found []RetryEntry
	low := x.first(c, rng.Min)
	for i, end := x.first(c, nil), x.above(c, rng.Max); i < end; i++ {
		if i < low && x.flags[i]&flagSpans == 0 {
			continue
		}
		entries, err := r.retryFrame(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("retry entries of segment %s: %w", r.id, err)
		}
		for _, e := range entries {
			if e.Collection == c && e.in(rng) {
				found = append(found, e)
			}
		}
	}
	return found, nil
}

func (r *Reader) retryFrame(ctx context.Context, i int) (entries []RetryEntry, err error) {
	x := r.tail.retries
	from, to := x.offs[i], x.offs[i+1]
	b := r.tail.retryBytes
	if b != nil {
		b = b[from-x.offs[0] : to-x.offs[0]]
	} else if b, err = r.read(ctx, from, to-from); err != nil {
		return nil, err
	}
	if entries, err = r.retries(i, b); r.again(ctx, err, from, to-from, &b) {
		entries, err = r.retries(i, b)
	}
	return entries, err
}

// retries decodes retry frame i.
func (r *Reader) retries(i int, b []byte) (entries []RetryEntry, err error) {
	x := r.tail.retries
	p, f, err := openFrame(b, r.id.Random, x.offs[i], maxBlockBytes, typeRetry)
	if err != nil {
		return nil, err
	}
	if entries, err = parseRetries(p); err != nil {
		return nil, err
	}
	if f.size() != len(b) || len(entries) != int(x.rows[i]) || entries[0].spans() != (x.flags[i]&flagSpans != 0) {
		return nil, corruptf("retry frame %d is not what the index says", i)
	}
	return entries, nil
}
