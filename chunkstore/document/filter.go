package document

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Filter is a parsed query document: a predicate on documents. A nil Filter matches all.
type Filter struct {
	root    Node
	program program
}

// ParseFilter compiles a query document; an empty or nil one matches every document.
//
// Operators: $eq $ne $gt $gte $lt $lte $in $nin $exists $type $size $all $elemMatch $mod
// $regex $not $bitsAllSet $bitsAllClear $bitsAnySet $bitsAnyClear on a path, $and $or $nor
// $expr $comment beside the paths. Errors are BadValue with MongoDB's words for unknown
// operators and wrong arguments, Location51091 for regular expressions.
func ParseFilter(f bson.Raw) (*Filter, error) {
	root := Node{Op: And}
	if len(f) > 0 {
		var err error
		if root, err = parseQuery(f); err != nil {
			return nil, err
		}
	}
	return newFilter(root), nil
}

func newFilter(root Node) *Filter { return &Filter{root: root, program: compile(root)} }

// Root is the filter as a tree, for planners; do not modify.
func (f *Filter) Root() Node {
	if f == nil {
		return Node{Op: And}
	}
	return f.root
}

// Match reports whether a document matches. It does not allocate, except for decimals that
// equal a double nearly, and inside $expr. A document for which MatchErr has an error does
// not match, whatever is negated.
func (f *Filter) Match(doc bson.Raw) bool {
	ok, _ := f.MatchErr(doc)
	return ok
}

// MatchErr is Match with the reason why a condition could not be checked on the document:
// $expr failed, or a string is too long for a complicated regular expression. MongoDB fails
// the command then.
func (f *Filter) MatchErr(doc bson.Raw) (bool, error) {
	if f == nil {
		return true, nil
	}
	return f.program.match(doc)
}

// FilterEqualities are the values that a matching document must have: those of equalities
// that stand at the top or under $and, with $in of one value and $all of them counting as
// equalities. Keys are dotted paths. An upserted document begins with them; a router finds
// the shard key in them. A path with two values keeps the first.
func FilterEqualities(f *Filter) map[string]bson.RawValue {
	values := map[string]bson.RawValue{}
	for _, e := range equalities(nil, f.Root()) {
		if _, twice := values[e.path]; !twice {
			values[e.path] = e.value
		}
	}
	return values
}

// equality is one path and the value that it must have.
type equality struct {
	path  string
	value bson.RawValue
}

func equalities(dst []equality, n Node) []equality {
	switch {
	case n.Op == Eq:
		return append(dst, equality{n.Path, n.Value})
	case n.Op == In && len(n.Values) == 1:
		return append(dst, equality{n.Path, n.Values[0]})
	case n.Op == And:
		for _, child := range n.Children {
			dst = equalities(dst, child)
		}
	}
	return dst
}
