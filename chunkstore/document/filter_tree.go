package document

import "go.mongodb.org/mongo-driver/v2/bson"

// Op is what a Node of a filter asks.
type Op uint8

// The operators. Of those on a path, all but Ne, Nin and Exists{false} ask whether the path
// leads to some value that fits; these three ask whether it leads to none.
const (
	And       Op = iota + 1 // all Children; none: true
	Or                      // any of Children
	Nor                     // none of Children
	Not                     // not Children[0]
	Eq                      // a value equal to Value
	Ne                      // no value equal to Value
	Gt                      // a value greater than Value, of the same class of types
	Gte                     //
	Lt                      //
	Lte                     //
	In                      // a value equal to one of Values, ascending; none: false
	Nin                     // no value equal to one of Values
	Exists                  // a value at all; none when Value is false
	Regex                   // a string that Value, a regular expression, finds something in
	Type                    // a value of a type; Value is the argument as it was written
	Size                    // an array of Value elements
	ElemMatch               // an array with an element that all Children hold for
	Mod                     // a number whose remainder fits; Value is [divisor, remainder]
	Bits                    // an integer or binary with such bits; Value is the argument
	Expr                    // an expression, Value, on the whole document that comes out true
)

// Node is a filter, or a part of it, as a tree that a planner reads: which chunks can hold
// a match? Do not modify.
//
// What was written in several ways comes in one: an implicit equality is Eq, $in without
// regular expressions is In (with them an Or of In and Regex, $nin likewise a Nor), $all is
// an And of Eq, Regex and ElemMatch, an $or of one is that one, and an And never has just
// one child. Children of ElemMatch are on the array's elements, not on the document.
type Node struct {
	Op       Op
	Path     string // dotted; empty for And, Or, Nor, Not, Expr, and for elements in ElemMatch
	Value    bson.RawValue
	Values   []bson.RawValue
	Children []Node

	tester      tester     // of the operators on a path, before negation
	expr        expression // of Expr
	wholeArrays bool       // an array at the end of the path is tested only itself
}

// negated reports whether the node holds when its tester finds nothing.
func (n Node) negated() bool {
	return n.Op == Ne || n.Op == Nin || n.Op == Exists && !truth(n.Value)
}

// both joins conditions: one stays as it is.
func both(children []Node) Node {
	if len(children) == 1 {
		return children[0]
	}
	return Node{Op: And, Children: children}
}
