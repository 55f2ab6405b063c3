package document

import (
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxSlots is how many different top-level fields one scan of the document looks for;
// filters with more look each further field up by itself.
const maxSlots = 16

// program is a filter made ready to run. The top-level fields that it looks at each have a
// slot; one scan of the document fills the slots, then the conditions are checked on them.
type program struct {
	fields []wanted // slot i is fields[i]
	root   step
}

// step is a node of the filter's tree.
type step struct {
	op       Op
	slot     int        // of the path's first field; -1: none, look name up
	name     string     // the path's first field
	path     []string   // the rest of the path
	expr     expression // of Expr
	negated  bool
	whole    bool
	tester   tester
	children []step
}

// slots are offsets of elements in a document; 0 is a field that it does not have.
type slots [maxSlots]uint32

// matching is one document on its way through a program.
type matching struct {
	doc []byte
	at  slots
	err error // why a condition could not be checked
}

func compile(root Node) program {
	var p program
	p.root = p.step(root)
	return p
}

func (p *program) step(n Node) step {
	s := step{op: n.Op, slot: -1, negated: n.negated(), whole: n.wholeArrays, tester: n.tester}
	switch n.Op {
	case And, Or, Nor, Not:
		for _, child := range n.Children {
			s.children = append(s.children, p.step(child))
		}
		return s
	case Expr:
		s.expr = n.expr
		return s
	}
	path := splitPath(n.Path)
	s.name, s.path = path[0], path[1:]
	s.slot = slices.IndexFunc(p.fields, func(f wanted) bool { return f.name == s.name })
	if s.slot < 0 && len(p.fields) < maxSlots {
		s.slot = len(p.fields)
		p.fields = append(p.fields, want(s.name))
	}
	return s
}

func (p *program) match(doc []byte) (bool, error) {
	m := matching{doc: doc}
	if len(p.fields) > 0 {
		locate(doc, p.fields, &m.at)
	}
	ok := p.root.holds(&m)
	return ok && m.err == nil, m.err
}

// locate finds the fields in one pass, and stops when it has them all.
func locate(doc []byte, fields []wanted, at *slots) {
	missing := len(fields)
	for pos := 4; doc[pos] != 0; {
		end, word := scanName(doc, pos+1)
		for i := range fields {
			if fields[i].word == word && fields[i].is(doc[pos+1:end]) {
				at[i] = uint32(pos)
				if missing--; missing == 0 {
					return
				}
				break
			}
		}
		pos = end + 1 + valueLength(doc[pos], doc, end+1)
	}
}

// holds recurses as deep as the filter is nested.
func (s *step) holds(m *matching) bool {
	switch s.op {
	case And:
		for i := range s.children {
			if !s.children[i].holds(m) {
				return false
			}
		}
		return true
	case Or, Nor:
		for i := range s.children {
			if s.children[i].holds(m) {
				return s.op == Or
			}
		}
		return s.op == Nor
	case Not:
		return !s.children[0].holds(m)
	case Expr:
		return m.compute(s.expr)
	}
	v := m.value(s)
	if r, ok := s.tester.(*search); ok && len(m.doc) > r.longest && reach(v, s.path, tooLong{r}, s.whole) {
		m.err = mongoerr.New(mongoerr.Location51091, "a string is too long for the regular expression on '%s': "+
			"it is searched up to %d bytes", strings.Join(append([]string{s.name}, s.path...), "."), r.longest)
		return false
	}
	return reach(v, s.path, s.tester, s.whole) != s.negated
}

// compute evaluates an expression. One that has no value makes the whole filter not match,
// whatever is negated: nothing may be deleted because a condition could not be checked.
func (m *matching) compute(x expression) bool {
	v, err := x.eval(&evaluation{root: m.doc})
	if err != nil {
		m.err = err
	}
	return truth(v)
}

// value is the value of the path's first field.
func (m *matching) value(s *step) bson.RawValue {
	doc := m.doc
	if s.slot < 0 {
		return field(doc, s.name)
	}
	pos := int(m.at[s.slot])
	if pos == 0 {
		return missing
	}
	value := pos + 1 + len(s.name) + 1
	end := value + valueLength(doc[pos], doc, value)
	return bson.RawValue{Type: bson.Type(doc[pos]), Value: doc[value:end:end]}
}
