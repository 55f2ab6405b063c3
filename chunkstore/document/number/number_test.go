package number

import (
	"cmp"
	"math"
	"math/big"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func dec(t testing.TB, s string) Number {
	t.Helper()
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		t.Fatal(s, err)
	}
	hi, lo := d.GetBytes()
	return Number{kind: bson.TypeDecimal128, hi: hi, lo: lo}
}

func text(n Number) string {
	switch n.Type() {
	case bson.TypeDecimal128:
		return bson.NewDecimal128(n.hi, n.lo).String()
	case bson.TypeDouble:
		return big.NewFloat(n.double()).Text('g', 17) + "d"
	case bson.TypeInt64:
		return big.NewInt(n.integer()).String() + "L"
	}
	return big.NewInt(n.integer()).String()
}

func TestNumbersGoThroughBytes(t *testing.T) {
	t.Parallel()
	for _, n := range []Number{Int32(-5), Int64(1 << 40), Double(-0.5), dec(t, "-1.50E-7"), dec(t, "9999999999999999999999999999999999")} {
		back, ok := Of(n.Value())
		if !ok || back != n || n.Type() == 0 {
			t.Errorf("%s came back as %s", text(n), text(back))
		}
	}
	if n, ok := Of(bson.RawValue{Type: bson.TypeString}); ok || n.Type() != 0 || len(n.Append(nil)) > 0 {
		t.Error("a string is no number")
	}
	if Int(1<<31-1).Type() != bson.TypeInt32 || Int(1<<31).Type() != bson.TypeInt64 {
		t.Error("Int does not take the smallest type")
	}
}

func TestNumbersConvert(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n     Number
		i     int64
		fits  bool
		whole bool
		f     float64
	}{
		{Int32(-5), -5, true, true, -5},
		{Int64(math.MaxInt64), math.MaxInt64, true, true, 1 << 63},
		{Double(2.9), 2, true, false, 2.9},
		{Double(1 << 63), 0, false, false, 1 << 63},
		{Double(-1 << 63), math.MinInt64, true, true, -1 << 63},
		{Double(math.Inf(1)), 0, false, false, math.Inf(1)},
		{dec(t, "-2.9"), -2, true, false, -2.9},
		{dec(t, "3E+2"), 300, true, true, 300},
		{dec(t, "9223372036854775808"), -1 << 63, false, false, 1 << 63},
		{dec(t, "1E+50"), 0, false, false, 1e50},
		{dec(t, "1E-50"), 0, true, false, 1e-50},
		{dec(t, "0E+6000"), 0, true, true, 0},
		{dec(t, "Infinity"), 0, false, false, math.Inf(1)},
		{dec(t, "-Infinity"), 0, false, false, math.Inf(-1)},
		{dec(t, "1E+6000"), 0, false, false, math.Inf(1)},
	} {
		i, fits := c.n.Int64()
		w, whole := c.n.Whole()
		if fits != c.fits || fits && (i != c.i || w != c.i) || whole != c.whole || c.n.Float64() != c.f {
			t.Errorf("%s: %d %v, whole %v, %g", text(c.n), i, fits, whole, c.n.Float64())
		}
		if c.n.IsZero() != (c.f == 0) || c.n.IsNaN() {
			t.Errorf("%s: zero or NaN", text(c.n))
		}
	}
	if !Double(math.NaN()).IsNaN() || !dec(t, "NaN").IsNaN() || !math.IsNaN(dec(t, "NaN").Float64()) {
		t.Error("NaN is not NaN")
	}
	// The other form of a coefficient is always beyond 34 digits, and counts as 0; so does
	// one that is just too large.
	for _, hi := range []uint64{3<<61 | 5, 12<<49<<8 | maxCoefficientHi + 1} {
		if n := (Number{kind: bson.TypeDecimal128, hi: hi}); Compare(n, Int32(0)) != 0 {
			t.Errorf("%x is not 0", hi)
		}
	}
}

