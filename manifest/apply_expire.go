package manifest

import (
	"bytes"
	"fmt"
	"slices"
)

func (x Expire) apply(b *builder) error {
	const verb = "expire"
	subject := fmt.Sprintf("chunk %d", x.Chunk.ID)
	coll := b.s.Collection(x.Chunk.Collection)
	c := b.s.ChunkOf(x.Chunk.Collection, x.Chunk.Min)
	switch {
	case coll == nil || c == nil || c.ID != x.Chunk.ID:
		return conflict(verb, subject, "no such chunk at %s: it was split, merged or dropped", show(x.Chunk.Min))
	case !slices.EqualFunc(coll.Indexes, x.Indexes, equalIndex):
		return conflict(verb, subject, "the indexes of %s changed meanwhile", coll.Namespace())
	case b.s.Resharding(coll.Namespace()):
		return conflict(verb, coll.Namespace(), "it is getting another shard key")
	case len(x.Refs) == 0:
		return invalid(verb, subject, "no references")
	}
	leaves := func(r SegmentRef) bool {
		return slices.ContainsFunc(x.Refs, func(y SegmentRef) bool { return sameRows(r, y) })
	}
	n := *c
	n.Refs = nil
	var gone []SegmentRef
	for _, r := range c.Refs {
		if leaves(r) {
			gone = append(gone, r)
		} else {
			n.Refs = append(n.Refs, r)
		}
	}
	if len(gone) != len(x.Refs) {
		return conflict(verb, subject, "%d of %d references are there (still)", len(gone), len(x.Refs))
	}
	for i := range gone {
		if gone[i].Rowless() && !b.expired(gone[i].RetryUntil) {
			return conflict(verb, subject, "%s shows no rows, and stays for its retry ids", gone[i].Segment)
		}
		for k := range n.Refs {
			if n.Refs[k].older(&gone[i]) {
				return conflict(verb, subject, "%s may hold older versions of rows of %s, which would be seen again", n.Refs[k].Segment, gone[i].Segment)
			}
		}
	}
	b.expire(&n, gone)
	b.replace(&n)
	return nil
}

// expire books references that c, a copy that the caller owns, has lost.
func (b *builder) expire(c *Chunk, gone []SegmentRef) {
	for i := range gone {
		c.Rows = max(0, c.Rows-int64(gone[i].Rows))
		c.Bytes = max(0, c.Bytes-int64(gone[i].Bytes))
	}
	c.RowsEstimated = true
	emptied := Chunk{Refs: gone}
	b.clear(&emptied)
	c.Refs = slices.Concat(emptied.Refs, c.Refs)
}

// Rowless reports whether the reference shows no rows, only retry ids.
func (r *SegmentRef) Rowless() bool { return !r.rowsIn(r.Clip) }

// older reports whether r can have a version of a row that is older than one of x.
func (r *SegmentRef) older(x *SegmentRef) bool {
	return r.rowsIn(r.Clip) && r.MinSeq <= x.MaxSeq && r.Clip.Overlaps(x.Clip) &&
		bytes.Compare(r.MinKey, x.MaxKey) <= 0 && bytes.Compare(x.MinKey, r.MaxKey) <= 0
}

// Expirable are those of the references for which due is true that can leave a chunk without
// any older version of their rows being seen again.
func (c *Chunk) Expirable(due func(*SegmentRef) bool) []SegmentRef {
	leave, changed := make([]bool, len(c.Refs)), false
	for i := range c.Refs {
		leave[i] = due(&c.Refs[i])
		changed = changed || leave[i]
	}
	for changed {
		changed = false
		for i := range c.Refs {
			for k := range c.Refs {
				if leave[i] && !leave[k] && c.Refs[k].older(&c.Refs[i]) {
					leave[i], changed = false, true
				}
			}
		}
	}
	var list []SegmentRef
	for i := range c.Refs {
		if leave[i] {
			list = append(list, c.Refs[i])
		}
	}
	return list
}
