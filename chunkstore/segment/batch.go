package segment

import (
	"context"
	"slices"

	"github.com/granarydb/granary/manifest"
)

// Batch is many point reads of one segment: each block that they need is read once, adjacent
// ones with one Fetch of up to readAheadMax.
//
//	b := r.Batch()
//	b.Want(collection, key) // for each key
//	for _, read := range b.Reads() {
//		b.Read(ctx, read) // side by side, if that pays
//	}
//	row, ok, err := b.Get(ctx, collection, key)
//
// A Batch holds its blocks until it is dropped, and is used by one goroutine, except that
// different reads may be carried out at the same time, between Reads and Get.
type Batch struct {
	r    *Reader
	want []int          // blocks
	held map[int]*block // nil: not read
	slot map[int]int    // of blocks to read, in read
	read []outcome
}

type outcome struct {
	block *block
	err   error
}

// Read is blocks [lo, hi), to be read with one Fetch.
type Read struct{ lo, hi int }

// Batch begins a batch.
func (r *Reader) Batch() *Batch { return &Batch{r: r, held: map[int]*block{}, slot: map[int]int{}} }

// Want says that Get will be called for a key. It is false when the segment surely has no
// such row; most keys that are absent are known to be so from the filter.
func (b *Batch) Want(c manifest.CollectionID, key []byte) bool {
	if !b.r.tail.filter.mayContain(keyHash(c, key)) {
		return false
	}
	x := b.r.tail.blocks
	i := x.first(c, key)
	if i >= x.frames() || x.compareSep(i, c, key) > 0 {
		return false
	}
	b.want = append(b.want, i)
	return true
}

// Reads are the Fetches that Get would have to make for what is wanted, none for what is
// cached.
func (b *Batch) Reads() (list []Read) {
	slices.Sort(b.want)
	for _, i := range slices.Compact(b.want) {
		if _, read := b.slot[i]; read || b.held[i] != nil {
			continue
		}
		if v, ok := b.r.cache.lookup(b.r.key(i)); ok {
			b.held[i] = v.(*block)
			continue
		}
		b.slot[i] = len(b.read)
		b.read = append(b.read, outcome{})
		if n := len(list); n > 0 && list[n-1].hi == i {
			if from, to := b.r.extent(list[n-1].lo, i+1); to-from <= readAheadMax {
				list[n-1].hi++
				continue
			}
		}
		list = append(list, Read{i, i + 1})
	}
	b.want = nil
	return list
}

// Read carries out one of Reads. What goes wrong, Get returns for the keys that it is about.
// Concurrent reads of one block share a Fetch.
func (b *Batch) Read(ctx context.Context, read Read) {
	if read.hi == read.lo+1 {
		o := &b.read[b.slot[read.lo]]
		o.block, o.err = b.r.block(ctx, read.lo)
		return
	}
	start, end := b.r.extent(read.lo, read.hi)
	data, err := b.r.read(ctx, start, end-start)
	for i := read.lo; i < read.hi; i++ {
		o := &b.read[b.slot[i]]
		if o.err = err; err != nil {
			continue
		}
		from, to := b.r.extent(i, i+1)
		if o.block, o.err = b.r.decoded(ctx, i, data[from-start:to-start]); o.err == nil {
			b.r.cache.add(b.r.key(i), o.block)
		}
	}
}

// Get is Reader.Get, without a Fetch for the blocks that the batch has.
func (b *Batch) Get(ctx context.Context, c manifest.CollectionID, key []byte) (Row, bool, error) {
	return b.r.get(ctx, c, key, func(ctx context.Context, i int) (*block, error) {
		if blk := b.held[i]; blk != nil {
			return blk, nil
		}
		if at, ok := b.slot[i]; ok {
			return b.read[at].block, b.read[at].err
		}
		return b.r.block(ctx, i)
	})
}
