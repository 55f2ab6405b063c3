package writer

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
)

// retries is a chunk's memory of the retryable writes that were done to it, by operation
// id, so that a write that comes twice happens once.
//
//	session -> transaction numbers, ascending -> entries by statement
//
// What it knows comes from the records of the WAL, from replay, and from the retry frames
// of the chunk's segments, which are loaded before the first retryable write (loaded).
// Every flush takes the entries that the WAL alone has into a segment, whether their rows
// still exist or not.
//
// # What is forgotten
//
// A session is one user's thread: it sends transaction number n+1 when it is done with n.
// Entries of a session's older numbers are kept while there are few of them
// (supersededMax for the chunk), since a router may run several numbers of its own session
// side by side. What was dropped is never applied again: a number at or below those dropped
// that is not found is TransactionTooOld. When a chunk's table grows beyond its share of
// memory, the sessions that have been silent the longest are forgotten as a whole; so are
// entries that have expired.
//
// Owned by: the shard's mutex.
type retries struct {
	sessions map[[32]byte]*session
	// silent and recent are the ends of the list of sessions by last use.
	silent, recent *session
	bytes          int64
	weighed        int64 // of bytes, what is counted in the process's memory
	superseded     int
	// loaded says that what the segments know is in here. loading is not nil while someone
	// loads.
	loaded  bool
	loading *gate
	// again: segments came while someone loads.
	again bool
}

const (
	supersededMax = reader.RetrySupersededMax
	trimSessions  = 64
	sessionBytes  = 256 // what a session costs besides its entries, about
	// nothingDropped is below every transaction number.
	nothingDropped = -1 << 63
)

// session is one session's transactions, ascending.
type session struct {
	id   [32]byte
	txns []txn
	// dropped is the highest number that entries were dropped of.
	dropped    int64
	prev, next *session
}

// txn is one transaction number's entries, by statement.
type txn struct {
	number  int64
	entries []*retry
}

// retry is one entry. An entry of an operation that goes on replaces the one before; until
// it is durable, the one before is kept for a flush.
type retry struct {
	segment.RetryEntry
	// from tells entries of one kind apart: where the rows of a progress begin; else the key,
	// since a change of a row's key is remembered at both rows.
	from []byte
	// in is the batch that will make it durable, or nil.
	in *batch
	// at covers the WAL object that holds it; nil when it came from a segment.
	at    *stamp
	older *retry
}

// recall makes an entry of what storage holds; it copies the bytes. Errors: Corrupt.
func recall(stored segment.RetryEntry, at *stamp) (*retry, error) {
	e := &retry{RetryEntry: stored, at: at}
	e.Key, e.Reply = bytes.Clone(stored.Key), bytes.Clone(stored.Reply)
	if kindClass(e) != 1 {
		e.from = e.Key
		return e, nil
	}
	p, err := parseProgress(e.Reply)
	if err != nil {
		return nil, err
	}
	e.from = p.done.Min
	return e, nil
}

// stored is the entry as a segment has it. A part of a write of many documents is shown to
// every chunk that it touches, however the chunk is cut later.
func (e *retry) stored() segment.RetryEntry {
	x := e.RetryEntry
	if kindClass(e) == 1 {
		if p, err := parseProgress(e.Reply); err == nil { // it was parsed before
			x.Key, x.Span = nil, p.span()
		}
	}
	return x
}

// StoredRetry is an entry of a log as a segment has it: for whoever takes records of a log into
// a segment without being their chunk's owner. Errors: Corrupt.
func StoredRetry(logged segment.RetryEntry) (segment.RetryEntry, error) {
	e, err := recall(logged, nil)
	if err != nil {
		return segment.RetryEntry{}, err
	}
	return e.stored(), nil
}

func (e *retry) size() int64 { return e.MemoryBytes() }

// slot orders the entries of one transaction: results and progress of a statement side by
// side, apart from intents.
func (e *retry) slot(o *retry) int {
	if c := cmp.Or(cmp.Compare(e.Op.Stmt, o.Op.Stmt), cmp.Compare(e.Op.Attempt, o.Op.Attempt)); c != 0 {
		return c
	}
	if c := cmp.Compare(kindClass(e), kindClass(o)); c != 0 {
		return c
	}
	return bytes.Compare(e.from, o.from)
}

// kindClass keeps apart what one operation id may have in one chunk: its result, each part
// of its progress, its intent, and the rows that it brought.
func kindClass(e *retry) int {
	switch kindOf(&e.RetryEntry) {
	case progressed:
		return 1
	case intended:
		return 2
	case arrived:
		return 3
	}
	return 0
}

