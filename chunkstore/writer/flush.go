package writer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// A flush takes the unflushed rows to segments:
//
//	freeze   mem becomes frozen, in every chunk at once, at the position that is durable now
//	upload   segments of the frozen rows and of the retry entries that the WAL alone has
//	commit   references, and the floors, in one change of the root
//	absorb   the observer of that root drops what the floors cover
//	thaw     what is frozen still (the commit skipped its chunk, or failed) returns to mem
//
// A crash before the commit leaves segments that nothing refers to, and the WAL has it all;
// after the commit, the WAL below the floor is garbage. Only durable rows are frozen: a
// segment with a row that the WAL lost would show what was never acknowledged, and then,
// after a takeover, another row of the same seq.

// freeze takes the durable rows of the shard (nil), or of some of its chunks and those tied to
// them, for a flush. ok is false when there is nothing to do.
func (s *shard) freeze(only []*chunk) (pos manifest.Position, parts []*part, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return pos, nil, false
	}
	now := s.w.expiredBy()
	s.forgetAged(now)
	chunks := slices.SortedFunc(slices.Values(s.withTied(only)), compareChunks)
	if only == nil {
		chunks = s.ordered()
	}
	for _, c := range chunks {
		if c.gone || only == nil && !s.floor(c).Less(s.durable) {
			continue
		}
		c.retries.expire(now)
		p := &part{chunk: c, info: c.info, rule: s.rules[c.info.Collection].rule, tied: s.isTied(c), added: manifest.Added{MaxSeq: c.seq}}
		p.takeRetries(c, s.floor(c), now)
		if c.mem.len() > 0 {
			c.frozen, c.mem = c.mem, new(memtable)
			p.rows = c.frozen
		}
		if p.rows != nil || len(p.retries) > 0 {
			parts = append(parts, p)
		}
	}
	return s.durable, parts, len(parts) > 0 || s.rootFloor.Less(s.durable)
}

// takeRetries copies the entries that no segment has.
func (p *part) takeRetries(c *chunk, floor manifest.Position, now int64) {
	if broken(retriesNotFlushed) {
		return
	}
	list := c.retries.unflushed(floor)
	p.retries = make([]segment.RetryEntry, 0, len(list))
	for _, e := range list {
		if e.ExpiresAt <= now {
			continue
		}
		p.retries = append(p.retries, e.stored())
	}
	slices.SortFunc(p.retries, func(a, b segment.RetryEntry) int {
		return cmp.Or(bytes.Compare(a.Key, b.Key), bytes.Compare(a.Op.Session[:], b.Op.Session[:]),
			cmp.Compare(a.Op.Txn, b.Op.Txn), cmp.Compare(a.Op.Stmt, b.Op.Stmt), cmp.Compare(a.Op.Attempt, b.Op.Attempt),
			bytes.Compare(a.Reply, b.Reply))
	})
}

// thaw ends a flush: rows that are still frozen go back under the newer ones.
func (s *shard) thaw(pos manifest.Position, parts []*part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.stirred {
		if c.frozen == nil {
			continue
		}
		under := c.frozen
		newer := c.mem
		c.frozen, c.mem = nil, new(memtable)
		under.each(c.mem.put)
		newer.each(c.mem.put)
		s.grow(c.mem.bytes - under.bytes - newer.bytes)
	}
}

// flush is one whole flush of the shard. Background work waits for its turn at the root.
// Errors: Fenced, Throttled and those of the bucket (the rows stay in memory and in the
// WAL), UnknownOutcome (the shard has ended).
func (s *shard) flush(ctx context.Context, background bool) error {
	pos, parts, ok := s.freeze(nil)
	if !ok {
		return s.endedErr()
	}
	defer s.thaw(pos, parts)
	if err := s.upload(ctx, parts); err != nil {
		return fmt.Errorf("flush shard %s: %w", s.id, err)
	}
	if broken(walDeletedEarly) {
		s.deleteWAL(ctx, pos)
	}
	ch := manifest.Flush{Shard: s.id, Epoch: s.commitEpoch(), Snapshot: pos, Complete: true, Chunks: flushed(parts)}
	if err := s.commitEdit(ctx, background, ch); err != nil {
		return fmt.Errorf("flush shard %s up to %v: %w", s.id, pos, err)
	}
	s.mu.Lock()
	s.counts.Flushes++
	s.flushed = s.w.host.Mono()
	s.mu.Unlock()
	return nil
}

// flushChunks flushes chunks while they serve, before they move, or one of their documents does.
func (s *shard) flushChunks(ctx context.Context, chunks []*chunk) error {
	pos, parts, ok := s.freeze(chunks)
	if !ok || len(parts) == 0 {
		return s.endedErr()
	}
	defer s.thaw(pos, parts)
	if err := s.upload(ctx, parts); err != nil {
		return fmt.Errorf("flush %d chunks: %w", len(parts), err)
	}
	ch := manifest.Flush{Shard: s.id, Epoch: s.epoch, Snapshot: pos, Chunks: flushed(parts)}
	return s.commitEdit(ctx, false, ch)
}

