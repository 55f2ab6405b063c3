package document

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// TestCompareOrdersAllTypes lists values in ascending order; those of one row are equal.
func TestCompareOrdersAllTypes(t *testing.T) {
	t.Parallel()
	rows := [][]string{
		{`{$minKey: 1}`},
		{`{$undefined: true}`},
		{`null`},
		{`{$numberDouble: 'NaN'}`, `{$numberDecimal: 'NaN'}`},
		{`{$numberDouble: '-Infinity'}`, `{$numberDecimal: '-Infinity'}`},
		{`{$numberDecimal: '-1E6000'}`},
		{`{$numberLong: '-9223372036854775808'}`, `{$numberDouble: '-9223372036854775808'}`},
		{`-1.5`, `{$numberDecimal: '-1.50'}`},
		{`-1`},
		{`{$numberDecimal: '-1E-6000'}`},
		{`0`, `{$numberDouble: '-0.0'}`, `{$numberDecimal: '-0E+5'}`, `{$numberLong: '0'}`},
		{`{$numberDecimal: '1E-6000'}`},
		{`{$numberDouble: '5e-324'}`},
		{`{$numberDecimal: '0.1'}`},
		{`0.1`}, // the double is a little more
		{`1`, `1.0`, `{$numberDecimal: '1.00'}`, `{$numberLong: '1'}`},
		{`{$numberDouble: '9007199254740992'}`},
		{`{$numberLong: '9007199254740993'}`, `{$numberDecimal: '9007199254740993'}`},
		{`{$numberDouble: '9007199254740994'}`},
		{`{$numberLong: '9223372036854775807'}`},
		{`{$numberDouble: '9223372036854775808'}`, `{$numberDecimal: '9223372036854775808'}`},
		{`{$numberDouble: '1e308'}`},
		{`{$numberDecimal: '1E6000'}`},
		{`{$numberDouble: 'Infinity'}`, `{$numberDecimal: 'Infinity'}`},
		{`''`}, {`'a'`, `{$symbol: 'a'}`}, {`'a\u0000'`}, {`'aa'`}, {`'b'`}, {`'é'`},
		{`{}`}, {`{a: 1}`, `{a: 1.0}`}, {`{a: 1, b: 1}`}, {`{a: 2}`}, {`{b: 1}`}, {`{a: 'x'}`}, {`{a: {}}`},
		{`[]`}, {`[{$numberDouble: 'NaN'}]`}, {`[1]`}, {`[1, 2]`}, {`[2]`}, {`[[]]`},
		{`{$binary: {base64: '', subType: '05'}}`}, {`{$binary: {base64: 'AA==', subType: '00'}}`},
		{`{$binary: {base64: 'AQ==', subType: '00'}}`}, {`{$binary: {base64: 'AA==', subType: '80'}}`},
		{`{$binary: {base64: 'AAAA', subType: '00'}}`},
		{`{$oid: '507f1f77bcf86cd799439011'}`}, {`{$oid: '507f1f77bcf86cd799439012'}`},
		{`false`}, {`true`},
		{`{$date: {$numberLong: '-1'}}`}, {`{$date: {$numberLong: '1'}}`},
		{`{$timestamp: {t: 1, i: 2}}`}, {`{$timestamp: {t: 4294967295, i: 1}}`},
		{`{$regularExpression: {pattern: 'a', options: ''}}`}, {`{$regularExpression: {pattern: 'a', options: 'i'}}`},
		{`{$regularExpression: {pattern: 'ab', options: ''}}`},
		{`{$dbPointer: {$ref: 'b', $id: {$oid: '56e1fc72e0c917e9c4714161'}}}`},
		{`{$code: 'f'}`}, {`{$code: 'g'}`},
		{`{$code: 'f', $scope: {}}`}, {`{$code: 'f', $scope: {a: 1}}`}, {`{$code: 'g', $scope: {}}`},
		{`{$maxKey: 1}`},
	}
	type placed struct {
		row  int
		v    bson.RawValue
		text string
	}
	var all []placed
	for i, row := range rows {
		for _, text := range row {
			all = append(all, placed{i, value(t, text), text})
		}
	}
	for _, a := range all {
		for _, b := range all {
			if got, want := Compare(a.v, b.v), cmp.Compare(a.row, b.row); got != want {
				t.Errorf("Compare(%s, %s) = %d, want %d", a.text, b.text, got, want)
			}
			if equal(a.v, b.v) != (a.row == b.row) {
				t.Errorf("equal(%s, %s)", a.text, b.text)
			}
		}
	}
}

