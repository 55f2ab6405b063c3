package document

import (
	"strings"

	"github.com/granarydb/granary/chunkstore/document/number"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// expression computes a value from a document. The value of type 0 is "missing".
type expression interface {
	eval(e *evaluation) (bson.RawValue, error)
}

// maxComputedBytes bounds what the expressions of one document may make on the way to
// their results.
const maxComputedBytes = 32 << 20

// maxSteps bounds the time that the expressions of one document take: fields and elements
// that are gone over, rounds of $map, $filter and $reduce. It is under a second.
const maxSteps = 20_000_000

// listedBytes is what a value costs in a list, beside its bytes.
const listedBytes = 48

// evaluation is one document that expressions are computed for.
type evaluation struct {
	root bson.Raw
	now  int64
	// vars are the variables that are bound: $let's, $map's and the like.
	vars []bson.RawValue
	// args is a stack of arguments that are being collected.
	args []bson.RawValue
	// small holds the bytes of numbers and dates that were computed.
	small []byte
	made  int // bytes
	steps int
}

// begin starts on another document. Values of the one before are void.
func (e *evaluation) begin(doc bson.Raw) {
	e.root, e.made, e.steps = doc, 0, 0
	e.vars, e.args, e.small = e.vars[:0], e.args[:0], e.small[:0]
}

// charge counts n computed bytes.
func (e *evaluation) charge(n int) error {
	if e.made += n; e.made > maxComputedBytes {
		return mongoerr.New(mongoerr.QueryExceededMemoryLimit,
			"the expressions of one document made more than %d bytes", maxComputedBytes)
	}
	return nil
}

// step counts n steps.
func (e *evaluation) step(n int) error {
	if e.steps += n; e.steps > maxSteps {
		return mongoerr.New(mongoerr.OperationFailed,
			"the expressions of one document take more than %d steps", maxSteps)
	}
	return nil
}

// number is n as a value.
func (e *evaluation) number(n number.Number) bson.RawValue {
	at := len(e.small)
	e.small = n.Append(e.small)
	return bson.RawValue{Type: n.Type(), Value: e.small[at:len(e.small):len(e.small)]}
}

// array is an array of these values; missing ones become null.
func (e *evaluation) array(values []bson.RawValue) (bson.RawValue, error) {
	size := 5
	for _, v := range values {
		size += len(v.Value) + 8
	}
	if err := e.charge(size + listedBytes*len(values)); err != nil {
		return missing, err
	}
	out, at := begin(make([]byte, 0, size))
	for i, v := range values {
		if v.Type == 0 {
			v = null
		}
		out = append(appendIndexHeader(out, v.Type, i), v.Value...)
	}
	return bson.RawValue{Type: bson.TypeArray, Value: finish(out, at)}, nil
}

// text is a string value.
func (e *evaluation) text(s []byte) (bson.RawValue, error) {
	v := bson.RawValue{Type: bson.TypeString, Value: appendString(make([]byte, 0, len(s)+5), s)}
	return v, e.charge(len(v.Value))
}

// isNullish reports whether v is null, undefined or missing.
func isNullish(v bson.RawValue) bool {
	return v.Type == 0 || v.Type == bson.TypeNull || v.Type == bson.TypeUndefined
}

// exprParser parses expressions.
type exprParser struct {
	scope    []string // the names of the variables, by their position in evaluation.vars
	timeless bool     // $$NOW has no value here
}

func parseExpression(v bson.RawValue) (expression, error) {
	var p exprParser
	return p.parse(v)
}

// parse recurses as deep as the expression is nested.
func (p *exprParser) parse(v bson.RawValue) (expression, error) {
	switch v.Type {
	case bson.TypeString:
		if text := textOf(v); len(text) > 0 && text[0] == '$' {
			return p.parsePath(string(text))
		}
	case bson.TypeArray:
		items, err := p.parseAll(valuesOf(v.Value))
		return arrayOf(items), err
	case bson.TypeEmbeddedDocument:
		if isOperator(v) {
			return p.parseOperator(v)
		}
		return p.parseDocument(v.Value)
	}
	return literal{v}, nil
}

func (p *exprParser) parseAll(values []bson.RawValue) ([]expression, error) {
	out := make([]expression, len(values))
	for i, v := range values {
		var err error
		if out[i], err = p.parse(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// parseDocument parses {name: expression, ...}, which makes a document.
func (p *exprParser) parseDocument(doc []byte) (expression, error) {
	var out documentOfFields
	for w := walkOf(doc); ; {
		e, ok := w.next()
		if !ok {
			return &out, nil
		}
		name := string(e.name)
		switch {
		case strings.IndexByte(name, '.') >= 0:
			return nil, mongoerr.New(16412, "FieldPath field names may not contain '.'. Consider using $getField or $setField.")
		case strings.HasPrefix(name, "$"):
			return nil, mongoerr.New(16410, "FieldPath field names may not start with '$'. Consider using $getField or $setField.")
		}
		inner, err := p.parse(e.value)
		if err != nil {
			return nil, err
		}
		out.names = append(out.names, name)
		out.values = append(out.values, inner)
	}
}

// parseOperator parses {$operator: argument}.
func (p *exprParser) parseOperator(v bson.RawValue) (expression, error) {
	if count(v.Value) != 1 {
		return nil, mongoerr.New(15983, "An object representing an expression must have exactly one field: %s", show(v))
	}
	e, _ := first(v.Value)
	name := string(e.name)
	if parse := specialForm(name); parse != nil {
		return parse(p, name, e.value)
	}
	row, ok := functions[name]
	if !ok {
		return nil, mongoerr.New(invalidPipelineOperator, "Unrecognized expression '%s'", quotable(e.name))
	}
	args, err := p.parseArguments(name, e.value, row.least, row.most)
	return &call{name: name, do: row.do, args: args}, err
}

// parseArguments parses an array of arguments, or a single one without the array.
func (p *exprParser) parseArguments(name string, v bson.RawValue, least, most int) ([]expression, error) {
	values := []bson.RawValue{v}
	if v.Type == bson.TypeArray {
		values = valuesOf(v.Value)
	}
	switch n := len(values); {
	case least == most && n != least:
		return nil, mongoerr.New(16020, "Expression %s takes exactly %d arguments. %d were passed in.", name, least, n)
	case n < least || n > most:
		return nil, mongoerr.New(28667, "Expression %s takes at least %d arguments, and at most %d, but %d were passed in.", name, least, most, n)
	}
	return p.parseAll(values)
}

// literal is a constant.
type literal struct{ v bson.RawValue }

func (x literal) eval(*evaluation) (bson.RawValue, error) { return x.v, nil }

// arrayOf makes an array.
type arrayOf []expression

func (x arrayOf) eval(e *evaluation) (bson.RawValue, error) {
	args, err := e.push(x)
	if err != nil {
		return missing, err
	}
	defer e.pop(len(x))
	return e.array(args)
}

// push evaluates arguments onto the stack; pop takes as many off.
func (e *evaluation) push(all []expression) ([]bson.RawValue, error) {
	at := len(e.args)
	for _, x := range all {
		v, err := x.eval(e)
		if err != nil {
			e.args = e.args[:at]
			return nil, err
		}
		e.args = append(e.args, v)
	}
	return e.args[at:], nil
}

func (e *evaluation) pop(n int) { e.args = e.args[:len(e.args)-n] }

// documentOfFields makes a document; missing values leave no field.
type documentOfFields struct {
	names  []string
	values []expression
}

func (x *documentOfFields) eval(e *evaluation) (bson.RawValue, error) {
	out, at := begin(nil)
	for i, inner := range x.values {
		v, err := inner.eval(e)
		if err != nil {
			return missing, err
		}
		if v.Type != 0 {
			out = appendElement(out, x.names[i], v)
		}
	}
	return documentValue(finish(out, at)), e.charge(len(out))
}

// function is a row of the table of operators: how many arguments, and what it does with
// their values.
type function struct {
	least, most int
	do          func(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error)
}

// anyNumber is the most arguments of an operator without a limit.
const anyNumber = 1 << 20

// call is an operator with its arguments.
type call struct {
	name string
	do   func(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error)
	args []expression
}

func (x *call) eval(e *evaluation) (bson.RawValue, error) {
	args, err := e.push(x.args)
	if err != nil {
		return missing, err
	}
	defer e.pop(len(x.args))
	return x.do(e, x.name, args)
}
