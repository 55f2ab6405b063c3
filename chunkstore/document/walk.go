package document

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// element is one element of a document or array, as it lies in its bytes.
type element struct {
	name  []byte
	value bson.RawValue
	start int // offset of the type byte
	end   int // offset after the value
}

// walk goes through the elements of a validated document or array.
type walk struct {
	doc []byte
	pos int
}

func walkOf(doc []byte) walk { return walk{doc: doc, pos: 4} }

func (w *walk) next() (element, bool) {
	doc, start := w.doc, w.pos
	kind := doc[start]
	if kind == 0 {
		return element{}, false
	}
	end, _ := scanName(doc, start+1)
	value := end + 1
	w.pos = value + valueLength(kind, doc, value)
	return element{
		name:  doc[start+1 : end],
		value: bson.RawValue{Type: bson.Type(kind), Value: doc[value:w.pos:w.pos]},
		start: start,
		end:   w.pos,
	}, true
}

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// scanName finds the 00 that ends the name at from. Names are short: word is the name itself
// if it has less than eight bytes, the first one lowest, else its first eight bytes.
// Looking at eight bytes at once is quicker than the search of the standard library.
func scanName(doc []byte, from int) (end int, word uint64) {
	if from+8 <= len(doc) {
		word = binary.LittleEndian.Uint64(doc[from:])
		zero := (word - lowBits) & ^word & highBits
		if zero != 0 { // its lowest 80 marks the first 00
			return from + bits.TrailingZeros64(zero)>>3, word & (zero&-zero - 1)
		}
		return from + 8 + bytes.IndexByte(doc[from+8:], 0), word
	}
	end = from
	for ; doc[end] != 0; end++ {
		word |= uint64(doc[end]) << (8 * (end - from))
	}
	return end, word
}

// wanted is a name that is looked for, ready to be compared with what scanName gives.
type wanted struct {
	name string
	word uint64
}

func want(name string) wanted {
	w := wanted{name: name}
	for i := range min(len(name), 8) {
		w.word |= uint64(name[i]) << (8 * i)
	}
	return w
}

// is compares a name with the same word.
func (w *wanted) is(name []byte) bool { return len(w.name) < 8 || w.name == string(name) }

// A length is fixed, or it is in the first four bytes, which do not count some bytes that
// are there beside them: -1 and the number of these. Regular expressions are two strings,
// each up to 00.
const (
	lengthSelf    = -1 - 0  // the length counts all
	lengthString  = -1 - 4  // not itself
	lengthBinary  = -1 - 5  // nor the subtype
	lengthPointer = -1 - 16 // nor an ObjectId
	lengthRegex   = -100
	lengthUnknown = -128
)

// valueLengths is the length of each type's values.
var valueLengths = func() (t [256]int8) {
	for i := range t {
		t[i] = lengthUnknown
	}
	for kind, n := range map[bson.Type]int8{
		bson.TypeDouble: 8, bson.TypeString: lengthString, bson.TypeEmbeddedDocument: lengthSelf,
		bson.TypeArray: lengthSelf, bson.TypeBinary: lengthBinary, bson.TypeUndefined: 0,
		bson.TypeObjectID: 12, bson.TypeBoolean: 1, bson.TypeDateTime: 8, bson.TypeNull: 0,
		bson.TypeRegex: lengthRegex, bson.TypeDBPointer: lengthPointer,
		bson.TypeJavaScript: lengthString, bson.TypeSymbol: lengthString,
		bson.TypeCodeWithScope: lengthSelf, bson.TypeInt32: 4, bson.TypeTimestamp: 8,
		bson.TypeInt64: 8, bson.TypeDecimal128: 16, bson.TypeMinKey: 0, bson.TypeMaxKey: 0,
	} {
		t[kind] = n
	}
	return t
}()

// valueLength is the length of the value of this type at an offset.
func valueLength(kind byte, doc []byte, at int) int {
	n := int(valueLengths[kind])
	if n >= 0 {
		return n
	}
	if n > lengthRegex {
		return int(binary.LittleEndian.Uint32(doc[at:])) - 1 - n
	}
	return regexLength(doc[at:])
}

func regexLength(b []byte) int {
	pattern := bytes.IndexByte(b, 0) + 1
	return pattern + bytes.IndexByte(b[pattern:], 0) + 1
}

// field finds a field of doc by its name, which is not a path.
func field(doc []byte, name string) bson.RawValue {
	v, _ := fieldWanted(doc, want(name))
	return v
}

// fieldWanted is field, and how many fields it passed on the way.
func fieldWanted(doc []byte, w wanted) (v bson.RawValue, passed int) {
	for pos := 4; doc[pos] != 0; passed++ {
		end, word := scanName(doc, pos+1)
		value := end + 1
		after := value + valueLength(doc[pos], doc, value)
		if word == w.word && w.is(doc[pos+1:end]) {
			return bson.RawValue{Type: bson.Type(doc[pos]), Value: doc[value:after:after]}, passed
		}
		pos = after
	}
	return bson.RawValue{}, passed
}

// Lookup finds the value at a dotted path through documents only: arrays on the way are
// not entered, and end the search. False (and the zero value) when there is none.
func Lookup(doc bson.Raw, path string) (bson.RawValue, bool) {
	for {
		name, rest, deeper := strings.Cut(path, ".")
		v := field(doc, name)
		if !deeper || v.Type != bson.TypeEmbeddedDocument {
			return found(v, !deeper)
		}
		doc, path = v.Value, rest
	}
}

func found(v bson.RawValue, atEnd bool) (bson.RawValue, bool) {
	if !atEnd || v.Type == 0 {
		return bson.RawValue{}, false
	}
	return v, true
}

// textOf is the content of a string, symbol or code value, without length and final 00.
func textOf(v bson.RawValue) []byte { return v.Value[4 : len(v.Value)-1] }

// isText reports whether textOf can be asked for a string.
func isText(v bson.RawValue) bool { return v.Type == bson.TypeString || v.Type == bson.TypeSymbol }

// regexOf takes a regular expression value apart.
func regexOf(v bson.RawValue) (pattern, options []byte) {
	pattern, options, _ = bytes.Cut(v.Value[:len(v.Value)-1], []byte{0})
	return pattern, options
}

// isEmpty reports whether a document or array has no elements.
func isEmpty(doc []byte) bool { return len(doc) == 5 }

// first is the first element of doc; false when it has none.
func first(doc []byte) (element, bool) {
	w := walkOf(doc)
	return w.next()
}

// count is the number of elements of doc.
func count(doc []byte) int {
	n := 0
	for w := walkOf(doc); ; n++ {
		if _, ok := w.next(); !ok {
			return n
		}
	}
}
