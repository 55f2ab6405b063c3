package reader

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"pgregory.net/rapid"
)

const modelKeys = 24

// TestViewReadsAsItsNewestRows draws chunks: references that overlap in any order, some
// clipped, some with a fixed seq, several versions of a key in one of them, deletions,
// memtables; and compares every point read, count and scan with what a map says.
func TestViewReadsAsItsNewestRows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.block = rapid.SampledFrom([]int{64, 400}).Draw(t, "block")
		for i := range rapid.IntRange(0, 6).Draw(t, "refs") {
			drawRef(t, w, i)
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "mems") {
			w.view.Mems = append(w.view.Mems, newMem(drawRows(t, fmt.Sprintf("m%d", i))...))
		}
		if rapid.Bool().Draw(t, "bounded") {
			c := *w.view.Chunk
			c.Range = drawRange(t)
			w.view.Chunk = &c
		}
		want := model(w.view, w.rowsOf)
		checkGets(t, w, want)
		checkGetMany(t, w)
		checkCount(t, w, want)
		for range 6 {
			checkScan(t, w, want)
		}
	})
}

func drawRef(t *rapid.T, w *world, i int) {
	rows := drawRows(t, fmt.Sprintf("s%d", i))
	if len(rows) == 0 {
		return
	}
	ref := w.add(rows...)
	if rapid.IntRange(0, 2).Draw(t, "clipped") == 0 {
		ref.Clip = drawRange(t)
	}
	if rapid.IntRange(0, 3).Draw(t, "fixed") == 0 {
		ref.FixedSeq = manifest.Seq(rapid.IntRange(1, 40).Draw(t, "seq"))
	}
}

// drawRows draws rows, no two of the same key and seq.
func drawRows(t *rapid.T, name string) (rows []segment.Row) {
	n := rapid.SampledFrom([]int{0, 1, 5, 30}).Draw(t, "rows")
	seen := map[string]bool{}
	for i := range n {
		k, seq := rapid.IntRange(0, modelKeys-1).Draw(t, "key"), manifest.Seq(rapid.IntRange(1, 40).Draw(t, "seq"))
		if id := fmt.Sprint(k, "/", seq); seen[id] {
			continue
		} else {
			seen[id] = true
		}
		if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
			rows = append(rows, del(k, seq))
		} else {
			rows = append(rows, put(k, seq, fmt.Sprintf("%s.%d", name, i)))
		}
	}
	return rows
}

func drawRange(t *rapid.T) shardkey.Range {
	a, b := rapid.IntRange(0, modelKeys).Draw(t, "min"), rapid.IntRange(0, modelKeys).Draw(t, "max")
	r := keys(min(a, b), max(a, b)+1)
	if rapid.IntRange(0, 4).Draw(t, "below") == 0 {
		r.Min = nil
	}
	if rapid.IntRange(0, 4).Draw(t, "above") == 0 {
		r.Max = nil
	}
	return r
}

// rowsOf reads a whole segment, every version.
func (w *world) rowsOf(ref *manifest.SegmentRef) (rows []segment.Row) {
	r, err := w.store.reader(ctx, ref)
	w.must(err)
	it := r.Scan(collection, shardkey.Range{}, false)
	for it.Next(ctx) {
		rows = append(rows, it.Row())
	}
	w.must(it.Err())
	return rows
}

// model is the live rows of a view by key: the definition, in the plainest way.
func model(v View, rowsOf func(*manifest.SegmentRef) []segment.Row) map[string]string {
	newest := map[string]segment.Row{}
	for i := range v.Chunk.Refs {
		ref := &v.Chunk.Refs[i]
		seen := map[string]bool{}
		for _, row := range rowsOf(ref) {
			k := string(row.Key)
			if seen[k] || !ref.Clip.Contains(row.Key) {
				continue
			}
			seen[k] = true // the first version in a segment is its newest
			if ref.FixedSeq != 0 {
				row.Seq = ref.FixedSeq
			}
			if old, ok := newest[k]; !ok || row.Seq >= old.Seq {
				newest[k] = row
			}
		}
	}
	for _, m := range slices.Backward(v.Mems) {
		for _, row := range m.(mem) {
			newest[string(row.Key)] = row
		}
	}
	live := map[string]string{}
	for k, row := range newest {
		if !row.Delete && v.Chunk.Range.Contains(row.Key) {
			live[k] = text(row)
		}
	}
	return live
}

func checkGets(t *rapid.T, w *world, want map[string]string) {
	for k := range modelKeys {
		if !w.view.Chunk.Range.Contains(key(k)) {
			continue
		}
		got, ok := w.get(k)
		if exp, live := want[string(key(k))]; ok != live || got != exp {
			t.Fatalf("get %s: %q %v, want %q %v", key(k), got, ok, exp, live)
		}
	}
}

// checkGetMany asks for all keys, some twice, from a cache that is warm or cold, or absent.
func checkGetMany(t *rapid.T, w *world) {
	list := rapid.SliceOf(rapid.IntRange(0, modelKeys-1)).Draw(t, "many")
	all := make([][]byte, len(list))
	for i, k := range list {
		all[i] = key(k)
	}
	warm := w.store
	switch rapid.IntRange(0, 2).Draw(t, "cache") {
	case 0:
		w.cool()
	case 1:
		w.store = NewStore(warm.bucket, nil)
	}
	for i, f := range w.store.GetMany(ctx, w.view, all) {
		row, live, err := warm.Get(ctx, w.view, all[i])
		if f.Live != live || errors.Is(f.Err, errkind.Invalid) != errors.Is(err, errkind.Invalid) || (f.Err == nil) != (err == nil) ||
			!bytes.Equal(f.Row.Key, row.Key) || !bytes.Equal(f.Row.Doc, row.Doc) || f.Row.Seq != row.Seq || f.Row.Delete != row.Delete {
			t.Fatalf("key %s: %+v, want %v %v %v", all[i], f, row, live, err)
		}
	}
	w.store = warm
}

// checkCount gives the chunk its right number of flushed rows and counts with the
// memtables, by both ways.
func checkCount(t *rapid.T, w *world, want map[string]string) {
	c := *w.view.Chunk
	c.Rows = int64(len(model(View{Chunk: &c}, w.rowsOf)))
	for _, c.RowsEstimated = range []bool{false, true} {
		n, err := w.store.Count(ctx, View{Chunk: &c, Mems: w.view.Mems})
		if err != nil || n != int64(len(want)) {
			t.Fatalf("count (estimated %v): %d, %v; want %d", c.RowsEstimated, n, err, len(want))
		}
	}
}

func checkScan(t *rapid.T, w *world, want map[string]string) {
	r, reverse := drawRange(t), rapid.Bool().Draw(t, "reverse")
	limit := rapid.IntRange(0, 3).Draw(t, "limit")
	var exp []string
	for k, v := range want {
		if r.Contains([]byte(k)) {
			exp = append(exp, k+"="+v)
		}
	}
	slices.SortFunc(exp, func(a, b string) int { return bytes.Compare([]byte(a), []byte(b)) })
	if reverse {
		slices.Reverse(exp)
	}
	if limit > 0 {
		exp = exp[:min(limit, len(exp))]
	}
	if got := w.scan(r, reverse, limit); !slices.Equal(got, exp) {
		t.Fatalf("scan %s reverse %v limit %d:\n got %v\nwant %v", r, reverse, limit, got, exp)
	}
}
