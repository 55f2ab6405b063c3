package manifest

import (
	"bytes"
	"slices"
	"time"

	"github.com/granarydb/granary/manifest/shardkey"
)

func (x DropRange) apply(b *builder) error {
	const verb = "drop range"
	coll := b.s.Collection(x.Hold.Collection)
	if coll == nil {
		return conflict(verb, x.Hold.Range, "no collection %d", x.Hold.Collection)
	}
	if b.s.Resharding(coll.Namespace()) {
		return conflict(verb, coll.Namespace(), "it is getting another shard key")
	}
	if !bytes.Equal(x.Min.Key, x.Hold.Range.Min) || !bytes.Equal(x.Max.Key, x.Hold.Range.Max) || x.Hold.Range.Empty() {
		return invalid(verb, coll.Namespace(), "bounds %s..%s, the hold has %s", show(x.Min.Key), show(x.Max.Key), x.Hold.Range)
	}
	r, ok := b.s.Record(RecordHold, x.Hold.ID)
	if !ok || !bytes.Equal(r.Body, x.Hold.Record().Body) {
		return conflict(verb, coll.Namespace(), "hold %q of %s does not stand (any more)", x.Hold.ID, x.Hold.Range)
	}
	if err := b.s.checkHold(verb, x.Hold); err != nil {
		return err
	}
	chunks := slices.Collect(b.s.ChunksIn(coll.ID, x.Hold.Range))
	for _, c := range chunks {
		if err := x.checkOwner(b, c); err != nil {
			return err
		}
		b.dropPart(c, x.Min, x.Max)
	}
	if err := b.raiseDataVersions(map[CollectionID]int{coll.ID: 2}); err != nil {
		return err
	}
	b.log("dropRange", coll.Namespace(), detail().
		AppendDocument("min", doc(x.Min.BSON)).AppendDocument("max", doc(x.Max.BSON)).AppendInt32("numChunks", int32(len(chunks))))
	return DropRecord{Kind: RecordHold, ID: x.Hold.ID}.apply(b)
}

// checkOwner makes sure that no row of the range waits in memory or WAL: the chunk's shard is
// free, or its owner flushed under the hold, in the epoch that is named. A chunk that came to
// it since came in a commit behind the hold, with all its rows.
func (x DropRange) checkOwner(b *builder, c *Chunk) error {
	h := b.s.Shard(c.Shard)
	if h.Status == ShardFree || slices.Contains(x.Owners, OwnerAt{Shard: h.ID, Epoch: h.Epoch}) {
		return nil
	}
	return conflict("drop range", b.namespace(c.Collection),
		"chunk %d is owned by %s at epoch %d, which is not among the owners that answered %v", c.ID, h.ID, h.Epoch, x.Owners)
}

// dropPart empties the part of c that lies between two bounds; c is cut where they are inside
// of it. Whatever was planned on c is void: it has another version.
func (b *builder) dropPart(c *Chunk, min, max Bound) {
	r, parts := shardkey.Range{Min: min.Key, Max: max.Key}, cutOut(c, min, max)
	for _, n := range parts {
		if len(parts) > 1 {
			n.ID = b.chunkID()
		}
		if r.Covers(n.Range) {
			b.clear(n)
		}
	}
	b.replace(parts...)
}

// cutOut is c, in a new version, in the one to three parts that two bounds make of it.
func cutOut(c *Chunk, min, max Bound) []*Chunk {
	var points []Bound
	for _, p := range []Bound{min, max} {
		if len(p.Key) > 0 && !bytes.Equal(p.Key, c.Range.Min) && c.Range.Contains(p.Key) {
			points = append(points, p)
		}
	}
	if len(points) > 0 {
		return divide(c, points, nil)
	}
	n := *c
	n.Version++
	return []*Chunk{&n}
}

// ClockError is how far the wall clocks of two processes may be apart together. The expiry of
// retry ids is written by one clock and read by another; a large value costs memory, which is
// bounded, and one that is forgotten too early lets a write happen twice.
const ClockError = 48 * time.Hour

// expired reports whether retry ids that end at a time (unix seconds) surely have ended.
func (b *builder) expired(until int64) bool { return surelyOver(until, b.edit.Millis) }

func surelyOver(until, millis int64) bool {
	return until == 0 || until <= millis/1000-int64(ClockError/time.Second)
}

// RetriesOver reports whether the retry ids inside surely have ended at a time by any clock, in
// Unix milliseconds. While they have not, the reference stays when its rows go.
func (r *SegmentRef) RetriesOver(millis int64) bool { return surelyOver(r.RetryUntil, millis) }

// clear takes all rows out of c, a copy that the caller owns. Retry ids in force stay: they
// are of the chunk, and who sends a write again must hear that it was done.
func (b *builder) clear(c *Chunk) {
	var kept, gone []SegmentRef
	for _, r := range c.Refs {
		if !b.expired(r.RetryUntil) {
			r.MinKey, r.MaxKey, r.Rows, r.Bytes = nil, nil, 0, 0
			kept = append(kept, r)
		} else {
			gone = append(gone, r)
		}
	}
	b.drop(gone)
	c.Refs = kept
	c.Rows, c.RowsEstimated, c.Bytes = 0, false, 0
	c.Flags, c.Indivisible = c.Flags&^ChunkIndivisible, Indivisible{}
}

// shed takes references out of c that show nothing any more: their rows are gone, and the
// retry ids that they were kept for have expired.
func (b *builder) shed(c *Chunk) {
	over := func(r SegmentRef) bool {
		return !r.rowsIn(r.Clip) && b.expired(r.RetryUntil)
	}
	if !slices.ContainsFunc(c.Refs, over) {
		return
	}
	var kept, gone []SegmentRef
	for _, r := range c.Refs {
		if over(r) {
			gone = append(gone, r)
		} else {
			kept = append(kept, r)
		}
	}
	b.drop(gone)
	c.Refs = kept
}

// Extent is how much of a collection lies in a range, as far as the root knows: what is in
// segments.
type Extent struct {
	Chunks int
	Rows   int64
	Bytes  int64 // uncompressed
	// Estimated: Rows is not exact, and Bytes is not where a chunk reaches out of the range.
	Estimated bool
}

// Extent measures a range of a collection: chunks that reach out of it count with their share.
func (s *State) Extent(id CollectionID, min, max Bound) (e Extent) {
	r := shardkey.Range{Min: min.Key, Max: max.Key}
	for c := range s.ChunksIn(id, r) {
		e.Chunks++
		for _, n := range cutOut(c, min, max) {
			if r.Covers(n.Range) {
				e.Rows, e.Bytes = e.Rows+n.Rows, e.Bytes+n.Bytes
				e.Estimated = e.Estimated || n.RowsEstimated
			}
		}
	}
	return e
}
