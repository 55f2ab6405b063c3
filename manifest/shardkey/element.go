package shardkey

import (
	"bytes"
	"encoding/binary"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// element is one element of a document or array, its parts as they lie in the document.
type element struct {
	kind  bson.Type
	name  []byte
	value []byte
}

// body is the elements of a document or array without its length and its end; empty when
// the length does not fit.
func body(doc []byte) []byte {
	if len(doc) < 5 {
		return nil
	}
	n := binary.LittleEndian.Uint32(doc)
	if n < 5 || uint64(n) > uint64(len(doc)) {
		return nil
	}
	return doc[4 : n-1]
}

// next takes the first element off rest; false at the end, and when what follows is no
// element: rest is then not empty.
func next(rest *[]byte) (element, bool) {
	b := *rest
	if len(b) < 2 {
		return element{}, false
	}
	end := bytes.IndexByte(b[1:], 0)
	if end < 0 {
		return element{}, false
	}
	e := element{kind: bson.Type(b[0]), name: b[1 : 1+end]}
	b = b[2+end:]
	size, ok := sizeOf(e.kind, b)
	if !ok {
		return element{}, false
	}
	e.value, *rest = b[:size], b[size:]
	return e, true
}

// sizeOf is how many bytes of b a value of this type takes; false when b is too short or
// the type unknown.
func sizeOf(kind bson.Type, b []byte) (int, bool) {
	size := uint64(0)
	switch kind {
	case bson.TypeUndefined, bson.TypeNull, bson.TypeMinKey, bson.TypeMaxKey:
	case bson.TypeBoolean:
		size = 1
	case bson.TypeInt32:
		size = 4
	case bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp, bson.TypeInt64:
		size = 8
	case bson.TypeObjectID:
		size = 12
	case bson.TypeDecimal128:
		size = 16
	case bson.TypeRegex:
		pattern := bytes.IndexByte(b, 0)
		options := bytes.IndexByte(b[pattern+1:], 0)
		if pattern < 0 || options < 0 {
			return 0, false
		}
		return pattern + 1 + options + 1, true
	default:
		if len(b) < 4 {
			return 0, false
		}
		least, extra := uint64(1), uint64(4) // a string holds its 00; a length counts itself or not
		switch kind {
		case bson.TypeString, bson.TypeJavaScript, bson.TypeSymbol:
		case bson.TypeDBPointer:
			extra = 4 + 12
		case bson.TypeBinary:
			least, extra = 0, 4+1
		case bson.TypeEmbeddedDocument, bson.TypeArray:
			least, extra = 5, 0
		case bson.TypeCodeWithScope:
			least, extra = 14, 0
		default:
			return 0, false
		}
		n := uint64(binary.LittleEndian.Uint32(b))
		if n < least {
			return 0, false
		}
		size = n + extra
	}
	return int(size), size <= uint64(len(b))
}

// text is the bytes of a BSON string value without length and final 00; nil if it is none.
func text(b []byte) []byte {
	if len(b) < 5 {
		return nil
	}
	n := binary.LittleEndian.Uint32(b)
	if n < 1 || uint64(n)+4 > uint64(len(b)) {
		return nil
	}
	return b[4 : 4+n-1]
}

// codeAndScope takes a code-with-scope value apart; nil parts if it is none.
func codeAndScope(b []byte) (code, scope []byte) {
	if len(b) < 8 {
		return nil, nil
	}
	code = text(b[4:])
	return code, b[min(len(b), 4+4+len(code)+1):]
}

// found tells what lookup met at the end of a path.
type found int

const (
	foundValue   found = iota // and nothing at all: the zero RawValue is a missing field
	foundArray                // at the path or on the way to it
	foundGarbage              // no BSON
)

// lookup finds the value at a dotted path, through objects only.
func lookup(doc []byte, path string) (bson.RawValue, found) {
	for {
		name, deeper, more := strings.Cut(path, ".")
		e, ok, sane := child(doc, name)
		switch {
		case !sane:
			return bson.RawValue{}, foundGarbage
		case !ok:
			return bson.RawValue{}, foundValue
		case e.kind == bson.TypeArray:
			return bson.RawValue{Type: e.kind, Value: e.value}, foundArray
		case !more:
			return bson.RawValue{Type: e.kind, Value: e.value}, foundValue
		case e.kind != bson.TypeEmbeddedDocument:
			return bson.RawValue{}, foundValue
		}
		doc, path = e.value, deeper
	}
}

// child finds the element of doc with this name; sane is false when doc is no BSON up to
// where it would be.
func child(doc []byte, name string) (e element, ok, sane bool) {
	rest := body(doc)
	if rest == nil {
		return e, false, false
	}
	for {
		e, ok = next(&rest)
		switch {
		case !ok:
			return element{}, false, len(rest) == 0
		case string(e.name) == name:
			return e, true, true
		}
	}
}
