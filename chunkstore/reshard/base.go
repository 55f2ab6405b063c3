package reshard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	putsMax  = 6
	putPause = 50 * time.Millisecond
	// tickRows is after how many rows a job looks up from its work.
	tickRows = 512
)

// The seqs of a round: a removal, a put of a document that stays at its key, and a put of one
// that comes to it.
const (
	removed manifest.Seq = 1 + iota
	stayed
	came
	seqsPerRound = 3
)

func (w *work) seq(kind manifest.Seq) manifest.Seq { return manifest.Seq(w.round)*seqsPerRound + kind }

// base makes the image of the present snapshot, or goes on with that of the process before, and
// returns what the snapshot shows.
func (w *work) base(ctx context.Context) (shown, error) {
	w.progress.enter("read")
	k := w.inherited
	if k == nil {
		s, _, err := w.Root.Load(ctx)
		if err == nil {
			s, _, err = w.snapshot(ctx, s)
		}
		if err != nil {
			return nil, err
		}
		k = &save{stage: stageRead, base: w.shownBy(s)}
	}
	w.seen = k.base
	var rows, size int64
	for _, c := range k.base {
		rows += c.Rows
		size += c.Bytes
	}
	w.progress.change(func(p *Seen) { p.RowsTotal, p.BytesTotal = rows, size })
	switch k.stage {
	case stageRead, stageWrite:
		if err := w.sortAndWrite(ctx, k); err != nil {
			return nil, err
		}
	default:
		w.image.chunks = k.chunks
	}
	if k.stage != stageBase {
		if err := w.verifyBase(ctx, k.verified, k.found); err != nil {
			return nil, err
		}
	}
	for _, c := range k.base {
		if err := w.carry(ctx, reader.View{Chunk: c}); err != nil {
			return nil, err
		}
	}
	return k.base, w.note(ctx, func() save { return save{stage: stageBase, chunks: w.image.chunks} })
}

// sortAndWrite makes the image from where k is.
func (w *work) sortAndWrite(ctx context.Context, k *save) error {
	order := &sorter{w: w, runs: k.runs}
	if k.stage == stageRead {
		order.spilled = func(ctx context.Context) error {
			return w.note(ctx, func() save { return save{stage: stageRead, at: order.at, runs: order.runs} })
		}
		if err := w.readAll(ctx, order, k); err != nil {
			return err
		}
	}
	w.progress.enter("write")
	if parts := int64(w.goal.Parts); parts > 0 && k.stage == stageRead {
		w.Settings.ChunkBytes = max(1, (w.progress.Seen().Bytes+parts-1)/parts)
	}
	return w.write(ctx, order, k)
}

// readAll takes the rows of all old chunks, behind those that are in runs already.
func (w *work) readAll(ctx context.Context, order *sorter, k *save) error {
	for _, c := range k.base {
		var rest shardkey.Range
		if k.at != nil {
			rest.Min = append(bytes.Clone(k.at), 0)
		}
		if len(c.Range.Max) > 0 && bytes.Compare(c.Range.Max, rest.Min) <= 0 {
			continue
		}
		if err := w.read(ctx, order, c, rest); err != nil {
			return err
		}
	}
	if len(order.runs) == 0 {
		return nil // all are in memory
	}
	return order.spill(ctx)
}

// read takes the rows of an old chunk that are in a range.
func (w *work) read(ctx context.Context, order *sorter, c *manifest.Chunk, rest shardkey.Range) error {
	it := w.store.Scan(ctx, reader.View{Chunk: c}, rest, false)
	defer it.Rest()
	n, size := int64(0), int64(0)
	for it.Next(ctx) {
		doc := it.Row().Doc
		key, err := w.keyOf(doc)
		if err != nil {
			return err
		}
		row := segment.Row{Key: key, Seq: w.seq(came), Doc: doc}
		if err := order.add(ctx, row); err != nil {
			return err
		}
		w.source.add(row)
		order.at = append(order.at[:0], it.Row().Key...)
		n, size = n+1, size+int64(len(it.Row().Key)+len(doc))
		if n%tickRows == 0 {
			w.progress.change(func(p *Seen) { p.Rows, p.Bytes = p.Rows+n, p.Bytes+size })
			n, size = 0, 0
			if err := w.tick(ctx); err != nil {
				return err
			}
		}
	}
	w.progress.change(func(p *Seen) { p.Rows, p.Bytes = p.Rows+n, p.Bytes+size })
	return w.lost(it.Err())
}

// lost explains a segment that is not there: GC waits for readers, but not for ever.
func (w *work) lost(err error) error {
	if !errors.Is(err, errkind.NotFound) {
		return err
	}
	return fmt.Errorf("%w: a segment was replaced and deleted while it was to be read: try again (%v)", errkind.SnapshotUnavailable, err)
}

// keyOf is the new row key of a document. Errors: *mongoerr.Error, with the _id.
func (w *work) keyOf(doc bson.Raw) ([]byte, error) {
	key, err := w.goal.Key.AppendKey(nil, doc)
	switch {
	case err != nil:
		return nil, mongoerr.New(mongoerr.BadValue, "the document with _id %v cannot have the shard key %v: %v", doc.Lookup("_id"), w.goal.Key, err)
	case len(key) > segment.MaxKeyBytes:
		return nil, mongoerr.New(mongoerr.BadValue, "the shard key %v and the _id of the document with _id %.100s take %d bytes, the most is %d",
			w.goal.Key, doc.Lookup("_id").String(), len(key), segment.MaxKeyBytes)
	}
	return key, nil
}

