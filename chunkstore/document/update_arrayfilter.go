package document

import (
	"strings"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxArrayFilters bounds the array filters of one update.
const maxArrayFilters = 100

// parseArrayFilters parses filters whose paths all begin with one name: {"x.grade": 5} says
// which elements $[x] stands for. An element is tested as the document {x: element}.
func (p *updateParser) parseArrayFilters(filters []bson.Raw) error {
	if len(filters) > maxArrayFilters {
		return badValue("an update has at most %d arrayFilters", maxArrayFilters)
	}
	p.filters, p.used = map[string]*Filter{}, map[string]bool{}
	for _, raw := range filters {
		f, err := ParseFilter(raw)
		if err != nil {
			return err
		}
		name, err := commonName(f.Root(), "")
		switch {
		case err != nil:
			return err
		case name == "":
			return mongoerr.New(mongoerr.FailedToParse,
				"Cannot use an expression without a top-level field name in arrayFilters")
		case p.filters[name] != nil:
			return mongoerr.New(mongoerr.FailedToParse,
				"Found multiple array filters with the same top-level field name %s", name)
		}
		p.names = append(p.names, name)
		p.filters[name] = f
	}
	return nil
}

// commonName is the first part that all paths of a filter share.
func commonName(n Node, so string) (string, error) {
	if n.Op == Expr {
		return "", badValue("$expr is not allowed in arrayFilters")
	}
	if n.tester != nil {
		name, _, _ := strings.Cut(n.Path, ".")
		if so != "" && so != name {
			return "", mongoerr.New(mongoerr.FailedToParse, "Error parsing array filter :: caused by :: "+
				"Expected a single top-level field name, found '%s' and '%s'", so, name)
		}
		return name, nil
	}
	var err error
	for _, child := range n.Children {
		if so, err = commonName(child, so); err != nil {
			return "", err
		}
	}
	return so, nil
}

// fits reports whether an element of an array is one that t, a $[name], stands for.
func (t *target) fits(element bson.RawValue) bool {
	doc, at := begin(nil)
	doc = appendElement(doc, t.name[2:len(t.name)-1], element)
	return t.filter.Match(finish(doc, at))
}

// matchedIndex finds which element of the array at path made the filter match: the first
// that any condition on the array, or on something in it, holds for. -1 if none does.
func matchedIndex(n Node, path string, array []byte) int {
	switch n.Op {
	case And, Or:
		for _, child := range n.Children {
			if i := matchedIndex(child, path, array); i >= 0 {
				return i
			}
		}
		return -1
	case Nor, Not, Expr:
		return -1
	}
	rest, inside := strings.CutPrefix(n.Path, path)
	if n.negated() || !inside || rest != "" && rest[0] != '.' {
		return -1
	}
	var parts []string
	if rest != "" {
		parts = splitPath(rest[1:])
	}
	i := 0
	for w := walkOf(array); ; i++ {
		e, ok := w.next()
		if !ok {
			return -1
		}
		if n.holdsInside(e.value, parts) {
			return i
		}
	}
}

// holdsInside checks a condition on one element of the array that it is about.
func (n Node) holdsInside(element bson.RawValue, rest []string) bool {
	if len(rest) > 0 {
		return reach(element, rest, n.tester, n.wholeArrays)
	}
	switch t := n.tester.(type) {
	case elements:
		return allHold(t.all, element)
	case elementDocuments:
		return t.holds(element)
	case arraySize:
		return false
	}
	return n.tester.test(element)
}
