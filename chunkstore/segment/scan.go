package segment

import (
	"bytes"
	"context"
	"fmt"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Iter is a scan. Use by one goroutine:
//
//	it := r.Scan(collection, rng, false)
//	for it.Next(ctx) {
//		use(it.Row())
//	}
//	return it.Err()
//
// An Iter that has no Prefetch is simply dropped when it is not wanted any more; see
// Prefetch for others.
type Iter struct {
	r       *Reader
	rng     shardkey.Range
	reverse bool
	err     error

	ahead    ahead  // the blocks not begun
	blk      *block // being read
	glo, ghi int    // its groups not begun: [glo, ghi)
	rows     [restartEvery]Row
	rlo, rhi int // rows of the present group not returned: [rlo, rhi)
	at       int // the present row
	keys     arena
}

// Scan iterates over the rows of one collection with keys in the range: every version,
// tombstones included, in row order (of one key the newest first), or with reverse in
// exactly the opposite order. Rows stay valid for ever.
func (r *Reader) Scan(c manifest.CollectionID, rng shardkey.Range, reverse bool) *Iter {
	it := &Iter{r: r, rng: rng, reverse: reverse, ahead: ahead{r: r, reverse: reverse}}
	if x := r.tail.blocks; len(rng.Max) == 0 || bytes.Compare(rng.Min, rng.Max) < 0 {
		lo := x.first(c, rng.Min)
		it.ahead.lo, it.ahead.n = lo, max(x.above(c, rng.Max)-lo, 0)
	}
	return it
}

// Prefetch lets the scan read before it needs to, on goroutines, within p. want, unless nil,
// is asked how many more rows the caller is about to take: no more is read ahead than these
// need. Whoever leaves the scan before Next returned false calls Rest.
func (it *Iter) Prefetch(p *Prefetch, want func() int64) { it.ahead.share, it.ahead.want = p, want }

// Rest ends what is being read ahead, waits for that, and gives back all memory but a little.
// The scan can go on with Next, or be dropped.
func (it *Iter) Rest() { it.ahead.rest() }

// Planned reports whether all that the scan needs was read, or is being read.
func (it *Iter) Planned() bool { return it.ahead.planned >= it.ahead.n }

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
	if it.err != nil || it.ahead.next >= it.ahead.n {
		return false
	}
	b, err := it.ahead.load(ctx)
	if err != nil {
		it.Rest()
		it.err = fmt.Errorf("scan segment %s: %w", it.r.id, err)
		return false
	}
	it.blk = b
	it.glo, it.ghi = b.groupOf(it.rng.Min), b.groups
	if len(it.rng.Max) > 0 {
		it.ghi = b.groupAbove(it.rng.Max)
	}
	return true
}
