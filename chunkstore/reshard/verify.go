package reshard

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// content is what a set of documents is, in any order: how many there are, and the sum, modulo
// 2^128, of a hash of each with its key. Documents can be taken out again.
type content struct {
	rows      int64
	low, high uint64
}

func (c content) String() string {
	return fmt.Sprintf("%d documents of the content hash %016x%016x", c.rows, c.high, c.low)
}

// digest is the hash of a row: whether it is a deletion, its key and its document.
func digest(r segment.Row) (low, high uint64) {
	var head [9]byte
	binary.BigEndian.PutUint64(head[1:], uint64(len(r.Key)))
	if r.Delete {
		head[0] = 1
	}
	h := sha256.New()
	h.Write(head[:])
	h.Write(r.Key)
	h.Write(r.Doc)
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return binary.BigEndian.Uint64(sum[8:]), binary.BigEndian.Uint64(sum[:8])
}

func (c *content) add(r segment.Row) {
	low, high := digest(r)
	var carry uint64
	c.low, carry = bits.Add64(c.low, low, 0)
	c.high, _ = bits.Add64(c.high, high, carry)
	c.rows++
}

func (c *content) take(r segment.Row) {
	low, high := digest(r)
	var borrow uint64
	c.low, borrow = bits.Sub64(c.low, low, 0)
	c.high, _ = bits.Sub64(c.high, high, borrow)
	c.rows--
}

// differs is the error for chunks that do not hold what they should.
func (w *work) differs(what string, is, want any) error {
	return fmt.Errorf("verify %s: %w: %s: %v, expected %v; the collection keeps its key, and nothing was changed: "+
		"try again, and when it comes again run granary fsck", w.coll.Namespace(), errkind.Corrupt, what, is, want)
}

// verifyBase reads the image of the base back from the bucket: it must hold, chunk by chunk,
// as many documents as were put there, and in all exactly those that were read. Of the first chunks,
// so many, it is known what they hold.
func (w *work) verifyBase(ctx context.Context, known int, is content) error {
	w.progress.enter("verify")
	for i, c := range w.image.chunks[known:] {
		err := w.note(ctx, func() save {
			return save{stage: stageVerify, chunks: w.image.chunks, verified: known + i, found: is}
		})
		if err != nil {
			return err
		}
		before := is.rows
		it := w.store.Scan(ctx, w.view(c), shardkey.Range{}, false)
		for it.Next(ctx) {
			is.add(it.Row())
			if is.rows%tickRows == 0 {
				if err := w.tick(ctx); err != nil {
					it.Rest()
					return err
				}
			}
		}
		it.Rest()
		if it.Err() != nil {
			return w.lost(it.Err())
		}
		if n := is.rows - before; n != c.added.RowsDelta {
			return w.differs(fmt.Sprintf("documents in the new chunk %v", c.span()), n, c.added.RowsDelta)
		}
	}
	if is != w.source {
		return w.differs("the new chunks", is, w.source)
	}
	return nil
}

// verifyRound reads back what a round wrote.
func (a *applying) verifyRound(ctx context.Context) error {
	var is content
	for _, t := range a.touched {
		v := a.w.view(t.chunk)
		v.Chunk.Refs = v.Chunk.Refs[t.before:]
		it := a.w.store.Scan(ctx, v, shardkey.Range{}, false)
		for it.NextVersion(ctx) {
			is.add(it.Row())
		}
		it.Rest()
		if it.Err() != nil {
			return a.w.lost(it.Err())
		}
	}
	if is != a.written {
		return a.w.differs(fmt.Sprintf("the changes of round %d", a.w.round), is, a.written)
	}
	return nil
}

// verifyCounts holds the new chunks against the old ones of a snapshot: against the count that
// the root keeps of them, where that is exact, and the one that this job kept.
func (w *work) verifyCounts(now shown) error {
	old, exact := int64(0), true
	for _, c := range now {
		old, exact = old+c.Rows, exact && !c.RowsEstimated
	}
	fresh := int64(0)
	for _, c := range w.image.chunks {
		fresh += c.added.RowsDelta
	}
	switch {
	case fresh != w.source.rows:
		return w.differs("documents in the new chunks", fresh, w.source.rows)
	case exact && old != w.source.rows:
		return w.differs("documents that were read of the old chunks", w.source.rows, old)
	}
	w.progress.change(func(p *Seen) {
		p.Documents, p.Content = w.source.rows, fmt.Sprintf("%016x%016x", w.source.high, w.source.low)
	})
	return nil
}

// touch is a chunk that a round wrote to, and how many references it had before.
type touch struct {
	chunk  *chunk
	before int
}
