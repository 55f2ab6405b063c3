package document

import (
	"slices"

	"github.com/granarydb/granary/chunkstore/document/number"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// accumulator makes one value of many. It keeps copies of what it needs.
type accumulator interface {
	add(v bson.RawValue) error
	result() bson.RawValue
	// held is how many bytes it keeps.
	held() int
}

// accumulators are those of $group. A new one is a row here.
var accumulators = map[string]func() accumulator{
	"$sum":      func() accumulator { return &sumOf{} },
	"$avg":      func() accumulator { return &sumOf{average: true} },
	"$count":    func() accumulator { return &sumOf{} }, // of a constant 1
	"$min":      func() accumulator { return &extremeValue{sign: -1} },
	"$max":      func() accumulator { return &extremeValue{sign: 1} },
	"$first":    func() accumulator { return &endValue{} },
	"$last":     func() accumulator { return &endValue{last: true} },
	"$push":     func() accumulator { return &list{} },
	"$addToSet": func() accumulator { return &list{seen: map[string]struct{}{}} },
}

// sumOf is $sum and $avg: integers are summed as such while a long holds them, doubles with
// the error that each step makes carried along, decimals as decimals. What is not a number
// does not count.
type sumOf struct {
	average  bool
	n        int64
	integers int64
	long     bool
	doubles  compensated
	double   bool
	decimals number.Number // the zero Number: none
}

// compensated is a sum of doubles that keeps what rounding lost (Neumaier's).
type compensated struct{ total, lost float64 }

func (c *compensated) add(f float64) {
	t := c.total + f
	if abs(c.total) >= abs(f) {
		c.lost += (c.total - t) + f
	} else {
		c.lost += (f - t) + c.total
	}
	c.total = t
}

func (c *compensated) value() float64 {
	if sum := c.total + c.lost; sum == sum {
		return sum
	}
	return c.total // an infinity, whose lost part is no number
}

func abs(f float64) float64 {
	if f < 0 {
		return -f
	}
	return f
}

func (s *sumOf) add(v bson.RawValue) error {
	n, ok := number.Of(v)
	if !ok {
		return nil
	}
	s.n++
	switch v.Type {
	case bson.TypeDecimal128:
		if s.decimals.Type() == 0 {
			s.decimals = n
		} else {
			s.decimals, _ = number.Add(s.decimals, n)
		}
	case bson.TypeDouble:
		s.double = true
		s.doubles.add(n.Float64())
	default:
		s.long = s.long || v.Type == bson.TypeInt64
		i, _ := n.Int64()
		sum, ok := number.Add(number.Int64(s.integers), number.Int64(i))
		if !ok { // no long holds it: what there is goes on as a double
			s.double = true
			s.doubles.add(float64(s.integers))
			sum = number.Int64(i)
		}
		s.integers, _ = sum.Int64()
	}
	return nil
}

func (s *sumOf) total() number.Number {
	total := number.Int64(s.integers)
	if !s.long {
		total = number.Int(s.integers)
	}
	if s.double {
		doubles := s.doubles
		doubles.add(float64(s.integers))
		total = number.Double(doubles.value())
	}
	if s.decimals.Type() != 0 {
		total, _ = number.Add(s.decimals, total)
	}
	return total
}

func (s *sumOf) result() bson.RawValue {
	switch {
	case !s.average:
		return s.total().Value()
	case s.n == 0:
		return null
	}
	return number.Divide(s.total(), number.Int64(s.n)).Value()
}

func (s *sumOf) held() int { return 0 }

// extremeValue is $min and $max, of what is not null or missing.
type extremeValue struct {
	sign int
	v    bson.RawValue
}

func (x *extremeValue) add(v bson.RawValue) error {
	if !isNullish(v) && (x.v.Type == 0 || Compare(v, x.v)*x.sign > 0) {
		keepCopy(&x.v, v)
	}
	return nil
}

func (x *extremeValue) result() bson.RawValue { return orNull(x.v) }

func (x *extremeValue) held() int { return cap(x.v.Value) }

// keepCopy makes *to a copy of v, in the same memory if that is large enough.
func keepCopy(to *bson.RawValue, v bson.RawValue) {
	to.Type, to.Value = v.Type, append(to.Value[:0], v.Value...)
}

func orNull(v bson.RawValue) bson.RawValue {
	if v.Type == 0 {
		return null
	}
	return v
}

// endValue is $first and $last; a missing value is null.
type endValue struct {
	last bool
	any  bool
	v    bson.RawValue
}

func (x *endValue) add(v bson.RawValue) error {
	if x.last || !x.any {
		keepCopy(&x.v, v)
	}
	x.any = true
	return nil
}

func (x *endValue) result() bson.RawValue { return orNull(x.v) }

func (x *endValue) held() int { return cap(x.v.Value) }

// list is $push, and with seen $addToSet, whose values come in the order in which they were
// first met. Missing values do not count.
type list struct {
	values []bson.RawValue
	seen   map[string]struct{}
	key    []byte
	bytes  int
}

func (l *list) add(v bson.RawValue) error {
	if v.Type == 0 {
		return nil
	}
	if l.seen != nil {
		l.key = shardkey.AppendValue(l.key[:0], v, false) // the same for equal values
		if _, ok := l.seen[string(l.key)]; ok {
			return nil
		}
		l.seen[string(l.key)] = struct{}{}
		l.bytes += len(l.key) + 32
	}
	l.values = append(l.values, bson.RawValue{Type: v.Type, Value: slices.Clone(v.Value)})
	l.bytes += len(v.Value) + 48
	return nil
}

func (l *list) result() bson.RawValue {
	return bson.RawValue{Type: bson.TypeArray, Value: appendArray(nil, l.values)}
}

func (l *list) held() int { return l.bytes }
