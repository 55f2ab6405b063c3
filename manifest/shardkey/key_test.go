package shardkey

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func pattern(t testing.TB, spec string) Pattern {
	t.Helper()
	p, err := ParsePattern(ext(t, spec))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRowKeyIsShardKeyAndID(t *testing.T) {
	t.Parallel()
	doc := ext(t, `{"_id": 7, "a": {"b": "x"}, "c": 2.5}`)
	value := func(path ...string) []byte { return encode(doc.Lookup(path...)) }
	null := []byte{classNull}
	for _, c := range []struct {
		spec          string
		fields, rowID []byte
	}{
		{`{"_id": 1}`, value("_id"), nil},
		{`{"c": 1}`, value("c"), value("_id")},
		{`{"c": 1, "_id": 1}`, append(value("c"), value("_id")...), nil},
		{`{"a.b": 1, "c": 1}`, append(value("a", "b"), value("c")...), value("_id")},
		{`{"a": 1}`, value("a"), value("_id")},
		{`{"missing": 1}`, null, value("_id")},
		{`{"a.missing": 1}`, null, value("_id")},
		{`{"c.below a scalar": 1}`, null, value("_id")},
		{`{"c": "hashed"}`, AppendHashed(nil, doc.Lookup("c")), value("_id")},
		{`{"_id": "hashed"}`, AppendHashed(nil, doc.Lookup("_id")), value("_id")},
		{`{"missing": "hashed", "c": 1}`, append(AppendHashed(nil, bson.RawValue{}), value("c")...), value("_id")},
	} {
		p := pattern(t, c.spec)
		prefix, err := p.AppendShardKey([]byte("before"), doc)
		if err != nil || string(prefix) != "before"+string(c.fields) {
			t.Errorf("%v: shard key %x, %v; want %x", p, prefix, err, c.fields)
		}
		key, err := p.AppendKey(nil, doc)
		if err != nil || !bytes.Equal(key, append(c.fields, c.rowID...)) {
			t.Errorf("%v: row key %x, %v; want %x then %x", p, key, err, c.fields, c.rowID)
		}
		if again, err := p.RowPattern().AppendShardKey(nil, doc); err != nil || !bytes.Equal(again, key) {
			t.Errorf("%v: row pattern %v gives %x, %v", p, p.RowPattern(), again, err)
		}
		if got, err := p.Prefix(key); err != nil || !bytes.Equal(got, c.fields) {
			t.Errorf("%v: prefix of %x is %x, %v", p, key, got, err)
		}
	}
}

func TestArraysAreNoKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, doc string }{
		{`{"a": 1}`, `{"_id": 1, "a": [1]}`},
		{`{"a": 1}`, `{"_id": 1, "a": []}`},
		{`{"a": "hashed"}`, `{"_id": 1, "a": [1]}`},
		{`{"a.b": 1}`, `{"_id": 1, "a": [{"b": 1}]}`},
		{`{"a.b.c": "hashed"}`, `{"_id": 1, "a": {"b": [1]}}`},
		{`{"b": 1}`, `{"_id": [1], "b": 1}`},
	} {
		_, err := pattern(t, c.spec).AppendKey(nil, ext(t, c.doc))
		if !errors.Is(err, errkind.Invalid) || !strings.Contains(fmt.Sprint(err), "array") {
			t.Errorf("key %s of %s: %v", c.spec, c.doc, err)
		}
		if _, _, err := pattern(t, c.spec).RowPattern().BoundOf(ext(t, c.doc)); !errors.Is(err, errkind.Invalid) {
			t.Errorf("bound %s at %s: %v", c.spec, c.doc, err)
		}
	}
	if _, err := pattern(t, `{"a": 1}`).AppendKey(nil, ext(t, `{"_id": 1, "a": {"b": [1]}}`)); err != nil {
		t.Errorf("an array inside an object that is the key: %v", err)
	}
}

func TestMalformedDocumentHasNoKey(t *testing.T) {
	t.Parallel()
	doc := ext(t, `{"x": "abc", "a": {"b": 1}, "_id": 5}`)
	p := pattern(t, `{"a.b": 1}`)
	for n := range doc {
		if _, err := p.AppendKey(nil, doc[:n]); !errors.Is(err, errkind.Invalid) {
			t.Errorf("first %d bytes: %v", n, err)
		}
	}
	bad := bytes.Clone(doc)
	bad[4] = 0x55 // a type that does not exist
	if _, err := p.AppendKey(nil, bad); !errors.Is(err, errkind.Invalid) {
		t.Errorf("unknown type: %v", err)
	}
}

