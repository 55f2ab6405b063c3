package number

import (
	"math"
	"math/big"
	"math/bits"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

type form uint8

const (
	finite form = iota
	infinite
	notANumber
)

// decimal is a decimal128 taken apart: coefficient times ten to the exponent.
type decimal struct {
	form     form
	negative bool
	hi, lo   uint64 // the coefficient, at most 34 digits
	exponent int    // -6176 to 6111
}

const (
	maxDigits      = 34
	minExponent    = -6176
	maxExponent    = 6111
	signBit        = 1 << 63
	infinityBits   = 0x1E << 58
	notANumberBits = 0x1F << 58
	// maxCoefficient is 10^34-1; greater coefficients in stored bits count as 0.
	maxCoefficientHi = 0x0001_ED09_BEAD_87C0
	maxCoefficientLo = 0x378D_8E63_FFFF_FFFF
)

func (n Number) decimal() decimal {
	d := decimal{negative: n.hi&signBit != 0}
	switch n.hi >> 58 & 0x1F {
	case 0x1F:
		d.form = notANumber
		return d
	case 0x1E:
		d.form = infinite
		return d
	}
	if n.hi>>61&3 == 3 { // the form with an implied leading 100: always beyond 34 digits, so 0
		d.exponent = int(n.hi>>47&0x3FFF) + minExponent
		return d
	}
	d.exponent = int(n.hi>>49&0x3FFF) + minExponent
	d.hi, d.lo = n.hi&(1<<49-1), n.lo
	if d.hi > maxCoefficientHi || d.hi == maxCoefficientHi && d.lo > maxCoefficientLo {
		d.hi, d.lo = 0, 0
	}
	return d
}

// number packs d.
func (d decimal) number() Number {
	n := Number{kind: bson.TypeDecimal128}
	switch d.form {
	case notANumber:
		n.hi = notANumberBits
	case infinite:
		n.hi = infinityBits
	default:
		n.hi, n.lo = uint64(d.exponent-minExponent)<<49|d.hi, d.lo
	}
	if d.negative && d.form != notANumber {
		n.hi |= signBit
	}
	return n
}

func (d decimal) isZero() bool { return d.form == finite && d.hi == 0 && d.lo == 0 }

// coefficient is the coefficient with its sign.
func (d decimal) coefficient() *big.Int {
	c := new(big.Int).SetUint64(d.hi)
	c.Lsh(c, 64).Or(c, new(big.Int).SetUint64(d.lo))
	if d.negative {
		c.Neg(c)
	}
	return c
}

// fromInteger is i, exactly.
func fromInteger(i int64) decimal {
	if i < 0 {
		return decimal{negative: true, lo: -uint64(i)}
	}
	return decimal{lo: uint64(i)}
}

// fromDouble is f to 15 significant digits: MongoDB takes a double in decimal arithmetic
// for the short number that a person wrote, 0.1 for 0.1000000000000000055.
func fromDouble(f float64) decimal {
	switch {
	case f != f:
		return decimal{form: notANumber}
	case math.IsInf(f, 0):
		return decimal{form: infinite, negative: f < 0}
	case f == 0:
		return decimal{negative: math.Signbit(f)}
	}
	var room [24]byte
	text := strconv.AppendFloat(room[:0], math.Abs(f), 'e', 14, 64) // d.dddddddddddddde±xx
	digits, exponent := uint64(text[0]-'0'), 0
	for _, c := range text[2:16] {
		digits = digits*10 + uint64(c-'0')
	}
	exponent, _ = strconv.Atoi(string(text[17:]))
	return decimal{negative: f < 0, lo: digits, exponent: exponent - 14}
}

func (n Number) toDecimal() decimal {
	switch {
	case n.isInteger():
		return fromInteger(n.integer())
	case n.kind == bson.TypeDouble:
		return fromDouble(n.double())
	}
	return n.decimal()
}

func (d decimal) float64() float64 {
	switch d.form {
	case notANumber:
		return math.NaN()
	case infinite:
		if d.negative {
			return math.Inf(-1)
		}
		return math.Inf(1)
	}
	if d.isZero() {
		return 0
	}
	f, _ := strconv.ParseFloat(d.coefficient().String()+"e"+strconv.Itoa(d.exponent), 64)
	return f // out of range: the infinity that ParseFloat gives
}

// int64 is the integer part, and whether it fits.
func (d decimal) int64() (int64, bool) {
	switch {
	case d.form != finite || d.exponent > 19 && !d.isZero():
		return 0, false
	case d.isZero() || d.exponent < -maxDigits:
		return 0, true
	}
	c := d.coefficient()
	if d.exponent >= 0 {
		c.Mul(c, powerOfTen(d.exponent))
	} else {
		c.Quo(c, powerOfTen(-d.exponent))
	}
	return c.Int64(), c.IsInt64()
}

func powerOfTen(n int) *big.Int {
	return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
}

// digits is how many digits a coefficient has, 0 for 0.
func digits(hi, lo uint64) int {
	n := 0
	for hi != 0 { // at most two rounds
		hi, lo = div128(hi, lo, 1e16)
		n += 16
	}
	for lo >= 10 {
		lo /= 10
		n++
	}
	if lo > 0 {
		n++
	}
	return n
}

func div128(hi, lo, by uint64) (qhi, qlo uint64) {
	qhi, r := hi/by, hi%by
	qlo, _ = bits.Div64(r, lo, by)
	return qhi, qlo
}

// rounded makes a decimal of any coefficient: to 34 digits, half to even, within the range
// of exponents (beyond it infinity, below it fewer digits or 0).
func rounded(c *big.Int, exponent int) decimal {
	d := decimal{negative: c.Sign() < 0}
	c = new(big.Int).Abs(c)
	drop := max(len(c.String())-maxDigits, 0)
	drop = max(drop, minExponent-exponent)
	if drop > 0 {
		c = quotientHalfEven(c, powerOfTen(drop))
		exponent += drop
		if len(c.String()) > maxDigits { // 99..9.5 became 100..0
			c.Quo(c, big.NewInt(10))
			exponent++
		}
	}
	if c.Sign() == 0 {
		d.exponent = min(exponent, maxExponent)
		return d
	}
	if exponent > maxExponent { // trailing zeros can still bring it into range
		spare := maxDigits - len(c.String())
		if exponent-maxExponent > spare {
			return decimal{form: infinite, negative: d.negative}
		}
		c.Mul(c, powerOfTen(exponent-maxExponent))
		exponent = maxExponent
	}
	d.exponent = exponent
	d.lo = new(big.Int).And(c, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
	d.hi = new(big.Int).Rsh(c, 64).Uint64()
	return d
}

// quotientHalfEven is c/by for positive numbers, rounded half to even.
func quotientHalfEven(c, by *big.Int) *big.Int {
	q, r := new(big.Int).QuoRem(c, by, new(big.Int))
	switch r.Lsh(r, 1).Cmp(by) {
	case 1:
		q.Add(q, big.NewInt(1))
	case 0:
		q.Add(q, big.NewInt(int64(q.Bit(0))))
	}
	return q
}
