package reshard

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// image is the collection under the new key, as far as it was made: chunks in key order that
// cover the key space once the base is there.
type image struct{ chunks []*chunk }

// chunk is one of them.
type chunk struct {
	low   shardkey.Bound // Key nil: the first
	max   []byte         // nil: the last, or not known yet
	added manifest.Added
}

func (c *chunk) span() shardkey.Range { return shardkey.Range{Min: c.low.Key, Max: c.max} }

// of is the chunk that contains a key.
func (m *image) of(key []byte) *chunk {
	i, found := slices.BinarySearchFunc(m.chunks, key, func(c *chunk, key []byte) int { return bytes.Compare(c.low.Key, key) })
	if !found {
		i--
	}
	return m.chunks[i]
}

// points are the cuts between the chunks.
func (m *image) points() []shardkey.Bound {
	var points []shardkey.Bound
	for _, c := range m.chunks[1:] {
		points = append(points, c.low)
	}
	return points
}

// view is a chunk of the image for a reader.
func (w *work) view(c *chunk) reader.View {
	return reader.View{Chunk: &manifest.Chunk{ID: 1, Collection: w.id, Range: c.span(), Refs: c.added.Refs}}
}

// output writes sorted rows into segments: several small chunks share one, a large chunk fills
// several.
type output struct {
	w       *work
	id      manifest.SegmentID
	segment *segment.Writer // nil: none begun
	cuts    []*chunk        // one per Cut
	rows    int             // since the last Cut
	last    []byte          // the last key
}

// add appends a row of a chunk. Requires: finish, or cut, of the chunk before.
func (o *output) add(ctx context.Context, c *chunk, r segment.Row) error {
	if o.full() {
		if err := o.finish(ctx, c); err != nil {
			return err
		}
	}
	if err := o.begin(ctx); err != nil {
		return err
	}
	o.rows++
	o.last = append(o.last[:0], r.Key...)
	return o.segment.Add(r)
}

// full reports whether the segment in the making is large enough.
func (o *output) full() bool {
	return o.segment != nil && o.segment.Size() >= o.w.Settings.SegmentBytes
}

func (o *output) begin(ctx context.Context) (err error) {
	if o.segment != nil {
		return nil
	}
	if o.id, err = o.w.name(ctx); err != nil {
		return err
	}
	o.segment = segment.NewWriter(o.id, nil)
	return nil
}

// cut ends what was added of c.
func (o *output) cut(c *chunk) error {
	if o.rows == 0 {
		return nil
	}
	o.rows = 0
	o.cuts = append(o.cuts, c)
	clip := shardkey.Range{Min: c.low.Key, Max: append(bytes.Clone(o.last), 0)}
	return o.segment.Cut(segment.Part{Collection: o.w.id, Clip: clip})
}

// finish cuts, and stores the segment that was begun.
func (o *output) finish(ctx context.Context, c *chunk) error {
	if c != nil {
		if err := o.cut(c); err != nil {
			return err
		}
	}
	if o.segment == nil {
		return nil
	}
	refs, err := o.store(ctx)
	if err != nil {
		return err
	}
	for i, c := range o.cuts {
		c.added.Refs = append(c.added.Refs, refs[i])
		c.added.BytesDelta += int64(refs[i].Bytes)
	}
	o.segment, o.cuts = nil, nil
	return nil
}

// store uploads the segment.
func (o *output) store(ctx context.Context) ([]manifest.SegmentRef, error) {
	body, _, err := o.segment.Finish()
	if err != nil {
		return nil, err
	}
	refs := o.segment.Refs()
	if len(refs) > 0 {
		o.w.uploaded = append(o.w.uploaded, refs[0])
	}
	// The name is fresh, so that sending the same bytes again after an unclear answer is safe.
	for attempt := range putsMax {
		if _, err = o.w.Bucket.Put(ctx, o.id.Key(), body, bucket.Condition{}); err == nil {
			return refs, nil
		}
		if attempt+1 < putsMax {
			if err := o.w.Host.Sleep(ctx, o.w.Host.Jitter(putPause<<attempt)); err != nil {
				return nil, err
			}
		}
	}
	return nil, fmt.Errorf("store segment %s: %w", o.id.Key(), err)
}
