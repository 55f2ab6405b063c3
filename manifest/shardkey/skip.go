package shardkey

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/granarydb/granary/manifest/errkind"
)

// SkipValue takes one value, ascending or descending, off key and gives what follows.
// Corrupt when key does not begin with a value: it may come from storage. A hashed field is
// no value in this sense, since it has the class of numbers and not their length; Prefix
// knows where one is expected.
func SkipValue(key []byte) (rest []byte, err error) {
	if len(key) == 0 {
		return nil, fmt.Errorf("value missing: %w", errkind.Corrupt)
	}
	r := reader{rest: key, flip: direction(key[0])}
	if r.skip(); r.bad {
		return nil, fmt.Errorf("no value at byte %d of %x: %w", len(key)-len(r.rest), key[:min(len(key), 64)], errkind.Corrupt)
	}
	return r.rest, nil
}

// direction is what to XOR the bytes of a value with: FF when its class is that of a
// descending one, else 0.
func direction(class byte) byte {
	if known(^class) {
		return 0xFF
	}
	return 0
}

func known(class byte) bool {
	switch class {
	case classMinKey, classUndefined, classNull, classNumber, classString, classObject, classArray,
		classBinary, classObjectID, classBool, classDate, classTimestamp, classRegex, classDBPointer,
		classCode, classCodeScope, classMaxKey:
		return true
	}
	return false
}

// reader walks over the bytes of one value. Once bad, it stays so.
type reader struct {
	rest []byte
	flip byte
	bad  bool
}

// skip walks over a value with everything in it. The stack holds, per open object or array,
// whether its elements have names; it cannot outgrow the key.
func (r *reader) skip() {
	var room [64]bool
	stack := room[:0]
	for {
		class := r.byte()
		if len(stack) > 0 && class == end {
			stack = stack[:len(stack)-1]
		} else {
			if len(stack) > 0 && stack[len(stack)-1] {
				r.until(end)
			}
			r.payload(class)
			if class == classObject || class == classArray || class == classCodeScope {
				stack = append(stack, class != classArray)
			}
		}
		if len(stack) == 0 || r.bad {
			return
		}
	}
}

// payload walks over what follows a class byte, up to the elements of an object or array.
func (r *reader) payload(class byte) {
	switch class {
	case classMinKey, classUndefined, classNull, classObject, classArray, classMaxKey:
	case classBool:
		r.take(1)
	case classDate, classTimestamp:
		r.take(8)
	case classObjectID:
		r.take(12)
	case classNumber:
		r.number()
	case classString, classCode, classCodeScope:
		r.string()
	case classRegex:
		r.until(end)
		r.until(end)
	case classBinary:
		r.take(r.length() + 1)
	case classDBPointer:
		r.take(r.length() + 12)
	default:
		r.bad = true
	}
}

func (r *reader) number() {
	r.take(8)
	switch r.byte() {
	case exact:
	case inexact:
		r.take(16)
	default:
		r.bad = true
	}
}

func (r *reader) string() {
	for !r.bad {
		r.until(0)
		switch r.byte() {
		case stringEnd:
			return
		case escapedNUL:
		default:
			r.bad = true
		}
	}
}

// until walks past the next b.
func (r *reader) until(b byte) {
	i := bytes.IndexByte(r.rest, b^r.flip)
	if i < 0 {
		r.bad = true
		return
	}
	r.take(uint64(i) + 1)
}

func (r *reader) byte() byte {
	b := r.take(1)
	if b == nil {
		return end
	}
	return b[0] ^ r.flip
}

// length reads 4 bytes.
func (r *reader) length() uint64 {
	b := r.take(4)
	if b == nil {
		return 0
	}
	flip := uint32(r.flip) * 0x01010101
	return uint64(binary.BigEndian.Uint32(b) ^ flip)
}

// take walks over n bytes and gives them; nil when there are not so many.
func (r *reader) take(n uint64) []byte {
	if r.bad = r.bad || n > uint64(len(r.rest)); r.bad {
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}
