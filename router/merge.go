package router

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// merge yields the documents of sorted streams in the order of the sort. It holds one batch
// of each stream. Their rows are {d: document, s: sort key}, or {k: row key, d: document} of
// a sort by the shard key; rows that sort equal come in the order of the streams.
type merge struct {
	streams []*shardStream
	field   string // of the key
	heads   heads  // the next row of each stream that has one
	primed  bool
}

// newMerge merges by the field s or k; down when the greatest key comes first.
func newMerge(streams []*shardStream, field string, down bool) *merge {
	return &merge{streams: streams, field: field, heads: heads{down: down}}
}

type head struct {
	key    []byte
	doc    bson.Raw
	stream int
}

func (m *merge) next(ctx context.Context, want int) (bson.Raw, error) {
	want = want/len(m.streams) + 1
	if !m.primed {
		for i := range m.streams {
			h, ok, err := m.pull(ctx, i, want, nil)
			if err != nil {
				return nil, err
			}
			if ok {
				m.heads.Push(h)
			}
		}
		heap.Init(&m.heads)
		m.primed = true
	}
	if m.heads.Len() == 0 {
		return nil, nil
	}
	first := m.heads.list[0]
	h, ok, err := m.pull(ctx, first.stream, want, first.key[:0])
	switch {
	case err != nil:
		return nil, err
	case ok:
		m.heads.list[0] = h
		heap.Fix(&m.heads, 0)
	default:
		heap.Pop(&m.heads)
	}
	return first.doc, nil
}

// pull reads the next row of a stream; its key goes into buf.
func (m *merge) pull(ctx context.Context, i, want int, buf []byte) (head, bool, error) {
	row, err := m.streams[i].next(ctx, want)
	if row == nil || err != nil {
		return head{}, false, err
	}
	d, _ := document.Lookup(row, "d")
	s, _ := document.Lookup(row, m.field)
	doc, isDoc := d.DocumentOK()
	_, key, isKey := s.BinaryOK()
	if !isDoc || !isKey {
		return head{}, false, fmt.Errorf("merge: a shard answered %d bytes that are no {d, %s}: %w", len(row), m.field, errkind.Corrupt)
	}
	return head{key: append(buf, key...), doc: doc, stream: i}, true, nil
}

func (m *merge) spent() bool { return m.heads.Len() == 0 && (m.primed || concat(m.streams).spent()) }

func (m *merge) close(ctx context.Context) { closeAll(ctx, m.streams) }

// heads is a container/heap of the next rows.
type heads struct {
	list []head
	down bool
}

func (h *heads) Len() int { return len(h.list) }
func (h *heads) Less(i, j int) bool {
	a, b := &h.list[i], &h.list[j]
	if c := bytes.Compare(a.key, b.key); c != 0 {
		return (c < 0) != h.down
	}
	return a.stream < b.stream
}
func (h *heads) Swap(i, j int) { h.list[i], h.list[j] = h.list[j], h.list[i] }
func (h *heads) Push(x any)    { h.list = append(h.list, x.(head)) }
func (h *heads) Pop() any {
	last := len(h.list) - 1
	x := h.list[last]
	h.list = h.list[:last]
	return x
}
