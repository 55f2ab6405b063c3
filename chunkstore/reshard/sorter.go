package reshard

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"slices"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// sorter puts rows of the new collection in order: in memory, and beyond its bound in sorted
// runs, which are segments that nothing ever refers to.
type sorter struct {
	w     *work
	rows  []segment.Row
	bytes int
	runs  []manifest.SegmentRef
	// at is the old key of the row that was added last, and spilled is called when all rows so
	// far are in runs; nil: nobody wants to know.
	at      []byte
	spilled func(context.Context) error
}

// rowBytes is what a row costs besides its key and document.
const rowBytes = 96

// add takes a row; its bytes are copied, since they may be a small part of a block.
func (s *sorter) add(ctx context.Context, r segment.Row) error {
	size := len(r.Key) + len(r.Doc) + rowBytes
	if s.bytes > 0 && s.bytes+size > s.w.Settings.MemoryBytes {
		if err := s.spill(ctx); err != nil {
			return err
		}
	}
	r.Collection, r.Doc = s.w.id, bytes.Clone(r.Doc)
	s.rows, s.bytes = append(s.rows, r), s.bytes+size
	return nil
}

func (s *sorter) sort() {
	slices.SortStableFunc(s.rows, compareRows)
}

func compareRows(a, b segment.Row) int {
	return cmp.Or(bytes.Compare(a.Key, b.Key), cmp.Compare(b.Seq, a.Seq))
}

// spill writes the rows in memory as a run.
func (s *sorter) spill(ctx context.Context) error {
	s.sort()
	out := &output{w: s.w}
	all := &chunk{}
	for i := range s.rows {
		if i > 0 && compareRows(s.rows[i-1], s.rows[i]) == 0 {
			return s.w.duplicate(s.rows[i-1].Doc, s.rows[i].Doc)
		}
		if err := out.add(ctx, all, s.rows[i]); err != nil {
			return err
		}
	}
	if err := out.finish(ctx, all); err != nil {
		return err
	}
	s.runs = append(s.runs, all.added.Refs...)
	clear(s.rows)
	s.rows, s.bytes = s.rows[:0], 0
	if s.spilled != nil {
		if err := s.spilled(ctx); err != nil {
			return err
		}
	}
	return s.w.tick(ctx)
}

// merge walks over all rows in order.
type merge struct {
	heap sources
}

// source is a run, or the rows in memory.
type source struct {
	rows []segment.Row
	run  *segment.Iter
	row  segment.Row
}

func (s *source) next(ctx context.Context) (bool, error) {
	if s.run == nil {
		if len(s.rows) == 0 {
			return false, nil
		}
		s.row, s.rows = s.rows[0], s.rows[1:]
		return true, nil
	}
	if !s.run.Next(ctx) {
		return false, s.run.Err()
	}
	s.row = s.run.Row()
	return true, nil
}

type sources []*source

func (h sources) Len() int           { return len(h) }
func (h sources) Less(i, j int) bool { return compareRows(h[i].row, h[j].row) < 0 }
func (h sources) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is not needed: all sources are there from the start.
func (h *sources) Push(x any) { *h = append(*h, x.(*source)) }

// Pop removes the last.
func (h *sources) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// merged begins the walk, at a key; nil: at the first. Requires: no add afterwards.
func (s *sorter) merged(ctx context.Context, from []byte) (*merge, error) {
	s.sort()
	m := &merge{}
	list := []*source{{rows: s.rows}}
	for i := range s.runs {
		r, err := s.w.store.Open(ctx, &s.runs[i])
		if err != nil {
			return nil, err
		}
		list = append(list, &source{run: r.Scan(s.w.id, shardkey.Range{Min: from}, false)})
	}
	for _, src := range list {
		ok, err := src.next(ctx)
		if err != nil {
			return nil, err
		}
		if ok {
			m.heap = append(m.heap, src)
		}
	}
	heap.Init(&m.heap)
	return m, nil
}

// next is the next row; false at the end.
func (m *merge) next(ctx context.Context) (segment.Row, bool, error) {
	if len(m.heap) == 0 {
		return segment.Row{}, false, nil
	}
	top := m.heap[0]
	r := top.row
	ok, err := top.next(ctx)
	switch {
	case err != nil:
		return r, false, err
	case ok:
		heap.Fix(&m.heap, 0)
	default:
		heap.Pop(&m.heap)
	}
	return r, true, nil
}
