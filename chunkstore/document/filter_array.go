package document

import (
	"github.com/granarydb/granary/chunkstore/document/number"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func parseSize(path string, v bson.RawValue) (Node, error) {
	n, ok := number.Of(v)
	if !ok {
		return Node{}, badValue("Failed to parse $size. Expected a number in: %s", showElement("$size", v))
	}
	size, whole := n.Whole()
	switch {
	case !whole:
		return Node{}, badValue("Failed to parse $size. Expected an integer: %s", showElement("$size", v))
	case size < 0:
		return Node{}, badValue("Failed to parse $size. Expected a non-negative number in: %s", showElement("$size", v))
	}
	return Node{Op: Size, Path: path, Value: v, tester: arraySize(size), wholeArrays: true}, nil
}

// arraySize tests for arrays with so many elements.
type arraySize int64

func (n arraySize) test(v bson.RawValue) bool {
	return v.Type == bson.TypeArray && int64(count(v.Value)) == int64(n)
}

// parseAll parses $all: each of the values must be found. Of nothing, none is.
func parseAll(path string, v bson.RawValue) (Node, error) {
	if v.Type != bson.TypeArray {
		return Node{}, badValue("$all needs an array")
	}
	var all []Node
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		n, err := parseOneOfAll(path, e.value, all)
		if err != nil {
			return Node{}, err
		}
		all = append(all, n)
	}
	if len(all) == 0 {
		return Node{Op: In, Path: path, tester: &membership{}}, nil
	}
	return both(all), nil
}

func parseOneOfAll(path string, v bson.RawValue, before []Node) (Node, error) {
	inner := bson.RawValue{}
	if v.Type == bson.TypeEmbeddedDocument {
		if e, ok := first(v.Value); ok && string(e.name) == "$elemMatch" {
			inner = e.value
		}
	}
	switch {
	case len(before) > 0 && (before[0].Op == ElemMatch) != (inner.Type != 0):
		return Node{}, badValue("$all/$elemMatch has to be consistent")
	case inner.Type != 0:
		return parseElemMatch(path, inner)
	case hasOperators(v):
		return Node{}, badValue("no $ expressions in $all")
	}
	return parseEquality(path, v)
}

// parseElemMatch parses $elemMatch: operators on the elements themselves, or a query on
// elements that are documents.
func parseElemMatch(path string, v bson.RawValue) (Node, error) {
	if v.Type != bson.TypeEmbeddedDocument {
		return Node{}, badValue("$elemMatch needs an Object")
	}
	n := Node{Op: ElemMatch, Path: path, wholeArrays: true}
	if onElements(v) {
		all, err := parseOperators(nil, "", v.Value)
		n.Children, n.tester = all, elements{all}
		return n, err
	}
	query, err := parseQuery(v.Value)
	if err != nil {
		return Node{}, err
	}
	if usesExpr(query) {
		return Node{}, badValue("$expr can only be applied to the top-level document")
	}
	n.Children, n.tester = []Node{query}, elementDocuments{newFilter(query)}
	return n, nil
}

// onElements tells {$gt: 5} from {a: 5}, and from {$or: [...]} whose conditions have paths.
func onElements(v bson.RawValue) bool {
	if !hasOperators(v) {
		return false
	}
	e, _ := first(v.Value)
	switch string(e.name) {
	case "$and", "$or", "$nor", "$expr", "$comment", "$where", "$text", "$jsonSchema":
		return false
	}
	return true
}

func usesExpr(n Node) bool {
	if n.Op == Expr {
		return true
	}
	for _, child := range n.Children {
		if usesExpr(child) {
			return true
		}
	}
	return false
}

// elements tests for an array with an element that all conditions hold for.
type elements struct{ all []Node }

func (t elements) test(v bson.RawValue) bool {
	return anyElement(v, func(e bson.RawValue) bool { return allHold(t.all, e) })
}

// elementDocuments tests for an array with a document, or an array as one, that matches.
type elementDocuments struct{ query *Filter }

func (t elementDocuments) test(v bson.RawValue) bool {
	return anyElement(v, t.holds)
}

func (t elementDocuments) holds(e bson.RawValue) bool {
	return (e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray) && t.query.Match(e.Value)
}

func anyElement(v bson.RawValue, holds func(bson.RawValue) bool) bool {
	if v.Type != bson.TypeArray {
		return false
	}
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			return false
		}
		if holds(e.value) {
			return true
		}
	}
}

func allHold(all []Node, v bson.RawValue) bool {
	for _, n := range all {
		if !n.holdsFor(v) {
			return false
		}
	}
	return true
}

// holdsFor checks a condition on one value, without going into it if it is an array.
func (n Node) holdsFor(v bson.RawValue) bool {
	switch n.Op {
	case And:
		return allHold(n.Children, v)
	case Or, Nor:
		for _, child := range n.Children {
			if child.holdsFor(v) {
				return n.Op == Or
			}
		}
		return n.Op == Nor
	case Not:
		return !n.Children[0].holdsFor(v)
	}
	return n.tester.test(v) != n.negated()
}
