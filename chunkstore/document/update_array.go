package document

import (
	"slices"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// addToSet is $addToSet.
type addToSet struct {
	path   string
	values []bson.RawValue // all different
}

func parseAddToSet(path string, v bson.RawValue) (modifier, error) {
	m := &addToSet{path: path, values: []bson.RawValue{v}}
	if v.Type != bson.TypeEmbeddedDocument {
		return m, nil
	}
	e, ok := first(v.Value)
	if !ok || string(e.name) != "$each" {
		return m, nil
	}
	switch {
	case e.value.Type != bson.TypeArray:
		return nil, mongoerr.New(mongoerr.TypeMismatch,
			"The argument to $each in $addToSet must be an array but it was of type %s", typeName(e.value.Type))
	case count(v.Value) > 1:
		return nil, badValue("Found unexpected fields after $each in $addToSet: %s", show(v))
	}
	m.values = newValues(valuesOf(e.value.Value), nil)
	return m, nil
}

func (m *addToSet) needsPath(*application) bool { return true }

func (m *addToSet) apply(_ *application, dst []byte, old bson.RawValue) (bson.Type, []byte, error) {
	switch old.Type {
	case 0:
		return bson.TypeArray, appendArray(dst, m.values), nil
	case bson.TypeArray:
		return bson.TypeArray, appendToArray(dst, old.Value, newValues(m.values, valuesOf(old.Value))), nil
	}
	return 0, dst, badValue("Cannot apply $addToSet to non-array field. Field named '%s' has non-array type %s",
		m.path, typeName(old.Type))
}

// newValues are those of values that are not among old, each once, in their order. It takes
// n log n comparisons: both arrays come from clients.
func newValues(values, old []bson.RawValue) []bson.RawValue {
	sorted := slices.Clone(old)
	slices.SortFunc(sorted, Compare)
	order := make([]int, len(values)) // of values, ascending, equal ones as they come
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return Compare(values[a], values[b]) })
	fresh := make([]bool, len(values))
	for i, at := range order {
		_, known := slices.BinarySearchFunc(sorted, values[at], Compare)
		fresh[at] = !known && (i == 0 || Compare(values[order[i-1]], values[at]) != 0)
	}
	var out []bson.RawValue
	for i, v := range values {
		if fresh[i] {
			out = append(out, v)
		}
	}
	return out
}

// pop is $pop.
type pop struct {
	path string
	end  int // 1: the last element, -1: the first
}

func parsePop(path string, v bson.RawValue) (modifier, error) {
	end, ok := direction(v)
	if !ok {
		return nil, mongoerr.New(mongoerr.FailedToParse, "$pop expects 1 or -1, found: %s", show(v))
	}
	return pop{path, end}, nil
}

func (m pop) needsPath(*application) bool { return true }

func (m pop) apply(_ *application, dst []byte, old bson.RawValue) (bson.Type, []byte, error) {
	if old.Type == 0 {
		return keep(dst, old)
	}
	if old.Type != bson.TypeArray {
		return 0, dst, mongoerr.New(mongoerr.TypeMismatch, "Path '%s' contains an element of non-array type '%s'",
			m.path, typeName(old.Type))
	}
	values := valuesOf(old.Value)
	switch {
	case len(values) == 0:
		return keep(dst, old)
	case m.end > 0:
		values = values[:len(values)-1]
	default:
		values = values[1:]
	}
	return bson.TypeArray, appendArray(dst, values), nil
}

// pull is $pull and $pullAll: elements that match go.
type pull struct {
	name    string
	matches func(bson.RawValue) bool
}

func parsePull(_ string, v bson.RawValue) (modifier, error) {
	m := pull{name: "$pull"}
	switch {
	case hasOperators(v) || v.Type == bson.TypeRegex:
		all, err := parseField(nil, "", v)
		if err != nil {
			return nil, err
		}
		m.matches = both(all).holdsWithin
	case v.Type == bson.TypeEmbeddedDocument:
		query, err := ParseFilter(v.Value)
		if err != nil {
			return nil, err
		}
		m.matches = func(e bson.RawValue) bool {
			return e.Type == bson.TypeEmbeddedDocument && query.Match(e.Value)
		}
	default:
		m.matches = func(e bson.RawValue) bool { return equal(e, v) }
	}
	return m, nil
}

func parsePullAll(_ string, v bson.RawValue) (modifier, error) {
	if v.Type != bson.TypeArray {
		return nil, badValue("$pullAll requires an array argument but was given a %s", typeName(v.Type))
	}
	unwanted := valuesOf(v.Value)
	slices.SortFunc(unwanted, Compare)
	return pull{"$pullAll", func(e bson.RawValue) bool {
		_, ok := slices.BinarySearchFunc(unwanted, e, Compare)
		return ok
	}}, nil
}

// holdsWithin checks a condition on an element as if it were a field: an array stands for
// its elements too.
func (n Node) holdsWithin(v bson.RawValue) bool {
	switch n.Op {
	case And:
		return !slices.ContainsFunc(n.Children, func(c Node) bool { return !c.holdsWithin(v) })
	case Or:
		return slices.ContainsFunc(n.Children, func(c Node) bool { return c.holdsWithin(v) })
	case Nor, Not:
		return !slices.ContainsFunc(n.Children, func(c Node) bool { return c.holdsWithin(v) })
	}
	return reach(v, nil, n.tester, n.wholeArrays) != n.negated()
}

func (m pull) needsPath(*application) bool { return true }

func (m pull) apply(_ *application, dst []byte, old bson.RawValue) (bson.Type, []byte, error) {
	switch old.Type {
	case 0:
		return keep(dst, old)
	case bson.TypeArray:
	default:
		return 0, dst, badValue("Cannot apply %s to a non-array value", m.name)
	}
	values := valuesOf(old.Value)
	left := slices.DeleteFunc(slices.Clone(values), m.matches)
	if len(left) == len(values) {
		return keep(dst, old)
	}
	return bson.TypeArray, appendArray(dst, left), nil
}