// values draws values of all types, numbers often, so that many are equal or nearly so.
func values(depth int) *rapid.Generator[any] {
	scalars := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Just[any](bson.MinKey{}), rapid.Just[any](bson.MaxKey{}), rapid.Just[any](bson.Undefined{}),
		rapid.Bool().AsAny(), rapid.Int32Range(-2, 2).AsAny(), rapid.Int64().AsAny(), rapid.Int64Range(-3, 3).AsAny(), rapid.Float64().AsAny(),
		rapid.SampledFrom([]any{0.1, math.Copysign(0, -1), 1.5, float64(1 << 53), int64(1<<53 + 1), float64(1 << 63), int64(-1 << 63)}),
		rapid.Custom(func(t *rapid.T) any {
			text := rapid.StringMatching(`-?[0-9]{1,34}(E-?[0-9]{1,3})?`).Draw(t, "decimal")
			d, err := bson.ParseDecimal128(text)
			if err != nil {
				t.Skip()
			}
			return d
		}),
		rapid.StringMatching(`[a-c\x00]{0,3}`).AsAny(),
		rapid.Custom(func(t *rapid.T) any { return bson.Symbol(rapid.StringMatching(`[a-c]{0,2}`).Draw(t, "symbol")) }),
		rapid.Custom(func(t *rapid.T) any {
			return bson.Binary{Subtype: rapid.SampledFrom([]byte{0, 2, 4, 128}).Draw(t, "subtype"), Data: rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "data")}
		}),
		rapid.Custom(func(t *rapid.T) any { return bson.DateTime(rapid.Int64Range(-2, 2).Draw(t, "date")) }),
		rapid.Custom(func(t *rapid.T) any { return bson.Timestamp{T: rapid.Uint32Range(0, 2).Draw(t, "t"), I: 1} }),
		rapid.Custom(func(t *rapid.T) any { return bson.Regex{Pattern: rapid.StringMatching(`[ab]{0,2}`).Draw(t, "pattern")} }),
		rapid.Custom(func(t *rapid.T) any { return bson.JavaScript(rapid.StringMatching(`[ab]{0,2}`).Draw(t, "code")) }),
		rapid.Custom(func(t *rapid.T) any { return bson.ObjectID{11: rapid.Byte().Draw(t, "oid")} }),
	}
	if depth > 0 {
		scalars = append(scalars,
			rapid.Custom(func(t *rapid.T) any { return documentsOf(depth-1).Draw(t, "doc") }),
			rapid.Custom(func(t *rapid.T) any { return bson.A(rapid.SliceOfN(values(depth-1), 0, 3).Draw(t, "array")) }),
		)
	}
	return rapid.OneOf(scalars...)
}

// documentsOf draws documents with a few fields of few names.
func documentsOf(depth int) *rapid.Generator[bson.D] {
	return rapid.Custom(func(t *rapid.T) bson.D {
		names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "0", "1"}), 0, 3, rapid.ID).Draw(t, "names")
		d := bson.D{}
		for _, name := range names {
			d = append(d, bson.E{Key: name, Value: values(depth).Draw(t, name)})
		}
		return d
	})
}

func drawn(t *rapid.T, name string) bson.RawValue {
	doc, err := bson.Marshal(bson.D{{Key: "v", Value: values(2).Draw(t, name)}})
	if err != nil {
		t.Fatal(err)
	}
	return field(doc, "v")
}

func TestCompareIsATotalOrderThatKeysShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := drawn(t, "a"), drawn(t, "b"), drawn(t, "c")
		if Compare(a, a) != 0 || Compare(a, b) != -Compare(b, a) {
			t.Fatalf("%s and %s: %d, %d", show(a), show(b), Compare(a, b), Compare(b, a))
		}
		sorted := []bson.RawValue{a, b, c}
		slices.SortFunc(sorted, Compare)
		if Compare(sorted[0], sorted[2]) > 0 {
			t.Fatalf("%s, %s, %s: not transitive", show(sorted[0]), show(sorted[1]), show(sorted[2]))
		}
		if equal(a, b) != (Compare(a, b) == 0) {
			t.Fatalf("equal(%s, %s)", show(a), show(b))
		}
		ka, kb := shardkey.AppendValue(nil, a, false), shardkey.AppendValue(nil, b, false)
		if bytes.Compare(ka, kb) != Compare(a, b) {
			t.Fatalf("%s and %s: keys %d, values %d", show(a), show(b), bytes.Compare(ka, kb), Compare(a, b))
		}
	})
}

func TestLookupDoesNotEnterArrays(t *testing.T) {
	t.Parallel()
	doc := raw(t, `{a: {b: {c: 1}}, d: [{e: 1}], '': 2, n: null}`)
	for path, want := range map[string]string{"a.b.c": "1", "a.b": "{ c: 1 }", "d": "[ { e: 1 } ]", "": "2", "n": "null",
		"d.0": "", "d.0.e": "", "d.e": "", "a.x": "", "a.b.c.d": "", "x.y": ""} {
		v, ok := Lookup(doc, path)
		if ok != (want != "") || ok && show(v) != want {
			t.Errorf("%q: %s, %v", path, show(v), ok)
		}
	}
}

func TestDistinctUnwindsArrays(t *testing.T) {
	t.Parallel()
	doc := raw(t, `{a: [1, [2], 1], b: [{c: 1}, {c: [2, 3]}, {}, 4, [{c: 9}]], d: {e: 5}, n: null, i: [[7, 8]]}`)
	for path, want := range map[string]string{"a": "[ 1, [ 2 ], 1 ]", "b.c": "[ 1, 2, 3 ]", "d.e": "[ 5 ]", "n": "[ null ]",
		"b.1.c": "[ 2, 3 ]", "i.0": "[ 7, 8 ]", "i.0.1": "[ 8 ]", "x": "[ ]", "d.e.f": "[ ]"} {
		got := AppendDistinct(nil, doc, path)
		if text := show(bson.RawValue{Type: bson.TypeArray, Value: appendArray(nil, got)}); text != want {
			t.Errorf("%s: %s, want %s", path, text, want)
		}
	}
}
