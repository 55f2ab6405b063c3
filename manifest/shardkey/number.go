package shardkey

import (
	"encoding/binary"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// appendNumber appends the payload of a number of any type.
func appendNumber(dst []byte, kind bson.Type, b []byte) []byte {
	switch kind {
	case bson.TypeDouble:
		return appendDouble(dst, math.Float64frombits(binary.LittleEndian.Uint64(b)), exact)
	case bson.TypeInt32:
		return appendDouble(dst, float64(int32(binary.LittleEndian.Uint32(b))), exact)
	case bson.TypeInt64:
		return appendInt64(dst, int64(binary.LittleEndian.Uint64(b)))
	}
	return appendDecimal(dst, readDecimal(b))
}

// appendDouble appends the order-preserving bits of f and whether the number is f.
func appendDouble(dst []byte, f float64, mark byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, orderedBits(f)), mark)
}

// orderedBits are bits that compare like the doubles: NaN is 0, lowest, and -0 is 0.
func orderedBits(f float64) uint64 {
	switch bits := math.Float64bits(f); {
	case f != f:
		return 0
	case f == 0:
		return signBit
	case bits&signBit != 0:
		return ^bits
	default:
		return bits | signBit
	}
}

func appendInt64(dst []byte, i int64) []byte {
	f := float64(i) // the nearest double, 2^63 at most
	difference := int64(math.MinInt64)
	if f < 1<<63 {
		difference = i - int64(f)
	}
	switch {
	case difference == 0:
		return appendDouble(dst, f, exact)
	case difference < 0:
		f = math.Nextafter(f, math.Inf(-1))
	}
	magnitude := uint64(i)
	if i < 0 {
		magnitude = -magnitude
	}
	dst = appendDouble(dst, f, inexact)
	return appendResidual(dst, decimal{negative: i < 0, coefficient: uint128{lo: magnitude}})
}

func appendDecimal(dst []byte, d decimal) []byte {
	switch {
	case d.kind == notANumber:
		return appendDouble(dst, math.NaN(), exact)
	case d.kind == infinite && d.negative:
		return appendDouble(dst, math.Inf(-1), exact)
	case d.kind == infinite:
		return appendDouble(dst, math.Inf(1), exact)
	case d.coefficient.isZero():
		return appendDouble(dst, 0, exact)
	}
	f, isExact := d.floor()
	if isExact {
		return appendDouble(dst, f, exact)
	}
	return appendResidual(appendDouble(dst, f, inexact), d)
}

// appendResidual appends 16 bytes that order finite numbers of one sign: the exponent of
// the coefficient when that is stretched to 34 digits, in the upper 15 bits, and the
// coefficient in the 113 below.
func appendResidual(dst []byte, d decimal) []byte {
	c, exponent := d.coefficient, d.exponent
	for c.hi < least34Digits.hi || c.hi == least34Digits.hi && c.lo < least34Digits.lo {
		c = c.times10()
		exponent--
	}
	c.hi |= uint64(exponent+exponentBias+33) << 49
	if d.negative {
		c.hi, c.lo = ^c.hi, ^c.lo
	}
	dst = binary.BigEndian.AppendUint64(dst, c.hi)
	return binary.BigEndian.AppendUint64(dst, c.lo)
}
