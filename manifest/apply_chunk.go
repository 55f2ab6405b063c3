package manifest

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/granarydb/granary/manifest/mutant"
	"github.com/granarydb/granary/manifest/shardkey"
)

func (m Move) apply(b *builder) error {
	const verb = "move"
	subject := fmt.Sprintf("chunk %d", m.Chunk.ID)
	c, err := b.chunk(verb, m.Chunk)
	if err != nil {
		return err
	}
	if m.From == m.To {
		return invalid(verb, subject, "%s is both source and destination", m.From)
	}
	if c.Shard != m.From {
		return conflict(verb, subject, "owner is %s, expected %s", c.Shard, m.From)
	}
	from, err := b.shardAt(verb+" from shard", m.From, m.FromEpoch)
	if err != nil {
		return err
	}
	to, err := b.shardAt(verb+" to shard", m.To, m.ToEpoch)
	if err != nil {
		return err
	}
	if err := m.checkPromise(from, to); err != nil {
		return err
	}
	n := *c
	if err := m.relocate(b, &n, from, to); err != nil {
		return err
	}
	if err := b.add(verb, &n, m.Added, m.From); err != nil {
		return err
	}
	n.Shard, n.Version = m.To, c.Version+1
	n.OwnFloor = ownFloor(m.Promise, to)
	b.replace(&n)
	b.log("moveChunk.commit", b.namespace(c.Collection), b.bounds(detail(), c, m.To).
		AppendString("from", string(m.From)).AppendString("to", string(m.To)))
	return nil
}

// relocate puts the copies at the destination in the place of the references of c, a copy
// that the caller owns.
func (m Move) relocate(b *builder, c *Chunk, from, to *Shard) error {
	const verb = "move"
	subject := fmt.Sprintf("chunk %d", c.ID)
	switch {
	case from.Location == to.Location && m.Copied != nil:
		return invalid(verb, subject, "%s and %s are in one location: leave Copied out", from.ID, to.ID)
	case from.Location == to.Location:
		return nil
	case b.s.Leaves(c, to) != "":
		return invalid(verb, subject, "its range belongs to zone %s, and %s, in another location, does not", b.s.Leaves(c, to), to.ID)
	case len(c.Refs) == 0 && m.Copied == nil:
		return nil
	case m.Copied == nil:
		return invalid(verb, subject, "%s is in location %d, %s in %d: its rows have to be copied", from.ID, from.Location, to.ID, to.Location)
	case !slices.EqualFunc(c.Refs, m.Copied.From, sameRows):
		return conflict(verb, subject, "it has other references than those that were copied")
	}
	if _, ok := b.s.Job(m.Copied.Job); !ok {
		return conflict(verb, subject, "job %x is not registered: it was expelled", m.Copied.Job)
	}
	if len(c.Refs) == 0 {
		return nil
	}
	copies, err := Compact{Job: m.Copied.Job, Inputs: m.Copied.From, Outputs: m.Copied.To}.outputs(b, c)
	if err != nil {
		return err
	}
	b.drop(c.Refs)
	c.Refs, c.Bytes = copies, sumBytes(copies)
	if m.Copied.Rows >= 0 {
		c.Rows, c.RowsEstimated = m.Copied.Rows, false
	}
	return nil
}

// checkPromise asks for the right floor. A held destination may have rows of the chunk in
// its WAL from an earlier ownership, which its promise, made in this very epoch, lies
// above. A free one has drained its WAL to its floor.
func (m Move) checkPromise(from, to *Shard) error {
	const verb = "move to shard"
	switch {
	case to.Status == ShardDraining:
		return conflict(verb, to.ID, "it is draining")
	case to.Status == ShardFree && from.Status != ShardFree:
		return conflict(verb, to.ID, "it is free, expected held: only chunks of a free shard move to a free shard")
	case to.Status == ShardFree && m.Promise != Position{}:
		return invalid(verb, to.ID, "promise %s for a free shard: leave it zero", m.Promise)
	case to.Status == ShardHeld && m.Promise.Epoch > m.ToEpoch:
		return invalid(verb, to.ID, "promise %s is of a later epoch than %d", m.Promise, m.ToEpoch)
	case to.Status == ShardHeld && m.Promise.Epoch < m.ToEpoch:
		return conflict(verb, to.ID, "promise %s is of an earlier epoch than %d: it is void", m.Promise, m.ToEpoch)
	}
	return nil
}

