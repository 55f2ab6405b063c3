package reader

import (
	"bytes"
	"context"
	"slices"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
)

// Weights tells where in a chunk how much is, in key order: the blocks of its segments, as the
// tails of these say, with the bytes of each before compression, about. It reads no row.
// Deletions and older versions count. Errors: NotFound, Corrupt, those of the bucket.
func (s *Store) Weights(ctx context.Context, c *manifest.Chunk) ([]segment.Weight, error) {
	found := make([][]segment.Weight, len(c.Refs))
	err := inParallel(len(c.Refs), func(i int) error {
		ref := &c.Refs[i]
		part, ok := c.Range.Intersect(ref.Clip)
		if !ok || ref.Rows == 0 {
			return nil
		}
		r, err := s.reader(ctx, ref)
		if err != nil {
			return err
		}
		found[i] = scaled(r.Weights(c.Collection, part), r.Stats())
		return nil
	})
	if err != nil {
		return nil, err
	}
	all := slices.Concat(found...)
	slices.SortStableFunc(all, func(a, b segment.Weight) int { return bytes.Compare(a.Key, b.Key) })
	return all, nil
}

// scaled makes of the bytes that blocks have as stored those that they have before compression,
// as if all of a segment were compressed alike.
func scaled(list []segment.Weight, all segment.Stats) []segment.Weight {
	for i := range list {
		list[i].Bytes = int64(float64(list[i].Bytes) / float64(all.Stored) * float64(all.Bytes))
	}
	return list
}
