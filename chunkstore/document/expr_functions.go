package document

import (
	"github.com/granarydb/granary/chunkstore/document/number"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// functions are the operators of expressions whose arguments are all evaluated first. A new
// one is a row here. (Operators with a form of their own are in specialForm.)
var functions = map[string]function{
	// comparison
	"$eq":  {2, 2, ordering(func(c int) bool { return c == 0 })},
	"$ne":  {2, 2, ordering(func(c int) bool { return c != 0 })},
	"$gt":  {2, 2, ordering(func(c int) bool { return c > 0 })},
	"$gte": {2, 2, ordering(func(c int) bool { return c >= 0 })},
	"$lt":  {2, 2, ordering(func(c int) bool { return c < 0 })},
	"$lte": {2, 2, ordering(func(c int) bool { return c <= 0 })},
	"$cmp": {2, 2, compareValues},
	"$not": {1, 1, not},

	// numbers
	"$add": {0, anyNumber, sum}, "$subtract": {2, 2, subtract}, "$multiply": {0, anyNumber, product},
	"$divide": {2, 2, divide}, "$mod": {2, 2, remainder},
	"$abs": {1, 1, absolute}, "$floor": {1, 1, rounding}, "$ceil": {1, 1, rounding},
	"$trunc": {1, 1, rounding}, "$round": {1, 1, rounding},

	// of many values, or of an array
	"$sum": {0, anyNumber, accumulate}, "$avg": {0, anyNumber, accumulate},
	"$min": {0, anyNumber, accumulate}, "$max": {0, anyNumber, accumulate},

	// strings
	"$concat": {0, anyNumber, concat}, "$toLower": {1, 1, changeCase}, "$toUpper": {1, 1, changeCase},
	"$strLenBytes": {1, 1, stringLength}, "$strLenCP": {1, 1, stringLength}, "$toString": {1, 1, toString},

	// arrays and documents
	"$size": {1, 1, arrayLength}, "$isArray": {1, 1, isArray}, "$arrayElemAt": {2, 2, arrayElementAt},
	"$first": {1, 1, endOfArray}, "$last": {1, 1, endOfArray},
	"$in": {2, 2, isIn}, "$concatArrays": {0, anyNumber, concatArrays},
	"$mergeObjects": {0, anyNumber, mergeObjects},

	// types
	"$type": {1, 1, typeOf}, "$isNumber": {1, 1, isNumber}, "$toHashedIndexKey": {1, 1, toHashedIndexKey},
}

// toHashedIndexKey is where a hashed shard key puts a value.
func toHashedIndexKey(_ *evaluation, _ string, args []bson.RawValue) (bson.RawValue, error) {
	return number.Int64(shardkey.Hash(args[0])).Value(), nil
}

func ordering(holds func(int) bool) func(*evaluation, string, []bson.RawValue) (bson.RawValue, error) {
	return func(e *evaluation, _ string, args []bson.RawValue) (bson.RawValue, error) {
		c, err := e.compare(args[0], args[1])
		return boolValue(holds(c)), err
	}
}

func compareValues(e *evaluation, _ string, args []bson.RawValue) (bson.RawValue, error) {
	c, err := e.compare(args[0], args[1])
	return e.int(int64(c)), err
}

// compare is Compare, with its steps counted: one for about an element of an array.
func (e *evaluation) compare(a, b bson.RawValue) (int, error) {
	const bytesPerStep = 8
	if err := e.step(1 + min(len(a.Value), len(b.Value))/bytesPerStep); err != nil {
		return 0, err
	}
	return Compare(a, b), nil
}

func not(_ *evaluation, _ string, args []bson.RawValue) (bson.RawValue, error) {
	return boolValue(!truth(args[0])), nil
}

func typeOf(e *evaluation, _ string, args []bson.RawValue) (bson.RawValue, error) {
	return e.text([]byte(typeName(args[0].Type)))
}

func isNumber(_ *evaluation, _ string, args []bson.RawValue) (bson.RawValue, error) {
	return boolValue(rank(args[0].Type) == rank(bson.TypeInt32)), nil
}

// accumulate gives an accumulator all arguments, or the elements of a single one.
func accumulate(_ *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	if len(args) == 1 && args[0].Type == bson.TypeArray {
		args = valuesOf(args[0].Value)
	}
	acc := accumulators[name]()
	for _, v := range args {
		if err := acc.add(v); err != nil {
			return missing, err
		}
	}
	return acc.result(), nil
}

func wrongType(code mongoerr.Code, format string, args ...any) (bson.RawValue, error) {
	return missing, mongoerr.New(code, format, args...)
}
