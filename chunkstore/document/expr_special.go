package document

import (
	"slices"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// specialForm finds the parser of an operator that does not evaluate all its arguments
// first, or whose argument is not a list; nil for others. (No table: the parsers call it.)
func specialForm(name string) func(p *exprParser, name string, v bson.RawValue) (expression, error) {
	switch name {
	case "$literal", "$const":
		return parseLiteral
	case "$ifNull":
		return parseIfNull
	case "$and", "$or":
		return parseJunction
	case "$cond":
		return parseCond
	case "$switch":
		return parseSwitch
	case "$let":
		return parseLet
	case "$map", "$filter", "$reduce":
		return parseLoop
	}
	return nil
}

func parseLiteral(_ *exprParser, _ string, v bson.RawValue) (expression, error) {
	return literal{v}, nil
}

// ifNull is the first value that is not null or missing, else the last.
type ifNull []expression

func parseIfNull(p *exprParser, name string, v bson.RawValue) (expression, error) {
	if v.Type != bson.TypeArray || count(v.Value) < 2 {
		return nil, mongoerr.New(1257300, "%s needs at least two arguments, had: %d", name, len(argumentsOf(v)))
	}
	all, err := p.parseAll(valuesOf(v.Value))
	return ifNull(all), err
}

func argumentsOf(v bson.RawValue) []bson.RawValue {
	if v.Type == bson.TypeArray {
		return valuesOf(v.Value)
	}
	return []bson.RawValue{v}
}

func (x ifNull) eval(e *evaluation) (v bson.RawValue, err error) {
	for _, inner := range x {
		if v, err = inner.eval(e); err != nil || !isNullish(v) {
			break
		}
	}
	return v, err
}

// junction is $and and $or; it stops at the value that decides.
type junction struct {
	all   []expression
	until bool // the truth that decides
}

func parseJunction(p *exprParser, name string, v bson.RawValue) (expression, error) {
	all, err := p.parseAll(argumentsOf(v))
	return &junction{all, name == "$or"}, err
}

func (x *junction) eval(e *evaluation) (bson.RawValue, error) {
	for _, inner := range x.all {
		v, err := inner.eval(e)
		if err != nil {
			return missing, err
		}
		if truth(v) == x.until {
			return boolValue(x.until), nil
		}
	}
	return boolValue(!x.until), nil
}

// choice is $cond and $switch: the first case that holds.
type choice struct {
	cases, then []expression
	otherwise   expression
}

func (x *choice) eval(e *evaluation) (bson.RawValue, error) {
	for i, c := range x.cases {
		v, err := c.eval(e)
		if err != nil {
			return missing, err
		}
		if truth(v) {
			return x.then[i].eval(e)
		}
	}
	if x.otherwise == nil {
		return missing, mongoerr.New(40066, "$switch could not find a matching branch for an input, and no default was specified.")
	}
	return x.otherwise.eval(e)
}

func parseCond(p *exprParser, name string, v bson.RawValue) (expression, error) {
	var parts []expression
	var err error
	if v.Type == bson.TypeEmbeddedDocument {
		parts, err = p.parseNamed(name, v, []string{"if", "then", "else"}, 3)
	} else {
		parts, err = p.parseArguments(name, v, 3, 3)
	}
	if err != nil {
		return nil, err
	}
	return &choice{cases: parts[:1], then: parts[1:2], otherwise: parts[2]}, nil
}

// parseNamed parses {name: expression, ...} with these names, of which the first few are
// required. Those not given are nil.
func (p *exprParser) parseNamed(operator string, v bson.RawValue, names []string, required int) ([]expression, error) {
	given, err := namedArguments(operator, v, names, required)
	if err != nil {
		return nil, err
	}
	out := make([]expression, len(names))
	for i, v := range given {
		if v.Type == 0 {
			continue
		}
		if out[i], err = p.parse(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func namedArguments(operator string, v bson.RawValue, names []string, required int) ([]bson.RawValue, error) {
	if v.Type != bson.TypeEmbeddedDocument {
		return nil, mongoerr.New(mongoerr.FailedToParse, "%s only supports an object as its argument", operator)
	}
	out := make([]bson.RawValue, len(names))
	found := 0
	for i, name := range names {
		if out[i] = field(v.Value, name); out[i].Type != 0 {
			found++
		} else if i < required {
			return nil, mongoerr.New(mongoerr.FailedToParse, "Missing '%s' parameter to %s", name, operator)
		}
	}
	if count(v.Value) != found {
		return nil, mongoerr.New(mongoerr.FailedToParse, "Unrecognized parameter to %s: %s", operator, show(v))
	}
	return out, nil
}

func parseSwitch(p *exprParser, name string, v bson.RawValue) (expression, error) {
	given, err := namedArguments(name, v, []string{"branches", "default"}, 1)
	if err != nil {
		return nil, err
	}
	if given[0].Type != bson.TypeArray || isEmpty(given[0].Value) {
		return nil, mongoerr.New(40068, "$switch requires at least one branch.")
	}
	x := &choice{}
	for _, branch := range valuesOf(given[0].Value) {
		parts, err := p.parseNamed(name, branch, []string{"case", "then"}, 2)
		if err != nil {
			return nil, err
		}
		x.cases, x.then = append(x.cases, parts[0]), append(x.then, parts[1])
	}
	if given[1].Type != 0 {
		x.otherwise, err = p.parse(given[1])
	}
	return x, err
}

// let is $let: variables for an expression, computed before any of them is known.
type let struct {
	values []expression
	in     expression
}

func parseLet(p *exprParser, name string, v bson.RawValue) (expression, error) {
	given, err := namedArguments(name, v, []string{"vars", "in"}, 2)
	if err != nil {
		return nil, err
	}
	if given[0].Type != bson.TypeEmbeddedDocument {
		return nil, mongoerr.New(16874, "invalid parameter: expected an object (vars)")
	}
	x := &let{}
	inner := p.with()
	for w := walkOf(given[0].Value); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		if err := checkVariable(string(e.name)); err != nil {
			return nil, err
		}
		value, err := p.parse(e.value)
		if err != nil {
			return nil, err
		}
		x.values = append(x.values, value)
		inner.scope = append(inner.scope, string(e.name))
	}
	x.in, err = inner.parse(given[1])
	return x, err
}

func checkVariable(name string) error {
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		return mongoerr.New(mongoerr.FailedToParse, "'%s' starts with an invalid character for a user variable name", quotable([]byte(name)))
	}
	return nil
}

// with is the parser with more variables in scope.
func (p *exprParser) with(names ...string) exprParser {
	return exprParser{scope: append(slices.Clone(p.scope), names...), timeless: p.timeless}
}

func (x *let) eval(e *evaluation) (bson.RawValue, error) {
	values, err := e.push(x.values)
	if err != nil {
		return missing, err
	}
	at := len(e.vars)
	e.vars = append(e.vars, values...)
	e.pop(len(x.values))
	out, err := x.in.eval(e)
	e.vars = e.vars[:at]
	return out, err
}
