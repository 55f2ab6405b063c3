package number

import (
	"math"
	"math/big"
	"math/bits"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Add is a+b in the wider of the two types. It is false when two integers have a sum that
// no long holds.
func Add(a, b Number) (Number, bool) {
	switch {
	case a.isInteger() && b.isInteger():
		x, y := a.integer(), b.integer()
		sum := x + y
		if (x < 0) == (y < 0) && (sum < 0) != (x < 0) {
			return Number{}, false
		}
		return sameInteger(a, b, sum), true
	case a.kind == bson.TypeDecimal128 || b.kind == bson.TypeDecimal128:
		return addDecimals(a.toDecimal(), b.toDecimal()).number(), true
	}
	return Double(a.Float64() + b.Float64()), true
}

// Subtract is a-b, with the types and the overflow of Add.
func Subtract(a, b Number) (Number, bool) {
	switch {
	case a.isInteger() && b.isInteger():
		x, y := a.integer(), b.integer()
		difference := x - y
		if (x < 0) != (y < 0) && (difference < 0) != (x < 0) {
			return Number{}, false
		}
		return sameInteger(a, b, difference), true
	case a.kind == bson.TypeDecimal128 || b.kind == bson.TypeDecimal128:
		y := b.toDecimal()
		y.negative = !y.negative
		return addDecimals(a.toDecimal(), y).number(), true
	}
	return Double(a.Float64() - b.Float64()), true
}

// Multiply is a*b, with the types and the overflow of Add.
func Multiply(a, b Number) (Number, bool) {
	switch {
	case a.isInteger() && b.isInteger():
		product, ok := multiplyIntegers(a.integer(), b.integer())
		return sameInteger(a, b, product), ok
	case a.kind == bson.TypeDecimal128 || b.kind == bson.TypeDecimal128:
		return multiplyDecimals(a.toDecimal(), b.toDecimal()).number(), true
	}
	return Double(a.Float64() * b.Float64()), true
}

// Divide is a/b: a double, or a decimal when one of them is. The caller refuses b = 0.
func Divide(a, b Number) Number {
	if a.kind == bson.TypeDecimal128 || b.kind == bson.TypeDecimal128 {
		return divideDecimals(a.toDecimal(), b.toDecimal()).number()
	}
	return Double(a.Float64() / b.Float64())
}

// Remainder is what is left of a when as many b as fit are taken away; it has the sign of a.
// The caller refuses b = 0.
func Remainder(a, b Number) Number {
	switch {
	case a.isInteger() && b.isInteger():
		if b.integer() == -1 { // the one quotient that overflows
			return sameInteger(a, b, 0)
		}
		return sameInteger(a, b, a.integer()%b.integer())
	case a.kind == bson.TypeDecimal128 || b.kind == bson.TypeDecimal128:
		return remainderOfDecimals(a.toDecimal(), b.toDecimal()).number()
	}
	return Double(math.Mod(a.Float64(), b.Float64()))
}

// sameInteger is i as an int when both operands are ints and it fits one.
func sameInteger(a, b Number, i int64) Number {
	if a.kind == bson.TypeInt32 && b.kind == bson.TypeInt32 {
		return Int(i)
	}
	return Int64(i)
}

func multiplyIntegers(x, y int64) (int64, bool) {
	magnitude := func(i int64) uint64 {
		if i < 0 {
			return -uint64(i)
		}
		return uint64(i)
	}
	hi, lo := bits.Mul64(magnitude(x), magnitude(y))
	negative := (x < 0) != (y < 0)
	switch {
	case hi != 0 || lo > 1<<63 || lo == 1<<63 && !negative:
		return 0, false
	case negative:
		return int64(-lo), true
	}
	return int64(lo), true
}

func addDecimals(a, b decimal) decimal {
	switch {
	case a.form == notANumber || b.form == notANumber,
		a.form == infinite && b.form == infinite && a.negative != b.negative:
		return decimal{form: notANumber}
	case a.form == infinite:
		return a
	case b.form == infinite:
		return b
	}
	if a.exponent < b.exponent {
		a, b = b, a
	}
	if gap := a.exponent - b.exponent; gap > 3*maxDigits && !a.isZero() && !b.isZero() {
		// b is too small to show in 34 digits; as one unit below them it still rounds.
		b = decimal{negative: b.negative, lo: 1, exponent: a.exponent - 3*maxDigits}
	}
	sum := a.coefficient()
	sum.Mul(sum, powerOfTen(a.exponent-b.exponent))
	sum.Add(sum, b.coefficient())
	out := rounded(sum, b.exponent)
	if sum.Sign() == 0 {
		out.negative = a.negative && b.negative
	}
	return out
}

func multiplyDecimals(a, b decimal) decimal {
	negative := a.negative != b.negative
	switch {
	case a.form == notANumber || b.form == notANumber,
		a.form == infinite && b.isZero(), b.form == infinite && a.isZero():
		return decimal{form: notANumber}
	case a.form == infinite || b.form == infinite:
		return decimal{form: infinite, negative: negative}
	}
	out := rounded(new(big.Int).Mul(a.coefficient(), b.coefficient()), a.exponent+b.exponent)
	out.negative = negative
	return out
}

func divideDecimals(a, b decimal) decimal {
	negative := a.negative != b.negative
	switch {
	case a.form == notANumber || b.form == notANumber, a.form == infinite && b.form == infinite,
		a.isZero() && b.isZero():
		return decimal{form: notANumber}
	case a.form == infinite || b.isZero():
		return decimal{form: infinite, negative: negative}
	case b.form == infinite:
		return decimal{negative: negative, exponent: minExponent}
	}
	// 70 more digits than the dividend has: enough to round 34 correctly, as the remainder
	// counts as one more unit.
	const more = 2*maxDigits + 2
	left, right := a.coefficient(), b.coefficient()
	left.Abs(left).Mul(left, powerOfTen(more))
	q, r := new(big.Int).QuoRem(left, right.Abs(right), new(big.Int))
	exponent := a.exponent - b.exponent - more
	if r.Sign() != 0 {
		q.Mul(q, big.NewInt(10)).Add(q, big.NewInt(1))
		exponent--
	} else {
		q, exponent = stripZeros(q, exponent, a.exponent-b.exponent)
	}
	out := rounded(q, exponent)
	out.negative = negative
	return out
}

// stripZeros takes trailing zeros off an exact quotient, up to the exponent that it would
// ideally have.
func stripZeros(q *big.Int, exponent, ideal int) (*big.Int, int) {
	ten, r := big.NewInt(10), new(big.Int)
	for exponent < ideal {
		next, _ := new(big.Int).QuoRem(q, ten, r)
		if r.Sign() != 0 {
			break
		}
		q, exponent = next, exponent+1
	}
	return q, exponent
}

func remainderOfDecimals(a, b decimal) decimal {
	switch {
	case a.form != finite || b.form == notANumber || b.isZero():
		return decimal{form: notANumber}
	case b.form == infinite:
		return a
	}
	exponent := min(a.exponent, b.exponent)
	left, right := a.coefficient(), b.coefficient()
	left.Mul(left, powerOfTen(a.exponent-exponent))
	right.Mul(right, powerOfTen(b.exponent-exponent))
	out := rounded(left.Rem(left, right), exponent)
	out.negative = a.negative
	return out
}

// Abs is n without its sign; false for the least long.
func Abs(n Number) (Number, bool) {
	switch {
	case n.isInteger() && n.integer() < 0:
		return Subtract(sameInteger(n, n, 0), n)
	case n.kind == bson.TypeDouble:
		return Double(math.Abs(n.double())), true
	case n.kind == bson.TypeDecimal128:
		n.hi &^= signBit
	}
	return n, true
}

// Rounding is a way to a whole number.
type Rounding uint8

// The ways: to the next lower, the next higher, the next toward zero, the nearest (of two
// the even one).
const (
	Down Rounding = iota
	Up
	TowardZero
	HalfEven
)

// Round makes n whole, in its own type.
func Round(n Number, r Rounding) Number {
	switch n.kind {
	case bson.TypeDouble:
		round := [...]func(float64) float64{math.Floor, math.Ceil, math.Trunc, math.RoundToEven}[r]
		return Double(round(n.double()))
	case bson.TypeDecimal128:
		return roundDecimal(n.decimal(), r).number()
	}
	return n
}

func roundDecimal(d decimal, r Rounding) decimal {
	if d.form != finite || d.exponent >= 0 {
		return d
	}
	c, by := d.coefficient(), powerOfTen(min(-d.exponent, maxDigits+2))
	var q *big.Int
	switch r {
	case HalfEven:
		q = quotientHalfEven(new(big.Int).Abs(c), by)
		if d.negative {
			q.Neg(q)
		}
	case TowardZero:
		q = c.Quo(c, by)
	case Down:
		q = c.Div(c, by) // Euclidean: down for a positive divisor
	default:
		q = c.Neg(c).Div(c, by)
		q.Neg(q)
	}
	out := rounded(q, 0)
	out.negative = d.negative
	return out
}
