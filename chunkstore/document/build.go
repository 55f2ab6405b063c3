package document

import (
	"encoding/binary"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// begin starts a document or array at the end of dst; finish needs the offset it returns.
func begin(dst []byte) (out []byte, at int) { return append(dst, 0, 0, 0, 0), len(dst) }

// finish ends what begin started at this offset.
func finish(dst []byte, at int) []byte {
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at))
	return dst
}

// appendHeader appends an element's type and name; its value comes next.
func appendHeader[S string | []byte](dst []byte, kind bson.Type, name S) []byte {
	dst = append(dst, byte(kind))
	dst = append(dst, name...)
	return append(dst, 0)
}

// appendElement appends an element.
func appendElement[S string | []byte](dst []byte, name S, v bson.RawValue) []byte {
	return append(appendHeader(dst, v.Type, name), v.Value...)
}

// appendIndexHeader is appendHeader for element i of an array.
func appendIndexHeader(dst []byte, kind bson.Type, i int) []byte {
	dst = append(dst, byte(kind))
	dst = strconv.AppendInt(dst, int64(i), 10)
	return append(dst, 0)
}

// appendArray appends the bytes of an array of these values.
func appendArray(dst []byte, values []bson.RawValue) []byte {
	dst, at := begin(dst)
	for i, v := range values {
		dst = append(appendIndexHeader(dst, v.Type, i), v.Value...)
	}
	return finish(dst, at)
}

// The values that need no bytes of their own, and those that are made most.
var (
	null      = bson.RawValue{Type: bson.TypeNull}
	undefined = bson.RawValue{Type: bson.TypeUndefined}
	missing   = bson.RawValue{}
	trueValue = bson.RawValue{Type: bson.TypeBoolean, Value: []byte{1}}
	falseVal  = bson.RawValue{Type: bson.TypeBoolean, Value: []byte{0}}
)

func boolValue(b bool) bson.RawValue {
	if b {
		return trueValue
	}
	return falseVal
}

func stringValue(s string) bson.RawValue {
	return bson.RawValue{Type: bson.TypeString, Value: appendString(nil, s)}
}

// appendString appends the bytes of a string value.
func appendString[S string | []byte](dst []byte, s S) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(s)+1))
	return append(append(dst, s...), 0)
}

func dateValue(millis int64) bson.RawValue {
	return bson.RawValue{
		Type:  bson.TypeDateTime,
		Value: binary.LittleEndian.AppendUint64(nil, uint64(millis)),
	}
}

// documentValue is doc as a value.
func documentValue(doc []byte) bson.RawValue {
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc}
}
