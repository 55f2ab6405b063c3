package document

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// MaxDocumentBytes is the greatest document that a collection holds.
	MaxDocumentBytes = 16 << 20
	// MaxInternalBytes is for what this system wraps around a document of that size: a
	// command, a reply, an image of a document in a log.
	MaxInternalBytes = MaxDocumentBytes + 16<<10
	// MaxDepth is how deep documents and arrays nest, the outermost counted as 1.
	MaxDepth = 100
)

// Limits bounds what Validate accepts; zero fields mean MaxDocumentBytes and MaxDepth.
type Limits struct {
	MaxBytes int
	MaxDepth int
}

// Validate checks every byte of doc, so that nothing else has to check any: all lengths
// are exact and every document ends in 00 where its length says; types are known; names,
// strings, symbols, code and regular expressions are UTF-8; booleans are 0 or 1; no document,
// at any level, has two fields of one name (which of the two would a filter see?); nesting and
// size are within the limits. Array elements may have any names, as in MongoDB.
//
// It goes through the bytes once, with a stack of its own: no input makes it recurse.
// Documents of usual shape cost no allocation.
//
// The error is BSONObjectTooLarge for the size, else InvalidBSON with the rule, the path of
// the field and the offset.
func Validate(doc []byte, o Limits) error {
	if o.MaxBytes == 0 {
		o.MaxBytes = MaxDocumentBytes
	}
	if o.MaxDepth == 0 {
		o.MaxDepth = MaxDepth
	}
	if len(doc) > o.MaxBytes {
		return mongoerr.New(mongoerr.BSONObjectTooLarge,
			"BSONObj size: %d (0x%X) is invalid. Size must be between 0 and %d", len(doc), len(doc), o.MaxBytes)
	}
	v := validation{doc: doc, maxDepth: o.MaxDepth}
	if len(doc) < 5 {
		return v.fail(0, "a document has at least 5 bytes")
	}
	if n := binary.LittleEndian.Uint32(doc); uint64(n) != uint64(len(doc)) {
		return v.fail(0, "the document's length does not fit its bytes")
	}
	return v.run()
}

// level is a document or array that the validation is inside of.
type level struct {
	start   int  // offset of its length
	end     int  // offset of its final 00
	element int  // offset of the element that it is the value of
	array   bool // names do not matter
	fields  int
	names   nameFilter
}

// validation is the stack of levels: the first few in place, deeper ones on the heap.
type validation struct {
	doc      []byte
	maxDepth int
	depth    int // levels that are open
	shallow  [8]level
	deep     []level
}

func (v *validation) level(i int) *level {
	if i < len(v.shallow) {
		return &v.shallow[i]
	}
	return &v.deep[i-len(v.shallow)]
}

// open starts a level; the loop checks its depth.
func (v *validation) open(element, start, end int, array bool) {
	if v.depth >= len(v.shallow) {
		v.deep = append(v.deep[:v.depth-len(v.shallow)], level{})
	}
	v.depth++
	l := v.level(v.depth - 1)
	l.start, l.end, l.element, l.array, l.fields, l.names = start, end, element, array, 0, nameFilter{}
}

// run checks the elements of the outermost level and of all that they open.
func (v *validation) run() error {
	doc := v.doc
	v.open(0, 0, len(doc)-1, false)
	at, pos := v.level(0), 4
	for {
		if pos == at.end {
			if err := v.close(at); err != nil {
				return err
			}
			if v.depth--; v.depth == 0 {
				return nil
			}
			pos = at.end + 1
			at = v.level(v.depth - 1)
			continue
		}
		start := pos
		name, hash, ascii := checkName(doc, start+1)
		switch {
		case name < 0 || name >= at.end:
			return v.fail(start, "the field's name does not end inside the document")
		case !ascii && !utf8.Valid(doc[start+1:name]):
			return v.fail(start, "the field's name is not UTF-8")
		}
		if !at.array {
			if at.fields < fewNames && at.names.add(hash) && v.seenBefore(at, start, name) {
				return v.fail(start, "the field's name is there twice")
			}
			at.fields++
		}
		pos = name + 1
		kind := doc[start]
		if n := int(valueLengths[kind]); n >= 0 { // most values; the others take a call
			if n > at.end-pos {
				return v.fail(start, "the value does not fit its document")
			}
			if kind == byte(bson.TypeBoolean) && doc[pos] > 1 {
				return v.fail(start, "a boolean is neither 0 nor 1")
			}
			pos += n
			continue
		}
		next, opened, rule := v.value(start, pos, at.end)
		switch {
		case rule != "":
			return v.fail(start, rule)
		case opened && v.depth > v.maxDepth:
			v.depth--
			return v.fail(start, "documents and arrays are nested too deep")
		}
		pos, at = next, v.level(v.depth-1)
	}
}

