package query

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// TestQueriesAnswerAsAListWould draws collections over chunks, segments and memtables, and
// queries over them in batches of any size, and compares with the same filter, sort and
// projection on a plain list in key order.
func TestQueriesAnswerAsAListWould(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, drawCuts(t)...)
		list := drawDocs(t, w)
		for range 4 {
			q, targets, part := drawQuery(t, w, list)
			want := expected(t, w, q, part)
			if q.Mode == rpc.Count {
				n, err := w.open(q, targets).Count(ctx)
				if err != nil || n != int64(len(want)) {
					t.Fatalf("count %+v: %d, %v; want %d", q, n, err, len(want))
				}
				continue
			}
			b := rpc.Batch{Docs: rapid.IntRange(0, 4).Draw(t, "batch docs"), Bytes: rapid.SampledFrom([]int{0, 1, 100}).Draw(t, "batch bytes")}
			got := w.all(w.open(q, targets), b)
			if !slices.EqualFunc(got, want, func(a, b bson.Raw) bool { return bytes.Equal(a, b) }) {
				t.Fatalf("%+v of %d targets:\n got %v\nwant %v", q, len(targets), got, want)
			}
		}
	})
}

func drawCuts(t *rapid.T) (cuts []int) {
	for g := range 6 {
		if rapid.IntRange(0, 2).Draw(t, "cut") == 0 {
			cuts = append(cuts, g)
		}
	}
	return cuts
}

// drawDocs fills the collection, with second versions of some documents, and returns what
// is in it in key order.
func drawDocs(t *rapid.T, w *world) (list []bson.Raw) {
	live := map[string]bson.Raw{}
	for range rapid.IntRange(1, 4).Draw(t, "parts") {
		var part []bson.Raw
		for range rapid.IntRange(0, 8).Draw(t, "docs") {
			d := doc(rapid.IntRange(0, 6).Draw(t, "g"), rapid.IntRange(0, 9).Draw(t, "id"),
				bson.E{Key: "n", Value: drawValue(t)}, bson.E{Key: "s", Value: rapid.StringN(0, 3, 8).Draw(t, "s")})
			part = append(part, d)
			live[string(w.rowKey(d))] = d
		}
		if rapid.Bool().Draw(t, "flush") && !w.holds() {
			w.flush(part...)
		} else {
			w.hold(part...)
		}
	}
	for _, c := range w.chunks {
		c.entry.RowsEstimated = rapid.Bool().Draw(t, "estimated")
	}
	for _, k := range slices.Sorted(maps.Keys(live)) {
		list = append(list, live[k])
	}
	return list
}

// holds reports whether some chunk has unflushed rows: older ones cannot come later.
func (w *world) holds() bool {
	return slices.ContainsFunc(w.chunks, func(c *chunk) bool { return len(c.mems) > 0 })
}

func drawValue(t *rapid.T) any {
	switch rapid.IntRange(0, 4).Draw(t, "type") {
	case 0:
		return float64(rapid.IntRange(0, 5).Draw(t, "v"))
	case 1:
		return int64(rapid.IntRange(0, 5).Draw(t, "v"))
	case 2:
		return nil
	case 3:
		return bson.A{rapid.IntRange(0, 5).Draw(t, "v"), "x"}
	}
	return int32(rapid.IntRange(0, 5).Draw(t, "v"))
}

var (
	filters = []bson.D{nil, {}, {{Key: "n", Value: 3}}, {{Key: "n", Value: bson.D{{Key: "$gte", Value: 2}}}}, {{Key: "s", Value: ""}}, {{Key: "g", Value: 99}}}
	sorts   = []bson.D{nil, nil, {}, {{Key: "n", Value: 1}}, {{Key: "n", Value: -1}, {Key: "s", Value: 1}}, {{Key: "_id", Value: -1}}}
	shows   = []bson.D{nil, nil, {}, {{Key: "s", Value: 1}}, {{Key: "_id", Value: 0}}}
)

func drawRaw(t *rapid.T, from []bson.D, name string) bson.Raw {
	d := rapid.SampledFrom(from).Draw(t, name)
	if d == nil {
		return nil
	}
	return raw(d)
}

