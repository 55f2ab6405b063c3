package shardkey

import (
	"bytes"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The class bytes, in MongoDB's order of types.
const (
	classMinKey    = 0x01
	classUndefined = 0x05
	classNull      = 0x0A
	classNumber    = 0x10
	classString    = 0x20
	classObject    = 0x28
	classArray     = 0x30
	classBinary    = 0x38
	classObjectID  = 0x40
	classBool      = 0x48
	classDate      = 0x50
	classTimestamp = 0x58
	classRegex     = 0x60
	classDBPointer = 0x68
	classCode      = 0x70
	classCodeScope = 0x78
	classMaxKey    = 0xF0
)

// Inside payloads. end closes an object, an array and a name: it sorts below every class
// and every character, so that the shorter of two comes first.
const (
	end        = 0x00
	escapedNUL = 0xFF // 00 FF is a 00 within a string
	stringEnd  = 0x01 // 00 01 ends a string: below any continuation
	exact      = 0x00 // a number that is a double
	inexact    = 0x01 // a number above that double and below the next
)

const signBit = 1 << 63

// class is the class byte of a type. The zero type is a missing field, which sorts as null.
func class(kind bson.Type) byte {
	switch kind {
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		return classNumber
	case bson.TypeString, bson.TypeSymbol:
		return classString
	case bson.TypeEmbeddedDocument:
		return classObject
	case bson.TypeArray:
		return classArray
	case bson.TypeBinary:
		return classBinary
	case bson.TypeObjectID:
		return classObjectID
	case bson.TypeBoolean:
		return classBool
	case bson.TypeDateTime:
		return classDate
	case bson.TypeTimestamp:
		return classTimestamp
	case bson.TypeRegex:
		return classRegex
	case bson.TypeDBPointer:
		return classDBPointer
	case bson.TypeJavaScript:
		return classCode
	case bson.TypeCodeWithScope:
		return classCodeScope
	case bson.TypeUndefined:
		return classUndefined
	case bson.TypeMinKey:
		return classMinKey
	case bson.TypeMaxKey:
		return classMaxKey
	}
	return classNull
}

// AppendValue appends the key bytes of any BSON value; the zero RawValue is a missing
// field. The bytes of descending values are inverted, so that they sort the other way.
// Objects and arrays of any depth take no recursion.
func AppendValue(dst []byte, v bson.RawValue, descending bool) []byte {
	start := len(dst)
	dst = append(dst, class(v.Type))
	switch size, ok := sizeOf(v.Type, v.Value); {
	case !ok:
		dst[start] = classNull // no value of its type: nothing to encode
	case isNested(v.Type):
		dst = appendNested(dst, v.Type, v.Value[:size])
	default:
		dst = appendScalar(dst, v.Type, v.Value[:size])
	}
	if descending {
		for i := start; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
	}
	return dst
}

func isNested(kind bson.Type) bool {
	return kind == bson.TypeEmbeddedDocument || kind == bson.TypeArray || kind == bson.TypeCodeWithScope
}

// open is an object or array whose elements are being appended.
type open struct {
	rest  []byte
	named bool // an object: names count; the elements of an array go without
}

// enter appends what stands before the elements of an object, array or code with scope.
func enter(dst []byte, kind bson.Type, value []byte) ([]byte, open) {
	if kind == bson.TypeCodeWithScope {
		code, scope := codeAndScope(value)
		return appendString(dst, code), open{rest: body(scope), named: true}
	}
	return dst, open{rest: body(value), named: kind == bson.TypeEmbeddedDocument}
}

// appendNested appends the payload of an object, array or code with scope. MongoDB compares
// objects element by element: type first, then name, then value.
func appendNested(dst []byte, kind bson.Type, value []byte) []byte {
	var room [8]open
	stack := room[:1]
	dst, stack[0] = enter(dst, kind, value)
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		e, ok := next(&top.rest)
		if !ok {
			dst = append(dst, end)
			stack = stack[:len(stack)-1]
			continue
		}
		dst = append(dst, class(e.kind))
		if top.named {
			dst = append(append(dst, e.name...), end)
		}
		if isNested(e.kind) {
			var inner open
			dst, inner = enter(dst, e.kind, e.value)
			stack = append(stack, inner)
			continue
		}
		dst = appendScalar(dst, e.kind, e.value)
	}
	return dst
}

// appendScalar appends the payload of a value that holds no other values.
func appendScalar(dst []byte, kind bson.Type, b []byte) []byte {
	switch kind {
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		return appendNumber(dst, kind, b)
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		return appendString(dst, text(b))
	case bson.TypeBoolean:
		if b[0] != 0 {
			return append(dst, 1)
		}
		return append(dst, 0)
	case bson.TypeDateTime:
		return binary.BigEndian.AppendUint64(dst, binary.LittleEndian.Uint64(b)^signBit)
	case bson.TypeTimestamp:
		return binary.BigEndian.AppendUint64(dst, binary.LittleEndian.Uint64(b))
	case bson.TypeBinary, bson.TypeDBPointer: // shorter first, then subtype and bytes, or name and id
		dst = binary.BigEndian.AppendUint32(dst, binary.LittleEndian.Uint32(b))
		return append(dst, b[4:]...)
	}
	return append(dst, b...) // ObjectId, regex: as they are. Null and the like: nothing
}

// appendString appends the bytes and an end that is below any continuation.
func appendString(dst, s []byte) []byte {
	for {
		i := bytes.IndexByte(s, 0)
		if i < 0 {
			return append(append(dst, s...), 0, stringEnd)
		}
		dst = append(append(dst, s[:i]...), 0, escapedNUL)
		s = s[i+1:]
	}
}