// duplicate is the error for two documents of one key.
func (w *work) duplicate(a, b bson.Raw) error {
	values := make([]string, len(w.goal.Key.Fields))
	for i, v := range w.goal.Key.Values(a) {
		values[i] = w.goal.Key.Fields[i].Path + ": " + v.String()
	}
	what := "shard key and _id"
	if w.goal.Unique {
		what = "shard key, which is to be unique"
	}
	return mongoerr.New(mongoerr.DuplicateKey, "E11000 duplicate key error collection: %s: under the key %v two documents have the same %s: %v; their _ids are %v and %v",
		w.progress.ns, w.goal.Key, what, values, a.Lookup("_id"), b.Lookup("_id"))
}

// write merges the rows of the base into the image, behind those that are there already, and cuts
// it.
func (w *work) write(ctx context.Context, order *sorter, k *save) error {
	rows, err := order.merged(ctx, k.from())
	if err != nil {
		return w.lost(err)
	}
	c := &cutter{w: w, out: &output{w: w}, points: w.goal.Points, now: &chunk{}, noted: len(order.rows) == 0}
	c.goOn(k)
	for n := 1; ; n++ {
		r, ok, err := rows.next(ctx)
		if err != nil {
			return w.lost(err)
		}
		if !ok {
			return c.end(ctx)
		}
		if err := c.note(ctx, order); err != nil {
			return err
		}
		if err := c.take(ctx, r); err != nil {
			return err
		}
		if n%tickRows == 0 {
			if err := w.tick(ctx); err != nil {
				return err
			}
		}
	}
}

// cutter makes the chunks of the image, from rows in key order.
type cutter struct {
	w      *work
	out    *output
	points []shardkey.Bound // not passed yet
	now    *chunk
	bytes  int64 // of it
	last   segment.Row
	prefix []byte // shard key of last
	noted  bool   // all rows are in runs, so that another process could go on
	until  []byte // the last row that is there already; nil: none is left to be passed
}

// from is where the new chunks that are there end.
func (k *save) from() []byte {
	if k.stage == stageWrite {
		return k.at
	}
	return nil
}

// goOn sets the cutter behind the rows that are there.
func (c *cutter) goOn(k *save) {
	if c.until = k.from(); c.until == nil {
		return
	}
	last := len(k.chunks) - 1
	c.w.image.chunks, c.now, c.bytes = k.chunks[:last:last], k.chunks[last], k.size
	for len(c.points) > 0 && bytes.Compare(c.points[0].Key, c.until) <= 0 {
		c.points = c.points[1:]
	}
}

// note notes how far the image is, when a segment is full.
func (c *cutter) note(ctx context.Context, order *sorter) error {
	if !c.noted || !c.out.full() {
		return nil
	}
	if err := c.out.finish(ctx, c.now); err != nil {
		return err
	}
	return c.w.note(ctx, func() save {
		chunks := append(slices.Clone(c.w.image.chunks), c.now)
		return save{stage: stageWrite, at: c.last.Key, runs: order.runs, chunks: chunks, size: c.bytes}
	})
}

func (c *cutter) take(ctx context.Context, r segment.Row) error {
	prefix, err := c.w.goal.Key.Prefix(r.Key)
	if err != nil {
		return err
	}
	if c.until != nil {
		if !bytes.Equal(r.Key, c.until) {
			return fmt.Errorf("go on with the job of another process: %w: the row that it wrote last is not in its runs", errkind.Corrupt)
		}
		c.last, c.prefix, c.until = r, prefix, nil
		return nil
	}
	same := c.last.Key != nil && bytes.Equal(prefix, c.prefix)
	if same && (c.w.goal.Unique || bytes.Equal(r.Key, c.last.Key)) {
		return c.w.duplicate(c.last.Doc, r.Doc)
	}
	for len(c.points) > 0 && bytes.Compare(c.points[0].Key, r.Key) <= 0 {
		if err := c.cut(c.points[0]); err != nil {
			return err
		}
		c.points = c.points[1:]
	}
	if !c.w.goal.Only && !same && c.bytes >= c.w.Settings.ChunkBytes && len(c.w.image.chunks) < c.most() {
		if key, full, err := c.w.goal.Key.BoundOf(r.Doc); err == nil && !bytes.Equal(key, c.now.low.Key) {
			if err := c.cut(shardkey.Bound{Key: key, BSON: full}); err != nil {
				return err
			}
		}
	}
	c.last, c.prefix = r, prefix
	c.bytes += int64(len(r.Key) + len(r.Doc))
	c.now.added.RowsDelta++
	return c.out.add(ctx, c.now, r)
}

// chunksMax bounds the chunks of one commit.
const chunksMax = 100_000

// most is how many chunks there may be before the one in the making.
func (c *cutter) most() int {
	if parts := c.w.goal.Parts; parts > 0 && parts < chunksMax {
		return max(0, parts-1-len(c.points))
	}
	return chunksMax
}

// cut ends the present chunk at a point.
func (c *cutter) cut(at shardkey.Bound) error {
	if err := c.out.cut(c.now); err != nil {
		return err
	}
	c.now.max = at.Key
	c.w.image.chunks = append(c.w.image.chunks, c.now)
	c.now, c.bytes = &chunk{low: at}, 0
	return nil
}

func (c *cutter) end(ctx context.Context) error {
	for _, p := range c.points {
		if err := c.cut(p); err != nil {
			return err
		}
	}
	c.w.image.chunks = append(c.w.image.chunks, c.now)
	return c.out.finish(ctx, c.now)
}
