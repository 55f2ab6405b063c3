package reader

import (
	"bytes"
	"slices"
	"testing"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Where a chunk's bytes are is told by the tails alone: one GET a segment, and in the range of
// the chunk about as many bytes as its rows have, in the order of the keys.
func TestWeightsTellWhereTheDataIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 3 { // interleaved
		rows := run(0, 0, 1, "")
		for k := i; k < 3000; k += 3 {
			rows = append(rows, put(k, 1, "value"))
		}
		w.add(rows...)
	}
	whole := w.view.Chunk
	for _, r := range []shardkey.Range{{}, keys(1000, 2000), {Min: key(1500)}, {Max: key(10)}, keys(5000, 6000)} {
		c := *whole
		c.Range, c.Refs = r, slices.Clone(whole.Refs)
		for i := range c.Refs {
			c.Refs[i].Clip = r
		}
		w.cool()
		var list []segment.Weight
		n := w.spent(func() {
			var err error
			if list, err = w.store.Weights(ctx, &c); err != nil {
				t.Fatal(err)
			}
		})
		if n != 3 {
			t.Errorf("%s: %d GETs", r, n)
		}
		if !slices.IsSortedFunc(list, func(a, b segment.Weight) int { return bytes.Compare(a.Key, b.Key) }) {
			t.Errorf("%s: out of order", r)
		}
		var got, want, below int64
		for _, x := range list {
			got += x.Bytes
			if bytes.Compare(x.Key, key(1500)) < 0 {
				below += x.Bytes
			}
			if !r.Contains(x.Key) && len(x.Key) > 0 {
				t.Errorf("%s: a block at %q", r, x.Key)
			}
		}
		for k := range 3000 {
			if r.Contains(key(k)) {
				row := put(k, 1, "value")
				want += int64(len(key(k)) + len(row.Doc))
			}
		}
		if slack := int64(6 * 256); got < want-slack-want/10 || got > want+slack+want/10 {
			t.Errorf("%s: %d bytes, want about %d", r, got, want)
		}
		if len(r.Min)+len(r.Max) == 0 && (below < want*2/5 || below > want*3/5) {
			t.Errorf("%d of %d bytes are in the lower half", below, want)
		}
	}
}
