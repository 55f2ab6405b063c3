package manifest

import (
	"fmt"
	"slices"
)

func (x Forsake) apply(b *builder) error {
	const verb = "forsake"
	subject := fmt.Sprintf("chunk %d", x.Chunk.ID)
	coll := b.s.Collection(x.Chunk.Collection)
	c := b.s.ChunkOf(x.Chunk.Collection, x.Chunk.Min)
	switch {
	case coll == nil || c == nil || c.ID != x.Chunk.ID:
		return conflict(verb, subject, "no such chunk at %s: it was split, merged or dropped", show(x.Chunk.Min))
	case b.s.Resharding(coll.Namespace()):
		return conflict(verb, coll.Namespace(), "it is getting another shard key")
	case len(x.Refs) == 0:
		return invalid(verb, subject, "no references")
	}
	n := *c
	n.Refs = nil
	for _, r := range c.Refs {
		if !slices.ContainsFunc(x.Refs, func(y SegmentRef) bool { return sameRows(r, y) }) {
			n.Refs = append(n.Refs, r)
			continue
		}
		n.Rows, n.Bytes = max(0, n.Rows-int64(r.Rows)), max(0, n.Bytes-int64(r.Bytes))
		b.log("forsakeSegment", coll.Namespace(), detail().AppendInt64("chunk", int64(c.ID)).AppendString("segment", r.Segment.Key()))
	}
	if len(c.Refs)-len(n.Refs) != len(x.Refs) {
		return conflict(verb, subject, "%d of %d references are there (still)", len(c.Refs)-len(n.Refs), len(x.Refs))
	}
	n.RowsEstimated = true
	b.replace(&n)
	return nil
}