// ownFloor is a floor as a chunk of h keeps it: zero when the shard's covers it.
func ownFloor(p Position, h *Shard) Position {
	if h.Floor.Less(p) {
		return p
	}
	return Position{}
}

// splitPointsMax bounds the points of one Split.
const splitPointsMax = 8192

func (x Split) apply(b *builder) error {
	const verb = "split"
	subject := fmt.Sprintf("chunk %d", x.Chunk.ID)
	c, err := b.chunk(verb, x.Chunk)
	if err != nil {
		return err
	}
	if x.Epoch != 0 {
		if _, err := b.heldAt(verb+" "+subject+" of shard", c.Shard, x.Epoch); err != nil {
			return err
		}
	}
	if n := len(x.Points); n == 0 || n > splitPointsMax {
		return invalid(verb, subject, "%d points, expected 1..%d", n, splitPointsMax)
	}
	last := c.Range.Min
	for i, p := range x.Points {
		if len(p.Key) == 0 || bytes.Compare(p.Key, last) <= 0 || !c.Range.Contains(p.Key) {
			return invalid(verb, subject, "point %d at %s: points ascend strictly inside %s", i, show(p.Key), c.Range)
		}
		if !wellFormed(p.BSON) {
			return invalid(verb, subject, "point %d at %s has no BSON", i, show(p.Key))
		}
		last = p.Key
	}
	if x.Shares != nil && (len(x.Shares) != len(x.Points)+1 || slices.Min(x.Shares) < 0) {
		return invalid(verb, subject, "shares %v of %d parts", x.Shares, len(x.Points)+1)
	}
	children := divide(c, x.Points, x.Shares)
	for _, n := range children {
		n.ID = b.chunkID()
		n.ManualUntil = x.ManualUntil
	}
	b.replace(children...)
	what := "split"
	if len(children) > 2 {
		what = "multi-split"
	}
	d := detail()
	if !b.discreet(c.Shard) {
		d.AppendDocument("before", b.bounds(detail(), c).Build()).AppendDocument("at", doc(x.Points[0].BSON))
	}
	b.log(what, b.namespace(c.Collection), d.AppendInt32("of", int32(len(children))).AppendString("owningShard", string(c.Shard)))
	return nil
}

// divide cuts c at points. Each child sees the parent's references through its own clip
// and inherits floor and MaxSeq. Row counts become shares: what lies where is not known
// before a compaction has read the rows.
func divide(c *Chunk, points []Bound, each []int64) []*Chunk {
	children := make([]*Chunk, 0, len(points)+1)
	low, lowBSON := c.Range.Min, c.MinBSON
	for _, p := range append(slices.Clip(points), Bound{Key: c.Range.Max, BSON: c.MaxBSON}) {
		n := *c
		n.Range = shardkey.Range{Min: low, Max: p.Key}
		n.MinBSON, n.MaxBSON = lowBSON, p.BSON
		n.Version++
		n.Flags &^= ChunkIndivisible
		n.Indivisible = Indivisible{}
		n.Rows, n.Bytes, n.Refs = 0, 0, nil
		n.RowsEstimated = c.Rows > 0 || c.RowsEstimated
		children = append(children, &n)
		low, lowBSON = p.Key, p.BSON
	}
	rows, bytes := make([]uint64, len(children)), make([]uint64, len(children))
	for i := range c.Refs {
		deal(&c.Refs[i], children, each, rows, bytes)
	}
	for i, share := range shares(uint64(c.Rows), rows) {
		children[i].Rows = int64(share)
	}
	for i, share := range shares(uint64(c.Bytes), bytes) {
		children[i].Bytes = int64(share)
	}
	return children
}

// deal gives one reference to the children that it has something for, and adds each one's
// share of it to rows and bytes.
func deal(r *SegmentRef, children []*Chunk, each []int64, rows, bytes []uint64) {
	parts := make(map[int]SegmentRef)
	share := func(i int) float64 {
		if each == nil {
			return 1
		}
		return float64(each[i])
	}
	live, holders := 0.0, 0.0
	for i, n := range children {
		if part, ok := r.clipped(n.Range); ok {
			parts[i] = part
			if part.rowsIn(part.Clip) {
				live += share(i)
				holders++
			}
		}
	}
	for i, n := range children {
		part, ok := parts[i]
		if !ok {
			continue
		}
		if part.rowsIn(part.Clip) {
			of := 1 / holders // deletions have rows too where nothing lives
			if live > 0 {
				of = share(i) / live
			}
			// Rounded up: shares that are joined again must not be fewer rows than there are.
			part.Rows, part.Bytes = max(1, uint64(math.Ceil(float64(r.Rows)*of))), uint64(float64(r.Bytes)*of)
			rows[i] += part.Rows
			bytes[i] += part.Bytes
		} else {
			part.Rows, part.Bytes = 0, 0
		}
		n.Refs = append(n.Refs, part)
	}
}

