package rewrite

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// tally is what was added to a segment, to be compared with what can be read from it.
type tally struct {
	rows, sum uint64
}

func (t *tally) add(r *segment.Row) {
	head := binary.BigEndian.AppendUint64(nil, uint64(r.Seq))
	if r.Delete {
		head = append(head, 1)
	}
	sum := crc32.Update(crc32.ChecksumIEEE(head), crc32.IEEETable, r.Key)
	t.rows, t.sum = t.rows+1, t.sum*31+uint64(crc32.Update(sum, crc32.IEEETable, r.Doc))
}

func inMemory(body []byte) segment.Fetch {
	return func(_ context.Context, off, length int64) ([]byte, error) {
		return body[min(off, int64(len(body))):min(off+length, int64(len(body)))], nil
	}
}

// verify reads a segment back. Errors: Corrupt when it is not what was added.
func (m *merger) verify(ctx context.Context, body []byte, ref manifest.SegmentRef) error {
	var read tally
	err := segment.Verify(ctx, inMemory(body), ref, func(r segment.Row) error {
		read.add(&r)
		return nil
	})
	if err == nil && (read != m.part || read.rows != ref.Rows) {
		err = fmt.Errorf("segment %s: %w: %d rows were added, %d are there, sums %x and %x", ref.Segment, errkind.Corrupt, m.part.rows, read.rows, m.part.sum, read.sum)
	}
	return err
}

// check compares outputs with inputs: a merge makes no key and no seq, and no more rows, and the
// rows of a whole chunk are as many as the root counts. Errors: Corrupt.
func (m *merged) check() error {
	c, inputs := m.job.Chunk, m.job.Inputs()
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("chunk %d: %w: %s; it stays as it is", c.ID, errkind.Corrupt, fmt.Sprintf(format, args...))
	}
	in, counted := boundsOf(inputs), true // a split that cut through a segment left shares, also of a chunk without live rows
	for _, r := range inputs {
		counted = counted && r.Clip.Contains(r.MinKey) && r.Clip.Contains(r.MaxKey)
	}
	rows := uint64(0)
	for i, r := range m.outputs {
		rows += r.Rows
		switch {
		case r.MinSeq < in.minSeq || r.MaxSeq > in.maxSeq:
			return wrong("seqs %d..%d came out of %d..%d", r.MinSeq, r.MaxSeq, in.minSeq, in.maxSeq)
		case r.Rows == 0:
		case bytes.Compare(r.MinKey, in.minKey) < 0 || bytes.Compare(r.MaxKey, in.maxKey) > 0 || !c.Range.Contains(r.MinKey) || !c.Range.Contains(r.MaxKey):
			return wrong("keys %x..%x came out of %x..%x in %s", r.MinKey, r.MaxKey, in.minKey, in.maxKey, c.Range)
		case i > 0 && m.outputs[i-1].Rows > 0 && bytes.Compare(m.outputs[i-1].MaxKey, r.MinKey) >= 0:
			return wrong("outputs overlap at %x", r.MinKey)
		}
	}
	switch {
	case rows != uint64(m.rows) || m.live > m.rows:
		return wrong("%d rows were written, %d of them live; the segments say %d", m.rows, m.live, rows)
	case len(inputs) == len(c.Refs) && !c.RowsEstimated && m.live+m.expired != c.Rows:
		return wrong("%d live rows were read, of which %d have expired; the root counts %d", m.live+m.expired, m.expired, c.Rows)
	case counted && uint64(m.rows+m.expired) > in.rows:
		return wrong("%d rows came out of %d", m.rows+m.expired, in.rows)
	}
	return nil
}

// bounds is what some references hold together.
type bounds struct {
	minKey, maxKey []byte
	minSeq, maxSeq manifest.Seq
	rows           uint64
}

func boundsOf(refs []manifest.SegmentRef) (b bounds) {
	b.minSeq = math.MaxUint64
	for _, r := range refs {
		b.minSeq, b.maxSeq, b.rows = min(b.minSeq, r.MinSeq), max(b.maxSeq, r.MaxSeq), b.rows+r.Rows
		if len(r.MinKey) == 0 && len(r.MaxKey) == 0 {
			continue // no rows
		}
		if b.minKey == nil || bytes.Compare(r.MinKey, b.minKey) < 0 {
			b.minKey = r.MinKey
		}
		if bytes.Compare(r.MaxKey, b.maxKey) > 0 {
			b.maxKey = r.MaxKey
		}
	}
	return b
}