// TestArithmetic lists operations with exact results; "no" is an overflow.
func TestArithmetic(t *testing.T) {
	t.Parallel()
	always := func(do func(a, b Number) Number) func(a, b Number) (Number, bool) {
		return func(a, b Number) (Number, bool) { return do(a, b), true }
	}
	operations := map[string]func(a, b Number) (Number, bool){
		"+": Add, "-": Subtract, "*": Multiply, "/": always(Divide), "%": always(Remainder),
	}
	maxLong, minLong := Int64(math.MaxInt64), Int64(math.MinInt64)
	d := func(s string) Number { return dec(t, s) }
	for _, c := range []struct {
		a    Number
		op   string
		b    Number
		want string
	}{
		{Int32(1), "+", Int32(2), "3"}, {Int32(math.MaxInt32), "+", Int32(1), "2147483648L"}, {Int32(1), "+", Int64(2), "3L"},
		{maxLong, "+", Int32(1), "no"}, {minLong, "+", Int32(-1), "no"}, {minLong, "+", maxLong, "-1L"}, {Int32(1), "+", Double(0.5), "1.5d"},
		{minLong, "-", Int32(1), "no"}, {Int32(0), "-", minLong, "no"}, {maxLong, "-", Int32(-1), "no"}, {Int32(3), "-", Int32(5), "-2"}, {Double(1), "-", Int32(2), "-1d"}, {d("1.5"), "-", Int32(2), "-0.5"},
		{Int32(math.MinInt32), "*", Int32(-1), "2147483648L"}, {Int64(1 << 32), "*", Int64(1 << 31), "no"}, {Int64(1 << 32), "*", Int64(-1 << 31), "-9223372036854775808L"}, {minLong, "*", Int32(-1), "no"}, {maxLong, "*", maxLong, "no"}, {Double(2), "*", Int64(3), "6d"},
		{d("0.1"), "+", d("0.20"), "0.30"}, {d("1"), "+", Double(0.1), "1.100000000000000"}, {d("1"), "+", maxLong, "9223372036854775808"},
		{d("1E+200"), "+", d("1"), "1.000000000000000000000000000000000E+200"}, {d("1E+200"), "-", d("1E-200"), "1.000000000000000000000000000000000E+200"},
		{d("9999999999999999999999999999999999"), "+", d("1"), "1.000000000000000000000000000000000E+34"},
		{d("9999999999999999999999999999999999E+6111"), "+", d("9999999999999999999999999999999999E+6111"), "Infinity"},
		{d("1E-6176"), "/", d("10"), "0E-6176"}, {d("15E-6176"), "*", d("0.1"), "2E-6176"}, {d("1E+6111"), "*", d("10"), "1.0E+6112"}, {d("1E+6111"), "*", d("1E+10"), "1.0000000000E+6121"},
		{d("0"), "*", d("-5"), "-0"}, {d("Infinity"), "+", d("-Infinity"), "NaN"}, {d("Infinity"), "-", d("1"), "Infinity"}, {d("1"), "+", d("Infinity"), "Infinity"}, {d("NaN"), "+", d("1"), "NaN"},
		{d("Infinity"), "*", d("0"), "NaN"}, {d("0"), "*", d("Infinity"), "NaN"}, {d("Infinity"), "*", d("-2"), "-Infinity"}, {d("-1"), "+", d("1"), "0"}, {d("-0"), "+", d("-0"), "-0"},
		{d("1"), "/", d("3"), "0.3333333333333333333333333333333333"}, {d("2"), "/", d("3"), "0.6666666666666666666666666666666667"}, {d("10"), "/", d("4"), "2.5"}, {d("1.00"), "/", d("2"), "0.50"}, {Int32(6), "/", d("2"), "3"},
		{d("1"), "/", d("0"), "Infinity"}, {d("0"), "/", d("0"), "NaN"}, {d("Infinity"), "/", d("Infinity"), "NaN"}, {d("Infinity"), "/", d("-1"), "-Infinity"}, {d("-1"), "/", d("Infinity"), "-0E-6176"}, {Int32(7), "/", Int32(2), "3.5d"},
		{Int32(7), "%", Int32(-3), "1"}, {Int32(-7), "%", Int64(3), "-1L"}, {minLong, "%", Int32(-1), "0L"}, {Double(7.5), "%", Int32(2), "1.5d"}, {d("7.5"), "%", Int32(2), "1.5"}, {d("-7.5"), "%", d("2"), "-1.5"},
		{d("Infinity"), "%", d("2"), "NaN"}, {d("5"), "%", d("Infinity"), "5"}, {d("5"), "%", d("0"), "NaN"}, {d("1E+6000"), "%", d("7E-6000"), "1E-6000"},
	} {
		got, ok := operations[c.op](c.a, c.b)
		if !ok && c.want == "no" {
			continue
		}
		if text(got) != c.want {
			t.Errorf("%s %s %s = %s, want %s", text(c.a), c.op, text(c.b), text(got), c.want)
		}
	}
}

func TestRoundingToWholeNumbers(t *testing.T) {
	t.Parallel()
	for s, want := range map[string][4]string{
		"1.5": {"1", "2", "1", "2"}, "-1.5": {"-2", "-1", "-1", "-2"}, "2.5": {"2", "3", "2", "2"}, "7": {"7", "7", "7", "7"},
		"1E-60": {"0", "1", "0", "0"}, "-1E-60": {"-1", "-0", "-0", "-0"}, "1E+5": {"1E+5", "1E+5", "1E+5", "1E+5"}, "Infinity": {"Infinity", "Infinity", "Infinity", "Infinity"},
	} {
		for r, want := range want {
			if got := text(Round(dec(t, s), Rounding(r))); got != want {
				t.Errorf("%s by way %d: %s, want %s", s, r, got, want)
			}
		}
	}
	if Round(Double(-1.5), Down) != Double(-2) || Round(Int32(3), Up) != Int32(3) {
		t.Error("doubles and integers")
	}
	if n, ok := Abs(Int32(math.MinInt32)); !ok || n != Int64(1<<31) {
		t.Error("least int")
	}
	if _, ok := Abs(Int64(math.MinInt64)); ok {
		t.Error("least long")
	}
	if n, _ := Abs(dec(t, "-2.50")); text(n) != "2.50" {
		t.Error(text(n))
	}
	if n, _ := Abs(Double(-2)); n != Double(2) {
		t.Error(text(n))
	}
}

