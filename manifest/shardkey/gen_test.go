package shardkey

import (
	"math"
	"math/big"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// Generators of values, drawn from small alphabets so that equal and nearly equal pairs are
// common.

func rawOf(t testing.TB, v any) bson.RawValue {
	t.Helper()
	kind, b, err := bson.MarshalValue(v)
	if err != nil {
		t.Fatalf("marshal %v: %v", v, err)
	}
	return bson.RawValue{Type: kind, Value: b}
}

func rawOfAny(v any) bson.RawValue {
	kind, b, err := bson.MarshalValue(v)
	if err != nil {
		panic(err)
	}
	return bson.RawValue{Type: kind, Value: b}
}

func decimalOf(s string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err)
	}
	return d
}

var interestingFloats = []float64{
	0, math.Copysign(0, -1), 1, -1, 0.1, -0.1, 2.75, 9.99, 1 << 53, 1<<53 + 2, -(1 << 53), 1 << 62, 1 << 63, -(1 << 63),
	math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64,
	math.Inf(1), math.Inf(-1), math.NaN(), 1e22, 1e23, 123456789.125, 0x1p-1022,
}

var interestingDecimals = []string{
	"NaN", "Infinity", "-Infinity", "0", "-0", "0E+6111", "-0E-6176", "1E+6144", "9.999999999999999999999999999999999E+6144",
	"-9.999999999999999999999999999999999E+6144", "1E-6176", "-1E-6176", "1E-6143", "0.1", "-0.1", "1.0", "10E-1", "1E+3", "1000",
	"9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "9223372036854775807.5",
	"9007199254740993", "9007199254740992.5", "1.797693134862315708145274237317043E+308", "1.797693134862315708145274237317044E+308",
	"1.8E+308", "-1.8E+308", "4.940656458412465441765687928682213E-324", "4.940656458412465441765687928682214E-324", "1E-400",
	"0.1000000000000000055511151231257827", "0.1000000000000000055511151231257828", "-0.1000000000000000055511151231257827",
	"9.99", "9.9900", "2.75", "1E+22", "1E+23", "9.999999999999999161E+22", "9.999999999999999161139200E+22", "12345678901234567890123456789012.34",
}

func genNumber() *rapid.Generator[bson.RawValue] {
	return rapid.Custom(func(t *rapid.T) bson.RawValue {
		switch rapid.IntRange(0, 9).Draw(t, "number kind") {
		case 0:
			return rawOfAny(rapid.Int32Range(-3, 3).Draw(t, "small"))
		case 1:
			return rawOfAny(rapid.Int32().Draw(t, "int32"))
		case 2:
			return rawOfAny(int64(rapid.IntRange(-3, 3).Draw(t, "small64")))
		case 3:
			near := rapid.SampledFrom([]int64{1 << 53, -(1 << 53), 1 << 60, math.MaxInt64 - 5, math.MinInt64 + 5}).Draw(t, "near")
			return rawOfAny(near + int64(rapid.IntRange(-5, 5).Draw(t, "off")))
		case 4:
			return rawOfAny(rapid.SampledFrom(interestingFloats).Draw(t, "float"))
		case 5:
			return rawOfAny(rapid.Float64().Draw(t, "any float"))
		case 6:
			return rawOfAny(decimalOf(rapid.SampledFrom(interestingDecimals).Draw(t, "decimal")))
		case 7:
			return rawOfAny(genDecimalNearDouble(t))
		case 8:
			s := strconv.Itoa(rapid.IntRange(-200, 200).Draw(t, "coefficient")) + "E" + strconv.Itoa(rapid.IntRange(-4, 4).Draw(t, "exponent"))
			return rawOfAny(decimalOf(s))
		default: // any bits at all, canonical or not
			return rawOfAny(bson.NewDecimal128(rapid.Uint64().Draw(t, "hi"), rapid.Uint64().Draw(t, "lo")))
		}
	})
}

// genDecimalNearDouble is a double rounded to some digits: equal to it, or just beside it.
func genDecimalNearDouble(t *rapid.T) bson.Decimal128 {
	f := rapid.OneOf(rapid.SampledFrom(interestingFloats), rapid.Float64Range(-1e20, 1e20)).Draw(t, "double")
	if math.IsNaN(f) || math.IsInf(f, 0) {
		f = 0.3
	}
	digits := rapid.SampledFrom([]int{3, 15, 16, 17, 18, 33}).Draw(t, "digits")
	return decimalOf(new(big.Float).SetPrec(2000).SetFloat64(f).Text('e', digits))
}

