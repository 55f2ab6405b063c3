package bucket

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/granarydb/granary/manifest/errkind"
)

// Limits of keys, in bytes: S3's for the whole, a file system's for a component.
const (
	KeyBytesMax       = 1024
	ComponentBytesMax = 255
)

// CheckKey tells whether a key is one that every store can hold: valid UTF-8 without NUL,
// no empty component (so no '/' at either end), no "." or "..", lengths within KeyBytesMax
// and ComponentBytesMax. Drivers call it before every verb that names an object, so that a
// key that works on one store works on all. Errors: Invalid, naming the rule.
func CheckKey(key string) error {
	if len(key) == 0 || len(key) > KeyBytesMax {
		return badKey(key, fmt.Sprintf("a key has 1 to %d bytes", KeyBytesMax))
	}
	if !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0 {
		return badKey(key, "a key is UTF-8 without NUL")
	}
	for part := range strings.SplitSeq(key, "/") {
		switch {
		case part == "":
			return badKey(key, "a key has no empty component: no '/' at an end, no '//'")
		case part == "." || part == "..":
			return badKey(key, "a component is never . or ..")
		case len(part) > ComponentBytesMax:
			return badKey(key, fmt.Sprintf("a component has at most %d bytes", ComponentBytesMax))
		}
	}
	return nil
}

func badKey(key, rule string) error {
	if len(key) > 80 {
		key = key[:80] + "..."
	}
	return fmt.Errorf("key %q: %s: %w", key, rule, errkind.Invalid)
}

// Slice cuts [offset, offset+length) out of an object of the given size by the rules of
// GetOptions, for drivers: length 0 means to the end, and a range that passes the end is
// cut there. Offset 0 of an empty object is its empty whole. Errors: Invalid when the range
// starts at or beyond the end of a non-empty object, or a number is negative.
func Slice(key string, size, offset, length int64) (from, to int64, err error) {
	if offset < 0 || length < 0 || offset > 0 && offset >= size {
		return 0, 0, fmt.Errorf("get %s: range %d+%d of %d bytes: %w", key, offset, length, size, errkind.Invalid)
	}
	if length == 0 || length > size-offset {
		length = size - offset
	}
	return offset, offset + length, nil
}
