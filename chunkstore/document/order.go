package document

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"github.com/granarydb/granary/chunkstore/document/number"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// rank orders the types as MongoDB does. Types of one rank compare by value.
func rank(t bson.Type) int {
	switch t {
	case bson.TypeMinKey:
		return -1
	case bson.TypeNull:
		return 5
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		return 10
	case bson.TypeString, bson.TypeSymbol:
		return 15
	case bson.TypeEmbeddedDocument:
		return 20
	case bson.TypeArray:
		return 25
	case bson.TypeBinary:
		return 30
	case bson.TypeObjectID:
		return 35
	case bson.TypeBoolean:
		return 40
	case bson.TypeDateTime:
		return 45
	case bson.TypeTimestamp:
		return 47
	case bson.TypeRegex:
		return 50
	case bson.TypeDBPointer:
		return 55
	case bson.TypeJavaScript:
		return 60
	case bson.TypeCodeWithScope:
		return 65
	case bson.TypeMaxKey:
		return 127
	}
	return 0 // undefined, and no value at all
}

// Compare is MongoDB's total order of values, negative, 0 or positive:
//
//	MinKey, undefined and no value, null, numbers, strings and symbols, documents, arrays,
//	binary data, ObjectId, booleans, dates, timestamps, regular expressions, DBPointer,
//	code, code with scope, MaxKey
//
// Numbers compare by value across their types, exactly; NaN is the lowest of them. Strings
// compare by their bytes. Documents compare element by element, each by type, then name,
// then value; arrays too, without names. Binary data orders by length, subtype, bytes.
// The order is that of the row keys of package shardkey, except that a missing key field
// counts as null there.
func Compare(a, b bson.RawValue) int {
	if a.Type != b.Type {
		if c := cmp.Compare(rank(a.Type), rank(b.Type)); c != 0 {
			return c
		}
	}
	switch a.Type {
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		x, _ := number.Of(a)
		y, _ := number.Of(b)
		return number.Compare(x, y)
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		return bytes.Compare(textOf(a), textOf(b))
	case bson.TypeEmbeddedDocument:
		return CompareDocs(a.Value, b.Value)
	case bson.TypeArray:
		return compareElements(a.Value, b.Value, false)
	case bson.TypeDateTime:
		return cmp.Compare(int64(binary.LittleEndian.Uint64(a.Value)), int64(binary.LittleEndian.Uint64(b.Value)))
	case bson.TypeTimestamp:
		return cmp.Compare(binary.LittleEndian.Uint64(a.Value), binary.LittleEndian.Uint64(b.Value))
	case bson.TypeBinary, bson.TypeDBPointer: // the length is in front
		x, y := binary.LittleEndian.Uint32(a.Value), binary.LittleEndian.Uint32(b.Value)
		if c := cmp.Compare(x, y); c != 0 {
			return c
		}
	case bson.TypeCodeWithScope:
		return compareCodeWithScope(a.Value, b.Value)
	}
	// The rest: of one length, or (a regular expression) ended by 00, or empty.
	return bytes.Compare(a.Value, b.Value)
}

// CompareDocs is Compare of two documents.
func CompareDocs(a, b bson.Raw) int { return compareElements(a, b, true) }

// compareElements recurses as deep as the documents are nested.
func compareElements(a, b []byte, named bool) int {
	left, right := walkOf(a), walkOf(b)
	for {
		x, more := left.next()
		y, also := right.next()
		if !more || !also {
			return boolRank(more) - boolRank(also)
		}
		if c := cmp.Compare(rank(x.value.Type), rank(y.value.Type)); c != 0 {
			return c
		}
		if named {
			if c := bytes.Compare(x.name, y.name); c != 0 {
				return c
			}
		}
		if c := Compare(x.value, y.value); c != 0 {
			return c
		}
	}
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// compareCodeWithScope: int32 length, the code as a string, the scope.
func compareCodeWithScope(a, b []byte) int {
	split := func(v []byte) (code, scope []byte) {
		n := 8 + int(binary.LittleEndian.Uint32(v[4:]))
		return v[8 : n-1], v[n:]
	}
	codeA, scopeA := split(a)
	codeB, scopeB := split(b)
	if c := bytes.Compare(codeA, codeB); c != 0 {
		return c
	}
	return CompareDocs(scopeA, scopeB)
}

// equal is Compare == 0, quicker for values of the same bytes.
func equal(a, b bson.RawValue) bool {
	if a.Type == b.Type && bytes.Equal(a.Value, b.Value) {
		return true
	}
	return Compare(a, b) == 0
}
