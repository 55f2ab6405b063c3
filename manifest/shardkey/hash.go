package shardkey

import (
	"crypto/md5"
	"encoding/binary"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// AppendHashed appends the key bytes of a hashed field that holds v; the zero RawValue is a
// missing field and hashes as null. 9 bytes.
func AppendHashed(dst []byte, v bson.RawValue) []byte { return appendHash(dst, Hash(v)) }

func appendHash(dst []byte, hash int64) []byte {
	dst = append(dst, classNumber)
	return binary.BigEndian.AppendUint64(dst, uint64(hash)^signBit)
}

// Hash is MongoDB's hash of a value ($toHashedIndexKey): the first 8 bytes of the MD5 of a
// seed of 4 zero bytes and, per element, its type, its name unless it is the value itself,
// and its bytes; objects and arrays are followed by an element of type 0. Numbers are cut
// down to 64-bit integers first, so that equal numbers of different types hash alike.
//
// One difference: MongoDB rounds decimals and truncates doubles, so that the decimal 2.75
// hashes as 3 and the double as 2. Here both are truncated, since a query for one of two
// equal values must find the other.
func Hash(v bson.RawValue) int64 {
	var room [256]byte
	b := appendHashInput(append(room[:0], 0, 0, 0, 0), v)
	sum := md5.Sum(b)
	return int64(binary.LittleEndian.Uint64(sum[:8]))
}

// appendHashInput appends what MongoDB feeds to MD5 for a value.
func appendHashInput(dst []byte, v bson.RawValue) []byte {
	size, ok := sizeOf(v.Type, v.Value)
	if !ok { // missing
		return appendCanonicalType(dst, bson.TypeNull)
	}
	dst = appendCanonicalType(dst, v.Type)
	if !isNested(v.Type) {
		return appendHashScalar(dst, v.Type, v.Value[:size])
	}
	var room [8][]byte
	stack := room[:1]
	dst, stack[0] = enterHash(dst, v.Type, v.Value[:size])
	for len(stack) > 0 {
		e, ok := next(&stack[len(stack)-1])
		if !ok {
			dst = append(dst, 0, 0, 0, 0)
			stack = stack[:len(stack)-1]
			continue
		}
		dst = appendCanonicalType(dst, e.kind)
		dst = append(append(dst, e.name...), 0)
		if isNested(e.kind) {
			var inner []byte
			dst, inner = enterHash(dst, e.kind, e.value)
			stack = append(stack, inner)
			continue
		}
		dst = appendHashScalar(dst, e.kind, e.value)
	}
	return dst
}

func enterHash(dst []byte, kind bson.Type, value []byte) (_, elements []byte) {
	if kind == bson.TypeCodeWithScope {
		code, scope := codeAndScope(value)
		return append(append(dst, code...), 0), body(scope)
	}
	return dst, body(value)
}

func appendHashScalar(dst []byte, kind bson.Type, b []byte) []byte {
	if class(kind) == classNumber {
		return binary.LittleEndian.AppendUint64(dst, uint64(hashedInteger(kind, b)))
	}
	return append(dst, b...)
}

// hashedInteger is the integer that a number is hashed as.
func hashedInteger(kind bson.Type, b []byte) int64 {
	switch kind {
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	case bson.TypeInt64:
		return int64(binary.LittleEndian.Uint64(b))
	case bson.TypeDouble:
		return hashedDouble(math.Float64frombits(binary.LittleEndian.Uint64(b)))
	}
	d := readDecimal(b)
	switch {
	case d.kind == notANumber, d.kind == finite && d.coefficient.isZero():
		return 0
	case d.kind == finite:
		if f, isExact := d.floor(); isExact {
			return hashedDouble(f) // including what it does at 2^63
		}
	}
	return d.truncated()
}

// hashedDouble truncates and clamps; 2^63 itself becomes -2^63, as it has always done in
// MongoDB, whose stored indexes depend on it.
func hashedDouble(f float64) int64 {
	switch {
	case f != f:
		return 0
	case f == 1<<63, f < -1<<63:
		return math.MinInt64
	case f > 1<<63:
		return math.MaxInt64
	}
	return int64(f)
}

// appendCanonicalType appends MongoDB's number for the sort class of a type.
func appendCanonicalType(dst []byte, kind bson.Type) []byte {
	n := int32(0)
	switch class(kind) {
	case classMinKey:
		n = -1
	case classNull:
		n = 5
	case classNumber:
		n = 10
	case classString:
		n = 15
	case classObject:
		n = 20
	case classArray:
		n = 25
	case classBinary:
		n = 30
	case classObjectID:
		n = 35
	case classBool:
		n = 40
	case classDate:
		n = 45
	case classTimestamp:
		n = 47
	case classRegex:
		n = 50
	case classDBPointer:
		n = 55
	case classCode:
		n = 60
	case classCodeScope:
		n = 65
	case classMaxKey:
		n = 127
	}
	return binary.LittleEndian.AppendUint32(dst, uint32(n))
}
