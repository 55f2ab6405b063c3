package query

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A batch ends at its number of documents or bytes, and has at least one document; done
// comes with the last document where that is known.
func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for id := range 10 {
		w.flush(doc(1, id))
	}
	size := len(doc(1, 0))
	for _, c := range []struct {
		what  string
		limit int64
		batch rpc.Batch
		sizes []int
	}{
		{"defaults", 0, rpc.Batch{}, []int{10}},
		{"by documents", 0, rpc.Batch{Docs: 4}, []int{4, 4, 2}},
		{"the limit ends in a full batch", 8, rpc.Batch{Docs: 4}, []int{4, 4}},
		{"by bytes", 0, rpc.Batch{Bytes: 3*size + 1}, []int{3, 3, 3, 1}},
		{"bytes of exactly three", 9, rpc.Batch{Bytes: 3 * size}, []int{3, 3, 3}},
		{"one document is always allowed", 3, rpc.Batch{Bytes: 1}, []int{1, 1, 1}},
	} {
		cur := w.open(rpc.Query{Limit: c.limit}, w.targets())
		var sizes []int
		for done := false; !done; {
			var docs []bson.Raw
			var err error
			docs, done, err = cur.Next(ctx, c.batch)
			w.must(err)
			sizes = append(sizes, len(docs))
		}
		if !slices.Equal(sizes, c.sizes) {
			t.Errorf("%s: batches of %v, want %v", c.what, sizes, c.sizes)
		}
	}
}

// A point is a point read: one GET for each small segment that may hold it; a list of cold
// points waits for the bucket once for the first, and then once for many.
func TestPointsAreReadWithoutScans(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		var docs []bson.Raw
		for s := range 4 {
			docs = docs[:0]
			for id := s; id < 400; id += 4 {
				docs = append(docs, doc(id%7, id))
			}
			w.flush(docs...)
		}
		w.over(slow{w.bucket})
		read := func(points ...shardkey.Range) (requests int64, waits time.Duration) {
			w.over(slow{w.bucket})
			begin := time.Now()
			cur := w.open(rpc.Query{}, w.targets(points...))
			if got := w.all(cur, rpc.Batch{}); len(got) != len(points) {
				t.Errorf("%d documents of %d points", len(got), len(points))
			}
			if cur.Stats().BucketBytes == 0 || cur.Stats().DocsExamined != int64(len(points)) {
				t.Errorf("stats %+v", cur.Stats())
			}
			return cur.Stats().BucketRequests, time.Since(begin) / latency
		}
		if n, waits := read(w.point(docs[10])); n != 4 || waits != 1 {
			t.Errorf("one point: %d requests, %d round trips; want 4 in 1", n, waits)
		}
		var points []shardkey.Range
		for _, d := range docs[:30] {
			points = append(points, w.point(d))
		}
		slices.SortFunc(points, func(a, b shardkey.Range) int { return bytes.Compare(a.Min, b.Min) })
		if n, waits := read(points...); n > 16 || waits > 8 {
			t.Errorf("30 points: %d requests, %d round trips", n, waits)
		}
	})
}

// Only a range of one whole row key is a point.
func TestExactKeyIsAWholeRowKey(t *testing.T) {
	t.Parallel()
	row := func(spec, d bson.D) (shardkey.Pattern, []byte) {
		p := pattern(t, spec)
		key, err := p.AppendKey(nil, raw(d))
		if err != nil {
			t.Fatal(err)
		}
		return p, key
	}
	for _, spec := range []bson.D{
		{{Key: "_id", Value: 1}},
		{{Key: "_id", Value: "hashed"}},
		{{Key: "g", Value: 1}},
		{{Key: "g", Value: "hashed"}, {Key: "s", Value: 1}},
		{{Key: "g", Value: 1}, {Key: "_id", Value: 1}},
	} {
		p, key := row(spec, bson.D{{Key: "_id", Value: 5}, {Key: "g", Value: 1.5}, {Key: "s", Value: "x"}})
		for end := range 256 {
			r := shardkey.Range{Min: key, Max: append(bytes.Clone(key), byte(end))}
			if got, ok := exactKey(p, r); !ok || !bytes.Equal(got, key) {
				t.Fatalf("%s: %s is not seen as a point", p, r)
			}
		}
		for n := 1; n < len(key); n++ {
			if _, ok := exactKey(p, shardkey.Range{Min: key[:n], Max: shardkey.PrefixEnd(key[:n])}); ok {
				t.Errorf("%s: the first %d of %d bytes are taken for a key", p, n, len(key))
			}
		}
		for _, r := range []shardkey.Range{{}, {Min: key}, {Max: key}, {Min: key, Max: shardkey.PrefixEnd(append(bytes.Clone(key), 0))}} {
			if _, ok := exactKey(p, r); ok {
				t.Errorf("%s: %s is taken for a key", p, r)
			}
		}
		if _, ok := exactKey(shardkey.Pattern{}, shardkey.Range{Min: key, Max: shardkey.PrefixEnd(key)}); ok {
			t.Errorf("a key of an unknown pattern")
		}
	}
}

