package document

import (
	"github.com/granarydb/granary/chunkstore/document/number"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// parseType parses $type: a type's number or name, or an array of them.
func parseType(path string, v bson.RawValue) (Node, error) {
	types := &typeSet{}
	if v.Type != bson.TypeArray {
		if err := types.add(v); err != nil {
			return Node{}, err
		}
		return Node{Op: Type, Path: path, Value: v, tester: types}, nil
	}
	if isEmpty(v.Value) {
		return Node{}, mongoerr.New(mongoerr.FailedToParse, "%s must match at least one type", path)
	}
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			return Node{Op: Type, Path: path, Value: v, tester: types}, nil
		}
		if err := types.add(e.value); err != nil {
			return Node{}, err
		}
	}
}

// typeSet tests whether a value is of one of some types.
type typeSet [256]bool

func (t *typeSet) test(v bson.RawValue) bool { return t[v.Type] }

func (t *typeSet) add(v bson.RawValue) error {
	if isText(v) {
		return t.addNamed(string(textOf(v)))
	}
	n, ok := number.Of(v)
	if !ok {
		return mongoerr.New(mongoerr.TypeMismatch, "type must be represented as a number or a string")
	}
	code, whole := n.Whole()
	kind := bson.Type(uint8(code)) // MinKey is -1
	if !whole || code < -1 || code > 127 || code == 0 || typeNames[kind] == "" {
		return badValue("Invalid numerical type code: %s", show(v))
	}
	t[kind] = true
	return nil
}

func (t *typeSet) addNamed(name string) error {
	if name == "number" {
		for _, kind := range []bson.Type{bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128} {
			t[kind] = true
		}
		return nil
	}
	for kind, known := range typeNames {
		if known == name && kind != 0 {
			t[kind] = true
			return nil
		}
	}
	return badValue("Unknown type name alias: %s", quotable([]byte(name)))
}
