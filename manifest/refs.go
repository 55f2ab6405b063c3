package manifest

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest/shardkey"
)

// Registered tells whether an actor may commit segments now, and therefore whether GC must
// leave its unreferenced ones alone: a shard's holder while the shard is held at that
// epoch, a direct commit while the shard is free at that epoch, a job while its entry
// stands.
func (s *State) Registered(c Creator) bool {
	switch c.Kind {
	case CreatorShard, CreatorDirect:
		h := s.Shard(c.Shard)
		return h != nil && h.Epoch == c.Epoch && (h.Status == ShardFree) == (c.Kind == CreatorDirect)
	case CreatorJob:
		_, ok := s.Job(c.Job)
		return ok
	}
	return false
}

// add appends references to c, a copy that the caller owns, and books what they change. A
// holder's segments ('s') are taken only from one of the shards `holders`.
func (b *builder) add(verb string, c *Chunk, a Added, holders ...ShardID) error {
	subject := fmt.Sprintf("chunk %d", c.ID)
	refs := slices.Clone(a.Refs)
	c.Refs = append(make([]SegmentRef, 0, len(c.Refs)+len(refs)), c.Refs...)
	for i := range refs {
		r := &refs[i]
		if !b.s.Registered(r.Segment.Creator) || r.Segment.Creator.Kind == CreatorShard && !slices.Contains(holders, r.Segment.Creator.Shard) {
			return conflict(verb, subject, "creator %s of %s is not registered, or does not commit here", r.Segment.Creator, r.Segment)
		}
		if err := fit(r, c); err != nil {
			return err
		}
		for k := range c.Refs {
			if c.Refs[k].Segment == r.Segment && c.Refs[k].Clip.Overlaps(r.Clip) {
				return conflict(verb, subject, "%s is referenced already", r.Segment)
			}
		}
		c.Refs = append(c.Refs, *r)
		c.MaxSeq = max(c.MaxSeq, r.MaxSeq)
	}
	b.shed(c)
	c.MaxSeq = max(c.MaxSeq, a.MaxSeq)
	c.addRows(a.RowsDelta)
	c.RowsEstimated = c.RowsEstimated || a.Unsure
	c.Bytes = max(0, c.Bytes+a.BytesDelta)
	return nil
}

// addRows books rows. A count that would be negative was wrong: it becomes an estimate,
// because refusing the rows would be worse.
func (c *Chunk) addRows(n int64) {
	c.Rows += n
	if c.Rows < 0 {
		c.Rows, c.RowsEstimated = 0, true
	}
}

// fit checks a new reference against its chunk and narrows its clip to the chunk's range.
func fit(r *SegmentRef, c *Chunk) error {
	const verb = "add reference"
	if r.FixedSeq != 0 {
		r.MinSeq, r.MaxSeq = r.FixedSeq, r.FixedSeq
	}
	clip, ok := r.Clip.Intersect(c.Range)
	if !ok {
		return invalid(verb, r.Segment, "clip %s lies outside chunk %d %s", r.Clip, c.ID, c.Range)
	}
	r.Clip = clip
	switch {
	case r.MinSeq > r.MaxSeq:
		return invalid(verb, r.Segment, "seqs %d..%d are in the wrong order", r.MinSeq, r.MaxSeq)
	case r.Rows == 0 && len(r.MinKey) == 0 && len(r.MaxKey) == 0:
		if r.RetryUntil == 0 {
			return invalid(verb, r.Segment, "no rows and no retry ids: leave it out")
		}
	case bytes.Compare(r.MinKey, r.MaxKey) > 0:
		return invalid(verb, r.Segment, "keys %x..%x are in the wrong order", r.MinKey, r.MaxKey)
	case !clip.Contains(r.MinKey) || !clip.Contains(r.MaxKey):
		return invalid(verb, r.Segment, "keys %x..%x are not all in chunk %d %s", r.MinKey, r.MaxKey, c.ID, clip)
	}
	r.shortenKeys()
	return nil
}

// refKeyMax bounds the keys that the root keeps of a reference.
const refKeyMax = 256

// shortenKeys replaces long keys by shorter ones that still bound the rows, where the clip
// leaves room for it: an _id of a megabyte must not ride in the root.
func (r *SegmentRef) shortenKeys() {
	if len(r.MinKey) > refKeyMax && r.Clip.Contains(r.MinKey[:refKeyMax]) {
		r.MinKey = slices.Clone(r.MinKey[:refKeyMax])
	}
	if len(r.MaxKey) > refKeyMax {
		if end := shardkey.PrefixEnd(r.MaxKey[:refKeyMax]); r.Clip.Contains(end) {
			r.MaxKey = end
		}
	}
}

// rowsIn tells whether the reference may hold rows in range.
func (r *SegmentRef) rowsIn(x shardkey.Range) bool {
	if len(r.MinKey) == 0 && len(r.MaxKey) == 0 {
		return r.Rows > 0
	}
	return (len(x.Max) == 0 || bytes.Compare(r.MinKey, x.Max) < 0) && bytes.Compare(x.Min, r.MaxKey) <= 0
}

// clipped is the reference as a chunk of range x has it after a split; false when nothing
// of it belongs there. Retry ids belong to the chunk and not to the rows, so a reference
// that carries some goes along whatever its rows' keys are.
func (r *SegmentRef) clipped(x shardkey.Range) (SegmentRef, bool) {
	clip, ok := r.Clip.Intersect(x)
	if !ok || !r.rowsIn(clip) && r.RetryUntil == 0 {
		return SegmentRef{}, false
	}
	n := *r
	n.Clip = clip
	return n, true
}