// drawQuery draws a query, its targets, and the documents that these cover, in the order in
// which they come without a sort.
func drawQuery(t *rapid.T, w *world, list []bson.Raw) (rpc.Query, []Target, []bson.Raw) {
	q := rpc.Query{
		Mode:     rapid.SampledFrom([]rpc.ReadMode{rpc.Find, rpc.Find, rpc.Count, rpc.Keys, rpc.Distinct}).Draw(t, "mode"),
		Filter:   drawRaw(t, filters, "filter"),
		KeyOrder: rapid.SampledFrom([]int8{0, 1, -1}).Draw(t, "key order"),
	}
	if q.Mode == rpc.Distinct {
		q.Field = rapid.SampledFrom([]string{"n", "g", "none"}).Draw(t, "field")
	} else {
		q.Skip, q.Limit = int64(rapid.IntRange(0, 3).Draw(t, "skip")), int64(rapid.IntRange(0, 5).Draw(t, "limit"))
	}
	if q.Mode == rpc.Find || q.Mode == rpc.Keys {
		q.Sort, q.Projection = drawRaw(t, sorts, "sort"), drawRaw(t, shows, "projection")
		q.WithSortKey = !empty(q.Sort) && rapid.Bool().Draw(t, "with sort key")
	}
	ranges := drawRanges(t, w)
	targets, part := w.targets(ranges...), []bson.Raw(nil)
	for _, d := range list {
		in := func(r shardkey.Range) bool { return r.Contains(w.rowKey(d)) }
		if len(ranges) == 0 || slices.ContainsFunc(ranges, in) {
			part = append(part, d)
		}
	}
	if q.KeyOrder < 0 {
		slices.Reverse(part)
	}
	if q.KeyOrder != 0 && rapid.Bool().Draw(t, "listed backwards") {
		slices.Reverse(targets)
	}
	return q, targets, part
}

// drawRanges draws some values of g, and points, ascending.
func drawRanges(t *rapid.T, w *world) (ranges []shardkey.Range) {
	if rapid.Bool().Draw(t, "everything") {
		return nil
	}
	for g := range 7 {
		switch rapid.IntRange(0, 3).Draw(t, "part") {
		case 0:
			ranges = append(ranges, shardkey.Range{Min: w.prefix(g), Max: shardkey.PrefixEnd(w.prefix(g))})
		case 1:
			for id := range 10 {
				if rapid.Bool().Draw(t, "point") {
					ranges = append(ranges, w.point(doc(g, id)))
				}
			}
		}
	}
	if len(ranges) == 0 {
		return []shardkey.Range{w.point(doc(0, 0))}
	}
	return ranges
}

// expected is what the query makes of a list, in the plainest way.
func expected(t *rapid.T, w *world, q rpc.Query, list []bson.Raw) (out []bson.Raw) {
	list = slices.Clone(list)
	if !empty(q.Filter) {
		f, err := document.ParseFilter(q.Filter)
		w.must(err)
		list = slices.DeleteFunc(list, func(d bson.Raw) bool { return !f.Match(d) })
	}
	if q.Mode == rpc.Distinct {
		return expectedValues(list, q.Field)
	}
	sortKey := func(bson.Raw) []byte { return nil }
	if !empty(q.Sort) {
		by, err := document.ParseSort(q.Sort)
		w.must(err)
		sortKey = func(d bson.Raw) []byte { return by.AppendKey(nil, d) }
		slices.SortStableFunc(list, func(a, b bson.Raw) int { return bytes.Compare(sortKey(a), sortKey(b)) })
	}
	list = list[min(int(q.Skip), len(list)):]
	if q.Limit > 0 {
		list = list[:min(int(q.Limit), len(list))]
	}
	for _, d := range list {
		shown := d
		if !empty(q.Projection) {
			p, err := document.ParseProjection(q.Projection)
			w.must(err)
			shown, err = p.Append(nil, d)
			w.must(err)
		}
		out = append(out, envelope(q, w.rowKey(d), shown, sortKey(d)))
	}
	return out
}

func envelope(q rpc.Query, key []byte, d bson.Raw, sortKey []byte) bson.Raw {
	if q.Mode != rpc.Keys && !q.WithSortKey {
		return d
	}
	var e bson.D
	if q.Mode == rpc.Keys {
		e = append(e, bson.E{Key: "k", Value: bson.Binary{Data: key}})
	}
	e = append(e, bson.E{Key: "d", Value: d})
	if q.WithSortKey {
		e = append(e, bson.E{Key: "s", Value: bson.Binary{Data: sortKey}})
	}
	return raw(e)
}

func expectedValues(list []bson.Raw, field string) (out []bson.Raw) {
	var seen []bson.RawValue
	for _, d := range list {
		v, err := d.LookupErr(field)
		if err != nil {
			continue
		}
		values := []bson.RawValue{v}
		if a, ok := v.ArrayOK(); ok {
			values, _ = a.Values()
		}
		for _, v := range values {
			if !slices.ContainsFunc(seen, func(o bson.RawValue) bool { return document.Compare(o, v) == 0 }) {
				seen = append(seen, v)
				out = append(out, raw(bson.D{{Key: "v", Value: v}}))
			}
		}
	}
	return out
}