// Compound keys, with hashed and descending fields at any place, are ordered field by
// field; and the shard-key part of a row key is found.
func TestCompoundKeysAreOrderedFieldByField(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var p Pattern
		for i := range rapid.IntRange(1, 4).Draw(t, "fields") {
			f := Field{Path: string(rune('a' + i))}
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 1:
				f.Hashed = true
			case 2:
				f.Descending = true
			}
			p.Fields = append(p.Fields, f)
		}
		a, b := genRow(t, p), genRow(t, p)
		ka, err := p.AppendKey(nil, a)
		if err != nil {
			t.Fatal(err)
		}
		kb, err := p.AppendKey(nil, b)
		if err != nil {
			t.Fatal(err)
		}
		if want, got := compareRows(p, a, b), bytes.Compare(ka, kb); got != want {
			t.Fatalf("%v: rows %v and %v compare as %d, keys %x and %x as %d", p, a, b, want, ka, kb, got)
		}
		want, err := p.AppendShardKey(nil, a)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.Prefix(ka); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v: prefix of %x is %x, %v; want %x", p, ka, got, err, want)
		}
		for _, bad := range [][]byte{ka[:len(ka)-1], append(bytes.Clone(ka), 0x05), want, nil} {
			if _, err := p.Prefix(bad); !errors.Is(err, errkind.Corrupt) {
				t.Fatalf("%v: prefix of %x: %v", p, bad, err)
			}
		}
		inPrefix := bytes.HasPrefix(kb, want)
		if (Range{want, PrefixEnd(want)}).Contains(kb) != inPrefix {
			t.Fatalf("[%x, its end) contains %x, but prefix %v", want, kb, inPrefix)
		}
	})
}

// genRow leaves fields out now and then.
func genRow(t *rapid.T, p Pattern) bson.Raw {
	notArray := genValue(1).Filter(func(v bson.RawValue) bool { return v.Type != bson.TypeArray })
	doc := bson.D{{Key: "_id", Value: notArray.Draw(t, "_id")}}
	for _, f := range p.Fields {
		if rapid.IntRange(0, 5).Draw(t, "present") > 0 {
			doc = append(doc, bson.E{Key: f.Path, Value: notArray.Draw(t, f.Path)})
		}
	}
	return marshal(doc)
}

func compareRows(p Pattern, a, b bson.Raw) int {
	for _, f := range p.RowPattern().Fields {
		x, y := a.Lookup(f.Path), b.Lookup(f.Path)
		if f.Hashed {
			x, y = rawOfAny(Hash(x)), rawOfAny(Hash(y))
		}
		if c := compareValues(x, y); c != 0 {
			if f.Descending {
				return -c
			}
			return c
		}
	}
	return 0
}

func TestPrefixKnowsDirectionAndHash(t *testing.T) {
	t.Parallel()
	up, down, hashed := Field{Path: "a"}, Field{Path: "a", Descending: true}, Field{Path: "a", Hashed: true}
	one := rawOf(t, int32(1))
	id := encode(one)
	for _, c := range []struct {
		f   Field
		key []byte
	}{
		{up, append(AppendValue(nil, one, true), id...)},
		{down, append(AppendValue(nil, one, false), id...)},
		{hashed, append(AppendValue(nil, rawOf(t, "x"), true), id...)},
		{hashed, AppendHashed(nil, one)[:8]},
		{up, AppendHashed(nil, one)},
	} {
		if _, err := (Pattern{Fields: []Field{c.f}}).Prefix(c.key); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("%+v: prefix of %x: %v", c.f, c.key, err)
		}
	}
}

func TestValuesAreWhatTheFieldsHold(t *testing.T) {
	t.Parallel()
	doc := ext(t, `{"_id": 1, "a": {"b": "x"}, "c": [1]}`)
	values := pattern(t, `{"a.b": "hashed", "c": 1, "d": 1}`).Values(doc)
	if len(values) != 3 || values[0].StringValue() != "x" || values[1].Type != 0 || values[2].Type != 0 {
		t.Errorf("values are %v", values)
	}
}

// Keys are made and read without garbage.
func TestKeysAreMadeWithoutGarbage(t *testing.T) {
	doc := marshal(bson.D{{Key: "_id", Value: bson.ObjectID{1, 2}}, {Key: "s", Value: "customer-000017"}, {Key: "o", Value: bson.D{{Key: "n", Value: int32(12345)}, {Key: "d", Value: decimalOf("9.99")}}}})
	for _, spec := range []string{`{"_id": 1}`, `{"s": 1, "o.n": 1}`, `{"s": "hashed"}`, `{"o": 1}`, `{"o": "hashed"}`, `{"o.d": 1}`} {
		p := pattern(t, spec)
		buf := make([]byte, 0, 256)
		if n := testing.AllocsPerRun(100, func() {
			key, err := p.AppendKey(buf, doc)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Prefix(key); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations per key", p, n)
		}
	}
}

func BenchmarkAppendKey(b *testing.B) {
	doc := marshal(bson.D{{Key: "_id", Value: bson.ObjectID{1, 2}}, {Key: "s", Value: "customer-000017"}, {Key: "n", Value: int32(12345)}, {Key: "d", Value: decimalOf("9.99")}, {Key: "big", Value: decimalOf("1234567890123456789012345678901234E-10")}})
	for _, spec := range []string{`{"_id": 1}`, `{"s": 1, "n": 1}`, `{"_id": "hashed"}`, `{"d": 1}`, `{"big": 1}`} {
		p := pattern(b, spec)
		b.Run(strings.NewReplacer(" ", "", `"`, "").Replace(spec), func(b *testing.B) {
			b.ReportAllocs()
			var key []byte
			for b.Loop() {
				key, _ = p.AppendKey(key[:0], doc)
			}
		})
	}
}

func BenchmarkPrefix(b *testing.B) {
	p := pattern(b, `{"s": 1, "n": 1}`)
	key, err := p.AppendKey(nil, marshal(bson.D{{Key: "_id", Value: bson.ObjectID{1, 2}}, {Key: "s", Value: "customer-000017"}, {Key: "n", Value: int32(12345)}}))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = p.Prefix(key)
	}
}
