package query

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/segment"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// sorter keeps shaped documents by their sort keys: all of them, or the first few in a heap
// whose top is the last of these. What it keeps is its own, for a document that aliased its
// block would hold the whole block.
type sorter struct {
	by      *document.Sort
	most    int   // keep only so many; 0: all
	budget  int64 // bytes
	used    int64
	met     uint64 // documents so far
	items   []item
	scratch []byte
	arena   arena
	ready   bool
	at      int // next to return
	loan    *loan
}

// item is one document. Items order by sort key, then as they were met.
type item struct {
	head uint64 // first bytes of the sort key: most comparisons end here
	met  uint64
	buf  []byte // sort key, document
	cut  int    // where the document begins
}

// itemBytes is what an item takes beside its bytes.
const itemBytes = 64

// newSorter makes a sorter for a query; limit < 0 is none.
func newSorter(by *document.Sort, skip, limit, budget int64, l *loan) *sorter {
	s := &sorter{by: by, budget: budget, loan: l}
	if most := skip + limit; limit > 0 && most > 0 && most < 1<<31 {
		s.most = int(most)
	}
	return s
}

// add takes a row. Errors: mongoerr QueryExceededMemoryLimit, admission.Overloaded.
func (s *sorter) add(shape *shape, row *segment.Row) (err error) {
	s.scratch = s.by.AppendKey(s.scratch[:0], row.Doc)
	it := item{head: head(s.scratch), met: s.met}
	s.met++
	replace := s.most > 0 && len(s.items) == s.most
	switch size := len(s.scratch) + len(row.Doc) + shapeExtra; {
	case replace:
		worst := &s.items[0]
		if it.head > worst.head || bytes.Compare(s.scratch, worst.key()) >= 0 {
			return nil
		}
		s.used -= worst.bytes()
		it.buf, err = s.fill(worst.buf[:0], shape, row)
	case s.most > 0:
		it.buf, err = s.fill(make([]byte, 0, size), shape, row)
	default:
		dst := s.arena.room(size)
		if it.buf, err = s.fill(dst, shape, row); err == nil {
			it.buf = s.arena.keep(len(dst), it.buf)
		}
	}
	if err != nil {
		return err
	}
	it.cut = len(s.scratch)
	if s.used += it.bytes(); s.used > s.budget {
		return mongoerr.New(mongoerr.QueryExceededMemoryLimit,
			"Sort exceeded memory limit of %d bytes, but did not opt in to external sorting.", s.budget)
	}
	if err := s.loan.cover(s.used); err != nil {
		return err
	}
	s.place(it, replace)
	return nil
}

func (s *sorter) fill(dst []byte, shape *shape, row *segment.Row) ([]byte, error) {
	return shape.append(append(dst, s.scratch...), row, s.scratch)
}

// place puts an item into the heap, or at the end when there is none.
func (s *sorter) place(it item, replace bool) {
	if replace {
		s.items[0] = it
		s.down(0)
		return
	}
	s.items = append(s.items, it)
	if s.most == 0 {
		return
	}
	for i := len(s.items) - 1; i > 0; {
		parent := (i - 1) / 2
		if s.items[i].compare(&s.items[parent]) <= 0 {
			return
		}
		s.items[i], s.items[parent] = s.items[parent], s.items[i]
		i = parent
	}
}

func (s *sorter) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(s.items) {
			return
		}
		if right := child + 1; right < len(s.items) && s.items[right].compare(&s.items[child]) > 0 {
			child = right
		}
		if s.items[child].compare(&s.items[i]) <= 0 {
			return
		}
		s.items[i], s.items[child] = s.items[child], s.items[i]
		i = child
	}
}

// finish ends the input: from now on next returns the documents, without the first skip.
func (s *sorter) finish(skip int64) {
	slices.SortFunc(s.items, func(a, b item) int { return a.compare(&b) })
	s.at = int(min(skip, int64(len(s.items))))
	s.ready = true
}

// next is the next document; nil at the end.
func (s *sorter) next() bson.Raw {
	if s.exhausted() {
		return nil
	}
	it := &s.items[s.at]
	s.at++
	return it.buf[it.cut:len(it.buf):len(it.buf)]
}

func (s *sorter) exhausted() bool { return s.ready && s.at == len(s.items) }

func (it *item) key() []byte { return it.buf[:it.cut] }

func (it *item) bytes() int64 { return int64(cap(it.buf)) + itemBytes }

func (it *item) compare(o *item) int {
	if it.head != o.head {
		return cmp.Compare(it.head, o.head)
	}
	return cmp.Or(bytes.Compare(it.key(), o.key()), cmp.Compare(it.met, o.met))
}

// head is the first eight bytes of a key, zeros where it is shorter: two that differ are
// ordered as their keys are.
func head(key []byte) uint64 {
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}
