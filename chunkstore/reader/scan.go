package reader

import (
	"bytes"
	"context"
	"slices"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Iter walks over the live rows of a part of a chunk, each key once, in key order or
// backwards. Whoever leaves it before Next returned false calls Rest. Not safe for
// concurrent use.
//
// It merges the memtables and the references, each in key order. A reference that is not
// open yet waits with the first key that it may hold; it joins when the merge comes there.
type Iter struct {
	store      *Store
	collection manifest.CollectionID
	reverse    bool
	// heap are the sources that stand on a row; the row that is next, and newest among
	// those of its key, is on top.
	heap []*source
	// waiting are the references that are not open, by first, in scan order.
	waiting []*source
	row     segment.Row
	view    View
	steps   uint
	err     error

	share *segment.Prefetch // what the scan's sources read ahead
	want  func() int64
	early early
}

// pollEvery is after how many rows, deletions and older versions included, a scan looks
// whether its context has ended.
const pollEvery = 256

// Scan starts to walk over the live rows of the view inside r. No request is sent before the
// first Next.
func (s *Store) Scan(ctx context.Context, v View, r shardkey.Range, reverse bool) *Iter {
	r, ok := r.Intersect(v.Chunk.Range)
	if !ok {
		return &Iter{}
	}
	it := s.scanMems(ctx, v, r, reverse)
	it.share = s.prefetch.Part(scanBytes)
	waiting := make([]source, len(v.Chunk.Refs))
	for i := range v.Chunk.Refs {
		src := &waiting[i]
		if src.await(&v.Chunk.Refs[i], r, reverse) {
			src.age, src.place = len(v.Mems), i
			it.waiting = append(it.waiting, src)
		}
	}
	slices.SortStableFunc(it.waiting, func(a, b *source) int { return it.compare(a.first, b.first) })
	return it
}

// scanMems walks over the unflushed rows only.
func (s *Store) scanMems(ctx context.Context, v View, r shardkey.Range, reverse bool) *Iter {
	it := &Iter{store: s, collection: v.Chunk.Collection, reverse: reverse, view: v}
	slots := make([]*source, len(v.Mems)+2*len(v.Chunk.Refs))
	room := len(v.Mems) + len(v.Chunk.Refs)
	it.heap, it.waiting = slots[:0:room], slots[room:room]
	for i, m := range v.Mems {
		if src := (source{age: i, mem: m.Scan(r, reverse)}); src.next(ctx) {
			it.push(&src)
		}
	}
	return it
}

// Want tells the scan how many more rows its caller is about to take, as a guess: it is asked
// before something is read ahead, and no more is than these rows need. Without it, the caller
// is taken to want all. Requires: before the first Next.
func (it *Iter) Want(rows func() int64) { it.want = rows }

// Next moves to the next row. It is false at the end, and after an error.
func (it *Iter) Next(ctx context.Context) bool {
	for it.step(ctx) {
		if it.view.live(&it.row) {
			return true
		}
	}
	it.Rest()
	return false
}

// Rest ends what is being read ahead of the scan, waits for that, and gives back all memory
// but a little. The scan can go on with Next, or be dropped.
func (it *Iter) Rest() {
	it.early.stop(it)
	for _, src := range it.heap {
		if src.rows != nil {
			src.rows.Rest()
		}
	}
}

// step moves to the next key's newest row, which may be a deletion.
func (it *Iter) step(ctx context.Context) bool {
	if it.err == nil {
		it.leave(ctx)
	}
	if it.err == nil {
		it.join(ctx)
	}
	if it.err != nil || len(it.heap) == 0 {
		it.row = segment.Row{}
		return false
	}
	it.row = it.heap[0].row
	return true
}

// Row is the present row; its bytes never change.
func (it *Iter) Row() segment.Row { return it.row }

// Err is why Next ended early, or nil. Errors: those of Store.Get, and the context's cause.
func (it *Iter) Err() error { return it.err }

// leave moves every source past the present key: what they have of it is older.
func (it *Iter) leave(ctx context.Context) {
	for it.row.Key != nil && len(it.heap) > 0 && bytes.Equal(it.heap[0].row.Key, it.row.Key) {
		if it.steps++; it.steps%pollEvery == 0 && ctx.Err() != nil {
			it.err = context.Cause(ctx)
			return
		}
		top := it.heap[0]
		if !top.next(ctx) {
			if it.err = top.err; it.err != nil {
				return
			}
			last := len(it.heap) - 1
			it.heap[0] = it.heap[last]
			it.heap = it.heap[:last]
		}
		it.down(0)
	}
}

// join opens the waiting references that may hold a row at or before the one on top.
func (it *Iter) join(ctx context.Context) {
	for it.err == nil && len(it.waiting) > 0 &&
		(len(it.heap) == 0 || it.compare(it.waiting[0].first, it.heap[0].row.Key) <= 0) {
		group := it.waiting[:it.overlapping(it.waiting)]
		it.waiting = it.waiting[len(group):]
		it.err = it.open(ctx, group)
		for _, src := range group {
			if it.err == nil && src.row.Key != nil {
				src.rows.Prefetch(it.share, it.want)
				it.push(src)
			}
		}
		if it.err == nil {
			it.early.begin(ctx, it)
		}
	}
}

// open moves references to their first rows: those that were opened before their time, then
// one by one as long as all is cached, then the others together.
func (it *Iter) open(ctx context.Context, group []*source) error {
	it.early.take(it, group)
	for len(group) > 0 {
		src := group[0]
		if src.rows == nil {
			r := it.store.cached(ctx, src.ref, &src.sent)
			if r == nil {
				break
			}
			if err := src.start(ctx, r, it); err != nil {
				return err
			}
		}
		group = group[1:]
		if src.sent {
			break
		}
	}
	return inParallel(len(group), func(i int) error { return group[i].open(ctx, it) })
}

// overlapping is how many of the waiting references to open together: the first, and those
// that begin before any of them ends, for the scan needs them before it leaves the first.
func (it *Iter) overlapping(waiting []*source) int {
	n, end := 1, waiting[0].last
	for n < min(len(waiting), parallel) && it.compare(waiting[n].first, end) <= 0 {
		if it.compare(waiting[n].last, end) < 0 {
			end = waiting[n].last
		}
		n++
	}
	return n
}

// compare orders keys as the scan meets them.
func (it *Iter) compare(a, b []byte) int {
	if it.reverse {
		a, b = b, a
	}
	return bytes.Compare(a, b)
}

// before orders rows: by key, and those of one key newest first.
func (it *Iter) before(a, b *source) bool {
	if c := it.compare(a.row.Key, b.row.Key); c != 0 {
		return c < 0
	}
	if a.age != b.age {
		return a.age < b.age
	}
	if a.row.Seq != b.row.Seq {
		return a.row.Seq > b.row.Seq
	}
	return a.place > b.place
}

func (it *Iter) push(src *source) {
	it.heap = append(it.heap, src)
	for i := len(it.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !it.before(it.heap[i], it.heap[parent]) {
			return
		}
		it.heap[i], it.heap[parent] = it.heap[parent], it.heap[i]
		i = parent
	}
}

// down restores the heap after the row at i was replaced by a later one.
func (it *Iter) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(it.heap) {
			return
		}
		if right := child + 1; right < len(it.heap) && it.before(it.heap[right], it.heap[child]) {
			child = right
		}
		if !it.before(it.heap[child], it.heap[i]) {
			return
		}
		it.heap[i], it.heap[child] = it.heap[child], it.heap[i]
		i = child
	}
}

// NextVersion is Next, but moves also to keys whose newest row is a deletion.
func (it *Iter) NextVersion(ctx context.Context) bool {
	if it.step(ctx) {
		return true
	}
	it.Rest()
	return false
}
