package writer

import (
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/tidwall/btree"
)

// memtable holds the durable, unflushed rows of one chunk: the newest version of each key.
// Owned by: the shard's mutex; a frozen one is immutable.
type memtable struct {
	rows btree.Map[string, *row]
	// bytes is the memory of all rows that ever came in, replaced ones too: they may share
	// a block with those that stay.
	bytes int64
	// size is the bytes of keys and documents that it holds now.
	size int64
	// low and high bound the positions of the rows.
	low, high manifest.Position
	// taken is the snapshot since the last put; nil: none.
	taken *snapshot
}

// put takes a row that is newer than what the memtable has of its key.
func (m *memtable) put(r *row) {
	if was, replaced := m.rows.Set(r.name(), r); replaced {
		r.existed = was.existed
		m.size -= was.size()
	}
	m.size += r.size()
	if m.bytes == 0 || r.at.pos.Less(m.low) {
		m.low = r.at.pos
	}
	m.high = manifest.MaxPosition(m.high, r.at.pos)
	m.bytes += r.bytes()
	m.taken = nil
}

func (m *memtable) get(key []byte) *row {
	if m == nil {
		return nil
	}
	r, _ := m.rows.Get(text(key))
	return r
}

func (m *memtable) len() int {
	if m == nil {
		return 0
	}
	return m.rows.Len()
}

// each calls f for every row, in key order.
func (m *memtable) each(f func(*row)) {
	if m != nil {
		m.rows.Scan(func(_ string, r *row) bool { f(r); return true })
	}
}

// above is m without the rows that floor covers; nil when none stays.
func (m *memtable) above(floor manifest.Position) *memtable {
	switch {
	case m.len() == 0 || floor.Less(m.low):
		return m
	case !floor.Less(m.high):
		return nil
	}
	kept := new(memtable)
	m.each(func(r *row) {
		if r.above(floor) {
			kept.put(r)
		}
	})
	return kept
}

// snapshot freezes what the memtable holds now for a reader.
func (m *memtable) snapshot() *snapshot {
	if m.taken == nil {
		m.taken = &snapshot{rows: m.rows.Copy()}
	}
	return m.taken
}

// snapshot is an immutable memtable: a reader.Mem.
type snapshot struct{ rows *btree.Map[string, *row] }

// Get finds a key's row, or its deletion.
func (s *snapshot) Get(key []byte) (segment.Row, bool) {
	r, ok := s.rows.Get(text(key))
	if !ok {
		return segment.Row{}, false
	}
	return r.row(), true
}

// Scan walks over the rows inside r.
func (s *snapshot) Scan(r shardkey.Range, reverse bool) reader.MemIter {
	return &snapshotIter{it: s.rows.Iter(), r: r, reverse: reverse}
}

type snapshotIter struct {
	it      btree.MapIter[string, *row]
	r       shardkey.Range
	reverse bool
	begun   bool
	at      *row
}

// Next moves to the next row.
func (s *snapshotIter) Next() bool {
	if !s.move() {
		return false
	}
	s.at = s.it.Value()
	return s.r.Contains(s.at.key())
}

// move steps the iterator; the first time to the first place where a row can be.
func (s *snapshotIter) move() bool {
	switch {
	case s.begun && s.reverse:
		return s.it.Prev()
	case s.begun:
		return s.it.Next()
	}
	s.begun = true
	if !s.reverse {
		if len(s.r.Min) == 0 {
			return s.it.First()
		}
		return s.it.Seek(text(s.r.Min))
	}
	if len(s.r.Max) == 0 || !s.it.Seek(text(s.r.Max)) {
		return s.it.Last()
	}
	return s.it.Prev()
}

// Row is the present row.
func (s *snapshotIter) Row() segment.Row { return s.at.row() }

// Invariant: a snapshot is what readers take for unflushed rows.
var _ reader.Mem = (*snapshot)(nil)
