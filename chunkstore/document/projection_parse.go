package document

import (
	"strings"

	"github.com/granarydb/granary/chunkstore/document/number"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// shapeParser builds a shape from a specification.
type shapeParser struct {
	shape   *shape
	exprs   exprParser
	decided bool // include or exclude, by a field other than _id
	hidesID bool
	showsID bool
}

// parseShape parses a projection, whose expressions may know the time or not.
func parseShape(spec []byte, timeless bool) (*shape, error) {
	p := shapeParser{shape: &shape{}, exprs: exprParser{timeless: timeless}}
	for w := walkOf(spec); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		if err := p.parseField(&p.shape.root, "", string(e.name), e.value); err != nil {
			return nil, err
		}
	}
	if !p.decided && p.hidesID && !p.shape.computes {
		p.shape.mode = exclude
	}
	// _id is shown unless it is hidden: in including shapes it needs a part, in excluding
	// ones it has one only when it goes.
	switch hasID := p.shape.root.find([]byte("_id")) != nil; {
	case p.shape.mode == include && !p.hidesID && !hasID:
		p.shape.root.add("_id")
	case p.shape.mode == exclude && p.hidesID:
		p.shape.root.add("_id")
	}
	p.shape.root.complete()
	return p.shape, nil
}

// parseAddedFields parses the specification of $addFields: every value is an expression.
func parseAddedFields(spec []byte) (*shape, error) {
	p := shapeParser{shape: &shape{mode: add}, decided: true}
	for w := walkOf(spec); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		if err := p.parseComputed(&p.shape.root, "", string(e.name), e.value); err != nil {
			return nil, err
		}
	}
	p.shape.root.complete()
	return p.shape, nil
}

// parseField parses one field of a projection. Inside documents names have no dots to
// begin with, but may have them too.
func (p *shapeParser) parseField(at *part, prefix, name string, v bson.RawValue) error {
	path := prefix + name
	if strings.HasSuffix(path, ".$") {
		return badValue("the positional projection '%s' is not supported", path)
	}
	if err := checkFieldPath(path); err != nil {
		return err
	}
	_, isNumber := number.Of(v)
	switch {
	case isNumber || v.Type == bson.TypeBoolean:
		return p.parseFlag(at, path, len(name), truth(v))
	case v.Type == bson.TypeEmbeddedDocument && isEmpty(v.Value):
		return mongoerr.New(51270, "An empty sub-projection is not a valid value. Found empty object at path")
	case v.Type != bson.TypeEmbeddedDocument || isOperator(v):
		if p.decided && p.shape.mode == exclude {
			return mongoerr.New(31252, "Cannot use expression other than $meta in exclusion projection: %s", showElement(path, v))
		}
		p.decided = true
		return p.parseComputed(at, prefix, name, v)
	}
	inner, err := p.descend(at, path, len(prefix), len(path))
	if err != nil {
		return err
	}
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			return nil
		}
		if err := p.parseField(inner, path+".", string(e.name), e.value); err != nil {
			return err
		}
	}
}

// parseFlag parses path: 1 or path: 0.
func (p *shapeParser) parseFlag(at *part, path string, length int, shown bool) error {
	want := include
	if !shown {
		want = exclude
	}
	switch {
	case path == "_id":
		if p.hidesID || p.showsID {
			return mongoerr.New(31250, "Path collision at %s", path)
		}
		p.hidesID, p.showsID = !shown, shown
		return nil
	case p.decided && p.shape.mode != want && shown:
		return mongoerr.New(31253, "Cannot do inclusion on field %s in exclusion projection", path)
	case p.decided && p.shape.mode != want:
		return mongoerr.New(31254, "Cannot do exclusion on field %s in inclusion projection", path)
	}
	p.decided, p.shape.mode = true, want
	_, err := p.leaf(at, path, length)
	return err
}

