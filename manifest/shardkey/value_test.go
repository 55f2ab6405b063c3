package shardkey

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite testdata")

func encode(v bson.RawValue) []byte { return AppendValue(nil, v, false) }

// Two values are in the same order as their bytes, and as the inverted bytes the other way;
// no value's bytes begin another's; every value ends where it says.
func TestBytesOrderLikeValues(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := genValue(2).Draw(t, "a"), genValue(2).Draw(t, "b")
		checkPair(t, a, b)
	})
}

func TestBytesOrderLikeNumbers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		checkPair(t, genNumber().Draw(t, "a"), genNumber().Draw(t, "b"))
	})
}

func checkPair(t *rapid.T, a, b bson.RawValue) {
	want := compareValues(a, b)
	for _, descending := range []bool{false, true} {
		ka, kb := AppendValue(nil, a, descending), AppendValue(nil, b, descending)
		if got := bytes.Compare(ka, kb); got != want {
			t.Fatalf("descending %v: %v and %v compare as %d, their bytes %x and %x as %d", descending, a, b, want, ka, kb, got)
		}
		if want != 0 && (bytes.HasPrefix(ka, kb) || bytes.HasPrefix(kb, ka)) {
			t.Fatalf("%v and %v: one of %x and %x begins the other", a, b, ka, kb)
		}
		rest, err := SkipValue(append(ka, kb...))
		if err != nil || !bytes.Equal(rest, kb) {
			t.Fatalf("skip %v in %x then %x: rest %x, %v", a, ka, kb, rest, err)
		}
		want = -want
	}
}

// Every listed number against every other: the generator might miss a pair.
func TestInterestingNumbersInOrder(t *testing.T) {
	t.Parallel()
	var all []bson.RawValue
	for _, f := range interestingFloats {
		all = append(all, rawOf(t, f), rawOf(t, math.Nextafter(f, math.Inf(1))), rawOf(t, math.Nextafter(f, math.Inf(-1))))
	}
	for _, s := range interestingDecimals {
		all = append(all, rawOf(t, decimalOf(s)))
	}
	for _, i := range []int64{0, 1, -1, 1 << 53, 1<<53 + 1, -(1 << 53) - 1, math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 - 512, math.MinInt64, math.MinInt64 + 1} {
		all = append(all, rawOf(t, i))
	}
	for _, a := range all {
		for _, b := range all {
			if want, got := compareNumbers(a, b), bytes.Compare(encode(a), encode(b)); got != want {
				t.Errorf("%v and %v compare as %d, their bytes %x and %x as %d", a, b, want, encode(a), encode(b), got)
			}
		}
	}
}

// The quick way to the double below a decimal agrees with the one by big integers.
func TestDecimalFloorIsTheDoubleBelow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := rawOfAny(genDecimalNearDouble(t))
		d := readDecimal(v.Value)
		if d.kind != finite || d.coefficient.isZero() {
			return
		}
		f, isExact := d.floor()
		double, next := rawOfAny(f), rawOfAny(math.Nextafter(f, math.Inf(1)))
		if compareNumbers(double, v) > 0 || compareNumbers(next, v) <= 0 || isExact != (compareNumbers(double, v) == 0) {
			t.Fatalf("floor of %v is %v, exact %v", v, f, isExact)
		}
	})
}

func TestEqualNumbersOfAllTypesHaveEqualBytes(t *testing.T) {
	t.Parallel()
	for _, group := range [][]any{
		{int32(0), int64(0), 0.0, math.Copysign(0, -1), decimalOf("0"), decimalOf("-0"), decimalOf("0E+6000"), decimalOf("-0E-6176")},
		{int32(7), int64(7), 7.0, decimalOf("7"), decimalOf("7.000"), decimalOf("70E-1")},
		{int32(-1000), int64(-1000), -1000.0, decimalOf("-1000"), decimalOf("-1E+3")},
		{int64(1<<53 + 1), decimalOf("9007199254740993"), decimalOf("9007199254740993.0")},
		{int64(math.MaxInt64), decimalOf("9223372036854775807")},
		{int64(math.MinInt64), -0x1p63, decimalOf("-9223372036854775808")},
		{2.75, decimalOf("2.75"), decimalOf("275E-2")},
		{math.NaN(), decimalOf("NaN"), math.Float64frombits(0xFFF8000000000001)},
		{math.Inf(1), decimalOf("Infinity")},
		{math.Inf(-1), decimalOf("-Infinity")},
		{decimalOf("1E+6144"), decimalOf("1000E+6141"), decimalOf("1.000000000000000000000000000000000E+6144")},
		{decimalOf("1E-6176")},
	} {
		want := encode(rawOf(t, group[0]))
		for _, v := range group[1:] {
			if got := encode(rawOf(t, v)); !bytes.Equal(got, want) {
				t.Errorf("%v is %x, %v is %x", group[0], want, v, got)
			}
		}
	}
}

