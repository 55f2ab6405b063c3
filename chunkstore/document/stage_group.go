package document

import (
	"strings"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// groupStage is $group. Groups come out in the order in which they were first met.
type groupStage struct {
	id     expression
	fields []groupField
}

// groupField is name: {$accumulator: expression}.
type groupField struct {
	name string
	make func() accumulator
	of   expression
}

// group is one value of _id, and its accumulators so far.
type group struct {
	id   bson.RawValue
	accs []accumulator
}

func parseGroup(v bson.RawValue) ([]stage, error) {
	if v.Type != bson.TypeEmbeddedDocument {
		return nil, mongoerr.New(15947, "a group's fields must be specified in an object")
	}
	s := &groupStage{}
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		var err error
		if string(e.name) == "_id" {
			s.id, err = parseExpression(e.value)
		} else {
			err = s.parseField(string(e.name), e.value)
		}
		if err != nil {
			return nil, err
		}
	}
	if s.id == nil {
		return nil, mongoerr.New(15955, "a group specification must include an _id")
	}
	return []stage{s}, nil
}

func (s *groupStage) parseField(name string, v bson.RawValue) error {
	switch {
	case strings.IndexByte(name, '.') >= 0:
		return mongoerr.New(40235, "The field name '%s' cannot contain '.'", name)
	case strings.HasPrefix(name, "$"):
		return mongoerr.New(40236, "The field name '%s' cannot be an operator name", name)
	case !isOperator(v):
		return mongoerr.New(40234, "The field '%s' must be an accumulator object", name)
	case count(v.Value) != 1:
		return mongoerr.New(40238, "The field '%s' must specify one accumulator", name)
	}
	e, _ := first(v.Value)
	operator := string(e.name)
	maker, ok := accumulators[operator]
	switch {
	case !ok:
		return mongoerr.New(15952, "unknown group operator '%s'", quotable(e.name))
	case e.value.Type == bson.TypeArray:
		return mongoerr.New(40237, "The %s accumulator is a unary operator", operator)
	case operator == "$count":
		if e.value.Type != bson.TypeEmbeddedDocument || !isEmpty(e.value.Value) {
			return mongoerr.New(mongoerr.TypeMismatch, "$count takes no arguments, i.e. $count:{}")
		}
		s.fields = append(s.fields, groupField{name, maker, literal{bson.RawValue{Type: bson.TypeInt32, Value: []byte{1, 0, 0, 0}}}})
		return nil
	}
	of, err := parseExpression(e.value)
	s.fields = append(s.fields, groupField{name, maker, of})
	return err
}

func (s *groupStage) run(r *running, in documents) documents {
	return func(yield func(bson.Raw, error) bool) {
		g := grouping{stage: s, byID: map[string]*group{}}
		e := evaluation{now: r.now}
		for doc, err := range in {
			if err == nil {
				e.begin(doc)
				err = g.add(r, &e)
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
		var buf []byte
		for _, one := range g.order {
			buf = s.append(buf[:0], one)
			if err := checkProduced(buf); err != nil {
				yield(nil, err)
				return
			}
			if !yield(buf, nil) {
				return
			}
		}
	}
}

// grouping is the groups of one run.
type grouping struct {
	stage *groupStage
	byID  map[string]*group // by the key bytes of _id, which are the same for equal values
	order []*group
	key   []byte
}

// groupOverhead is about what a group and each of its accumulators cost beside their bytes.
const groupOverhead = 100

func (g *grouping) add(r *running, e *evaluation) error {
	id, err := g.stage.id.eval(e)
	if err != nil {
		return err
	}
	g.key = shardkey.AppendValue(g.key[:0], id, false)
	one := g.byID[string(g.key)]
	held := 0
	if one == nil {
		one = &group{}
		keepCopy(&one.id, orNull(id))
		for _, f := range g.stage.fields {
			one.accs = append(one.accs, f.make())
		}
		g.byID[string(g.key)] = one
		g.order = append(g.order, one)
		held = len(g.key) + len(id.Value) + groupOverhead*(1+len(one.accs))
	}
	for i, f := range g.stage.fields {
		v, err := f.of.eval(e)
		if err != nil {
			return err
		}
		before := one.accs[i].held()
		if err := one.accs[i].add(v); err != nil {
			return err
		}
		held += one.accs[i].held() - before
	}
	return r.hold(held, "$group")
}

// append appends a group's document.
func (s *groupStage) append(dst []byte, g *group) []byte {
	dst, at := begin(dst)
	dst = appendElement(dst, "_id", g.id)
	for i, f := range s.fields {
		dst = appendElement(dst, f.name, g.accs[i].result())
	}
	return finish(dst, at)
}

// parseSortByCount parses $sortByCount: groups by an expression, the largest first.
func parseSortByCount(v bson.RawValue) ([]stage, error) {
	if v.Type != bson.TypeEmbeddedDocument && (v.Type != bson.TypeString || len(textOf(v)) == 0 || textOf(v)[0] != '$') {
		return nil, mongoerr.New(40148, "the sortByCount field must be defined as a $-prefixed path or an expression inside an object")
	}
	id, err := parseExpression(v)
	if err != nil {
		return nil, err
	}
	one := literal{bson.RawValue{Type: bson.TypeInt32, Value: []byte{1, 0, 0, 0}}}
	return []stage{
		&groupStage{id: id, fields: []groupField{{"count", accumulators["$sum"], one}}},
		&sortStage{sort: &Sort{fields: []SortField{{"count", true}}, paths: [][]string{{"count"}}}},
	}, nil
}
