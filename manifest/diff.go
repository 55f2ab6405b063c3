package manifest

import (
	"bytes"
	"iter"
	"slices"
)

// ChangedChunks are the chunks in which two states differ, by collection and key:
// (was, now) for one that changed, (nil, now) for one that appeared, (was, nil) for one
// that is gone. It looks only into pages that the states do not share. Either state may be
// nil.
func ChangedChunks(was, now *State) iter.Seq2[*Chunk, *Chunk] {
	return func(yield func(*Chunk, *Chunk) bool) {
		var a, b []*table
		if was != nil {
			a = was.tables
		}
		if now != nil {
			b = now.tables
		}
		for len(a) > 0 || len(b) > 0 {
			var x, y *table
			switch {
			case len(b) == 0 || len(a) > 0 && a[0].collection < b[0].collection:
				x, a = a[0], a[1:]
			case len(a) == 0 || b[0].collection < a[0].collection:
				y, b = b[0], b[1:]
			default:
				x, y, a, b = a[0], b[0], a[1:], b[1:]
			}
			if x != y && !changedIn(x, y, yield) {
				return
			}
		}
	}
}

// changedIn yields the differences of two tables of one collection; either may be nil.
// Both lists cover the same keys in order, so a page that they share is reached on both
// sides at the same time, at its first chunk.
func changedIn(was, now *table, yield func(*Chunk, *Chunk) bool) bool {
	a, b := cursor{t: was}, cursor{t: now}
	for {
		if a.skipShared(&b) {
			continue
		}
		x, y := a.chunk(), b.chunk()
		if x == nil && y == nil {
			return true
		}
		order := 0
		switch {
		case y == nil:
			order = -1
		case x == nil:
			order = 1
		default:
			order = bytes.Compare(x.Range.Min, y.Range.Min)
		}
		if order <= 0 {
			a.next()
		}
		if order >= 0 {
			b.next()
		}
		ok := true
		switch {
		case order == 0 && x.ID == y.ID:
			ok = x.equal(y) || yield(x, y)
		case order == 0:
			ok = yield(x, nil) && yield(nil, y)
		case order < 0:
			ok = yield(x, nil)
		default:
			ok = yield(nil, y)
		}
		if !ok {
			return false
		}
	}
}

// cursor walks a table; the nil table has no chunks.
type cursor struct {
	t        *table
	page, at int
}

func (c *cursor) chunk() *Chunk {
	if c.t == nil || c.page == len(c.t.pages) {
		return nil
	}
	return c.t.pages[c.page].chunks[c.at]
}

func (c *cursor) next() {
	if c.at++; c.at == len(c.t.pages[c.page].chunks) {
		c.page, c.at = c.page+1, 0
	}
}

// skipShared passes the page at which both cursors stand, if it is the same.
func (c *cursor) skipShared(d *cursor) bool {
	if c.chunk() == nil || d.chunk() == nil || c.at != 0 || d.at != 0 || c.t.pages[c.page].id != d.t.pages[d.page].id {
		return false
	}
	c.page++
	d.page++
	return true
}

// equal tells whether two chunks are the same in every field.
func (c *Chunk) equal(d *Chunk) bool {
	return c == d || c.ID == d.ID && c.Collection == d.Collection && c.Version == d.Version && c.Shard == d.Shard &&
		c.Range.Equal(d.Range) && bytes.Equal(c.MinBSON, d.MinBSON) && bytes.Equal(c.MaxBSON, d.MaxBSON) &&
		c.OwnFloor == d.OwnFloor && c.MaxSeq == d.MaxSeq && c.Rows == d.Rows && c.RowsEstimated == d.RowsEstimated &&
		c.Bytes == d.Bytes && c.Flags == d.Flags && bytes.Equal(c.Indivisible.Value, d.Indivisible.Value) && c.Indivisible.Bytes == d.Indivisible.Bytes && c.ManualUntil == d.ManualUntil &&
		slices.EqualFunc(c.Refs, d.Refs, func(a, b SegmentRef) bool { return a.equal(&b) })
}

func (r *SegmentRef) equal(q *SegmentRef) bool {
	return r.Segment == q.Segment && r.Location == q.Location && r.Clip.Equal(q.Clip) &&
		bytes.Equal(r.MinKey, q.MinKey) && bytes.Equal(r.MaxKey, q.MaxKey) &&
		r.MinSeq == q.MinSeq && r.MaxSeq == q.MaxSeq && r.FixedSeq == q.FixedSeq &&
		r.TailOffset == q.TailOffset && r.TailLength == q.TailLength && r.Size == q.Size &&
		r.Rows == q.Rows && r.Bytes == q.Bytes && r.RetryUntil == q.RetryUntil
}