var genText = rapid.Custom(func(t *rapid.T) string {
	return rapid.StringOfN(rapid.RuneFrom([]rune{0, 1, 'a', 'b', 0xFF, 0x10FFFF}), 0, 4, -1).Draw(t, "text")
})

// genName is without NUL, as names and regexes are.
var genName = rapid.Custom(func(t *rapid.T) string {
	return rapid.StringOfN(rapid.RuneFrom([]rune{1, 'a', 'b', 0xFF}), 0, 3, -1).Draw(t, "name")
})

var genID = rapid.Custom(func(t *rapid.T) bson.ObjectID {
	id := bson.ObjectID{}
	id[0] = rapid.Byte().Draw(t, "first")
	id[11] = rapid.ByteRange(0, 2).Draw(t, "last")
	return id
})

func genValue(depth int) *rapid.Generator[bson.RawValue] {
	return rapid.Custom(func(t *rapid.T) bson.RawValue {
		most := 16
		if depth > 0 {
			most = 22
		}
		switch k := rapid.IntRange(0, most).Draw(t, "kind"); k {
		case 0:
			return rawOfAny(bson.MinKey{})
		case 1:
			return rawOfAny(bson.MaxKey{})
		case 2:
			return rawOfAny(bson.Undefined{})
		case 3:
			return rawOfAny(bson.Null{})
		case 4:
			return rawOfAny(genText.Draw(t, "string"))
		case 5:
			return rawOfAny(bson.Symbol(genText.Draw(t, "symbol")))
		case 6:
			return rawOfAny(bson.Binary{
				Subtype: rapid.SampledFrom([]byte{0, 2, 4, 0x80}).Draw(t, "subtype"),
				Data:    rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "data"),
			})
		case 7:
			return rawOfAny(genID.Draw(t, "id"))
		case 8:
			return rawOfAny(rapid.Bool().Draw(t, "bool"))
		case 9:
			return rawOfAny(bson.DateTime(rapid.Int64().Draw(t, "date")))
		case 10:
			return rawOfAny(bson.Timestamp{T: rapid.Uint32().Draw(t, "T"), I: rapid.Uint32().Draw(t, "I")})
		case 11:
			return rawOfAny(bson.Regex{Pattern: genName.Draw(t, "pattern"), Options: rapid.SampledFrom([]string{"", "i", "m"}).Draw(t, "options")})
		case 12:
			return rawOfAny(bson.DBPointer{DB: genName.Draw(t, "db"), Pointer: genID.Draw(t, "pointer")})
		case 13:
			return rawOfAny(bson.JavaScript(genText.Draw(t, "code")))
		case 14, 15, 16:
			return genNumber().Draw(t, "number")
		case 17:
			return rawOfAny(bson.CodeWithScope{Code: bson.JavaScript(genText.Draw(t, "code")), Scope: genDoc(depth-1).Draw(t, "scope")})
		case 18, 19, 20:
			return rawOfAny(genDoc(depth-1).Draw(t, "object"))
		default:
			return rawOfAny(bson.A(slicesAny(rapid.SliceOfN(genValue(depth-1), 0, 3).Draw(t, "array"))))
		}
	})
}

func slicesAny(values []bson.RawValue) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}

// genDoc has names of a small alphabet, each at most once.
func genDoc(depth int) *rapid.Generator[bson.D] {
	return rapid.Custom(func(t *rapid.T) bson.D {
		names := rapid.SliceOfNDistinct(genName, 0, 3, rapid.ID).Draw(t, "names")
		doc := bson.D{}
		for _, name := range names {
			doc = append(doc, bson.E{Key: name, Value: genValue(depth).Draw(t, "value")})
		}
		return doc
	})
}

func marshal(doc any) bson.Raw {
	b, err := bson.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return b
}

// ext reads extended JSON.
func ext(t testing.TB, s string) bson.Raw {
	t.Helper()
	var doc bson.D
	if err := bson.UnmarshalExtJSON([]byte(s), true, &doc); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return marshal(doc)
}