// Rows that carry their sort keys merge by comparing bytes.
func TestSortKeysMergeTheAnswersOfOwners(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	for id := range 20 {
		w.flush(doc(id%6, id, bson.E{Key: "n", Value: id * 7 % 20}))
	}
	q := rpc.Query{Sort: raw(bson.D{{Key: "n", Value: -1}}), WithSortKey: true}
	both := slices.Concat(w.find(q, w.targets()[:1]), w.find(q, w.targets()[1:]))
	slices.SortFunc(both, func(a, b bson.Raw) int {
		_, x := a.Lookup("s").Binary()
		_, y := b.Lookup("s").Binary()
		return bytes.Compare(x, y)
	})
	for i, d := range both {
		if n := d.Lookup("d", "n").AsInt64(); n != int64(19-i) {
			t.Fatalf("at %d: %s", i, d)
		}
	}
}

// A sort fails at its budget; under a limit it needs memory for that many only, and of a
// sort and a distinct the error stays.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var docs []bson.Raw
	for id := range 500 {
		docs = append(docs, doc(1, id, bson.E{Key: "n", Value: id * 37 % 500}))
	}
	w.flush(docs...)
	sorted := rpc.Query{Sort: raw(bson.D{{Key: "n", Value: 1}})}
	top := sorted
	top.Skip, top.Limit = 2, 5
	limits := Limits{SortBytes: 4096}
	for what, q := range map[string]rpc.Query{"sort": sorted, "distinct": {Mode: rpc.Distinct, Field: "n"}} {
		c, err := Open(ctx, w.store, w.targets(), q, limits)
		w.must(err)
		var first error
		for first == nil {
			_, _, first = c.Next(ctx, rpc.Batch{})
		}
		var e *mongoerr.Error
		if !errors.As(first, &e) || e.Code != mongoerr.QueryExceededMemoryLimit {
			t.Errorf("%s: %v", what, first)
		}
		if docs, _, again := c.Next(ctx, rpc.Batch{}); again == nil || docs != nil {
			t.Errorf("%s: went on after %v", what, first)
		}
	}
	c, err := Open(ctx, w.store, w.targets(), top, limits)
	w.must(err)
	for i, d := range w.all(c, rpc.Batch{Docs: 2}) {
		if d.Lookup("n").AsInt64() != int64(2+i) {
			t.Errorf("at %d: %s", i, d)
		}
	}
	top.Limit = 1 << 62 // no heap: all are kept
	top.Skip = 1 << 62
	if got := w.find(top, w.targets()); len(got) != 0 {
		t.Errorf("%d documents after a huge skip", len(got))
	}
}

// Counting whole chunks without a filter reads nothing when the chunks know their numbers.
func TestCountOfWholeChunksReadsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	for id := range 30 {
		w.flush(doc(id%6, id))
	}
	count := func(q rpc.Query, targets []Target) (int64, rpc.ReadStats) {
		t.Helper()
		w.cool()
		q.Mode = rpc.Count
		c := w.open(q, targets)
		n, err := c.Count(ctx)
		w.must(err)
		return n, c.Stats()
	}
	if n, s := count(rpc.Query{}, w.targets()); n != 30 || s != (rpc.ReadStats{}) {
		t.Errorf("%d, %+v", n, s)
	}
	if n, s := count(rpc.Query{Skip: 10, Limit: 15}, w.targets(shardkey.Range{})); n != 15 || s != (rpc.ReadStats{}) {
		t.Errorf("skip and limit: %d, %+v", n, s)
	}
	if n, s := count(rpc.Query{}, w.targets(shardkey.Range{Min: w.prefix(1)})); n != 25 || s.DocsExamined != 10 {
		t.Errorf("a part of one chunk and the whole of another: %d, %+v", n, s)
	}
	w.hold(doc(0, 0), doc(0, 100)) // one of them is new
	if n, s := count(rpc.Query{}, w.targets()); n != 31 || s.DocsExamined != 0 || s.BucketRequests == 0 {
		t.Errorf("with unflushed rows: %d, %+v", n, s)
	}
	if n, s := count(rpc.Query{Limit: 4}, w.targets()[:1]); n != 4 || s.DocsExamined != 4 {
		t.Errorf("with unflushed rows, to a limit: %d, %+v", n, s)
	}
	w.chunks[0].entry.RowsEstimated = true
	if _, ok := CountFast(w.targets()[0].View); ok {
		t.Error("an estimate was taken for exact")
	}
}

func TestDistinctTakesEqualNumbersForOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for id, v := range []any{1, 1.0, int64(2), "x", bson.A{2, 3.0, "x"}, nil} {
		w.flush(doc(1, id, bson.E{Key: "n", Value: v}))
	}
	got := fmt.Sprint(w.find(rpc.Query{Mode: rpc.Distinct, Field: "n", Skip: 3, Limit: 1}, w.targets()))
	want := `[{"v": {"$numberInt":"1"}} {"v": {"$numberLong":"2"}} {"v": "x"} {"v": {"$numberDouble":"3.0"}} {"v": null}]`
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Queries that make no sense are refused before anything is read.
func TestUnclearQueriesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := raw(bson.D{{Key: "$nope", Value: 1}})
	for what, q := range map[string]rpc.Query{
		"skip":       {Skip: -1},
		"limit":      {Limit: -1},
		"filter":     {Filter: bad},
		"projection": {Projection: raw(bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 0}})},
		"sort":       {Sort: raw(bson.D{{Key: "a", Value: 7}})},
		"sort key":   {WithSortKey: true},
	} {
		var e *mongoerr.Error
		if _, err := Open(ctx, w.store, nil, q, Limits{}); !errors.As(err, &e) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := w.open(rpc.Query{Mode: rpc.Count}, nil).Next(ctx, rpc.Batch{}); err == nil {
		t.Error("documents of a count")
	}
	if _, err := w.open(rpc.Query{}, nil).Count(ctx); err == nil {
		t.Error("a count of a find")
	}
}

// A segment that is gone fails every kind of query, again and again.
func TestMissingSegmentFailsTheQuery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.flush(doc(1, 1), doc(1, 2))
	w.must(w.bucket.Delete(ctx, w.chunks[0].entry.Refs[0].Segment.Key()))
	w.chunks[0].entry.RowsEstimated = true
	for what, q := range map[string]rpc.Query{
		"find": {}, "keys": {Mode: rpc.Keys}, "distinct": {Mode: rpc.Distinct, Field: "n"}, "sort": {Sort: raw(bson.D{{Key: "n", Value: 1}})},
	} {
		for where, targets := range map[string][]Target{"scan": w.targets(), "point": w.targets(w.point(doc(1, 1)))} {
			c := w.open(q, targets)
			for range 2 {
				if docs, _, err := c.Next(ctx, rpc.Batch{}); !errors.Is(err, errkind.NotFound) || docs != nil {
					t.Errorf("%s by %s: %v, %v", what, where, docs, err)
				}
			}
		}
	}
	for where, targets := range map[string][]Target{"whole": w.targets(), "point": w.targets(w.point(doc(1, 1)))} {
		c := w.open(rpc.Query{Mode: rpc.Count}, targets)
		for range 2 {
			if _, err := c.Count(ctx); !errors.Is(err, errkind.NotFound) {
				t.Errorf("count of %s: %v", where, err)
			}
		}
	}
}

// A query ends with its context, also while it meets nothing.
func TestQueryEndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var docs []bson.Raw
	var points []shardkey.Range
	for id := range 1000 {
		docs = append(docs, doc(1, id))
		points = append(points, w.point(doc(1, id)))
	}
	w.hold(docs...)
	dead, stop := context.WithCancelCause(ctx)
	tired := errors.New("tired")
	stop(tired)
	for what, targets := range map[string][]Target{"scan": w.targets(), "points": w.targets(points...)} {
		c := w.open(rpc.Query{Filter: raw(bson.D{{Key: "n", Value: 1}})}, targets)
		if _, _, err := c.Next(dead, rpc.Batch{}); !errors.Is(err, tired) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Whole documents are not copied, and cost next to no memory of their own.
func TestFindOfWholeDocumentsCopiesNothing(t *testing.T) {
	w := newWorld(t)
	var docs []bson.Raw
	for id := range 1000 {
		docs = append(docs, doc(1, id, bson.E{Key: "n", Value: id % 2}))
	}
	w.flush(docs...)
	q := rpc.Query{Filter: raw(bson.D{{Key: "n", Value: 1}})}
	find := func() {
		c := w.open(q, w.targets())
		if got, done, err := c.Next(ctx, rpc.Batch{Docs: 1000}); len(got) != 500 || !done || err != nil {
			t.Fatal(len(got), done, err)
		}
	}
	find()
	if n := testing.AllocsPerRun(10, find); n > 120 {
		t.Errorf("%v allocations for 1000 documents", n)
	}
}

// Targets of other chunks are left alone where ranges lie outside.
func TestRangesOutsideOfTheChunkAreSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.flush(doc(1, 1), doc(5, 5))
	first := w.targets()[0]
	first.Ranges = []shardkey.Range{w.point(doc(5, 5)), {Min: w.prefix(4)}}
	if got := w.find(rpc.Query{}, []Target{first}); got != nil {
		t.Errorf("%v", got)
	}
}

const latency = 10 * time.Millisecond

// slow is a bucket whose GETs take the latency each.
type slow struct{ bucket.Bucket }

func (s slow) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	time.Sleep(latency) // virtual: in a synctest bubble
	return s.Bucket.Get(ctx, key, o)
}
