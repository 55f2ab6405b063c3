package command

import (
	"bytes"
	"math"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// elements are the values of an array or document.
func elements(v bson.RawValue) (list []bson.RawValue) {
	for rest := v.Value[4:]; ; {
		e, next, ok := bsoncore.ReadElement(rest)
		if !ok {
			return list
		}
		x := e.Value()
		list = append(list, bson.RawValue{Type: bson.Type(x.Type), Value: x.Data})
		rest = next
	}
}

func asInt(v bson.RawValue) (int64, bool) {
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64:
		return v.AsInt64OK()
	case bson.TypeDouble:
		f := v.Double()
		switch {
		case math.IsNaN(f):
			return 0, true
		case f >= math.MaxInt64:
			return math.MaxInt64, true
		case f <= math.MinInt64:
			return math.MinInt64, true
		}
		return int64(f), true
	case bson.TypeDecimal128:
		return decimalInt(v.Decimal128())
	}
	return 0, false
}

func decimalInt(d bson.Decimal128) (int64, bool) {
	n, exp, err := d.BigInt()
	if err != nil || exp > 18 {
		return 0, false
	}
	f, _ := n.Float64()
	return int64(f * math.Pow10(exp)), true
}

func asBool(v bson.RawValue) (bool, bool) {
	if b, ok := v.BooleanOK(); ok {
		return b, true
	}
	n, ok := v.AsFloat64OK()
	return n != 0, ok
}

func wrongType(command, name string, v bson.RawValue, want string) error {
	word := "type"
	if want[1] == '[' {
		word = "types"
	}
	return mongoerr.New(mongoerr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected %s %s", command, name, typeName(v.Type), word, want)
}

var typeNames = map[bson.Type]string{
	bson.TypeDouble: "double", bson.TypeString: "string", bson.TypeEmbeddedDocument: "object", bson.TypeArray: "array",
	bson.TypeBinary: "binData", bson.TypeUndefined: "undefined", bson.TypeObjectID: "objectId", bson.TypeBoolean: "bool",
	bson.TypeDateTime: "date", bson.TypeNull: "null", bson.TypeRegex: "regex", bson.TypeInt32: "int", bson.TypeTimestamp: "timestamp",
	bson.TypeInt64: "long", bson.TypeDecimal128: "decimal", bson.TypeMinKey: "minKey", bson.TypeMaxKey: "maxKey",
}

func typeName(t bson.Type) string {
	if n, ok := typeNames[t]; ok {
		return n
	}
	return "javascript"
}

func clone(d bson.Raw) bson.Raw { return bytes.Clone(d) }
