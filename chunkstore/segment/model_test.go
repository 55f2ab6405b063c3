package segment

import (
	"bytes"
	"slices"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"pgregory.net/rapid"
)

// A segment of random rows answers every Get and every Scan, forward and reverse, as the
// sorted list of its rows does, with and without a cache, whatever block size and codec.
func TestReaderAnswersAsTheSortedRowsDo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rows := drawRows(t)
		o := &WriterOptions{
			Codec:     rapid.SampledFrom([]Codec{S2, Zstd}).Draw(t, "codec"),
			BlockSize: rapid.SampledFrom([]int{1, 100, 1000, 64 << 10}).Draw(t, "block"),
		}
		w := NewWriter(segmentID(9), o)
		for i, r := range rows {
			must(t, w.Add(r))
			if i == len(rows)-1 || rows[i+1].Collection != r.Collection {
				must(t, w.Cut(Part{Collection: r.Collection}))
			}
		}
		body, _, err := w.Finish()
		must(t, err)
		obj := &object{body: body}
		cache := rapid.SampledFrom([]*Cache{nil, NewCache(0), NewCache(2000), NewCache(1 << 20)}).Draw(t, "cache")
		r, err := Open(t.Context(), obj.fetch, w.Refs()[0], cache)
		must(t, err)
		for range 10 {
			checkRange(t, r, rows)
			checkGet(t, r, rows)
		}
		must(t, Verify(t.Context(), obj.fetch, w.Refs()[0], nil))
	})
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// Keys from a small alphabet share prefixes and meet; 0x00 and 0xFF are the edges.
var keyGen = rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 'b', 0xFE, 0xFF}), 1, 6)

func drawRows(t *rapid.T) []Row {
	n := rapid.IntRange(1, 120).Draw(t, "rows")
	rows := make([]Row, n)
	for i := range rows {
		r := Row{
			Collection: manifest.CollectionID(rapid.SampledFrom([]uint32{1, 2, 0x100, 0xFFFFFFFF}).Draw(t, "c")),
			Key:        keyGen.Draw(t, "key"),
			Seq:        manifest.Seq(rapid.SampledFrom([]uint64{0, 1, 2, 3, 1 << 40, 1<<64 - 1}).Draw(t, "seq")),
			Delete:     rapid.Bool().Draw(t, "delete"),
		}
		if !r.Delete {
			r.Doc = doc(i, rapid.StringN(0, 30, -1).Draw(t, "text"))
		}
		rows[i] = r
	}
	slices.SortFunc(rows, compareRows)
	return slices.CompactFunc(rows, func(a, b Row) bool { return compareRows(a, b) == 0 })
}

func checkRange(t *rapid.T, r *Reader, rows []Row) {
	c := rapid.SampledFrom(rows).Draw(t, "of").Collection
	var rng shardkey.Range
	if rapid.Bool().Draw(t, "bounded below") {
		rng.Min = keyGen.Draw(t, "min")
	}
	if rapid.Bool().Draw(t, "bounded above") {
		rng.Max = keyGen.Draw(t, "max")
	}
	var want []Row
	for _, row := range rows {
		if row.Collection == c && within(rng, row.Key) {
			want = append(want, row)
		}
	}
	reverse := rapid.Bool().Draw(t, "reverse")
	if reverse {
		slices.Reverse(want)
	}
	var got []Row
	it := r.Scan(c, rng, reverse)
	for it.Next(t.Context()) {
		got = append(got, it.Row())
	}
	must(t, it.Err())
	if !slices.EqualFunc(got, want, equalRow) {
		t.Fatalf("scan of %d [%x, %x) reverse %v:\n%v\nwant\n%v", c, rng.Min, rng.Max, reverse, got, want)
	}
}

func checkGet(t *rapid.T, r *Reader, rows []Row) {
	c := rapid.SampledFrom(rows).Draw(t, "of").Collection
	key := keyGen.Draw(t, "get")
	if rapid.Bool().Draw(t, "present") {
		key = rapid.SampledFrom(rows).Draw(t, "row").Key
	}
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Collection == c && bytes.Equal(r.Key, key) })
	got, ok, err := r.Get(t.Context(), c, key)
	must(t, err)
	if ok != (i >= 0) || ok && !equalRow(got, rows[i]) {
		t.Fatalf("get %d %x: %v %v, want row %d", c, key, got, ok, i)
	}
}

func equalRow(a, b Row) bool {
	return compareRows(a, b) == 0 && a.Delete == b.Delete && bytes.Equal(a.Doc, b.Doc)
}
