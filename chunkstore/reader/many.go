package reader

import (
	"bytes"
	"context"
	"slices"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
)

// manyKeys bounds the keys that GetMany looks up together, and with them the blocks that it
// holds.
const manyKeys = 256

// Found is what GetMany found of one key: what Get returns.
type Found struct {
	Row  segment.Row
	Live bool
	Err  error
}

// GetMany is Get for many keys of one chunk, in any order: the answers are in theirs. Cold,
// it opens all segments that may hold any of the keys together, then reads all blocks that
// are needed, each once and adjacent ones with one GET, at most parallel at a time. So a
// list of keys waits for the bucket about as often as a single one. What cannot be read is
// the error of the keys that it may hold, and of no others.
func (s *Store) GetMany(ctx context.Context, v View, keys [][]byte) []Found {
	found := make([]Found, len(keys))
	var left []*wanted
	for i, key := range keys {
		f := &found[i]
		row, ok, err := v.unflushed(key)
		if f.Row, f.Live, f.Err = row, ok && v.live(&row), err; !ok && err == nil {
			left = append(left, &wanted{key: key, found: f})
		}
	}
	slices.SortStableFunc(left, func(a, b *wanted) int { return bytes.Compare(a.key, b.key) })
	for part := range slices.Chunk(left, manyKeys) {
		m := many{store: s, collection: v.Chunk.Collection, keys: part}
		m.open(ctx, v.Chunk)
		for m.round(ctx) {
		}
		for _, w := range part {
			w.found.Live = w.found.Live && v.live(&w.found.Row)
		}
	}
	return found
}

// wanted is a key that is looked up in segments.
type wanted struct {
	key   []byte
	found *Found
	have  bool // found.Row is a row
	at    int  // the part that is asked next
}

// many looks keys up together.
type many struct {
	store      *Store
	collection manifest.CollectionID
	keys       []*wanted
	parts      []part // newest first
}

// part is a reference that may hold some of the keys.
type part struct {
	ref   *manifest.SegmentRef
	batch *segment.Batch
	err   error // why it could not be opened
}

// open opens the segments that may hold any of the keys: together, once one is not cached.
func (m *many) open(ctx context.Context, c *manifest.Chunk) {
	for i := len(c.Refs) - 1; i >= 0; i-- {
		ref := &c.Refs[i]
		if slices.ContainsFunc(m.keys, func(w *wanted) bool { return mayHold(ref, w.key) }) {
			m.parts = append(m.parts, part{ref: ref})
		}
	}
	for i := range m.parts {
		r := m.store.cached(ctx, m.parts[i].ref, nil)
		if r == nil {
			rest := m.parts[i:]
			_ = inParallel(len(rest), func(i int) error { return rest[i].open(ctx, m.store, len(rest)) })
			return
		}
		m.parts[i].batch = r.Batch()
	}
}

func (p *part) open(ctx context.Context, s *Store, together int) error {
	r, err := s.open(ctx, p.ref, together)
	if p.err = err; err == nil {
		p.batch = r.Batch()
	}
	return nil
}

// round asks, for each key, the newest part that may hold a version newer than the one that
// is known. It is false when no key has such a part. Usually there is one round: the filters
// say no for most parts that do not hold a key.
func (m *many) round(ctx context.Context) bool {
	var asked []*wanted
	for _, w := range m.keys {
		if m.next(w) {
			asked = append(asked, w)
		}
	}
	type read struct {
		batch *segment.Batch
		read  segment.Read
	}
	var reads []read
	for _, p := range m.parts {
		if p.batch != nil {
			for _, r := range p.batch.Reads() {
				reads = append(reads, read{p.batch, r})
			}
		}
	}
	_ = inParallel(len(reads), func(i int) error {
		reads[i].batch.Read(ctx, reads[i].read)
		return nil
	})
	for _, w := range asked {
		m.look(ctx, w)
	}
	return len(asked) > 0
}

// next moves a key to the part that is to be asked for it; false when there is none.
func (m *many) next(w *wanted) bool {
	for ; w.at < len(m.parts) && w.found.Err == nil; w.at++ {
		p := &m.parts[w.at]
		if !mayHold(p.ref, w.key) || w.have && maxSeq(p.ref) <= w.found.Row.Seq {
			continue
		}
		if p.err != nil {
			*w.found = Found{Err: p.err}
			return false
		}
		if p.batch.Want(m.collection, w.key) {
			return true
		}
	}
	return false
}

// look takes what the part that was asked has.
func (m *many) look(ctx context.Context, w *wanted) {
	p := &m.parts[w.at]
	w.at++
	row, ok, err := p.batch.Get(ctx, m.collection, w.key)
	if err == nil && ok {
		err = admit(p.ref, &row)
	}
	switch {
	case err != nil:
		*w.found = Found{Err: err}
	case ok && (!w.have || row.Seq > w.found.Row.Seq):
		w.have = true
		*w.found = Found{Row: row, Live: !row.Delete}
	}
}
