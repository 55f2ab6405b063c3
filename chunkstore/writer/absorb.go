package writer

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// absorb takes in a root version, before anyone in the process sees it. Whoever holds an
// older claim stops here. Then memory is held to the same rule as a replay: a row stays
// when its key belongs to a chunk of this shard in this version, and its place in the WAL
// is above the chunk's effective floor. So what was flushed leaves, what was moved away
// leaves, and what was moved away, deleted there and moved back does not return.
func (s *shard) absorb(st *manifest.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil || s.state != nil && st.Version() <= s.state.Version() {
		return
	}
	now := st.Shard(s.id)
	if now == nil || now.Epoch != s.epoch && !broken(flushAnyEpoch) {
		s.counts.Fenced++
		s.endLocked(s.fenced(now))
		return
	}
	if now.Epoch == s.epoch && now.Status == manifest.ShardFree {
		s.endLocked(fmt.Errorf("shard %s epoch %d: %w", s.id, s.epoch, errFreed))
		return
	}
	old, floor := s.state, s.rootFloor
	s.state, s.rootFloor, s.reshaping = st, now.Floor, reshaping(st)
	s.learnRules()
	if s.log.drop(now.Floor); s.long != nil {
		close(s.long.opened) // those who still find it too long wait again
		s.long = nil
	}
	gone, come, told := s.differing(old, st)
	s.noteGained(old, come)
	s.cover(floor.Less(s.rootFloor), append(told, s.recut(gone, come)...))
	s.settleHolds()
	s.pause()
}

// differing are the chunks that are not the shard's any more under their id and version, and
// those that are since. It updates the others, and returns those that it told something.
func (s *shard) differing(old, st *manifest.State) (gone []*chunk, come []*manifest.Chunk, told []*chunk) {
	if old == nil {
		for c := range st.AllChunks() {
			if c.Shard == s.id {
				come = append(come, c)
			}
		}
		return nil, come, nil
	}
	for was, is := range manifest.ChangedChunks(old, st) {
		mine := is != nil && is.Shard == s.id
		var c *chunk
		if was != nil && was.Shard == s.id {
			c = s.chunks[was.ID]
		}
		switch {
		case c != nil && mine && c.info.ID == is.ID && c.info.Version == is.Version:
			s.noteBrought(c, is)
			c.info, c.seq = is, max(c.seq, is.MaxSeq)
			told = append(told, c)
			continue
		case c != nil:
			gone = append(gone, c)
		}
		if mine {
			come = append(come, is)
		}
	}
	return gone, come, told
}

// noteBrought has the chunk's retry entries read again when a batch brought some that no hold
// tells of.
func (s *shard) noteBrought(c *chunk, is *manifest.Chunk) {
	for i := range is.Refs {
		r := &is.Refs[i]
		if r.FixedSeq == 0 || r.RetryUntil == 0 {
			continue
		}
		told := slices.ContainsFunc(s.heldRows, func(h *hold) bool { return h.at.ID == is.ID && h.seq == r.FixedSeq })
		if !told && !slices.ContainsFunc(c.info.Refs, func(was manifest.SegmentRef) bool { return was.Segment == r.Segment }) {
			c.retries.unload()
		}
	}
}

// noteGained remembers of which collections a chunk came that was, or had a part that was,
// another shard's.
func (s *shard) noteGained(old *manifest.State, come []*manifest.Chunk) {
	if old == nil {
		s.since = s.state.Version()
		return
	}
	for _, c := range come {
		for was := range old.ChunksIn(c.Collection, c.Range) {
			if was.Shard != s.id {
				s.gained[c.Collection] = s.state.Version()
			}
		}
	}
}

