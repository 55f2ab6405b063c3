// Package number is the arithmetic and the order of BSON's four number types.
//
// BSON has int32 ("int"), int64 ("long"), double and decimal128 ("decimal"), and MongoDB
// treats them as one type: they compare by value, exactly, and the result of an operation
// has the widest type of its operands:
//
//	int  <  long  <  double  <  decimal
//
// except that an int that overflows becomes a long. A long that overflows has no number to
// become: who asked decides (an update refuses, a sum goes on as a double).
//
// A decimal is a coefficient of up to 34 digits and a power of ten. Values that are equal
// may differ in bytes (1, 1.0 and 1.00), and arithmetic keeps the digits that were written,
// as IEEE 754-2008 says.
//
// The package may change with any release.
package number

import (
	"encoding/binary"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Number is the value of a BSON number. The zero Number is none.
type Number struct {
	kind bson.Type
	hi   uint64 // decimal: the upper half of its bits
	lo   uint64 // decimal: the lower half; double: its bits; int and long: the integer
}

// Int32 is an int.
func Int32(i int32) Number { return Number{kind: bson.TypeInt32, lo: uint64(i)} }

// Int64 is a long, however small.
func Int64(i int64) Number { return Number{kind: bson.TypeInt64, lo: uint64(i)} }

// Double is a double.
func Double(f float64) Number { return Number{kind: bson.TypeDouble, lo: math.Float64bits(f)} }

// Int is an int when i fits one, else a long: what a count comes out as.
func Int(i int64) Number {
	if i == int64(int32(i)) {
		return Int32(int32(i))
	}
	return Int64(i)
}

// Of reads a value of a validated document; false when it is not a number.
func Of(v bson.RawValue) (Number, bool) {
	switch v.Type {
	case bson.TypeInt32:
		return Int32(int32(binary.LittleEndian.Uint32(v.Value))), true
	case bson.TypeInt64:
		return Int64(int64(binary.LittleEndian.Uint64(v.Value))), true
	case bson.TypeDouble:
		return Number{kind: v.Type, lo: binary.LittleEndian.Uint64(v.Value)}, true
	case bson.TypeDecimal128:
		return Number{
			kind: v.Type,
			hi:   binary.LittleEndian.Uint64(v.Value[8:]),
			lo:   binary.LittleEndian.Uint64(v.Value),
		}, true
	}
	return Number{}, false
}

// Type is the BSON type, 0 of the zero Number.
func (n Number) Type() bson.Type { return n.kind }

// Append appends the bytes of the value.
func (n Number) Append(dst []byte) []byte {
	switch n.kind {
	case bson.TypeInt32:
		return binary.LittleEndian.AppendUint32(dst, uint32(n.lo))
	case bson.TypeInt64, bson.TypeDouble:
		return binary.LittleEndian.AppendUint64(dst, n.lo)
	case bson.TypeDecimal128:
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, n.lo), n.hi)
	}
	return dst
}

// Value is the number as a value with its own bytes.
func (n Number) Value() bson.RawValue {
	return bson.RawValue{Type: n.kind, Value: n.Append(make([]byte, 0, 16))}
}

func (n Number) isInteger() bool { return n.kind == bson.TypeInt32 || n.kind == bson.TypeInt64 }

func (n Number) integer() int64 { return int64(n.lo) }

func (n Number) double() float64 { return math.Float64frombits(n.lo) }

// Float64 is the nearest double.
func (n Number) Float64() float64 {
	switch {
	case n.isInteger():
		return float64(n.integer())
	case n.kind == bson.TypeDecimal128:
		return n.decimal().float64()
	}
	return n.double()
}

// IsNaN reports whether the number is a double's or a decimal's NaN.
func (n Number) IsNaN() bool {
	switch n.kind {
	case bson.TypeDouble:
		f := n.double()
		return f != f
	case bson.TypeDecimal128:
		return n.decimal().form == notANumber
	}
	return false
}

// IsZero reports whether the number equals 0.
func (n Number) IsZero() bool { return n.kind != 0 && Compare(n, Int32(0)) == 0 }

// Int64 is the integer part, and whether it fits a long. NaN and infinities do not.
func (n Number) Int64() (int64, bool) {
	switch {
	case n.isInteger():
		return n.integer(), true
	case n.kind == bson.TypeDecimal128:
		return n.decimal().int64()
	}
	f := math.Trunc(n.double())
	if f >= -(1<<63) && f < 1<<63 {
		return int64(f), true
	}
	return 0, false
}

// Whole is Int64 for numbers without a fraction: false for 1.5.
func (n Number) Whole() (int64, bool) {
	i, ok := n.Int64()
	return i, ok && Compare(n, Int64(i)) == 0
}