// value checks the value at pos, whose type has no fixed length, of the element at start,
// inside a level that ends at end. It returns where to go on: after the value, or inside
// of it when it opened a level; or the rule that the value breaks.
func (v *validation) value(start, pos, end int) (next int, opened bool, rule string) {
	doc, kind := v.doc, v.doc[start]
	switch {
	case valueLengths[kind] == lengthUnknown:
		return 0, false, "the type is unknown"
	case valueLengths[kind] == lengthRegex:
		return v.regex(pos, end)
	case end-pos < 4:
		return 0, false, "the value does not fit its document"
	}
	size := int(binary.LittleEndian.Uint32(doc[pos:]))
	rest := doc[pos+4 : end]
	switch valueLengths[kind] {
	case lengthString:
		return pos + 4 + size, false, stringRule(rest, size)
	case lengthPointer:
		if size > len(rest)-12 {
			return 0, false, "the value does not fit its document"
		}
		return pos + 4 + size + 12, false, stringRule(rest, size)
	case lengthBinary:
		return pos + 5 + size, false, binaryRule(rest, size)
	}
	switch {
	case size < 5 || size > end-pos:
		return 0, false, "the value's length does not fit its document"
	case kind == byte(bson.TypeCodeWithScope):
		return v.codeWithScope(start, pos, size)
	}
	v.open(start, pos, pos+size-1, kind == byte(bson.TypeArray))
	return pos + 4, true, ""
}

// stringRule checks a string value of size bytes, final 00 included, at the start of b.
func stringRule(b []byte, size int) string {
	switch {
	case size < 1 || size > len(b):
		return "the string's length does not fit its document"
	case b[size-1] != 0:
		return "the string does not end in 00"
	case !utf8.Valid(b[:size-1]):
		return "the string is not UTF-8"
	}
	return ""
}

// binaryRule checks the subtype and the size bytes after it; the old subtype 2 has a second
// length inside.
func binaryRule(b []byte, size int) string {
	if size < 0 || size >= len(b) {
		return "the binary value's length does not fit its document"
	}
	if b[0] == bson.TypeBinaryBinaryOld &&
		(size < 4 || int(binary.LittleEndian.Uint32(b[1:])) != size-4) {
		return "the inner length of a binary value of subtype 2 is wrong"
	}
	return ""
}

func (v *validation) regex(pos, end int) (next int, opened bool, rule string) {
	for range 2 { // pattern, options
		text, _, ascii := checkName(v.doc[:end], pos)
		switch {
		case text < 0:
			return 0, false, "the regular expression does not end inside the document"
		case !ascii && !utf8.Valid(v.doc[pos:text]):
			return 0, false, "the regular expression is not UTF-8"
		}
		pos = text + 1
	}
	return pos, false, ""
}

// codeWithScope checks int32 size, string, document; the document's elements come next.
func (v *validation) codeWithScope(start, pos, size int) (next int, opened bool, rule string) {
	const wrong = "the lengths inside code with scope do not fit"
	if size < 4+5+5 {
		return 0, false, wrong
	}
	value := v.doc[pos : pos+size]
	code := int(binary.LittleEndian.Uint32(value[4:]))
	if rule := stringRule(value[8:], code); rule != "" {
		return 0, false, rule
	}
	scope := value[8+code:]
	if len(scope) < 5 || int(binary.LittleEndian.Uint32(scope)) != len(scope) {
		return 0, false, wrong
	}
	v.open(start, pos+8+code, pos+size-1, false)
	return pos + 8 + code + 4, true, ""
}

// close checks what is left to check at the end of a level.
func (v *validation) close(at *level) error {
	if v.doc[at.end] != 0 {
		v.depth-- // the element is one of the level around
		return v.fail(at.element, "the document does not end in 00 where its length says")
	}
	if !at.array && at.fields > fewNames {
		if twice := repeatedName(v.doc[at.start:at.end+1], at.fields); twice >= 0 {
			return v.fail(at.start+twice, "the field's name is there twice")
		}
	}
	return nil
}

// fail makes the error for the element at an offset, which lies in the innermost level.
func (v *validation) fail(at int, rule string) error {
	where := ""
	for i := 1; i <= v.depth; i++ {
		element := at
		if i < v.depth {
			element = v.level(i).element
		}
		name := v.doc[min(element+1, len(v.doc)):]
		if end, _, _ := checkName(name, 0); end >= 0 {
			name = name[:end]
		}
		if where != "" {
			where += "."
		}
		if where += quotable(name); len(where) > 500 {
			break
		}
	}
	return mongoerr.New(mongoerr.InvalidBSON, "invalid BSON: %s (field '%s', offset %d)", rule, where, at)
}
