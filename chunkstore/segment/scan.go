package segment

import (
	"bytes"
	"context"
	"fmt"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Read-ahead of a scan: the first Fetch is one block, then each may be twice the one
// before, up to readAheadMax compressed bytes (or one block that is larger). So a short
// scan reads little, a long one makes few requests, and an iterator holds at most one such
// read and one decoded block.
const (
	readAheadMin = 128 << 10
	readAheadMax = 1 << 20
)

// Iter is a scan. Use by one goroutine:
//
//	it := r.Scan(collection, rng, false)
//	for it.Next(ctx) {
//		use(it.Row())
//	}
//	return it.Err()
//
// An Iter that is not wanted any more is simply dropped.
type Iter struct {
	r       *Reader
	rng     shardkey.Range
	reverse bool
	err     error

	lo, hi   int    // blocks not begun: [lo, hi)
	blk      *block // being read
	glo, ghi int    // its groups not begun: [glo, ghi)
	rows     [restartEvery]Row
	rlo, rhi int // rows of the present group not returned: [rlo, rhi)
	at       int // the present row
	keys     arena

	ahead            []byte // raw bytes of blocks [aheadLo, aheadHi)
	aheadLo, aheadHi int
	window           int
}

// Scan iterates over the rows of one collection with keys in the range: every version,
// tombstones included, in row order (of one key the newest first), or with reverse in
// exactly the opposite order. Rows stay valid for ever.
func (r *Reader) Scan(c manifest.CollectionID, rng shardkey.Range, reverse bool) *Iter {
	it := &Iter{r: r, rng: rng, reverse: reverse}
	if x := r.tail.blocks; len(rng.Max) == 0 || bytes.Compare(rng.Min, rng.Max) < 0 {
		it.lo, it.hi = x.first(c, rng.Min), x.above(c, rng.Max)
	}
	return it
}

// Row is the row that Next moved to. Requires: Next returned true.
func (it *Iter) Row() Row { return it.rows[it.at] }

// Err is why Next returned false: nil at the end of the range.
func (it *Iter) Err() error { return it.err }

// Next moves to the next row, and returns false at the end or on an error.
func (it *Iter) Next(ctx context.Context) bool {
	for it.rlo >= it.rhi {
		if !it.nextGroup(ctx) {
			return false
		}
	}
	it.at = take(&it.rlo, &it.rhi, it.reverse)
	return true
}

// nextGroup decodes the next group of rows and cuts it at the ends of the range.
func (it *Iter) nextGroup(ctx context.Context) bool {
	for it.glo >= it.ghi {
		if !it.nextBlock(ctx) {
			return false
		}
	}
	g := take(&it.glo, &it.ghi, it.reverse)
	it.rlo, it.rhi = 0, it.blk.group(g, &it.rows, &it.keys)
	for it.rlo < it.rhi && bytes.Compare(it.rows[it.rlo].Key, it.rng.Min) < 0 {
		it.rlo++
	}
	for len(it.rng.Max) > 0 && it.rlo < it.rhi && bytes.Compare(it.rows[it.rhi-1].Key, it.rng.Max) >= 0 {
		it.rhi--
	}
	return true
}

// take removes and returns the next number of [lo, hi), from the side where the scan goes on.
func take(lo, hi *int, reverse bool) int {
	if reverse {
		*hi--
		return *hi
	}
	*lo++
	return *lo - 1
}

// nextBlock makes the next block the present one, and narrows its groups to the range.
func (it *Iter) nextBlock(ctx context.Context) bool {
	it.blk = nil
	if it.err != nil || it.lo >= it.hi {
		return false
	}
	b, err := it.load(ctx)
	if err != nil {
		it.err = fmt.Errorf("scan segment %s: %w", it.r.id, err)
		return false
	}
	take(&it.lo, &it.hi, it.reverse)
	it.blk = b
	it.glo, it.ghi = b.groupOf(it.rng.Min), b.groups
	if len(it.rng.Max) > 0 {
		it.ghi = b.groupAbove(it.rng.Max)
	}
	return true
}

// load returns the next block: cached, from the last read-ahead, or by a Fetch.
func (it *Iter) load(ctx context.Context) (*block, error) {
	i := it.lo
	if it.reverse {
		i = it.hi - 1
	}
	if v, ok := it.r.cache.lookup(it.r.key(i)); ok {
		return v.(*block), nil
	}
	if it.window == 0 {
		it.window = readAheadMin
		return it.r.block(ctx, i)
	}
	if i < it.aheadLo || i >= it.aheadHi {
		if err := it.readAhead(ctx, i); err != nil {
			return nil, err
		}
	}
	start, _ := it.r.extent(it.aheadLo, it.aheadLo)
	from, to := it.r.extent(i, i+1)
	b, err := it.r.decode(i, it.ahead[from-start:to-start])
	if err == nil {
		it.r.cache.add(it.r.key(i), b)
	}
	return b, err
}

// readAhead fetches block i and those that follow it in the direction of the scan, while
// they are not cached and fit into the window.
func (it *Iter) readAhead(ctx context.Context, i int) error {
	n := 1
	for it.fits(i, n+1) {
		n++
	}
	lo, hi := it.span(i, n)
	from, to := it.r.extent(lo, hi)
	it.ahead, it.aheadHi = nil, 0 // the old read can go before the new one comes
	b, err := it.r.read(ctx, from, to-from)
	if err != nil {
		return err
	}
	it.ahead, it.aheadLo, it.aheadHi = b, lo, hi
	it.window = min(2*it.window, readAheadMax)
	return nil
}

// span is n blocks from i on, in the direction of the scan.
func (it *Iter) span(i, n int) (lo, hi int) {
	if it.reverse {
		return i + 1 - n, i + 1
	}
	return i, i + n
}

// fits reports whether the last of n blocks from i on belongs into the same read.
func (it *Iter) fits(i, n int) bool {
	lo, hi := it.span(i, n)
	if lo < it.lo || hi > it.hi {
		return false
	}
	last := hi - 1
	if it.reverse {
		last = lo
	}
	from, to := it.r.extent(lo, hi)
	return to-from <= uint64(it.window) && !it.r.cache.has(it.r.key(last))
}
