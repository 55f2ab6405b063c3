package document

import (
	"slices"

	"github.com/granarydb/granary/chunkstore/document/number"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// push is $push: values go in at a position, then the array is sorted, then cut.
type push struct {
	path     string
	values   []bson.RawValue
	position int64 // negative: from the end
	atEnd    bool
	order    func(a, b bson.RawValue) int // nil: as it is
	slice    int64                        // negative: the last ones
	cut      bool
}

func parsePush(path string, v bson.RawValue) (modifier, error) {
	m := &push{path: path, values: []bson.RawValue{v}, atEnd: true}
	if v.Type != bson.TypeEmbeddedDocument || field(v.Value, "$each").Type == 0 {
		return m, nil
	}
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			return m, nil
		}
		if err := m.clause(string(e.name), e.value); err != nil {
			return nil, err
		}
	}
}

func (m *push) clause(name string, v bson.RawValue) error {
	switch name {
	case "$each":
		if v.Type != bson.TypeArray {
			return badValue("The argument to $each in $push must be an array but it was of type: %s", typeName(v.Type))
		}
		m.values = valuesOf(v.Value)
		return nil
	case "$sort":
		order, err := elementOrder(v)
		m.order = order
		return err
	}
	n, _ := number.Of(v)
	i, whole := n.Whole()
	whole = whole && n.Type() != 0
	switch {
	case name == "$slice" && !whole:
		return badValue("The value for $slice must be an integer value but was given type: %s", typeName(v.Type))
	case name == "$position" && !whole:
		return badValue("The value for $position must be an integer value, not of type: %s", typeName(v.Type))
	case name == "$slice":
		m.slice, m.cut = i, true
	case name == "$position":
		m.position, m.atEnd = i, false
	default:
		return badValue("Unrecognized clause in $push: %s", quotable([]byte(name)))
	}
	return nil
}

func valuesOf(array []byte) []bson.RawValue {
	var values []bson.RawValue
	for w := walkOf(array); ; {
		e, ok := w.next()
		if !ok {
			return values
		}
		values = append(values, e.value)
	}
}

// elementOrder parses $sort of $push: 1 or -1 for the elements themselves, or fields in them.
func elementOrder(v bson.RawValue) (func(a, b bson.RawValue) int, error) {
	if _, ok := number.Of(v); ok {
		sign, ok := direction(v)
		if !ok {
			return nil, badValue("The $sort element value must be either 1 or -1")
		}
		return func(a, b bson.RawValue) int { return sign * Compare(a, b) }, nil
	}
	if v.Type != bson.TypeEmbeddedDocument {
		return nil, badValue("The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields")
	}
	if isEmpty(v.Value) {
		return nil, badValue("The $sort pattern is empty when it should be a set of fields.")
	}
	type sortField struct {
		path string
		sign int
	}
	var fields []sortField
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		sign, ok := direction(e.value)
		switch {
		case !ok:
			return nil, badValue("The $sort element value must be either 1 or -1")
		case len(e.name) == 0:
			return nil, badValue("The $sort field cannot be empty")
		case slices.Contains(splitPath(string(e.name)), ""):
			return nil, badValue("The $sort field is a dotted field but has an empty part: %s", quotable(e.name))
		}
		fields = append(fields, sortField{string(e.name), sign})
	}
	at := func(v bson.RawValue, path string) bson.RawValue {
		if v.Type != bson.TypeEmbeddedDocument {
			return null
		}
		if inside, ok := Lookup(v.Value, path); ok {
			return inside
		}
		return null
	}
	return func(a, b bson.RawValue) int {
		for _, f := range fields {
			if c := Compare(at(a, f.path), at(b, f.path)); c != 0 {
				return f.sign * c
			}
		}
		return 0
	}, nil
}

// direction reads 1 or -1.
func direction(v bson.RawValue) (sign int, ok bool) {
	n, _ := number.Of(v)
	i, whole := n.Whole()
	return int(i), n.Type() != 0 && whole && (i == 1 || i == -1)
}

func (m *push) needsPath(*application) bool { return true }

func (m *push) apply(a *application, dst []byte, old bson.RawValue) (bson.Type, []byte, error) {
	var values []bson.RawValue
	switch old.Type {
	case 0:
	case bson.TypeArray:
		if m.atEnd && m.order == nil && !m.cut {
			return bson.TypeArray, appendToArray(dst, old.Value, m.values), nil
		}
		values = valuesOf(old.Value)
	default:
		return 0, dst, badValue("The field '%s' must be an array but is of type %s in document %s",
			m.path, typeName(old.Type), showID(a.doc))
	}
	values = slices.Insert(values, m.at(len(values)), m.values...)
	if m.order != nil {
		slices.SortStableFunc(values, m.order)
	}
	if m.cut {
		values = sliced(values, m.slice)
	}
	return bson.TypeArray, appendArray(dst, values), nil
}

// at is where values go into an array of n.
func (m *push) at(n int) int {
	switch {
	case m.atEnd || m.position > int64(n):
		return n
	case m.position >= 0:
		return int(m.position)
	}
	return int(max(int64(n)+m.position, 0))
}

// sliced is the first n values, or for a negative n the last -n.
func sliced(values []bson.RawValue, n int64) []bson.RawValue {
	total := int64(len(values))
	switch {
	case n >= total || n <= -total:
		return values
	case n >= 0:
		return values[:n]
	}
	return values[total+n:]
}

// appendToArray appends an array with more values at its end.
func appendToArray(dst, array []byte, more []bson.RawValue) []byte {
	n := count(array)
	dst, at := begin(dst)
	dst = append(dst, array[4:len(array)-1]...)
	for i, v := range more {
		dst = append(appendIndexHeader(dst, v.Type, n+i), v.Value...)
	}
	return finish(dst, at)
}
