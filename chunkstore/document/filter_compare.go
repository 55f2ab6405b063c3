package document

import (
	"bytes"

	"github.com/granarydb/granary/chunkstore/document/number"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// parseEquality parses path: value, where a regular expression searches.
func parseEquality(path string, v bson.RawValue) (Node, error) {
	if v.Type == bson.TypeRegex {
		return parseRegex(path, v)
	}
	return newComparison(Eq, path, v)
}

// parseExplicitEquality parses $eq, where a regular expression is a value like others.
func parseExplicitEquality(path string, v bson.RawValue) (Node, error) {
	return newComparison(Eq, path, v)
}

func parseNotEqual(path string, v bson.RawValue) (Node, error) {
	if v.Type == bson.TypeRegex {
		return Node{}, badValue("Can't have regex as arg to $ne.")
	}
	return newComparison(Ne, path, v)
}

func comparisonParser(op Op) func(string, bson.RawValue) (Node, error) {
	return func(path string, v bson.RawValue) (Node, error) {
		if v.Type == bson.TypeRegex {
			return Node{}, badValue("Can't have RegEx as arg to predicate over field '%s'.", path)
		}
		return newComparison(op, path, v)
	}
}

func newComparison(op Op, path string, v bson.RawValue) (Node, error) {
	if v.Type == bson.TypeUndefined {
		return Node{}, badValue("cannot compare to undefined")
	}
	c := &comparison{op: op, value: v, rank: rank(v.Type)}
	if op == Ne {
		c.op = Eq
	}
	c.number, c.isNumber = number.Of(v)
	return Node{Op: op, Path: path, Value: v, tester: c}, nil
}

// comparison tests a value against a constant.
type comparison struct {
	op       Op // Eq, Gt, Gte, Lt, Lte
	value    bson.RawValue
	rank     int
	isNumber bool
	number   number.Number // value, if it is one
}

func (c *comparison) test(v bson.RawValue) bool {
	if v.Type != c.value.Type && rank(v.Type) != c.rank {
		return c.testAcross(v.Type)
	}
	switch {
	case c.op == Eq && v.Type == c.value.Type && bytewise(v.Type):
		return bytes.Equal(v.Value, c.value.Value)
	case c.isNumber:
		return c.testNumber(v)
	}
	return c.holds(Compare(v, c.value))
}

// testNumber compares numbers. NaN is equal to NaN and neither less nor greater than
// anything.
func (c *comparison) testNumber(v bson.RawValue) bool {
	n, _ := number.Of(v)
	order := number.Compare(n, c.number)
	return c.holds(order) && (order == 0 || !n.IsNaN() && !c.number.IsNaN())
}

func (c *comparison) holds(order int) bool {
	switch c.op {
	case Eq:
		return order == 0
	case Gt:
		return order > 0
	case Gte:
		return order >= 0
	case Lt:
		return order < 0
	}
	return order <= 0
}

// testAcross compares values of different classes of types: only null is equal to a missing
// field, and only MinKey and MaxKey are less and greater than values of other classes.
func (c *comparison) testAcross(t bson.Type) bool {
	switch c.value.Type {
	case bson.TypeNull:
		return t == 0 && (c.op == Eq || c.op == Gte || c.op == Lte)
	case bson.TypeMinKey:
		return c.op == Gt || c.op == Gte
	case bson.TypeMaxKey:
		return c.op == Lt || c.op == Lte
	}
	return false
}

// bytewise reports whether values of this type are equal only if their bytes are.
func bytewise(t bson.Type) bool {
	switch t {
	case bson.TypeString, bson.TypeObjectID, bson.TypeInt32, bson.TypeInt64, bson.TypeBoolean,
		bson.TypeDateTime, bson.TypeTimestamp, bson.TypeBinary, bson.TypeNull:
		return true
	}
	return false
}

func parseExists(path string, v bson.RawValue) (Node, error) {
	return Node{Op: Exists, Path: path, Value: boolValue(truth(v)), tester: exists{}}, nil
}

type exists struct{}

func (exists) test(v bson.RawValue) bool { return v.Type != 0 }

// truth is what MongoDB takes a value for where it wants a boolean: false, null, undefined,
// no value and all zeros are false.
func truth(v bson.RawValue) bool {
	switch v.Type {
	case 0, bson.TypeNull, bson.TypeUndefined:
		return false
	case bson.TypeBoolean:
		return v.Value[0] != 0
	}
	n, ok := number.Of(v)
	return !ok || !n.IsZero()
}
