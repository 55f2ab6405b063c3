package document

import (
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// loop is $map, $filter and $reduce: an expression for each element of an array.
type loop struct {
	name    string
	input   expression
	initial expression // $reduce
	limit   expression // $filter
	in      expression
}

func parseLoop(p *exprParser, name string, v bson.RawValue) (expression, error) {
	names := map[string][]string{
		"$map":    {"input", "in", "as"},
		"$filter": {"input", "cond", "as", "limit"},
		"$reduce": {"input", "in", "initialValue"},
	}[name]
	required := 2
	if name == "$reduce" {
		required = 3
	}
	given, err := namedArguments(name, v, names, required)
	if err != nil {
		return nil, err
	}
	x := &loop{name: name}
	if x.input, err = p.parse(given[0]); err != nil {
		return nil, err
	}
	inner := p.with("this")
	switch {
	case name == "$reduce":
		if x.initial, err = p.parse(given[2]); err != nil {
			return nil, err
		}
		inner = p.with("value", "this")
	case given[2].Type == bson.TypeString:
		as := string(textOf(given[2]))
		if err := checkVariable(as); err != nil {
			return nil, err
		}
		inner = p.with(as)
	case given[2].Type != 0:
		return nil, mongoerr.New(mongoerr.FailedToParse, "'as' of %s must be a string", name)
	}
	if name == "$filter" && given[3].Type != 0 {
		if x.limit, err = p.parse(given[3]); err != nil {
			return nil, err
		}
	}
	x.in, err = inner.parse(given[1])
	return x, err
}

func (x *loop) eval(e *evaluation) (bson.RawValue, error) {
	input, err := x.input.eval(e)
	switch {
	case err != nil || isNullish(input):
		return null, err
	case input.Type != bson.TypeArray:
		return missing, mongoerr.New(16883, "input to %s must be an array not %s", x.name, typeName(input.Type))
	case x.name == "$reduce":
		return x.reduce(e, input.Value)
	}
	limit, err := x.most(e)
	if err != nil {
		return missing, err
	}
	var out []bson.RawValue
	for w := walkOf(input.Value); int64(len(out)) < limit; {
		el, ok := w.next()
		if !ok {
			break
		}
		v, err := e.bind(x.in, el.value)
		switch {
		case err != nil:
			return missing, err
		case x.name == "$map":
			out = append(out, v)
		case truth(v):
			out = append(out, el.value)
		}
	}
	return e.array(out)
}

// most is how many elements $filter keeps.
func (x *loop) most(e *evaluation) (int64, error) {
	if x.limit == nil {
		return MaxInternalBytes, nil
	}
	v, err := x.limit.eval(e)
	if err != nil || isNullish(v) {
		return MaxInternalBytes, err
	}
	limit, ok := wholeNumber(v)
	if !ok || limit < 1 {
		return 0, mongoerr.New(327391, "$filter: limit must be represented as a 32-bit integral value greater than 0: %s", show(v))
	}
	return limit, nil
}

func (x *loop) reduce(e *evaluation, array []byte) (bson.RawValue, error) {
	value, err := x.initial.eval(e)
	if err != nil {
		return missing, err
	}
	for w := walkOf(array); ; {
		el, ok := w.next()
		if !ok {
			return value, nil
		}
		if value, err = e.bind(x.in, value, el.value); err != nil {
			return missing, err
		}
	}
}

// stepsPerRound is what a round of a loop costs beside what it looks at.
const stepsPerRound = 16

// bind evaluates inner with more variables.
func (e *evaluation) bind(inner expression, values ...bson.RawValue) (bson.RawValue, error) {
	if err := e.step(stepsPerRound); err != nil {
		return missing, err
	}
	at := len(e.vars)
	e.vars = append(e.vars, values...)
	out, err := inner.eval(e)
	e.vars = e.vars[:at]
	return out, err
}
