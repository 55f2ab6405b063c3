package plan

import (
	"bytes"
	"slices"
	"testing"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// Values of every kind that a key can hold, close together so that conditions meet them.
var scalars = []any{
	int32(-1), int32(0), int32(1), int32(2), int64(2), 2.5, int64(1) << 60, float64(3), "", "a", "ab", "b", true, false, nil,
	bson.ObjectID{1}, bson.ObjectID{2}, bson.DateTime(0), bson.DateTime(77), bson.Timestamp{T: 1}, bson.MinKey{}, bson.MaxKey{},
	bson.Binary{Data: []byte("x")}, bson.D{{Key: "x", Value: int32(1)}}, bson.D{{Key: "x", Value: int64(1)}, {Key: "y", Value: "a"}}, bson.D{},
	bson.Undefined{},
}

var paths = []string{"a", "b", "c.x", "_id"}

func drawPattern(t *rapid.T) shardkey.Pattern {
	n := rapid.IntRange(1, 3).Draw(t, "fields")
	names := rapid.Permutation(paths).Draw(t, "paths")[:n]
	hashed := rapid.IntRange(0, 2*n).Draw(t, "hashed")
	var p shardkey.Pattern
	for i, name := range names {
		p.Fields = append(p.Fields, shardkey.Field{Path: name, Hashed: i == hashed})
	}
	return p
}

func scalar(t *rapid.T) any { return rapid.SampledFrom(scalars).Draw(t, "value") }

func marshal(t *rapid.T, d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func drawDoc(t *rapid.T) bson.Raw {
	d := bson.D{{Key: "_id", Value: scalar(t)}}
	for _, name := range []string{"a", "b", "c"} {
		if rapid.IntRange(0, 5).Draw(t, "missing") > 0 {
			d = append(d, bson.E{Key: name, Value: scalar(t)})
		}
	}
	return marshal(t, d)
}

func drawFilter(t *rapid.T, depth int) bson.D {
	kind := rapid.IntRange(0, 9).Draw(t, "kind")
	if depth > 0 && kind < 4 {
		op := rapid.SampledFrom([]string{"$and", "$or", "$or", "$nor"}).Draw(t, "op")
		var list bson.A
		for range rapid.IntRange(1, 3).Draw(t, "branches") {
			list = append(list, drawFilter(t, depth-1))
		}
		return bson.D{{Key: op, Value: list}}
	}
	var d bson.D
	for _, path := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "c.x", "_id", "z"}), 1, 3, rapid.ID).Draw(t, "on") {
		d = append(d, bson.E{Key: path, Value: drawCondition(t)})
	}
	return d
}

func drawCondition(t *rapid.T) any {
	switch rapid.IntRange(0, 8).Draw(t, "condition") {
	case 0, 1:
		v := scalar(t)
		if d, ok := v.(bson.D); ok && len(d) == 0 {
			return bson.D{{Key: "$eq", Value: v}}
		}
		return v
	case 2:
		var in bson.A
		for range rapid.IntRange(0, 4).Draw(t, "n") {
			in = append(in, scalar(t))
		}
		return bson.D{{Key: rapid.SampledFrom([]string{"$in", "$in", "$nin"}).Draw(t, "in"), Value: in}}
	case 3:
		return bson.D{{Key: "$exists", Value: rapid.Bool().Draw(t, "exists")}}
	case 4:
		return bson.D{{Key: "$not", Value: bson.D{{Key: "$gt", Value: scalar(t)}}}}
	case 5:
		return bson.D{{Key: "$eq", Value: bson.A{scalar(t)}}}
	case 8:
		return bson.Regex{Pattern: rapid.SampledFrom([]string{"^a", "^ab?", "^a.", "a", "^", "^b|a", "^a{0}b", "^a+"}).Draw(t, "pattern"),
			Options: rapid.SampledFrom([]string{"", "s", "i", "m"}).Draw(t, "options")}
	}
	ops := []string{"$gt", "$gte", "$lt", "$lte", "$ne"}
	var d bson.D
	for _, op := range rapid.SliceOfNDistinct(rapid.SampledFrom(ops), 1, 2, rapid.ID).Draw(t, "ops") {
		d = append(d, bson.E{Key: op, Value: scalar(t)})
	}
	return d
}

// TestEveryMatchLiesInThePlan draws shard keys, chunk maps, documents and filters. Soundness:
// the key of a document that matches is in a range of the plan, and in a target. Minimality:
// the targets are the chunks that the ranges overlap, each with exactly its part of them.
func TestEveryMatchLiesInThePlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := &manifest.Collection{ID: 1, Key: drawPattern(t)}
		docs, keys := drawDocs(t, c.Key, 20)
		chunks := drawChunks(t, c.Key, docs)
		raw := marshal(t, drawFilter(t, 3))
		filter, err := document.ParseFilter(raw)
		if err != nil {
			t.Skip(err)
		}
		p := Make(chunks, c, filter, nil)
		checkTargets(t, chunks, p)
		for i, d := range docs {
			if filter.Match(d) && !covers(p.Ranges, keys[i]) {
				t.Fatalf("key %v: %v matches %v, but its key %x is in none of %v (%s)", c.Key, d, raw, keys[i], p.Ranges, p.Reason())
			}
			if p.Row != nil && filter.Match(d) && !bytes.Equal(p.Row, keys[i]) {
				t.Fatalf("key %v: filter %v is for row %x, but %v matches", c.Key, raw, p.Row, d)
			}
		}
	})
}

