package document

import (
	"encoding/binary"

	"github.com/granarydb/granary/chunkstore/document/number"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// int is an int or long value.
func (e *evaluation) int(i int64) bson.RawValue { return e.number(number.Int(i)) }

func wholeNumber(v bson.RawValue) (int64, bool) {
	n, ok := number.Of(v)
	if !ok {
		return 0, false
	}
	return n.Whole()
}

// orDouble is the result of an operation of longs, or when no long holds it that of the
// same operation on doubles.
func orDouble(a, b number.Number, do func(a, b number.Number) (number.Number, bool)) number.Number {
	if n, ok := do(a, b); ok {
		return n
	}
	n, _ := do(number.Double(a.Float64()), number.Double(b.Float64()))
	return n
}

func millisOf(v bson.RawValue) int64 { return int64(binary.LittleEndian.Uint64(v.Value)) }

// sum is $add: numbers, and at most one date, to which they count as milliseconds.
func sum(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	total, date := number.Int32(0), false
	for _, v := range args {
		n, ok := number.Of(v)
		switch {
		case isNullish(v):
			return null, nil
		case v.Type == bson.TypeDateTime && date:
			return wrongType(16612, "only one date allowed in an $add expression")
		case v.Type == bson.TypeDateTime:
			n, date = number.Int64(millisOf(v)), true
		case !ok:
			return wrongType(mongoerr.TypeMismatch, "%s only supports numeric or date types, not %s", name, typeName(v.Type))
		}
		total = orDouble(total, n, number.Add)
	}
	if !date {
		return e.number(total), nil
	}
	return toDate(total)
}

func toDate(n number.Number) (bson.RawValue, error) {
	millis, ok := n.Int64()
	if !ok {
		return missing, mongoerr.New(mongoerr.Overflow, "date overflow in an arithmetic expression")
	}
	return dateValue(millis), nil
}

func subtract(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	a, b := args[0], args[1]
	x, isNumber := number.Of(a)
	y, also := number.Of(b)
	switch {
	case isNullish(a) || isNullish(b):
		return null, nil
	case isNumber && also:
		return e.number(orDouble(x, y, number.Subtract)), nil
	case a.Type == bson.TypeDateTime && b.Type == bson.TypeDateTime:
		return e.number(orDouble(number.Int64(millisOf(a)), number.Int64(millisOf(b)), number.Subtract)), nil
	case a.Type == bson.TypeDateTime && also:
		return toDate(orDouble(number.Int64(millisOf(a)), y, number.Subtract))
	}
	return wrongType(mongoerr.TypeMismatch, "can't %s %s from %s", name, typeName(b.Type), typeName(a.Type))
}

func product(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	total := number.Int32(1)
	for _, v := range args {
		n, ok := number.Of(v)
		switch {
		case isNullish(v):
			return null, nil
		case !ok:
			return wrongType(mongoerr.TypeMismatch, "%s only supports numeric types, not %s", name, typeName(v.Type))
		}
		total = orDouble(total, n, number.Multiply)
	}
	return e.number(total), nil
}

// twoNumbers reads the operands of $divide and $mod; null is true when one is null.
func twoNumbers(name string, args []bson.RawValue, zero mongoerr.Code) (x, y number.Number, null bool, err error) {
	if isNullish(args[0]) || isNullish(args[1]) {
		return x, y, true, nil
	}
	x, ok := number.Of(args[0])
	y, also := number.Of(args[1])
	switch {
	case !ok || !also:
		return x, y, false, mongoerr.New(mongoerr.TypeMismatch, "%s only supports numeric types, not %s and %s",
			name, typeName(args[0].Type), typeName(args[1].Type))
	case y.IsZero():
		return x, y, false, mongoerr.New(zero, "can't %s by zero", name)
	}
	return x, y, false, nil
}

func divide(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	x, y, isNull, err := twoNumbers(name, args, mongoerr.BadValue)
	if err != nil || isNull {
		return null, err
	}
	return e.number(number.Divide(x, y)), nil
}

func remainder(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	x, y, isNull, err := twoNumbers(name, args, 16610)
	if err != nil || isNull {
		return null, err
	}
	return e.number(number.Remainder(x, y)), nil
}

func absolute(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	n, ok := number.Of(args[0])
	switch {
	case isNullish(args[0]):
		return null, nil
	case !ok:
		return wrongType(28765, "%s only supports numeric types, not %s", name, typeName(args[0].Type))
	}
	positive, ok := number.Abs(n)
	if !ok {
		return wrongType(28680, "can't take $abs of long long min")
	}
	return e.number(positive), nil
}

// rounding is $floor, $ceil, $trunc and $round to whole numbers.
func rounding(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	n, ok := number.Of(args[0])
	switch {
	case isNullish(args[0]):
		return null, nil
	case !ok:
		return wrongType(28765, "%s only supports numeric types, not %s", name, typeName(args[0].Type))
	}
	return e.number(number.Round(n, map[string]number.Rounding{
		"$floor": number.Down, "$ceil": number.Up, "$trunc": number.TowardZero, "$round": number.HalfEven,
	}[name])), nil
}