// numbers draws finite numbers of all types, near one another often.
func numbers(t *rapid.T, name string) Number {
	small := []float64{0, 0.1, -0.1, 0.5, 1, -1, 1 << 53, 1<<53 + 2, 1 << 63, -1 << 63, 5e-324, 1e308}
	switch rapid.IntRange(0, 5).Draw(t, name+" type") {
	case 0:
		return Int32(rapid.Int32Range(-3, 3).Draw(t, name))
	case 1:
		return Int64(rapid.SampledFrom([]int64{0, 1, 1<<53 + 1, math.MaxInt64, math.MinInt64}).Draw(t, name))
	case 2:
		return Double(rapid.SampledFrom(small).Draw(t, name))
	case 3:
		return Double(rapid.Float64Range(-1e10, 1e10).Draw(t, name))
	case 4: // the decimal nearest to a double
		f := rapid.SampledFrom(small).Draw(t, name)
		return dec2(t, new(big.Float).SetFloat64(f).Text('e', 33))
	}
	return dec2(t, rapid.StringMatching(`-?[0-9]{1,33}(E-?[0-9]{1,2})?`).Draw(t, name))
}

func dec2(t *rapid.T, s string) Number {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		t.Skip() // a drawn text that is no decimal: rapid draws another
	}
	hi, lo := d.GetBytes()
	return Number{kind: bson.TypeDecimal128, hi: hi, lo: lo}
}

// exactly is the number as a fraction.
func exactly(n Number) *big.Rat {
	switch n.Type() {
	case bson.TypeDouble:
		return new(big.Rat).SetFloat64(n.double())
	case bson.TypeDecimal128:
		r, _ := new(big.Rat).SetString(bson.NewDecimal128(n.hi, n.lo).String())
		return r
	}
	return new(big.Rat).SetInt64(n.integer())
}

func TestCompareIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := numbers(t, "a"), numbers(t, "b")
		if got, want := Compare(a, b), exactly(a).Cmp(exactly(b)); got != want {
			t.Fatalf("Compare(%s, %s) = %d, want %d", text(a), text(b), got, want)
		}
	})
	special := []Number{Double(math.NaN()), Double(math.Inf(-1)), Int64(math.MinInt64), Int32(0), Double(1), Double(math.Inf(1))}
	same := []Number{dec(t, "NaN"), dec(t, "-Infinity"), dec(t, "-9223372036854775808"), dec(t, "-0E+3"), dec(t, "1.00"), dec(t, "Infinity")}
	for i, a := range slices.Concat(special, same) {
		for j, b := range slices.Concat(special, same) {
			if got, want := Compare(a, b), cmp.Compare(i%len(same), j%len(same)); got != want {
				t.Errorf("Compare(%s, %s) = %d, want %d", text(a), text(b), got, want)
			}
		}
	}
}

// TestDecimalArithmeticIsRight compares with fractions, to 34 digits.
func TestDecimalArithmeticIsRight(t *testing.T) {
	t.Parallel()
	tolerance := new(big.Rat).SetFrac(big.NewInt(1), powerOfTen(33))
	rapid.Check(t, func(t *rapid.T) {
		a := dec2(t, rapid.StringMatching(`-?[0-9]{1,33}(E-?[0-9]{1,2})?`).Draw(t, "a"))
		b := dec2(t, rapid.StringMatching(`-?[0-9]{1,33}(E-?[0-9]{1,2})?`).Draw(t, "b"))
		x, y := exactly(a), exactly(b)
		check := func(name string, got Number, want *big.Rat) {
			difference := new(big.Rat).Sub(exactly(got), want)
			if difference.Abs(difference).Cmp(new(big.Rat).Mul(new(big.Rat).Abs(want), tolerance)) > 0 {
				t.Fatalf("%s %s %s = %s", text(a), name, text(b), text(got))
			}
		}
		sum, _ := Add(a, b)
		check("+", sum, new(big.Rat).Add(x, y))
		difference, _ := Subtract(a, b)
		check("-", difference, new(big.Rat).Sub(x, y))
		product, _ := Multiply(a, b)
		check("*", product, new(big.Rat).Mul(x, y))
		if y.Sign() != 0 {
			check("/", Divide(a, b), new(big.Rat).Quo(x, y))
		}
	})
}
