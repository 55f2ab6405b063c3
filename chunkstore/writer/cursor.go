package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader/query"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/errkind"
)

// cursors are the reads of a shard that have more to give. Each goes on with the view that
// it began with, whatever happens to its chunks meanwhile: all its batches are of one
// moment. Its segments may be deleted under it when it takes too long.
//
// Owned by: the shard's mutex.
type cursors struct{ open map[uint64]*cursor }

// cursor is one of them.
type cursor struct {
	query *query.Cursor
	seen  found
	busy  bool          // a request reads it
	used  time.Duration // when it was used last, on the monotonic clock
}

// keep opens a cursor. Errors: Throttled when there are too many.
func (s *shard) keep(q *query.Cursor, f found) (uint64, error) {
	id := s.w.asked.Uint64()>>1 | 1 // never 0, and positive for a client
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.endErr != nil:
		return 0, s.endErr
	case len(s.cursors.open) >= s.w.set.Cursors:
		return 0, fmt.Errorf("%w: %d cursors are open", errkind.Throttled, len(s.cursors.open))
	case s.cursors.open[id] != nil:
		return 0, fmt.Errorf("%w: cursor id %d is taken", errkind.Throttled, id)
	case s.cursors.open == nil:
		s.cursors.open = make(map[uint64]*cursor)
	}
	s.cursors.open[id] = &cursor{query: q, seen: f, used: s.w.host.Mono()}
	return id, nil
}

// cursorInUse is MongoDB's code for two requests that read one cursor at a time.
const cursorInUse mongoerr.Code = 12051

// Cursor continues or closes what a Read left open. Errors: mongoerr CursorNotFound, or
// Location12051 when another request reads it; SnapshotUnavailable (its segments are gone),
// Corrupt, those of the bucket.
func (w *Writer) Cursor(ctx context.Context, r *rpc.CursorRequest) (*rpc.ReadReply, error) {
	ctx, cancel := w.deadline(ctx, &r.Header)
	defer cancel()
	s := w.shard(r.Shard)
	if s == nil {
		return nil, mongoerr.New(mongoerr.CursorNotFound, "cursor id %d not found", r.Cursor)
	}
	c, err := s.lend(r)
	if err != nil || r.Close {
		return &rpc.ReadReply{}, err
	}
	before := c.query.Stats()
	docs, done, err := c.query.Next(ctx, r.Batch)
	s.back(r.Cursor, c, done || err != nil)
	if err != nil {
		if err = s.lookedAway(ctx, c.seen, err); errors.Is(err, errOtherRefs) {
			err = fmt.Errorf("%w: the chunk's segments were replaced and deleted", errkind.SnapshotUnavailable)
		}
		return nil, fmt.Errorf("read cursor %d of shard %s: %w", r.Cursor, s.id, err)
	}
	reply := &rpc.ReadReply{Docs: docs, DataVersion: c.seen.version, Stats: since(before, c.query.Stats())}
	if !done {
		reply.Cursor = r.Cursor
	}
	return reply, nil
}

// lend finds a cursor, and marks it busy or closes it.
func (s *shard) lend(r *rpc.CursorRequest) (*cursor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cursors.open[r.Cursor]
	switch {
	case c == nil:
		return nil, mongoerr.New(mongoerr.CursorNotFound, "cursor id %d not found", r.Cursor)
	case r.Close:
		delete(s.cursors.open, r.Cursor)
	case c.busy:
		return nil, mongoerr.New(cursorInUse, "cursor id %d is already in use", r.Cursor)
	}
	c.busy = true
	return c, nil
}

// back gives a cursor back after a request; over: there is nothing more to read.
func (s *shard) back(id uint64, c *cursor, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.busy, c.used = false, s.w.host.Mono()
	if over {
		delete(s.cursors.open, id)
	}
}

// since is what one batch cost.
func since(before, now rpc.ReadStats) rpc.ReadStats {
	return rpc.ReadStats{
		DocsExamined:   now.DocsExamined - before.DocsExamined,
		BucketRequests: now.BucketRequests - before.BucketRequests,
		BucketBytes:    now.BucketBytes - before.BucketBytes,
	}
}

// closeIdleCursors closes the cursors that nobody has used for long.
func (w *Writer) closeIdleCursors() {
	now := w.host.Mono()
	for _, s := range w.held() {
		s.mu.Lock()
		for id, c := range s.cursors.open {
			if !c.busy && now >= c.used+w.set.CursorIdle {
				delete(s.cursors.open, id)
			}
		}
		s.mu.Unlock()
	}
}
