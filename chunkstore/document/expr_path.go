package document

import (
	"strings"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// pathExpr is "$a.b", the document's field, or "$$name.b", a variable's.
type pathExpr struct {
	variable int // position in evaluation.vars, or one of the below
	path     []wanted
}

const (
	rootVariable   = -1 // $$ROOT and $$CURRENT
	nowVariable    = -2
	removeVariable = -3
)

func (p *exprParser) parsePath(text string) (expression, error) {
	if text == "$" {
		return nil, mongoerr.New(16872, "'$' by itself is not a valid FieldPath")
	}
	if !strings.HasPrefix(text, "$$") {
		if err := checkFieldPath(text[1:]); err != nil {
			return nil, err
		}
		return &pathExpr{variable: rootVariable, path: wantPath(text[1:])}, nil
	}
	name, rest, deeper := strings.Cut(text[2:], ".")
	x := &pathExpr{}
	switch name {
	case "":
		return nil, mongoerr.New(mongoerr.FailedToParse, "empty variable names are not allowed")
	case "ROOT", "CURRENT":
		x.variable = rootVariable
	case "NOW":
		if p.timeless {
			return nil, mongoerr.New(51144, "Builtin variable '$$NOW' is not available")
		}
		x.variable = nowVariable
	case "REMOVE":
		x.variable = removeVariable
	default:
		x.variable = len(p.scope) - 1
		for x.variable >= 0 && p.scope[x.variable] != name {
			x.variable--
		}
		if x.variable < 0 {
			return nil, mongoerr.New(17276, "Use of undefined variable: %s", quotable([]byte(name)))
		}
	}
	if deeper {
		if err := checkFieldPath(rest); err != nil {
			return nil, err
		}
		x.path = wantPath(rest)
	}
	return x, nil
}

func (x *pathExpr) eval(e *evaluation) (bson.RawValue, error) {
	switch x.variable {
	case rootVariable:
		return e.at(documentValue(e.root), x.path)
	case nowVariable:
		return dateValue(e.now), nil
	case removeVariable:
		return missing, nil
	}
	return e.at(e.vars[x.variable], x.path)
}

func wantPath(path string) []wanted {
	var names []wanted
	for _, name := range splitPath(path) {
		names = append(names, want(name))
	}
	return names
}

// at is the value at a path from v: of an array, the array of what its documents have
// there, indexes not counting.
func (e *evaluation) at(v bson.RawValue, path []wanted) (bson.RawValue, error) {
	for i, name := range path {
		switch v.Type {
		case bson.TypeEmbeddedDocument:
			var passed int
			v, passed = fieldWanted(v.Value, name)
			if err := e.step(passed); err != nil {
				return missing, err
			}
		case bson.TypeArray:
			return e.inArray(v.Value, path[i:])
		default:
			return missing, nil
		}
	}
	return v, nil
}

func (e *evaluation) inArray(array []byte, path []wanted) (bson.RawValue, error) {
	var values []bson.RawValue
	for w := walkOf(array); ; {
		el, ok := w.next()
		if !ok {
			return e.array(values)
		}
		if err := e.step(1); err != nil {
			return missing, err
		}
		if el.value.Type != bson.TypeEmbeddedDocument {
			continue
		}
		v, err := e.at(el.value, path)
		if err != nil {
			return missing, err
		}
		if v.Type != 0 {
			values = append(values, v)
		}
	}
}