// unload has what the segments know read once more.
func (t *retries) unload() { t.loaded, t.again = false, t.loading != nil }

// find calls f for the entries of op's statement, of all attempts, in order.
func (t *retries) find(op rpc.OpID, f func(*retry)) {
	s := t.sessions[op.Session]
	if s == nil {
		return
	}
	i, ok := s.search(op.Txn)
	if !ok {
		return
	}
	list := s.txns[i].entries
	at, _ := slices.BinarySearchFunc(list, op.Stmt, func(e *retry, stmt int32) int { return cmp.Compare(e.Op.Stmt, stmt) })
	for ; at < len(list) && list[at].Op.Stmt == op.Stmt; at++ {
		f(list[at])
	}
}

// result is what exactly this attempt of a write of one document came to, or nil. Chunks
// that were merged can have it twice; a refusal counts only where nothing was done.
func (t *retries) result(op rpc.OpID) (found *retry) {
	t.find(op, func(e *retry) {
		if e.Op.Attempt == op.Attempt && kindClass(e) == 0 && (found == nil || kindOf(&e.RetryEntry) != refused) {
			found = e
		}
	})
	return found
}

// intent is the recorded intent of op with the highest attempt, or nil.
func (t *retries) intent(op rpc.OpID) (found *retry) {
	t.find(op, func(e *retry) {
		if kindClass(e) == 2 {
			found = e
		}
	})
	return found
}

// parts are the recorded parts of a write of many documents, by where they begin.
func (t *retries) parts(op rpc.OpID) (found []*retry) {
	t.find(op, func(e *retry) {
		if e.Op.Attempt == op.Attempt && kindClass(e) == 1 {
			found = append(found, e)
		}
	})
	return found
}

// arrival is the entry by which op brought the row with the key, or nil.
func (t *retries) arrival(op rpc.OpID, key []byte) *retry {
	return t.like(&retry{RetryEntry: segment.RetryEntry{Op: segment.OpID(op), Reply: arrivedReply}, from: key})
}

// like is the entry in e's slot, or nil.
func (t *retries) like(e *retry) *retry {
	s := t.sessions[e.Op.Session]
	if s == nil {
		return nil
	}
	i, ok := s.search(e.Op.Txn)
	if !ok {
		return nil
	}
	list := s.txns[i].entries
	if at, ok := slices.BinarySearchFunc(list, e, (*retry).slot); ok {
		return list[at]
	}
	return nil
}

// tooOld reports whether op may have been done and forgotten.
func (t *retries) tooOld(op rpc.OpID) bool {
	s := t.sessions[op.Session]
	return s != nil && op.Txn <= s.dropped
}

func (s *session) search(number int64) (int, bool) {
	if n := len(s.txns); n > 0 && s.txns[n-1].number == number {
		return n - 1, true
	}
	return slices.BinarySearchFunc(s.txns, number, func(t txn, n int64) int { return cmp.Compare(t.number, n) })
}

// put adds an entry, in place of the one in its slot.
func (t *retries) put(e *retry) {
	s := t.touch(e.Op.Session)
	i, ok := s.search(e.Op.Txn)
	if !ok {
		s.txns = slices.Insert(s.txns, i, txn{number: e.Op.Txn})
		if last := len(s.txns) - 1; i == last && last > 0 {
			t.superseded += len(s.txns[last-1].entries)
		}
	}
	list := &s.txns[i].entries
	t.bytes += e.size()
	if n := len(*list); n == 0 || (*list)[n-1].slot(e) < 0 {
		*list = append(*list, e)
	} else if at, taken := slices.BinarySearchFunc(*list, e, (*retry).slot); taken {
		t.replace(&(*list)[at], e)
		return
	} else {
		*list = slices.Insert(*list, at, e)
	}
	if i < len(s.txns)-1 {
		t.superseded++
	}
}

// replace puts e in place of an entry that it supersedes.
func (t *retries) replace(at **retry, e *retry) {
	t.bytes -= (*at).size()
	if e.in != nil {
		e.older = *at
	}
	*at = e
}

// learn adds what a segment knows, unless the table knows better.
func (t *retries) learn(e *retry) {
	if k := t.like(e); k == nil || furtherThan(e, k) || tellsMore(e, k) {
		t.put(e)
	}
}

// tellsMore reports whether a is the outcome of an attempt that b only says was not made, or
// matched nothing: both are true, in two chunks that are one now, or of which both were told.
func tellsMore(a, b *retry) bool { return b.in == nil && weight(&a.RetryEntry) > weight(&b.RetryEntry) }

