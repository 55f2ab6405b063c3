package shardkey

import (
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// Published hashes: the example of $toHashedIndexKey in MongoDB's manual, and the values
// that its own tests pin down.
func TestHashIsMongoDBs(t *testing.T) {
	t.Parallel()
	id := func(hex string) bson.ObjectID {
		id, err := bson.ObjectIDFromHex(hex)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	for _, c := range []struct {
		value any
		want  int64
	}{
		{"string to hash", 763543691661428748},
		{int32(42), -944302157085130861},
		{int64(42), -944302157085130861},
		{42.123, -944302157085130861},
		{decimalOf("42"), -944302157085130861},
		{int32(0), 4854801880128277513},
		{0.456, 4854801880128277513},
		{math.NaN(), 4854801880128277513},
		{decimalOf("NaN"), 4854801880128277513},
		{decimalOf("0E+20"), 4854801880128277513},
		{int32(1), 5902408780260971510},
		{1.987, 5902408780260971510},
		{-1.789, 1140205862565771219},
		{int32(math.MinInt32), 6165898260261354870},
		{float64(math.MaxInt32), 1143184177162245883},
		{math.MaxFloat64, 921523596458303250},
		{int64(math.MaxInt64), 921523596458303250},
		{decimalOf("1E+6000"), 921523596458303250},
		{decimalOf("Infinity"), 921523596458303250},
		{-math.MaxFloat64, 4532067210535695462},
		{int64(math.MinInt64), 4532067210535695462},
		{decimalOf("-1E+30"), 4532067210535695462},
		{bson.MinKey{}, 7961148599568647290},
		{bson.MaxKey{}, 5504842513779440750},
		{bson.Undefined{}, 40158834000849533},
		{"abc", 8478485326885698097},
		{bson.Symbol("abc"), 8478485326885698097},
		{"", 2049396243249673340},
		{bson.D{{Key: "a", Value: "abc"}, {Key: "b", Value: int64(123)}}, 4771603801758380216},
		{bson.D{}, 7980500913326740417},
		{bson.A{"bar", "baz", "qux"}, -2938911267422831539},
		{bson.A{}, 8849948234993459283},
		{bson.Binary{Data: []byte{0, 1, 2, 3, 4, 6}}, 7252465090394235301},
		{bson.Binary{Subtype: 0x80, Data: []byte{0, 1, 2, 3, 4, 6}}, 5736670452907618262},
		{bson.Binary{Subtype: 4, Data: []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}, 6084661258071355978},
		{id("010203040506070809101112"), -5588663249627035708},
		{id("000000000000000000000000"), -4293118519463489418},
		{true, 6405873908747105701},
		{false, 6289544573401934092},
		{bson.DateTime(0x5566778811223344), 4476222765095560467},
		{bson.DateTime(0), -1178696894582842035},
		{bson.Regex{Pattern: "mongodb"}, -7275792090268217043},
		{bson.Regex{Pattern: ".*", Options: "i"}, 7095855029187981886},
		{bson.DBPointer{DB: "c", Pointer: id("010203040506070809101112")}, 940175826736461384},
		{bson.DBPointer{DB: "db.c", Pointer: id("010203040506070809101112")}, 2426768198104018194},
		{bson.JavaScript("func f() { return 1; }"), 6861638109178014270},
		{bson.CodeWithScope{Code: "func f() { return 1; }", Scope: bson.D{{Key: "c", Value: true}}}, 501342939894575968},
		// MongoDB keeps this quirk of doubles; the equal decimal follows the double here.
		{0x1p63, 4532067210535695462},
		{decimalOf("9223372036854775808"), 4532067210535695462},
	} {
		if got := Hash(rawOf(t, c.value)); got != c.want {
			t.Errorf("hash of %v is %d, want %d", c.value, got, c.want)
		}
	}
	if Hash(bson.RawValue{}) != Hash(rawOf(t, bson.Null{})) {
		t.Error("a missing field does not hash as null")
	}
}

// Equal values have equal hashes, so that a query for one form finds the other.
func TestEqualValuesHashAlike(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := genValue(2).Draw(t, "a"), genValue(2).Draw(t, "b")
		if compareValues(a, b) == 0 && Hash(a) != Hash(b) {
			t.Fatalf("%v and %v are equal, their hashes %d and %d not", a, b, Hash(a), Hash(b))
		}
		n := genNumber().Draw(t, "n")
		if n.Type != bson.TypeDecimal128 {
			return
		}
		d := readDecimal(n.Value)
		if d.kind != finite || d.coefficient.isZero() {
			return
		}
		if f, isExact := d.floor(); isExact && Hash(rawOfAny(f)) != Hash(n) {
			t.Fatalf("decimal %v and double %v hash differently", n, f)
		}
	})
}

func TestFractionsOfDecimalsAreTruncated(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int64{
		"2.75": 2, "-2.75": -2, "0.1": 0, "1E-6176": 0, "12E+3": 12000, "9223372036854775807.9": math.MaxInt64,
		"-9223372036854775808.9": math.MinInt64, "9223372036854775809": math.MaxInt64, "1234567890123456789012345678901234E-30": 1234,
	} {
		if got := hashedInteger(bson.TypeDecimal128, rawOf(t, decimalOf(s)).Value); got != want {
			t.Errorf("%s is hashed as %d, want %d", s, got, want)
		}
	}
}
