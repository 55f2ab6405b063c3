package number

import (
	"cmp"
	"math"
	"math/big"
	"math/bits"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Compare orders numbers of all types by value, exactly: no operand is rounded to the other's
// type. NaN is below all and equal to NaN; -0 equals 0; 1 equals 1.0 and 1.00.
func Compare(a, b Number) int {
	switch {
	case a.isInteger() && b.isInteger():
		return cmp.Compare(a.integer(), b.integer())
	case a.kind == bson.TypeDouble && b.kind == bson.TypeDouble:
		return cmp.Compare(a.double(), b.double()) // NaN first, as wanted
	case a.kind == bson.TypeDecimal128 && b.kind == bson.TypeDecimal128:
		return compareDecimals(a.decimal(), b.decimal())
	case a.kind == bson.TypeDouble && b.isInteger():
		return -compareIntegerToDouble(b.integer(), a.double())
	case a.isInteger() && b.kind == bson.TypeDouble:
		return compareIntegerToDouble(a.integer(), b.double())
	case b.isInteger():
		return compareDecimals(a.decimal(), fromInteger(b.integer()))
	case a.isInteger():
		return compareDecimals(fromInteger(a.integer()), b.decimal())
	case b.kind == bson.TypeDouble:
		return compareDecimalToDouble(a.decimal(), b.double())
	}
	return -compareDecimalToDouble(b.decimal(), a.double())
}

func compareIntegerToDouble(i int64, f float64) int {
	switch {
	case f != f || f < -(1<<63):
		return 1
	case f >= 1<<63:
		return -1
	}
	whole := int64(f) // toward zero; exact, as f is in range
	if i != whole {
		return cmp.Compare(i, whole)
	}
	return cmp.Compare(0, f-math.Trunc(f))
}

func compareDecimals(a, b decimal) int {
	if a.form != finite || b.form != finite {
		return cmp.Compare(a.rank(), b.rank())
	}
	if a.isZero() || b.isZero() || a.negative != b.negative {
		return cmp.Compare(a.sign(), b.sign())
	}
	if a.negative {
		a, b = b, a
	}
	return compareMagnitudes(a, b)
}

// rank orders NaN, -infinity, any finite number, infinity.
func (d decimal) rank() int {
	switch {
	case d.form == notANumber:
		return -2
	case d.form == infinite && d.negative:
		return -1
	case d.form == infinite:
		return 1
	}
	return 0
}

func (d decimal) sign() int {
	switch {
	case d.isZero():
		return 0
	case d.negative:
		return -1
	}
	return 1
}

// compareMagnitudes orders two coefficients that are not zero, with their exponents. Numbers
// with the same place of the first digit are aligned: that never takes more than 34 digits.
func compareMagnitudes(a, b decimal) int {
	first := func(d decimal) int { return digits(d.hi, d.lo) + d.exponent }
	if c := cmp.Compare(first(a), first(b)); c != 0 {
		return c
	}
	for ; a.exponent > b.exponent; a.exponent-- {
		a.hi, a.lo = times10(a.hi, a.lo)
	}
	for ; b.exponent > a.exponent; b.exponent-- {
		b.hi, b.lo = times10(b.hi, b.lo)
	}
	if c := cmp.Compare(a.hi, b.hi); c != 0 {
		return c
	}
	return cmp.Compare(a.lo, b.lo)
}

func times10(hi, lo uint64) (uint64, uint64) {
	carry, low := bits.Mul64(lo, 10)
	return hi*10 + carry, low
}

func compareDecimalToDouble(d decimal, f float64) int {
	switch {
	case f != f:
		return cmp.Compare(d.rank(), -2)
	case d.form != finite || math.IsInf(f, 0):
		other := 0
		if math.IsInf(f, 0) {
			other = int(math.Copysign(1, f))
		}
		return cmp.Compare(d.rank(), other)
	case d.isZero() || f == 0 || d.negative != (f < 0):
		return cmp.Compare(d.sign(), cmp.Compare(f, 0))
	}
	// The nearest double decides unless it is f itself.
	if c := cmp.Compare(d.float64(), f); c != 0 {
		return c
	}
	return compareExactly(d, f)
}

// compareExactly compares c*10^e with m*2^k as integers: both sides are multiplied by what
// makes the negative powers whole. Only decimals that lie within half a unit of a double's
// last place get here, so e is between -350 and 310.
func compareExactly(d decimal, f float64) int {
	fraction, k := math.Frexp(f)
	left, right := d.coefficient(), big.NewInt(int64(fraction*(1<<53)))
	k -= 53
	if d.exponent >= 0 {
		left.Mul(left, powerOfTen(d.exponent))
	} else {
		right.Mul(right, powerOfTen(-d.exponent))
	}
	if k >= 0 {
		right.Lsh(right, uint(k))
	} else {
		left.Lsh(left, uint(-k))
	}
	return left.Cmp(right)
}
