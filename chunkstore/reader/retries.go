package reader

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
)

// How much of what its segments remember of retryable writes is worth its memory, for a chunk:
// RetryBytesMax in all, and RetrySupersededMax entries of transaction numbers that their session
// has a newer one than; who sends n+1 is done with n, but a router may run several numbers of its
// own session side by side.
const (
	RetryBytesMax      = 16 << 20
	RetrySupersededMax = 16384
)

// retryWindow is how many segments' entries are in memory before what is too much is dropped.
const retryWindow = 2

// Retries are the retry entries of the chunk that have not expired at now (unix seconds),
// those of the oldest reference first; of more than is worth its memory, the youngest. A chunk
// that is written to all the time has a bounded part of them in each segment, and whoever merges
// segments, or loads what they know, would gather half an hour of writes. Errors: as Get.
func (s *Store) Retries(ctx context.Context, v View, now int64) ([]segment.RetryEntry, error) {
	var refs []*manifest.SegmentRef
	for i := range v.Chunk.Refs {
		if ref := &v.Chunk.Refs[i]; ref.RetryUntil > now {
			refs = append(refs, ref)
		}
	}
	found := make([][]segment.RetryEntry, len(refs))
	read := func(i int) error {
		part, ok := v.Chunk.Range.Intersect(refs[i].Clip)
		if !ok {
			return nil
		}
		r, err := s.open(ctx, refs[i], len(refs))
		if err != nil {
			return err
		}
		entries, err := r.Retries(ctx, v.Chunk.Collection, part)
		found[i] = slices.DeleteFunc(entries, func(e segment.RetryEntry) bool { return e.ExpiresAt <= now })
		return err
	}
	for end := len(refs); end > 0; { // the youngest first
		begin := max(end-retryWindow, 0)
		if err := inParallel(end-begin, func(i int) error { return read(begin + i) }); err != nil {
			return nil, err
		}
		boundRetries(found[begin:], RetryBytesMax, RetrySupersededMax)
		end = begin
	}
	n := 0
	for _, part := range found {
		n += len(part)
	}
	live := make([]segment.RetryEntry, 0, n)
	for _, part := range found {
		live = append(live, part...)
	}
	return live, nil
}

// remembered is one entry, by where it is.
type remembered struct {
	part, at   int
	superseded bool
	until      int64
}

// boundRetries drops what is too much: superseded entries before others, and those that expire
// first. The order of what stays is the same.
func boundRetries(parts [][]segment.RetryEntry, bytesMax int64, supersededMax int) {
	newest := make(map[[32]byte]int64)
	sum, n := int64(0), 0
	for _, part := range parts {
		n += len(part)
		for i := range part {
			e := &part[i]
			sum += e.MemoryBytes()
			if txn, ok := newest[e.Op.Session]; !ok || e.Op.Txn > txn {
				newest[e.Op.Session] = e.Op.Txn
			}
		}
	}
	if sum <= bytesMax && n <= supersededMax {
		return
	}
	list := make([]remembered, 0, n)
	for p, part := range parts {
		for i := range part {
			e := &part[i]
			list = append(list, remembered{p, i, e.Op.Txn < newest[e.Op.Session], e.ExpiresAt})
		}
	}
	slices.SortFunc(list, func(a, b remembered) int {
		switch {
		case a.superseded != b.superseded && a.superseded:
			return 1
		case a.superseded != b.superseded:
			return -1
		}
		return cmp.Or(cmp.Compare(b.until, a.until), cmp.Compare(b.part, a.part), cmp.Compare(a.at, b.at))
	})
	keep, superseded := 0, 0
	for sum = 0; keep < len(list); keep++ {
		x := list[keep]
		if x.superseded {
			superseded++
		}
		if sum += parts[x.part][x.at].MemoryBytes(); sum > bytesMax || superseded > supersededMax {
			break
		}
	}
	keepRetries(parts, list[:keep])
}

// keepRetries leaves these entries in the parts, with bytes of their own: they were parts of frames
// that are in memory as a whole as long as one entry is.
func keepRetries(parts [][]segment.RetryEntry, list []remembered) {
	slices.SortFunc(list, func(a, b remembered) int { return cmp.Or(cmp.Compare(a.part, b.part), cmp.Compare(a.at, b.at)) })
	for p, part := range parts {
		n := 0
		for ; n < len(list) && list[n].part == p; n++ {
		}
		kept := make([]segment.RetryEntry, n)
		for i, x := range list[:n] {
			kept[i] = part[x.at]
			kept[i].Key, kept[i].Reply = bytes.Clone(kept[i].Key), bytes.Clone(kept[i].Reply)
			kept[i].Span.Min, kept[i].Span.Max = bytes.Clone(kept[i].Span.Min), bytes.Clone(kept[i].Span.Max)
		}
		parts[p], list = kept, list[n:]
	}
}