// shares divides total by weight, exactly: the rounding goes to the last with any weight.
// Without any weight everything goes to the first.
func shares(total uint64, weights []uint64) []uint64 {
	out := make([]uint64, len(weights))
	var sum float64
	last := 0
	for i, w := range weights {
		sum += float64(w)
		if w > 0 {
			last = i
		}
	}
	left := total
	for i, w := range weights {
		if w > 0 && i != last {
			out[i] = min(left, uint64(float64(total)*(float64(w)/sum)))
			left -= out[i]
		}
	}
	out[last] += left
	return out
}

func (m Merge) apply(b *builder) error {
	const verb = "merge"
	left, err := b.chunk(verb, m.Left)
	if err != nil {
		return err
	}
	right, err := b.chunk(verb, m.Right)
	if err != nil {
		return err
	}
	subject := fmt.Sprintf("chunks %d and %d", left.ID, right.ID)
	if left.Collection != right.Collection || len(left.Range.Max) == 0 || !bytes.Equal(left.Range.Max, right.Range.Min) {
		return invalid(verb, subject, "%s and %s are not adjacent", left.Range, right.Range)
	}
	if left.Shard != right.Shard {
		return conflict(verb, subject, "owners are %s and %s, expected one shard", left.Shard, right.Shard)
	}
	if l, r := b.s.EffectiveFloor(left), b.s.EffectiveFloor(right); l != r {
		return conflict(verb, subject, "floors are %s and %s, expected equal ones: flush both first", l, r)
	}
	n := *left
	n.ID = b.chunkID()
	n.Version = max(left.Version, right.Version) + 1
	n.Range.Max, n.MaxBSON = right.Range.Max, right.MaxBSON
	n.OwnFloor = MaxPosition(left.OwnFloor, right.OwnFloor)
	n.MaxSeq = max(left.MaxSeq, right.MaxSeq)
	n.Refs = joinRefs(left.Refs, right.Refs)
	if mutant.Broken("clip-lost-by-merge") {
		n.Refs = slices.Clone(n.Refs)
		unclip(&n)
	}
	n.Rows, n.Bytes = left.Rows+right.Rows, left.Bytes+right.Bytes
	n.RowsEstimated = left.RowsEstimated || right.RowsEstimated
	n.Flags, n.Indivisible, n.ManualUntil = 0, Indivisible{}, 0
	b.remove(right)
	b.replace(&n)
	b.log("merge", b.namespace(n.Collection), b.bounds(detail(), &n).AppendString("owningShard", string(n.Shard)))
	return nil
}

// joinRefs is the references of a merged chunk: where both lists are of the same segments,
// as after the split that is now undone, each pair becomes one again; else one list after
// the other. Either is right, because no key has rows in both.
func joinRefs(left, right []SegmentRef) []SegmentRef {
	same := len(left) == len(right)
	for i := 0; same && i < len(left); i++ {
		l, r := &left[i], &right[i]
		same = l.Segment == r.Segment && l.FixedSeq == r.FixedSeq && bytes.Equal(l.Clip.Max, r.Clip.Min) &&
			len(l.MinKey) > 0 && len(r.MinKey) > 0
	}
	if !same {
		return slices.Concat(left, right)
	}
	joined := slices.Clone(left)
	for i := range joined {
		l, r := &joined[i], &right[i]
		l.Clip.Max = r.Clip.Max
		if bytes.Compare(r.MinKey, l.MinKey) < 0 {
			l.MinKey = r.MinKey
		}
		if bytes.Compare(r.MaxKey, l.MaxKey) > 0 {
			l.MaxKey = r.MaxKey
		}
		l.MinSeq, l.MaxSeq = min(l.MinSeq, r.MinSeq), max(l.MaxSeq, r.MaxSeq)
		l.Rows, l.Bytes = l.Rows+r.Rows, l.Bytes+r.Bytes
		l.RetryUntil = max(l.RetryUntil, r.RetryUntil)
		l.Dates = l.Dates.Join(r.Dates)
	}
	return joined
}
