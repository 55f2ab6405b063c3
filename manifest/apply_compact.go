package manifest

import (
	"bytes"
	"fmt"
	"slices"
)

func (x Compact) apply(b *builder) error {
	const verb = "compact"
	subject := fmt.Sprintf("chunk %d", x.Chunk.ID)
	if _, ok := b.s.Job(x.Job); !ok {
		return conflict(verb, subject, "job %x is not registered: it was expelled", x.Job)
	}
	c := b.s.ChunkOf(x.Chunk.Collection, x.Chunk.Min)
	if c == nil || c.ID != x.Chunk.ID {
		return conflict(verb, subject, "no such chunk at %s: it was split, merged or dropped", show(x.Chunk.Min))
	}
	if len(x.Inputs) == 0 {
		return invalid(verb, subject, "no inputs")
	}
	from, err := x.position(c)
	if err != nil {
		return err
	}
	if x.Oldest && from != 0 {
		return conflict(verb, subject, "%s is older than the inputs, expected none: tombstones were dropped", c.Refs[0].Segment)
	}
	if err := x.expiry(b); err != nil {
		return err
	}
	outputs, err := x.outputs(b, c)
	if err != nil {
		return err
	}
	n := *c
	to := from + len(x.Inputs)
	b.drop(c.Refs[from:to])
	n.Refs = slices.Concat(c.Refs[:from], outputs, c.Refs[to:])
	if x.Rows >= 0 && len(x.Inputs) == len(c.Refs) {
		n.Rows, n.RowsEstimated = x.Rows, false
	} else {
		n.Rows = max(0, n.Rows-x.Expired)
	}
	n.RowsEstimated = n.RowsEstimated || x.Expired > 0
	n.Bytes = max(0, c.Bytes-sumBytes(c.Refs[from:to])+sumBytes(outputs))
	b.replace(&n)
	return nil
}

// expiry checks that rows could be left out because they had expired.
func (x Compact) expiry(b *builder) error {
	const verb = "compact"
	subject := fmt.Sprintf("chunk %d", x.Chunk.ID)
	coll := b.s.Collection(x.Chunk.Collection)
	switch {
	case x.Expired < 0 || x.Expired > 0 && !x.Oldest:
		return invalid(verb, subject, "%d expired rows were left out, oldest inputs: %t: older versions would be seen again", x.Expired, x.Oldest)
	case x.Expired > 0 && !slices.EqualFunc(coll.Indexes, x.Indexes, equalIndex):
		return conflict(verb, subject, "the indexes of %s changed since rows were left out as expired", coll.Namespace())
	}
	return nil
}

func sumBytes(refs []SegmentRef) int64 {
	var n int64
	for i := range refs {
		n += int64(refs[i].Bytes)
	}
	return n
}

// position is where the inputs stand in the chunk's references: together, in their order.
func (x Compact) position(c *Chunk) (int, error) {
	from := slices.IndexFunc(c.Refs, func(r SegmentRef) bool { return sameRows(r, x.Inputs[0]) })
	for i := range x.Inputs {
		if from < 0 || from+i >= len(c.Refs) || !sameRows(c.Refs[from+i], x.Inputs[i]) {
			return 0, conflict("compact", fmt.Sprintf("chunk %d", c.ID), "%s clipped to %s is not referenced (any more) as input %d",
				x.Inputs[i].Segment, x.Inputs[i].Clip, i)
		}
	}
	return from, nil
}

// outputs are the new references, checked against the inputs: a compaction invents neither
// keys nor seqs, and loses no retry id that is still in force.
func (x Compact) outputs(b *builder, c *Chunk) ([]SegmentRef, error) {
	const verb = "compact"
	subject := fmt.Sprintf("chunk %d", c.ID)
	in := x.Inputs[0]
	retry := int64(0)
	for i := range x.Inputs {
		r := &x.Inputs[i]
		if bytes.Compare(r.MinKey, in.MinKey) < 0 {
			in.MinKey = r.MinKey
		}
		if bytes.Compare(r.MaxKey, in.MaxKey) > 0 {
			in.MaxKey = r.MaxKey
		}
		in.MinSeq, in.MaxSeq = min(in.MinSeq, r.MinSeq), max(in.MaxSeq, r.MaxSeq)
		retry = max(retry, r.RetryUntil)
	}
	// A throw-away chunk with no references takes the outputs, by the same rules as rows
	// that are added.
	empty := *c
	empty.Refs = nil
	if err := b.add(verb, &empty, Added{Refs: x.Outputs}, ""); err != nil {
		return nil, err
	}
	kept := int64(0)
	for i := range empty.Refs {
		r := &empty.Refs[i]
		switch {
		case r.Segment.Creator.Kind != CreatorJob || r.Segment.Creator.Job != x.Job:
			return nil, invalid(verb, subject, "output %s was not made by job %x", r.Segment, x.Job)
		case r.MinSeq < in.MinSeq || r.MaxSeq > in.MaxSeq:
			return nil, invalid(verb, subject, "output seqs %d..%d, inputs have %d..%d", r.MinSeq, r.MaxSeq, in.MinSeq, in.MaxSeq)
		case r.Rows > 0 && (bytes.Compare(r.MinKey, in.MinKey) < 0 || bytes.Compare(r.MaxKey, in.MaxKey) > 0):
			return nil, invalid(verb, subject, "output keys %x..%x, inputs have %x..%x", r.MinKey, r.MaxKey, in.MinKey, in.MaxKey)
		}
		kept = max(kept, r.RetryUntil)
	}
	if !b.expired(retry) && kept < retry {
		return nil, invalid(verb, subject, "retry ids of the inputs last until %d, of the outputs until %d: they must be kept", retry, kept)
	}
	return empty.Refs, nil
}

func (m MarkChunk) apply(b *builder) error {
	c, err := b.chunk("mark", m.Chunk)
	if err != nil {
		return err
	}
	n := *c
	n.Flags, n.Indivisible = m.Flags, Indivisible{}
	if m.Flags&ChunkIndivisible != 0 {
		if len(m.Indivisible.Value) > 0 && !wellFormed(m.Indivisible.Value) || m.Indivisible.Bytes < 0 {
			return invalid("mark", c.ID, "value %x of %d bytes", m.Indivisible.Value, m.Indivisible.Bytes)
		}
		n.Indivisible = m.Indivisible
	}
	b.replace(&n)
	return nil
}