func flushed(parts []*part) []manifest.FlushedChunk {
	list := make([]manifest.FlushedChunk, len(parts))
	for i, p := range parts {
		list[i] = manifest.FlushedChunk{At: p.info.At(), Added: p.added, Tied: p.tied}
	}
	return list
}

// commitEdit commits changes together. While the outcome is unknown it commits the same Edit
// again, which happens once, until the shard ends: what comes next rests on it.
func (s *shard) commitEdit(ctx context.Context, background bool, changes ...manifest.Change) error {
	return s.commitAs(ctx, s.working, background, changes...)
}

// commitAs is commitEdit of several changes, which happen together, by some actor.
func (s *shard) commitAs(ctx context.Context, h host.Host, background bool, changes ...manifest.Change) error {
	e := manifest.Edit{Op: h.ID16(), Changes: changes, Millis: s.w.host.Wall().UnixMilli(), Background: background}
	for {
		_, err := s.w.root.Commit(ctx, e)
		if !errors.Is(err, errkind.UnknownOutcome) || ctx.Err() != nil {
			return err
		}
		if err := h.Sleep(ctx, h.Jitter(backoffMax)); err != nil {
			s.end(fmt.Errorf("shard %s epoch %d: %w: its last commit may or may not be applied", s.id, s.epoch, errkind.Fenced))
			return fmt.Errorf("%w: %w", errkind.UnknownOutcome, err)
		}
	}
}

// flushSoon has the janitor flush; requests for it that come before it begins share one.
func (s *shard) flushSoon(background bool) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flushing != nil {
		s.flushing.urgent = s.flushing.urgent || !background
		return s.flushing, nil
	}
	var j *job
	j, err := s.queue(func(ctx context.Context) error {
		s.mu.Lock()
		s.flushing = nil
		urgent := j.urgent
		s.mu.Unlock()
		return s.flush(ctx, !urgent)
	})
	if err != nil {
		return nil, err
	}
	j.urgent = !background
	s.flushing = j
	return j, nil
}

// Flush makes everything the shard acknowledged so far part of segments, and its floor the one
// of all its chunks: a chunk that came has one of its own until then, and merges want equal ones.
func (w *Writer) Flush(ctx context.Context, r *rpc.FlushRequest) (*rpc.FlushReply, error) {
	ctx, cancel := w.deadline(ctx, &r.Header)
	defer cancel()
	s, err := w.enter(ctx, &r.Header)
	if err != nil {
		return nil, err
	}
	// What is on its way counts: it will be acknowledged, and who asks for a flush under a root
	// that stops writes takes what is in segments afterwards for all there is.
	if err := w.turns.take(ctx, w.turns.join(), func() error { return s.drained(ctx) }); err != nil {
		return nil, err
	}
	s.mu.Lock()
	goal := s.durable
	s.mu.Unlock()
	for attempt := 0; ; attempt++ {
		if version, done := s.flushedTo(goal); done {
			return &rpc.FlushReply{Version: version}, nil
		}
		j, err := s.flushSoon(false)
		if err == nil {
			err = w.turns.take(ctx, w.turns.join(), func() error { return s.finished(ctx, j) })
		}
		if err == nil {
			// A chunk was cut or merged meanwhile and its rows stayed behind: once more.
			err = fmt.Errorf("flush shard %s: %w: its chunks keep changing", s.id, errkind.Conflict)
		}
		if _, done := s.flushedTo(goal); done {
			continue
		}
		if err := retryLater(ctx, w.asked, attempt, err); err != nil {
			return nil, err
		}
	}
}

// flushedTo reports whether nothing at or below pos is unflushed, no floor of a chunk's own is
// at or below it, and in which root.
func (s *shard) flushedTo(pos manifest.Position) (manifest.Version, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if broken(dropUnflushed) && len(s.state.RangeHolds()) > 0 {
		return s.state.Version(), true
	}
	if s.endErr != nil {
		return 0, false
	}
	for _, c := range s.stirred {
		if own := c.info.OwnFloor; s.rootFloor.Less(own) && !pos.Less(own) {
			return 0, false
		}
		if floor := s.floor(c); floor.Less(pos) && (c.mem.below(pos) || c.frozen.below(pos) || len(c.retries.unflushed(floor)) > 0) {
			return 0, false
		}
	}
	return s.state.Version(), true
}

// below reports whether some row may be at or below pos.
func (m *memtable) below(pos manifest.Position) bool { return m.len() > 0 && !pos.Less(m.low) }