func drawDocs(t *rapid.T, p shardkey.Pattern, n int) (docs []bson.Raw, keys [][]byte) {
	for range n {
		d := drawDoc(t)
		key, err := p.AppendKey(nil, d)
		known := slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
		if err == nil && !known {
			docs, keys = append(docs, d), append(keys, key)
		}
	}
	return docs, keys
}

func drawChunks(t *rapid.T, p shardkey.Pattern, docs []bson.Raw) table {
	var points [][]byte
	for range rapid.IntRange(0, 8).Draw(t, "cuts") {
		if len(docs) == 0 {
			break
		}
		if key, _, err := p.BoundOf(rapid.SampledFrom(docs).Draw(t, "cut")); err == nil {
			points = append(points, key)
		}
	}
	return cut(points, 3)
}

func checkTargets(t *rapid.T, chunks table, p *Plan) {
	var want, got []manifest.ChunkID
	for _, c := range chunks {
		if slices.ContainsFunc(p.Ranges, c.Range.Overlaps) {
			want = append(want, c.ID)
		}
	}
	var parts []shardkey.Range
	for _, x := range p.Targets {
		got = append(got, x.Chunk.ID)
		for _, r := range x.Parts() {
			if !x.Chunk.Range.Covers(r) {
				t.Fatalf("chunk %d is asked for %v outside its %v", x.Chunk.ID, r, x.Chunk.Range)
			}
			parts = append(parts, r)
		}
	}
	if !slices.Equal(want, got) {
		t.Fatalf("targets %v, but the ranges %v overlap %v", got, p.Ranges, want)
	}
	if joined := uniteRanges(parts); !slices.EqualFunc(joined, p.Ranges, shardkey.Range.Equal) {
		t.Fatalf("the targets cover %v of the ranges %v", joined, p.Ranges)
	}
}

func covers(rs []shardkey.Range, key []byte) bool {
	return slices.ContainsFunc(rs, func(r shardkey.Range) bool { return r.Contains(key) })
}

// TestKeyOrderIsTheSortWhenAPlanSaysSo sorts the matches by row key, and finds them in the
// order of the sort.
func TestKeyOrderIsTheSortWhenAPlanSaysSo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := &manifest.Collection{ID: 1, Key: drawPattern(t)}
		docs, keys := drawDocs(t, c.Key, 20)
		filter, err := document.ParseFilter(marshal(t, drawFilter(t, 1)))
		if err != nil {
			t.Skip(err)
		}
		var spec bson.D
		for _, path := range rapid.SliceOfNDistinct(rapid.SampledFrom(paths), 1, 3, rapid.ID).Draw(t, "sort") {
			spec = append(spec, bson.E{Key: path, Value: rapid.SampledFrom([]int32{1, -1}).Draw(t, "dir")})
		}
		sort, err := document.ParseSort(marshal(t, spec))
		if err != nil {
			t.Fatal(err)
		}
		p := Make(cut(nil, 1), c, filter, sort.Fields())
		if p.Order == 0 {
			t.Skip("not in order")
		}
		var rows [][2][]byte
		for i, d := range docs {
			if filter.Match(d) {
				rows = append(rows, [2][]byte{keys[i], sort.AppendKey(nil, d)})
			}
		}
		slices.SortFunc(rows, func(a, b [2][]byte) int { return int(p.Order) * bytes.Compare(a[0], b[0]) })
		for i := 1; i < len(rows); i++ {
			if bytes.Compare(rows[i-1][1], rows[i][1]) > 0 {
				t.Fatalf("key %v, sort %v, order %d: sort key %x comes before %x", c.Key, spec, p.Order, rows[i-1][1], rows[i][1])
			}
		}
	})
}

// TestAPlanOfManyPointsIsExact plans 5,000 ids over 101 chunks.
func TestAPlanOfManyPointsIsExact(t *testing.T) {
	t.Parallel()
	c := &manifest.Collection{ID: 1, Key: shardkey.Pattern{Fields: []shardkey.Field{{Path: "_id"}}}}
	var points [][]byte
	for i := range 100 {
		points = append(points, shardkey.AppendValue(nil, intValue(int32(i*100)), false))
	}
	var ids bson.A
	for i := range 5000 {
		ids = append(ids, int32(i*2))
	}
	raw, err := bson.Marshal(bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}})
	if err != nil {
		t.Fatal(err)
	}
	p := Make(cut(points, 4), c, filterOf(t, raw), nil)
	n := 0
	for _, x := range p.Targets {
		n += len(x.Ranges)
	}
	if n != 5000 || len(p.Targets) != 100 || p.Kind != Targeted {
		t.Fatalf("%d ranges in %d targets, %s; expected 5000 in 100, targeted", n, len(p.Targets), p.Kind)
	}
}

func intValue(n int32) bson.RawValue {
	return bson.RawValue{Type: bson.TypeInt32, Value: []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}}
}
