package segment

import (
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Weight is a block of a segment as its index tells of it: Key is at most the block's first
// key, and above those of the block before; Rows counts versions; Bytes is the block as stored.
type Weight struct {
	Key   []byte
	Rows  int64
	Bytes int64
}

// Weights are the blocks that may hold rows of a collection inside rng, in key order, without a
// Fetch. The keys are cut short, and of blocks that begin below rng the key is rng.Min.
func (r *Reader) Weights(c manifest.CollectionID, rng shardkey.Range) []Weight {
	x := r.tail.blocks
	var list []Weight
	for i, end := x.first(c, rng.Min), x.above(c, rng.Max); i < end; i++ {
		w := Weight{Key: rng.Min, Rows: int64(x.rows[i]), Bytes: int64(x.offs[i+1] - x.offs[i])}
		if x.compareSep(i, c, rng.Min) > 0 {
			w.Key = x.sep(i)[4:]
		}
		list = append(list, w)
	}
	return list
}
