package shardkey

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
	"strconv"
)

// decimal is a Decimal128 taken apart: (-1)^negative * coefficient * 10^exponent.
type decimal struct {
	kind        decimalKind
	negative    bool
	coefficient uint128
	exponent    int
}

type decimalKind uint8

const (
	finite decimalKind = iota
	infinite
	notANumber
)

const exponentBias = 6176

// uint128 holds coefficients: up to 34 decimal digits, 113 bits.
type uint128 struct{ hi, lo uint64 }

var (
	least34Digits = uint128{0x314DC6448D93, 0x38C15B0A00000000}  // 10^33
	above34Digits = uint128{0x1ED09BEAD87C0, 0x378D8E6400000000} // 10^34
)

func (u uint128) isZero() bool { return u.hi|u.lo == 0 }

func (u uint128) times10() uint128 {
	carry, lo := bits.Mul64(u.lo, 10)
	return uint128{u.hi*10 + carry, lo}
}

func (u uint128) div10() (quotient uint128, remainder uint64) {
	hi := u.hi / 10
	lo, remainder := bits.Div64(u.hi%10, u.lo, 10)
	return uint128{hi, lo}, remainder
}

// readDecimal reads the 16 bytes of a Decimal128 in the binary integer encoding. Forms that
// are not canonical, with a coefficient of more than 34 digits, count as zero by IEEE 754.
func readDecimal(b []byte) decimal {
	lo, hi := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	d := decimal{negative: hi&signBit != 0}
	switch {
	case hi>>58&0x1F == 0x1F:
		d.kind = notANumber
	case hi>>58&0x1F == 0x1E:
		d.kind = infinite
	case hi>>61&3 == 3: // the coefficient begins at 2^113: too large
	default:
		c := uint128{hi & (1<<49 - 1), lo}
		if c.hi < above34Digits.hi || c.hi == above34Digits.hi && c.lo < above34Digits.lo {
			d.coefficient = c
			d.exponent = int(hi>>49&0x3FFF) - exponentBias
		}
	}
	return d
}

// reduced is d without trailing zeros in its coefficient, which must not be zero.
func (d decimal) reduced() decimal {
	for {
		quotient, remainder := d.coefficient.div10()
		if remainder != 0 {
			return d
		}
		d.coefficient = quotient
		d.exponent++
	}
}

// floor is the largest double that is not above d, which is finite and not zero, and
// whether it equals d.
func (d decimal) floor() (f float64, isExact bool) {
	d = d.reduced()
	f, above := d.nearest()
	if d.negative {
		f, above = -f, -above
	}
	if above < 0 {
		f = math.Nextafter(f, math.Inf(-1))
	}
	return f, above == 0
}

// tens are the powers of ten that are doubles.
var tens = [...]float64{
	1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// nearest is a finite double next to the magnitude of d, and the sign of magnitude - f.
func (d decimal) nearest() (f float64, above int) {
	c := d.coefficient
	if c.hi == 0 && c.lo < 1<<53 && -len(tens) < d.exponent && d.exponent < len(tens) {
		// Both factors are doubles, so one rounded operation gives f and a fused
		// multiply-add the exact sign of what the rounding lost.
		n := float64(c.lo)
		if d.exponent >= 0 {
			f = n * tens[d.exponent]
			return f, sign(math.FMA(n, tens[d.exponent], -f))
		}
		f = n / tens[-d.exponent]
		return f, sign(math.FMA(-f, tens[-d.exponent], n))
	}
	if d.exponent > 400 { // far above every double
		return math.MaxFloat64, 1
	}
	if d.exponent < -400 { // 34 digits and still far below the smallest
		return 0, 1
	}
	integer := new(big.Int).SetUint64(c.hi)
	integer.Lsh(integer, 64).Or(integer, new(big.Int).SetUint64(c.lo))
	f, _ = strconv.ParseFloat(integer.String()+"e"+strconv.Itoa(d.exponent), 64)
	if f > math.MaxFloat64 {
		f = math.MaxFloat64
	}
	return f, compareScaled(integer, d.exponent, f)
}

func sign(f float64) int {
	switch {
	case f > 0:
		return 1
	case f < 0:
		return -1
	}
	return 0
}

// compareScaled compares c * 10^exponent with f >= 0, exactly.
func compareScaled(c *big.Int, exponent int, f float64) int {
	fraction, binaryExponent := math.Frexp(f)
	mantissa := big.NewInt(int64(fraction * (1 << 53)))
	binaryExponent -= 53
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exponent, -exponent))), nil)
	left, right := c, mantissa
	if exponent >= 0 {
		left = power.Mul(power, c)
	} else {
		right = power.Mul(power, mantissa)
	}
	if binaryExponent >= 0 {
		right = new(big.Int).Lsh(right, uint(binaryExponent))
	} else {
		left = new(big.Int).Lsh(left, uint(-binaryExponent))
	}
	return left.Cmp(right)
}

// truncated is the integer part of d, clamped to 64 bits.
func (d decimal) truncated() int64 {
	c := d.coefficient
	for e := d.exponent; e < 0 && !c.isZero(); e++ {
		c, _ = c.div10()
	}
	for e := d.exponent; e > 0 && c.hi == 0 && c.lo != 0; e-- {
		c = c.times10()
	}
	overflow := d.kind == infinite || c.hi != 0 || c.lo >= signBit
	switch {
	case overflow && d.negative:
		return math.MinInt64
	case overflow:
		return math.MaxInt64
	case d.negative:
		return -int64(c.lo)
	}
	return int64(c.lo)
}