// recut makes the chunks that came, and returns them, of what there is of those that are gone.
func (s *shard) recut(gone []*chunk, come []*manifest.Chunk) []*chunk {
	s.w.memory.chunks.Add(int64(len(come) - len(gone)))
	for _, c := range gone {
		c.gone = true
		c.resume()
		delete(s.chunks, c.info.ID)
		delete(s.stirred, c.info.ID)
	}
	added := make([]*chunk, 0, len(come))
	for _, info := range come {
		c := newChunk(info)
		s.chunks[info.ID] = c
		added = append(added, c)
	}
	for _, c := range gone {
		s.eachOwned(c.info.Collection, c.info.Range, func(to *chunk) {
			to.seq, to.last = max(to.seq, c.seq), manifest.MaxPosition(to.last, c.last)
			to.tied = manifest.MaxPosition(to.tied, c.tied)
			to.inheritRetries(c)
		})
		s.inheritRows(c, c.mem, func(to *chunk) **memtable { return &to.mem })
		s.inheritRows(c, c.frozen, func(to *chunk) **memtable { return &to.frozen })
		s.unweigh(c)
	}
	now := s.w.expiredBy()
	for _, c := range added {
		s.weigh(c)
		c.retries.loaded = !slices.ContainsFunc(c.info.Refs, func(r manifest.SegmentRef) bool { return r.RetryUntil > now })
	}
	return added
}

// inheritRows moves the rows of a memtable of c to the chunks that have their keys now.
func (s *shard) inheritRows(c *chunk, from *memtable, into func(*chunk) **memtable) {
	if from == nil {
		return
	}
	s.grow(-from.bytes)
	from.each(func(r *row) {
		to := s.owned(r.collection(), r.key())
		if broken(splitUnclipped) {
			to = s.owned(r.collection(), someKey(c.info.Range))
		}
		if to == nil {
			return
		}
		m := into(to)
		if *m == nil {
			*m = new(memtable)
		}
		(*m).put(r)
		s.heatOf(to)
		s.grow(r.bytes())
	})
}

// dropCovered drops the rows that are in segments.
func (s *shard) dropCovered(c *chunk) {
	floor := s.floor(c)
	for _, m := range []**memtable{&c.frozen, &c.mem} {
		kept := (*m).above(floor)
		if kept == *m {
			continue
		}
		s.grow(-(*m).bytes)
		if kept != nil {
			s.grow(kept.bytes)
		}
		*m = kept
	}
	if c.mem == nil {
		c.mem = new(memtable)
	}
}

// inheritRetries takes over what a chunk knew that had a part of this range.
func (c *chunk) inheritRetries(from *chunk) {
	take := func(e *retry) {
		if kindClass(e) == 1 {
			c.inheritProgress(e)
		} else if c.info.Range.Contains(e.Key) {
			c.retries.learn(e)
		}
	}
	for s := from.retries.silent; s != nil; s = s.next {
		for _, x := range s.txns {
			for _, e := range x.entries {
				take(e)
			}
		}
		if s.dropped > nothingDropped {
			to := c.retries.touch(s.id)
			to.dropped = max(to.dropped, s.dropped)
		}
	}
}

// inheritProgress takes over a part of a write of many documents if it touches this range.
// A part that is in several chunks is an entry of each.
func (c *chunk) inheritProgress(e *retry) {
	p, err := parseProgress(e.Reply)
	if err != nil || !p.touches(c.info.Range) {
		return
	}
	if c.info.Range.Contains(e.Key) {
		c.retries.learn(e)
		return
	}
	mine := *e
	mine.older = nil
	if mine.in != nil {
		mine.in.retries = append(mine.in.retries, &mine)
	}
	c.retries.learn(&mine)
}

// eachTouched calls f for the chunks of this shard that a part of a write of many documents
// touches. Requires: the mutex.
func (s *shard) eachTouched(c manifest.CollectionID, e *retry, f func(*chunk)) {
	if p, err := parseProgress(e.Reply); err == nil {
		s.eachOwned(c, p.span(), f)
	}
}

// touches reports whether the part has rows of r behind it.
func (p *progress) touches(r shardkey.Range) bool {
	return p.done.Overlaps(r) || r.Contains(p.last)
}

// span is the smallest range that overlaps whatever the part touches.
func (p *progress) span() shardkey.Range {
	after := append(bytes.Clone(p.last), 0)
	if p.done.Empty() {
		return shardkey.Range{Min: p.last, Max: after}
	}
	r := p.done
	if shardkey.CompareMin(p.last, r.Min) < 0 {
		r.Min = p.last
	}
	if shardkey.CompareMax(r.Max, after) < 0 {
		r.Max = after
	}
	return r
}
