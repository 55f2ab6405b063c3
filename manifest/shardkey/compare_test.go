package shardkey

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"math/big"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// This file is the independent comparator: MongoDB's order, written down from its manual
// and from the driver's own decoding, with nothing of the encoder in it.

var typeOrder = []bson.Type{
	bson.TypeMinKey, bson.TypeUndefined, bson.TypeNull, bson.TypeDouble, bson.TypeString,
	bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeBinary, bson.TypeObjectID, bson.TypeBoolean,
	bson.TypeDateTime, bson.TypeTimestamp, bson.TypeRegex, bson.TypeDBPointer, bson.TypeJavaScript,
	bson.TypeCodeWithScope, bson.TypeMaxKey,
}

func typeRank(t bson.Type) int {
	switch t {
	case 0:
		t = bson.TypeNull
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		t = bson.TypeDouble
	case bson.TypeSymbol:
		t = bson.TypeString
	}
	return slices.Index(typeOrder, t)
}

func compareValues(a, b bson.RawValue) int {
	if c := cmp.Compare(typeRank(a.Type), typeRank(b.Type)); c != 0 {
		return c
	}
	return compareSameType(a, b)
}

func compareSameType(a, b bson.RawValue) int {
	switch typeOrder[typeRank(a.Type)] {
	case bson.TypeDouble:
		return compareNumbers(a, b)
	case bson.TypeString:
		return cmp.Compare(stringOf(a), stringOf(b))
	case bson.TypeEmbeddedDocument:
		return compareElements(a.Document(), b.Document(), true)
	case bson.TypeArray:
		return compareElements(bson.Raw(a.Array()), bson.Raw(b.Array()), false)
	case bson.TypeBinary:
		return cmp.Or(
			cmp.Compare(binary.LittleEndian.Uint32(a.Value), binary.LittleEndian.Uint32(b.Value)),
			bytes.Compare(a.Value[4:], b.Value[4:]))
	case bson.TypeObjectID:
		x, y := a.ObjectID(), b.ObjectID()
		return bytes.Compare(x[:], y[:])
	case bson.TypeBoolean:
		return bytes.Compare(a.Value, b.Value)
	case bson.TypeDateTime:
		return cmp.Compare(a.DateTime(), b.DateTime())
	case bson.TypeTimestamp:
		at, ai := a.Timestamp()
		bt, bi := b.Timestamp()
		return cmp.Or(cmp.Compare(at, bt), cmp.Compare(ai, bi))
	case bson.TypeRegex:
		ap, ao := a.Regex()
		bp, bo := b.Regex()
		return cmp.Or(cmp.Compare(ap, bp), cmp.Compare(ao, bo))
	case bson.TypeDBPointer:
		an, ai := a.DBPointer()
		bn, bi := b.DBPointer()
		return cmp.Or(cmp.Compare(len(an), len(bn)), cmp.Compare(an, bn), bytes.Compare(ai[:], bi[:]))
	case bson.TypeJavaScript:
		return cmp.Compare(a.JavaScript(), b.JavaScript())
	case bson.TypeCodeWithScope:
		ac, as := a.CodeWithScope()
		bc, bs := b.CodeWithScope()
		return cmp.Or(cmp.Compare(ac, bc), compareElements(as, bs, true))
	}
	return 0
}

func stringOf(v bson.RawValue) string {
	if v.Type == bson.TypeSymbol {
		return v.Symbol()
	}
	return v.StringValue()
}

func compareElements(a, b bson.Raw, named bool) int {
	x, _ := a.Elements()
	y, _ := b.Elements()
	for i := range min(len(x), len(y)) {
		c := cmp.Compare(typeRank(x[i].Value().Type), typeRank(y[i].Value().Type))
		if c == 0 && named {
			c = cmp.Compare(x[i].Key(), y[i].Key())
		}
		if c == 0 {
			c = compareSameType(x[i].Value(), y[i].Value())
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}

// compareNumbers puts NaN lowest, then -Infinity, the reals, Infinity.
func compareNumbers(a, b bson.RawValue) int {
	ar, as := real(a)
	br, bs := real(b)
	if as != bs || ar == nil || br == nil {
		return cmp.Compare(as, bs)
	}
	return ar.Cmp(br)
}

// real is a number as a rational and 0, or nil and a rank: -2 NaN, -1 -Infinity, 1 Infinity.
func real(v bson.RawValue) (*big.Rat, int) {
	switch v.Type {
	case bson.TypeInt32:
		return new(big.Rat).SetInt64(int64(v.Int32())), 0
	case bson.TypeInt64:
		return new(big.Rat).SetInt64(v.Int64()), 0
	case bson.TypeDouble:
		f := v.Double()
		switch {
		case math.IsNaN(f):
			return nil, -2
		case math.IsInf(f, 0):
			return nil, int(math.Copysign(1, f))
		}
		return new(big.Rat).SetFloat64(f), 0
	}
	d := v.Decimal128()
	switch {
	case d.IsNaN():
		return nil, -2
	case d.IsInf() != 0:
		return nil, d.IsInf()
	}
	c, exp, err := d.BigInt()
	if err != nil {
		panic(err)
	}
	if new(big.Int).Abs(c).Cmp(new(big.Int).Exp(big.NewInt(10), big.NewInt(34), nil)) >= 0 {
		return new(big.Rat), 0 // not canonical: zero, by IEEE 754
	}
	r := new(big.Rat).SetInt(c)
	power := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil))
	if exp < 0 {
		power.Inv(power)
	}
	return r.Mul(r, power), 0
}
