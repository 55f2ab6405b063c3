package document

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Paths go through arrays in three ways, all of them MongoDB's:
//
//	filters    every document of an array is entered, and an index that the path names;
//	           at the end of the path an array stands for its elements and for itself
//	sort,      as filters, but an index is an index only
//	distinct
//	lookup     arrays are not entered at all (Lookup, shard keys)
//
// reach is the first, any the second; expressions have their own, which builds arrays.

// tester is a predicate on one value. The zero value is a missing field.
type tester interface {
	test(v bson.RawValue) bool
}

// reach reports whether a value that the path leads to, from v on, passes the test. With
// wholeArrays an array at the end of the path is only tested itself.
//
// A path that leads nowhere tests the missing value once for every document that could
// have had the field, and not at all for an array without documents: {"a.b": null} matches
// {} and {a: [{}]}, but not {a: []} or {a: [1]}.
func reach(v bson.RawValue, path []string, t tester, wholeArrays bool) bool {
	if len(path) == 0 {
		if v.Type == bson.TypeArray && !wholeArrays {
			for w := walkOf(v.Value); ; {
				e, ok := w.next()
				if !ok {
					break
				}
				if t.test(e.value) {
					return true
				}
			}
		}
		return t.test(v)
	}
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		return reach(field(v.Value, path[0]), path[1:], t, wholeArrays)
	case bson.TypeArray:
		return reachInArray(v.Value, path, t, wholeArrays)
	}
	return t.test(missing)
}

func reachInArray(array []byte, path []string, t tester, wholeArrays bool) bool {
	for w := walkOf(array); ; {
		e, ok := w.next()
		if !ok {
			return false
		}
		inside := e.value.Type == bson.TypeEmbeddedDocument
		if inside && reach(e.value, path, t, wholeArrays) {
			return true
		}
		if string(e.name) != path[0] {
			continue
		}
		switch { // the path names this index
		case len(path) == 1:
			if t.test(e.value) {
				return true
			}
		case inside || e.value.Type == bson.TypeArray:
			if reach(e.value, path[1:], t, wholeArrays) {
				return true
			}
		}
	}
}

// isIndex reports whether a part of a path can name an element of an array: digits without
// a leading zero.
func isIndex(part string) bool {
	if part == "" || len(part) > 9 || part[0] == '0' && len(part) > 1 {
		return false
	}
	for i := range len(part) {
		if part[i] < '0' || part[i] > '9' {
			return false
		}
	}
	return true
}

func splitPath(path string) []string { return strings.Split(path, ".") }

// AppendDistinct appends the values at a dotted path as the distinct command counts them:
// every document of an array on the way is entered, or the index that the path names, and
// an array at the end stands for its elements. A missing field has no values. The values
// are parts of doc, as often as they are there.
func AppendDistinct(dst []bson.RawValue, doc bson.Raw, path string) []bson.RawValue {
	return appendAlong(dst, documentValue(doc), splitPath(path))
}

func appendAlong(dst []bson.RawValue, v bson.RawValue, path []string) []bson.RawValue {
	switch {
	case v.Type == bson.TypeArray && len(path) > 0 && isIndex(path[0]):
		return appendAlong(dst, field(v.Value, path[0]), path[1:])
	case v.Type == bson.TypeArray:
		for w := walkOf(v.Value); ; {
			e, ok := w.next()
			switch {
			case !ok:
				return dst
			case len(path) == 0:
				dst = append(dst, e.value)
			case e.value.Type == bson.TypeEmbeddedDocument:
				dst = appendAlong(dst, e.value, path)
			}
		}
	case v.Type == 0:
		return dst
	case len(path) == 0:
		return append(dst, v)
	case v.Type == bson.TypeEmbeddedDocument:
		return appendAlong(dst, field(v.Value, path[0]), path[1:])
	}
	return dst
}