// parseComputed parses path: expression; a document that is no operator goes deeper.
func (p *shapeParser) parseComputed(at *part, prefix, name string, v bson.RawValue) error {
	path := prefix + name
	if err := checkFieldPath(path); err != nil {
		return err
	}
	if v.Type == bson.TypeEmbeddedDocument && !isOperator(v) && !isEmpty(v.Value) {
		inner, err := p.descend(at, path, len(prefix), len(path))
		if err != nil {
			return err
		}
		for w := walkOf(v.Value); ; {
			e, ok := w.next()
			if !ok {
				return nil
			}
			if err := p.parseComputed(inner, path+".", string(e.name), e.value); err != nil {
				return err
			}
		}
	}
	if err := refuseFindOperators(path, v); err != nil {
		return err
	}
	expr, err := p.exprs.parse(v)
	if err != nil {
		return err
	}
	leaf, err := p.leaf(at, path, len(name))
	if err == nil {
		leaf.expr = expr
		p.shape.computes = true
	}
	return err
}

func refuseFindOperators(path string, v bson.RawValue) error {
	if v.Type != bson.TypeEmbeddedDocument {
		return nil
	}
	e, _ := first(v.Value)
	switch name := string(e.name); name {
	case "$slice":
		if e.value.Type != bson.TypeArray || count(e.value.Value) != 2 {
			return badValue("the projection operator $slice is not supported: '%s'", path)
		}
		w := walkOf(e.value.Value)
		if one, _ := w.next(); rank(one.value.Type) == rank(bson.TypeInt32) {
			return badValue("the projection operator $slice is not supported: '%s'", path)
		}
	case "$elemMatch", "$meta":
		return badValue("the projection operator %s is not supported: '%s'", name, path)
	}
	return nil
}

// isOperator reports whether a document is {$operator: ...}.
func isOperator(v bson.RawValue) bool {
	if v.Type != bson.TypeEmbeddedDocument {
		return false
	}
	e, ok := first(v.Value)
	return ok && len(e.name) > 0 && e.name[0] == '$'
}

// descend finds or makes the part that path[from:to] leads to, to go into it.
func (p *shapeParser) descend(at *part, path string, from, to int) (*part, error) {
	for from < to {
		end := from + strings.IndexByte(path[from:to]+".", '.')
		inner := at.find([]byte(path[from:end]))
		switch {
		case inner == nil:
			inner = at.add(path[from:end])
		case len(inner.parts) > 0:
		case end == len(path):
			return nil, mongoerr.New(31250, "Path collision at %s", path)
		default:
			return nil, mongoerr.New(31249, "Path collision at %s remaining portion %s", path, path[end+1:])
		}
		at, from = inner, end+1
	}
	return at, nil
}

// leaf makes the part at the end of path, whose last length bytes lead there from at.
// Nothing may be there yet.
func (p *shapeParser) leaf(at *part, path string, length int) (*part, error) {
	last := strings.LastIndexByte(path, '.') + 1
	if from := len(path) - length; from < last {
		var err error
		if at, err = p.descend(at, path, from, last-1); err != nil {
			return nil, err
		}
	}
	if at.find([]byte(path[last:])) != nil {
		return nil, mongoerr.New(31250, "Path collision at %s", path)
	}
	return at.add(path[last:]), nil
}

// add makes a part inside p.
func (p *part) add(name string) *part {
	inner := &part{name: name, index: len(p.parts)}
	p.parts = append(p.parts, inner)
	if len(p.parts) <= manyChildren {
		return inner
	}
	if p.byName == nil {
		p.byName = map[string]*part{}
		for _, each := range p.parts {
			p.byName[each.name] = each
		}
	}
	p.byName[name] = inner
	return inner
}

// complete tells every part whether something in it is computed.
func (p *part) complete() {
	p.makes = p.expr != nil
	for _, inner := range p.parts {
		inner.complete()
		p.makes = p.makes || inner.makes
	}
}
