package segment

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Verify reads a whole object and checks every byte of it: all checksums, the order of
// rows and retry entries, and that counts, bounds, index and filter say what the rows say.
// It calls visit, which may be nil, for every row in order. Errors: as those of a Reader,
// and visit's. Memory: the tail, one read of up to 1 MiB, one block.
func Verify(ctx context.Context, fetch Fetch, ref manifest.SegmentRef, visit func(Row) error) error {
	r, err := Open(ctx, fetch, ref, nil)
	if err != nil {
		return err
	}
	v := verifier{r: r, visit: visit}
	for _, step := range []func(context.Context) error{v.rows, v.gap, v.retries} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("verify segment %s: %w", ref.Segment, err)
		}
	}
	if end := ref.TailOffset + uint64(ref.TailLength); ref.Size != end {
		return fmt.Errorf("verify segment %s: %w", ref.Segment, corruptf("it ends at %d, the reference says %d", end, ref.Size))
	}
	return nil
}

type verifier struct {
	r     *Reader
	visit func(Row) error
	seen  meta
	last  Row
}

// rows scans collection after collection.
func (v *verifier) rows(ctx context.Context) error {
	x := v.r.tail.blocks
	for i := 0; i < x.frames(); {
		c := x.collection(i)
		it := v.r.Scan(c, shardkey.Range{}, false)
		for it.Next(ctx) {
			if err := v.row(it.Row()); err != nil {
				return err
			}
		}
		if it.Err() != nil {
			return it.Err()
		}
		i = x.above(c, nil)
	}
	m := v.r.tail.meta
	if s := &v.seen; s.rows != m.rows || s.deletes != m.deletes || s.bytes != m.bytes || s.minSeq != m.minSeq || s.maxSeq != m.maxSeq {
		return corruptf("%d rows, %d deletes, %d bytes, seqs %d to %d are there; meta says %d, %d, %d, %d to %d",
			s.rows, s.deletes, s.bytes, s.minSeq, s.maxSeq, m.rows, m.deletes, m.bytes, m.minSeq, m.maxSeq)
	}
	return nil
}

func (v *verifier) row(row Row) error {
	if v.last.Collection == row.Collection {
		// Inside a block the order is checked when it is decoded; here, across blocks.
		if c := bytes.Compare(row.Key, v.last.Key); c < 0 || c == 0 && row.Seq >= v.last.Seq {
			return corruptf("row %d %x seq %d is not above the one before", row.Collection, row.Key, row.Seq)
		}
	}
	if !v.r.tail.filter.mayContain(keyHash(row.Collection, row.Key)) {
		return corruptf("row %d %x is not in the filter", row.Collection, row.Key)
	}
	if x := v.r.tail.blocks; x.first(row.Collection, row.Key) >= x.frames() {
		return corruptf("row %d %x is not in the index", row.Collection, row.Key)
	}
	v.seen.add(&row, int64(len(row.Key)+len(row.Doc)))
	v.last = row
	if v.visit == nil {
		return nil
	}
	return v.visit(row)
}

// gap checks what lies between the blocks and the tail: the retry frames, which are read
// later, and perhaps frames of a type that only a newer program knows.
func (v *verifier) gap(ctx context.Context) error {
	x, retries := v.r.tail.blocks, v.r.tail.retries
	for at := x.offs[x.frames()]; at < v.r.tail.offset; {
		if retries != nil && at == retries.offs[0] {
			at = retries.offs[retries.frames()]
			continue
		}
		size, err := v.unknown(ctx, at)
		if err != nil {
			return err
		}
		at += size
	}
	return nil
}

// unknown checks a frame that no index names, and returns its size. Its checksum must be
// right, and its type one that may be passed over.
func (v *verifier) unknown(ctx context.Context, at uint64) (uint64, error) {
	head, err := v.r.read(ctx, at, frameHead)
	if err != nil {
		return 0, err
	}
	size := frameHead + uint64(binary.LittleEndian.Uint32(head[4:]))
	if size > v.r.tail.offset-at {
		return 0, corruptf("frame at %d reaches into the tail", at)
	}
	b, err := v.r.read(ctx, at, size)
	if err != nil {
		return 0, err
	}
	f, err := parseFrame(b, v.r.id.Random, at, math.MaxUint32)
	if err == nil && (f.kind == typeRows || f.kind == typeRetry) {
		err = corruptf("frame of type %d at %d is in no index", f.kind, at)
	}
	return size, err
}

// retries reads all retry frames.
func (v *verifier) retries(ctx context.Context) error {
	x := v.r.tail.retries
	if x == nil {
		return nil
	}
	var last *RetryEntry
	n := 0
	for i := range x.frames() {
		entries, err := v.r.retryFrame(ctx, i)
		if err != nil {
			return err
		}
		if last != nil && compareRetry(last, &entries[0]) > 0 {
			return corruptf("retry frame %d is not above the one before", i)
		}
		n += len(entries)
		last = &entries[len(entries)-1]
	}
	if int64(n) != v.r.tail.meta.retryEntries {
		return corruptf("%d retry entries, meta says %d", n, v.r.tail.meta.retryEntries)
	}
	return nil
}
