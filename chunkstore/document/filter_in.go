package document

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// parseIn parses $in: values in one sorted set, regular expressions each on its own.
func parseIn(path string, v bson.RawValue) (Node, error) {
	if v.Type != bson.TypeArray {
		return Node{}, badValue("$in needs an array")
	}
	any, err := parseAlternatives(path, v.Value)
	if err != nil || len(any) == 1 {
		return any[0], err
	}
	return Node{Op: Or, Children: any}, nil
}

// parseNotIn parses $nin, the negation of $in.
func parseNotIn(path string, v bson.RawValue) (Node, error) {
	if v.Type != bson.TypeArray {
		return Node{}, badValue("$nin needs an array")
	}
	any, err := parseAlternatives(path, v.Value)
	if err != nil || len(any) > 1 {
		return Node{Op: Nor, Children: any}, err
	}
	any[0].Op = Nin
	return any[0], nil
}

// parseAlternatives makes an In of the values of an array, then a Regex of each regular
// expression. On an error too it returns one node.
func parseAlternatives(path string, array []byte) ([]Node, error) {
	in := &membership{}
	any := []Node{{Op: In, Path: path, tester: in}}
	for w := walkOf(array); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		switch {
		case hasOperators(e.value):
			return any[:1], badValue("cannot nest $ under $in")
		case e.value.Type == bson.TypeUndefined:
			return any[:1], badValue("InMatchExpression equality cannot be undefined")
		case e.value.Type == bson.TypeRegex:
			n, err := parseRegex(path, e.value)
			if err != nil {
				return any[:1], err
			}
			any = append(any, n)
		default:
			in.values = append(in.values, e.value)
			in.hasNull = in.hasNull || e.value.Type == bson.TypeNull
		}
	}
	slices.SortStableFunc(in.values, Compare)
	in.values = slices.CompactFunc(in.values, equal)
	any[0].Values = in.values
	return any, nil
}

// membership tests whether a value is in a set.
type membership struct {
	values  []bson.RawValue // ascending, all different
	hasNull bool            // then a missing field is in it
}

func (m *membership) test(v bson.RawValue) bool {
	if v.Type == 0 {
		return m.hasNull
	}
	_, ok := slices.BinarySearchFunc(m.values, v, Compare)
	return ok
}
