package document

import (
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// SortField is one field of a sort: a dotted path, and which way.
type SortField struct {
	Path       string
	Descending bool
}

// Sort is a parsed sort. A nil Sort orders nothing.
type Sort struct {
	fields []SortField
	paths  [][]string
}

// maxSortFields is MongoDB's limit for compound sorts.
const maxSortFields = 32

// ParseSort compiles {path: 1, other: -1}; an empty or nil one gives a nil Sort. Errors are
// those of the $sort stage: Location15973 to Location15976; $meta is refused with BadValue.
func ParseSort(s bson.Raw) (*Sort, error) {
	if len(s) == 0 || isEmpty(s) {
		return nil, nil
	}
	out := &Sort{}
	for w := walkOf(s); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		path := string(e.name)
		if err := checkFieldPath(path); err != nil {
			return nil, err
		}
		sign, err := sortDirection(path, e.value)
		if err != nil {
			return nil, err
		}
		out.fields = append(out.fields, SortField{Path: path, Descending: sign < 0})
		out.paths = append(out.paths, splitPath(path))
	}
	if len(out.fields) > maxSortFields {
		return nil, badValue("too many compound keys: a sort has at most %d fields", maxSortFields)
	}
	return out, nil
}

func sortDirection(path string, v bson.RawValue) (int, error) {
	if v.Type == bson.TypeEmbeddedDocument {
		if e, ok := first(v.Value); ok && string(e.name) == "$meta" {
			return 0, badValue("$meta sorts are not supported: there are no text indexes")
		}
	}
	sign, ok := direction(v)
	switch {
	case ok:
		return sign, nil
	case rank(v.Type) != rank(bson.TypeInt32):
		return 0, mongoerr.New(15974, "Illegal key in $sort specification: %s", showElement(path, v))
	}
	return 0, mongoerr.New(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)")
}

// Fields are the fields, most significant first; do not modify.
func (s *Sort) Fields() []SortField {
	if s == nil {
		return nil
	}
	return s.fields
}

// AppendKey appends bytes whose memcmp order is the order of the sort. A field that leads
// to several values, through arrays, counts with the least of them, or the greatest when it
// is descending, each field for itself; a missing field is null, an empty array less.
func (s *Sort) AppendKey(dst []byte, doc bson.Raw) []byte {
	if s == nil {
		return dst
	}
	for i, f := range s.fields {
		best := extremeOf{descending: f.Descending}
		best.along(documentValue(doc), s.paths[i])
		dst = shardkey.AppendValue(dst, best.v, f.Descending)
	}
	return dst
}

// SortValues are the values that AppendKey encodes, a missing field as null. They are parts
// of doc.
func (s *Sort) SortValues(doc bson.Raw) []bson.RawValue {
	values := make([]bson.RawValue, len(s.Fields()))
	for i, f := range s.Fields() {
		best := extremeOf{descending: f.Descending}
		best.along(documentValue(doc), s.paths[i])
		values[i] = best.v
	}
	return values
}

// extremeOf is the least or greatest value met so far.
type extremeOf struct {
	v          bson.RawValue
	descending bool
	any        bool
}

func (x *extremeOf) meet(v bson.RawValue) {
	if v.Type == 0 {
		v = null
	}
	if !x.any || (Compare(v, x.v) > 0) == x.descending {
		x.v, x.any = v, true
	}
}

// along meets the values that the path leads to from v.
func (x *extremeOf) along(v bson.RawValue, path []string) {
	switch {
	case v.Type == bson.TypeArray && len(path) > 0 && isIndex(path[0]):
		x.along(field(v.Value, path[0]), path[1:])
	case v.Type == bson.TypeArray:
		x.inside(v.Value, path)
	case len(path) == 0:
		x.meet(v)
	case v.Type == bson.TypeEmbeddedDocument:
		x.along(field(v.Value, path[0]), path[1:])
	default:
		x.meet(null)
	}
}

func (x *extremeOf) inside(array []byte, path []string) {
	if isEmpty(array) {
		if len(path) == 0 {
			x.meet(undefined)
		} else {
			x.meet(null)
		}
		return
	}
	for w := walkOf(array); ; {
		e, ok := w.next()
		switch {
		case !ok:
			return
		case len(path) == 0:
			x.meet(e.value)
		case e.value.Type == bson.TypeEmbeddedDocument:
			x.along(e.value, path)
		default:
			x.meet(null)
		}
	}
}