// The bytes of one value of every kind, for ever: stored keys depend on them.
func TestKeyBytesAreAsRecorded(t *testing.T) {
	t.Parallel()
	const file = "testdata/values.txt"
	recorded, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(recorded)) {
		line = strings.TrimSuffix(line, "\n")
		json, _, _ := strings.Cut(line, " => ")
		if json == "" || json[0] == '#' {
			fmt.Fprintln(&got, line)
			continue
		}
		v := ext(t, `{"v": `+json+`}`).Lookup("v")
		fmt.Fprintf(&got, "%s => %s\n", json, hex.EncodeToString(encode(v)))
	}
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(recorded), got.String()); diff != "" && !*update {
		t.Errorf("key bytes changed (-recorded +now):\n%s", diff)
	}
}

// A value whose bytes are cut off is taken as far as it goes, without a panic.
func TestCutValuesDoNotPanic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := genValue(2).Draw(t, "v")
		v.Value = v.Value[:rapid.IntRange(0, len(v.Value)).Draw(t, "cut")]
		key := encode(v)
		if rest, err := SkipValue(key); err != nil || len(rest) != 0 {
			t.Fatalf("%v: key %x does not end itself: %v", v, key, err)
		}
		Hash(v)
	})
}

func TestDeepNestingTakesNoStack(t *testing.T) {
	t.Parallel()
	doc := []byte{5, 0, 0, 0, 0}
	for range 5000 {
		n := len(doc) + 8
		doc = slices.Concat([]byte{byte(n), byte(n >> 8), byte(n >> 16), 0, byte(bson.TypeEmbeddedDocument), 'a', 0}, doc, []byte{0})
	}
	v := bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc}
	key := encode(v)
	if rest, err := SkipValue(key); err != nil || len(rest) != 0 {
		t.Fatalf("skip of a deep key: %d left, %v", len(rest), err)
	}
	Hash(v)
	open := bytes.Repeat([]byte{classArray}, 1<<20)
	if _, err := SkipValue(open); err == nil {
		t.Fatal("a million open arrays are taken for a value")
	}
}

func FuzzSkipValue(f *testing.F) {
	for _, s := range []string{"10c01c00000000000000", "20610001", "286100010000", "efcf", "38ffffffff00", "3030300000", "dfc79effff"} {
		b, _ := hex.DecodeString(s)
		f.Add(b)
	}
	patterns := []Pattern{
		{Fields: []Field{{Path: "a"}}},
		{Fields: []Field{{Path: "a", Hashed: true}, {Path: "_id"}}},
		{Fields: []Field{{Path: "a", Descending: true}}},
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		rest, err := SkipValue(key)
		if err == nil && !bytes.HasSuffix(key, rest) {
			t.Fatalf("rest %x is no end of %x", rest, key)
		}
		for _, p := range patterns {
			if prefix, err := p.Prefix(key); err == nil && !bytes.HasPrefix(key, prefix) {
				t.Fatalf("prefix %x is no beginning of %x", prefix, key)
			}
		}
	})
}

func FuzzAppendKey(f *testing.F) {
	f.Add([]byte(marshal(bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: bson.A{1, 2.5}}}}, {Key: "_id", Value: "x"}})))
	f.Add([]byte(marshal(bson.D{{Key: "a", Value: bson.CodeWithScope{Code: "f", Scope: bson.D{{Key: "x", Value: 1}}}}, {Key: "_id", Value: decimalOf("1.1")}})))
	p := Pattern{Fields: []Field{{Path: "a"}, {Path: "a.b", Hashed: true}}}
	f.Fuzz(func(t *testing.T, doc []byte) {
		key, err := p.AppendKey(nil, doc)
		if err != nil {
			return
		}
		if _, err := p.Prefix(key); err != nil {
			t.Fatalf("key %x of document %x: %v", key, doc, err)
		}
		_, _, _ = p.Bound(doc)
		_, _ = ParsePattern(doc)
		_, _ = ParseIndexPattern(doc)
	})
}