// weight orders what chunks may know of one attempt: that it is refused, that it matched
// nothing there, how it ended.
func weight(e *segment.RetryEntry) int {
	switch kindOf(e) {
	case refused:
		return 0
	case answered:
		if r, err := parseAnswer(e.Reply); err == nil && r.N == 0 {
			return 1
		}
	}
	return 2
}

// furtherThan reports whether a is a later state of the same part than b: a part only grows.
func furtherThan(a, b *retry) bool {
	if kindClass(a) != 1 {
		return false
	}
	p, err := parseProgress(a.Reply)
	q, err2 := parseProgress(b.Reply)
	return err == nil && err2 == nil && bytes.Compare(p.last, q.last) > 0
}

// touch finds or makes a session and moves it to the recent end.
func (t *retries) touch(id [32]byte) *session {
	if t.recent != nil && t.recent.id == id {
		return t.recent
	}
	s := t.sessions[id]
	if s == nil {
		if t.sessions == nil {
			t.sessions = make(map[[32]byte]*session)
		}
		s = &session{id: id, dropped: nothingDropped}
		t.sessions[id] = s
		t.bytes += sessionBytes
	} else {
		t.unlink(s)
	}
	if s.prev = t.recent; t.recent != nil {
		t.recent.next = s
	} else {
		t.silent = s
	}
	t.recent = s
	return s
}

func (t *retries) unlink(s *session) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		t.silent = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		t.recent = s.prev
	}
	s.prev, s.next = nil, nil
}

// settle makes an entry durable.
func (e *retry) settle(at *stamp) { e.in, e.at, e.older = nil, at, nil }

// trim forgets what is too much, where share is the chunk's share of memory.
func (t *retries) trim(share int64) {
	// The sessions that grew are among those that were used last.
	for s, n := t.recent, 0; s != nil && n < trimSessions && t.superseded > supersededMax; s, n = s.prev, n+1 {
		for t.superseded > supersededMax && t.dropOldest(s) {
		}
	}
	for t.bytes > share && t.silent != t.recent && t.silent.settled() {
		t.forget(t.silent)
	}
}

// dropOldest drops the oldest number of a session that has a newer one.
func (t *retries) dropOldest(s *session) bool {
	if len(s.txns) < 2 || !s.txns[0].settled() {
		return false
	}
	old := s.txns[0]
	for _, e := range old.entries {
		t.bytes -= e.size()
	}
	t.superseded -= len(old.entries)
	s.dropped = max(s.dropped, old.number)
	s.txns = slices.Delete(s.txns, 0, 1)
	return true
}

// forget drops a session.
func (t *retries) forget(s *session) {
	for i, x := range s.txns {
		for _, e := range x.entries {
			t.bytes -= e.size()
		}
		if i < len(s.txns)-1 {
			t.superseded -= len(x.entries)
		}
	}
	t.bytes -= sessionBytes
	t.unlink(s)
	delete(t.sessions, s.id)
}

func (s *session) settled() bool {
	return !slices.ContainsFunc(s.txns, func(x txn) bool { return !x.settled() })
}

func (x txn) settled() bool {
	return !slices.ContainsFunc(x.entries, func(e *retry) bool { return e.in != nil })
}

// each calls f for every entry as far as it is durable, in no order that matters.
func (t *retries) each(f func(*retry)) {
	for s := t.silent; s != nil; s = s.next {
		for _, x := range s.txns {
			for _, e := range x.entries {
				for e != nil && e.in != nil {
					e = e.older
				}
				if e != nil {
					f(e)
				}
			}
		}
	}
}

// unflushed are the entries that no segment has, as of the WAL below durable.
func (t *retries) unflushed(floor manifest.Position) []*retry {
	var list []*retry
	t.each(func(e *retry) {
		if e.at != nil && floor.Less(e.at.pos) {
			list = append(list, e)
		}
	})
	return list
}

// expiredBy is the time (unix seconds) up to which what says it expired surely has.
func (w *Writer) expiredBy() int64 { return ExpiredBy(w.host.Wall()) }

// ExpiredBy is, at a wall clock of now, the time (unix seconds) up to which a retry entry that
// says it expired surely has.
func ExpiredBy(now time.Time) int64 { return now.Add(-manifest.ClockError).Unix() }

// expire forgets the sessions of which everything has expired.
func (t *retries) expire(now int64) {
	for s := t.silent; s != nil; {
		next := s.next
		if s.settled() && !slices.ContainsFunc(s.txns, func(x txn) bool {
			return slices.ContainsFunc(x.entries, func(e *retry) bool { return e.ExpiresAt > now })
		}) {
			t.forget(s)
		}
		s = next
	}
}
