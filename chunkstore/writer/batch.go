package writer

import (
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
)

// batch is what becomes one WAL object: the changes that arrived while the one before was
// in flight. At any moment a shard has one open batch, which takes changes, and at most one
// in flight.
//
//	open --taken by the committer--> in flight --stored--> durable: its rows move to the
//	                                     |                  memtables, done is closed
//	                                     +--outcome unknown, fenced--> err, done is closed,
//	                                                                   the shard has ended
//
// Operations see the rows of both (the present row is the newest one, durable or not), but
// whoever saw or made one answers only after done: nothing that could still get lost is
// ever told to a client. Reads of clients do not see them at all.
//
// Owned by: the shard's mutex; records belong to the committer once taken.
type batch struct {
	number  uint64 // from 1: the log's position after it
	records []wal.Record
	rows    []placed
	newest  map[string]*row // by path
	retries []*retry
	bytes   int // of keys, documents and replies
	at      stamp
	done    chan struct{} // closed when durable or failed
	err     error         // set before done is closed: why it is not durable
}

// placed is a row and the chunk that it was written to.
type placed struct {
	*row
	chunk *chunk
}

func newBatch(number uint64, spare *batch) *batch {
	b := &batch{number: number, done: make(chan struct{})}
	if spare != nil {
		b.records, b.rows, b.newest = spare.records, spare.rows, spare.newest
	}
	if b.newest == nil {
		b.newest = make(map[string]*row)
	}
	return b
}

// leftovers is what a settled batch leaves for another: its empty lists. Requires: nobody looks
// up rows in b any more.
func (b *batch) leftovers() *batch {
	clear(b.records)
	clear(b.rows)
	clear(b.newest)
	return &batch{records: b.records[:0], rows: b.rows[:0], newest: b.newest}
}

// slabRows is how many rows are allocated together.
const slabRows = 128

// newRow makes a row to be filled in, in the open batch. Requires: the mutex.
func (s *shard) newRow(c *chunk) *row {
	if len(s.slab) == 0 {
		s.slab = make([]row, slabRows)
	}
	r := &s.slab[0]
	s.slab = s.slab[1:]
	r.at = &s.open.at
	s.open.rows = append(s.open.rows, placed{r, c})
	return r
}

// change is one record to append.
type change struct {
	path  []byte // row.path
	op    wal.RecordOp
	doc   []byte // nil: deleted, or RetryOnly
	retry *retry // nil: not retryable
	piece *piece // of a write of many: its progress goes with the record
}

func (c *change) size() int {
	n := len(c.path) + len(c.doc)
	if c.retry != nil {
		n += len(c.retry.Key) + len(c.retry.Reply)
	}
	return n
}

// room tells whether the open batch takes the changes. An empty one takes anything.
func (s *shard) room(changes ...change) bool {
	n := 0
	for i := range changes {
		n += changes[i].size()
	}
	b := s.open
	return len(b.records) == 0 || b.bytes+n <= s.w.set.BatchBytes && len(b.records)+len(changes) <= s.w.set.BatchRecords
}

// append makes the change part of the open batch and of what operations see. Requires: the
// mutex; room; the latch of the row.
func (s *shard) append(c *chunk, ch change) {
	b := s.open
	s.stir(c, s.pending())
	path := s.paths.copy(ch.path)
	rec := wal.Record{Collection: c.info.Collection, Key: path[4:], Op: ch.op, Seq: c.seq}
	if ch.op != wal.RetryOnly {
		c.seq++
		r := s.newRow(c)
		r.path, r.seq, r.existed = path, c.seq, ch.op != wal.Insert
		if ch.op != wal.Delete {
			r.doc = s.docs.copy(ch.doc)
		}
		rec.Seq, rec.Doc = r.seq, r.doc
		b.newest[text(path)] = r
		s.grow(r.bytes())
		s.heatOf(c).wrote(ch.op, r.key())
	}
	if e := ch.retry; e != nil {
		if e.Key == nil {
			e.Key = path[4:]
		}
		if kindClass(e) != 1 {
			e.from = e.Key
		}
		if e.in != b {
			e.in = b
			b.retries = append(b.retries, e)
			c.retries.put(e)
		}
		rec.Retry = &e.RetryEntry
		if ch.op == wal.RetryOnly {
			c.retries.trim(s.w.retryShare())
		}
	}
	b.records = append(b.records, rec)
	b.bytes += ch.size()
}

// unflushedRow finds the newest version of a row that is not in segments, and the batch
// that will make it durable when it is not. Requires: the mutex.
func (s *shard) unflushedRow(c *chunk, path []byte) (*row, *batch) {
	if r := s.open.newest[string(path)]; r != nil {
		return r, s.open
	}
	if s.flight != nil {
		if r := s.flight.newest[string(path)]; r != nil {
			return r, s.flight
		}
	}
	if r := c.mem.get(path[4:]); r != nil {
		return r, nil
	}
	return c.frozen.get(path[4:]), nil
}

// take makes the open batch the one in flight; nil when it is empty.
func (s *shard) take() *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open.records) == 0 || s.endErr != nil {
		return nil
	}
	s.flight = s.open
	s.open = newBatch(s.flight.number+1, s.spare)
	s.spare = nil
	if g := s.full; g != nil {
		s.full = nil
		close(g.opened)
	}
	return s.flight
}

// settle makes what a stored batch holds durable. Requires: the mutex.
func (s *shard) settle(b *batch, pos manifest.Position, bytes int) {
	b.at.pos = pos
	s.flight, s.durable = nil, pos
	if s.log.add(pos, int64(bytes)); s.longish() {
		s.w.memory.signal()
	}
	touched := make(map[*chunk]bool)
	for _, r := range b.rows {
		c := r.chunk
		if c.gone {
			c = s.owned(r.collection(), r.key())
		}
		if c == nil || !r.above(s.floor(c)) {
			s.grow(-r.bytes())
			continue
		}
		c.mem.put(r.row)
		s.stir(c, pos)
		touched[c] = true
	}
	for _, e := range b.retries {
		e.settle(&b.at)
	}
	share := s.w.retryShare()
	for c := range touched {
		c.retries.trim(share)
		s.weigh(c)
		s.heatOf(c)
	}
	close(b.done)
}
