package reshard

import (
	"bytes"
	"context"

	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// lookTogether is how many rows are looked up in the snapshot before at once.
const lookTogether = 256

// follow brings the image from one snapshot to a later one.
func (w *work) follow(ctx context.Context, was shown, now *manifest.State) error {
	w.round++
	w.progress.change(func(p *Seen) { p.Round = w.round })
	known := make(map[manifest.SegmentID]bool)
	for _, c := range was {
		for i := range c.Refs {
			known[c.Refs[i].Segment] = true
		}
	}
	d := &delta{w: w, was: was, order: &sorter{w: w}}
	for c := range now.Chunks(w.coll.ID) {
		fresh := *c
		fresh.Refs = nil
		for i := range c.Refs {
			if r := &c.Refs[i]; !known[r.Segment] {
				fresh.Refs = append(fresh.Refs, *r)
			}
		}
		if len(fresh.Refs) == 0 {
			continue
		}
		if err := d.read(ctx, &fresh); err != nil {
			return err
		}
		if err := w.carry(ctx, reader.View{Chunk: &fresh}); err != nil {
			return err
		}
	}
	return d.apply(ctx)
}

// carry takes the retry entries of a chunk's references.
func (w *work) carry(ctx context.Context, v reader.View) error {
	entries, err := w.store.Retries(ctx, v, writer.ExpiredBy(w.Host.Wall()))
	if err != nil {
		return w.lost(err)
	}
	for _, e := range entries {
		w.carried.Add(e)
	}
	return nil
}

// delta is what a round changes.
type delta struct {
	w     *work
	was   shown
	order *sorter
	found []segment.Row // the newest versions in fresh references, not looked up yet
}

// read takes the newest versions that the references of c have.
func (d *delta) read(ctx context.Context, c *manifest.Chunk) error {
	it := d.w.store.Scan(ctx, reader.View{Chunk: c}, shardkey.Range{}, false)
	defer it.Rest()
	for it.NextVersion(ctx) {
		d.found = append(d.found, it.Row())
		if len(d.found) == lookTogether {
			if err := d.look(ctx); err != nil {
				return err
			}
		}
	}
	if it.Err() != nil {
		return d.w.lost(it.Err())
	}
	return d.look(ctx)
}

// look compares what was found with the snapshot before, chunk by chunk.
func (d *delta) look(ctx context.Context) error {
	for len(d.found) > 0 {
		old := d.was.of(d.found[0].Key)
		var keys [][]byte
		for _, r := range d.found {
			if !old.Range.Contains(r.Key) {
				break
			}
			keys = append(keys, r.Key)
		}
		for i, f := range d.w.store.GetMany(ctx, reader.View{Chunk: old}, keys) {
			if f.Err != nil {
				return d.w.lost(f.Err)
			}
			if err := d.compare(ctx, d.found[i], f); err != nil {
				return err
			}
		}
		d.found = d.found[len(keys):]
	}
	d.found = d.found[:0:0]
	return d.w.tick(ctx)
}

// compare notes what a row's newer version changes.
func (d *delta) compare(ctx context.Context, now segment.Row, was reader.Found) error {
	if was.Row.Key != nil && was.Row.Seq >= now.Seq {
		return nil // no newer one: a compaction wrote it again
	}
	var from, to []byte
	var err error
	if was.Live {
		if from, err = d.w.keyOf(was.Row.Doc); err != nil {
			return err
		}
		d.w.source.take(segment.Row{Key: from, Doc: was.Row.Doc})
	}
	if !now.Delete {
		if to, err = d.w.keyOf(now.Doc); err != nil {
			return err
		}
		d.w.source.add(segment.Row{Key: to, Doc: now.Doc})
	}
	stays := from != nil && to != nil && bytes.Equal(from, to)
	if from != nil && !stays {
		if err := d.order.add(ctx, segment.Row{Key: from, Seq: d.w.seq(removed), Delete: true}); err != nil {
			return err
		}
	}
	if to == nil {
		return nil
	}
	kind := came
	if stays {
		kind = stayed
	}
	return d.order.add(ctx, segment.Row{Key: to, Seq: d.w.seq(kind), Doc: now.Doc})
}

// apply merges the changes into the image.
func (d *delta) apply(ctx context.Context) error {
	rows, err := d.order.merged(ctx, nil)
	if err != nil {
		return d.w.lost(err)
	}
	a := &applying{w: d.w, out: &output{w: d.w}}
	for {
		r, ok, err := rows.next(ctx)
		if err != nil {
			return d.w.lost(err)
		}
		if ok && a.group != nil && bytes.Equal(a.group[0].Key, r.Key) {
			a.group = append(a.group, r)
			continue
		}
		if err := a.flush(ctx); err != nil {
			return err
		}
		if !ok {
			return a.end(ctx)
		}
		a.group = append(a.group, r)
	}
}

// applying writes the changes of a round in key order.
type applying struct {
	w     *work
	out   *output
	chunk *chunk
	// before is how many references the chunk had when the round came to it.
	before int
	// touched are the chunks so far, and written what was put there: to be read back.
	touched []touch
	written content
	// group is the changes of one key, the latest first.
	group []segment.Row
	// arrived are documents that came to a key, to be looked for in the image as it was.
	arrived []segment.Row
	// unique are the shard keys that documents came to, where they are to be unique.
	unique [][]byte
}

// flush writes what comes of the changes of one key: at most one document is there afterwards.
func (a *applying) flush(ctx context.Context) error {
	if len(a.group) == 0 {
		return nil
	}
	newest, leaves := a.group[0], false
	for i, r := range a.group {
		if r.Delete {
			leaves = true
		} else if i > 0 {
			return a.w.duplicate(newest.Doc, r.Doc)
		}
	}
	a.group = a.group[:0]
	if c := a.w.image.of(newest.Key); c != a.chunk {
		if err := a.next(ctx, c); err != nil {
			return err
		}
	}
	switch {
	case newest.Delete:
		a.chunk.added.RowsDelta--
	case newest.Seq == a.w.seq(came):
		if !leaves {
			a.chunk.added.RowsDelta++
		}
		if !leaves || a.w.goal.Unique {
			a.arrived = append(a.arrived, newest)
		}
		if len(a.arrived) >= lookTogether {
			if err := a.checkArrived(ctx); err != nil {
				return err
			}
		}
	}
	a.written.add(newest)
	return a.out.add(ctx, a.chunk, newest)
}

// next goes on with another chunk.
func (a *applying) next(ctx context.Context, c *chunk) error {
	if a.chunk != nil {
		if err := a.checkArrived(ctx); err != nil {
			return err
		}
		if err := a.out.cut(a.chunk); err != nil {
			return err
		}
	}
	a.chunk, a.before = c, len(c.added.Refs)
	a.touched = append(a.touched, touch{c, a.before})
	return nil
}

// checkArrived makes sure that no document was there already where others came. Where shard
// keys are unique, they are looked at when the round is over.
func (a *applying) checkArrived(ctx context.Context) error {
	if len(a.arrived) == 0 {
		return nil
	}
	if a.w.goal.Unique {
		for _, r := range a.arrived {
			prefix, err := a.w.goal.Key.Prefix(r.Key)
			if err != nil {
				return err
			}
			a.unique = append(a.unique, prefix)
		}
		a.arrived = a.arrived[:0]
		return nil
	}
	keys := make([][]byte, len(a.arrived))
	for i, r := range a.arrived {
		keys[i] = r.Key
	}
	was := a.w.view(a.chunk)
	was.Chunk.Refs = was.Chunk.Refs[:a.before]
	for i, f := range a.w.store.GetMany(ctx, was, keys) {
		switch {
		case f.Err != nil:
			return a.w.lost(f.Err)
		case f.Live:
			return a.w.duplicate(f.Row.Doc, a.arrived[i].Doc)
		}
	}
	a.arrived = a.arrived[:0]
	return nil
}

func (a *applying) end(ctx context.Context) error {
	if a.chunk == nil {
		return nil
	}
	if err := a.checkArrived(ctx); err != nil {
		return err
	}
	if err := a.out.finish(ctx, a.chunk); err != nil {
		return err
	}
	for _, key := range a.unique {
		if err := a.w.checkUnique(ctx, key); err != nil {
			return err
		}
	}
	return a.verifyRound(ctx)
}

// checkUnique makes sure that one document at most has a shard key.
func (w *work) checkUnique(ctx context.Context, key []byte) error {
	c := w.image.of(key)
	it := w.store.Scan(ctx, w.view(c), shardkey.Range{Min: key, Max: shardkey.PrefixEnd(key)}, false)
	defer it.Rest()
	var first bson.Raw
	for it.Next(ctx) {
		if first != nil {
			return w.duplicate(first, it.Row().Doc)
		}
		first = it.Row().Doc
	}
	return w.lost(it.Err())
}
