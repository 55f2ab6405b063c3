package command

import (
	"context"
	"slices"
	"strconv"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// aggregation runs pipelines. What a find could do at the beginning of one goes to the
// owners as a find, and a count of all that as a count; the other stages run here.
func (s *Commands) aggregation() []Command {
	return []Command{{
		Name: "aggregate", Help: "documents through stages", Run: s.aggregate,
		Fields:  []string{"pipeline", "cursor", "explain", "collation", "let"},
		Ignored: []string{"allowDiskUse", "hint", "bypassDocumentValidation", "bypassEmptyTsReplacement", "fromMongos", "needsMerge"},
	}}
}

func (s *Commands) aggregate(ctx context.Context, c *call) (bson.Raw, error) {
	stages := c.list("pipeline", c.value("pipeline"))
	options := c.doc("cursor")
	batch := int64(firstBatch)
	if n := options.Lookup("batchSize"); options != nil && !absent(n) {
		var ok bool
		if batch, ok = asInt(n); !ok || batch < 0 {
			c.fail(mongoerr.New(mongoerr.TypeMismatch, "BSON field 'cursor.batchSize' must be a number that is not negative"))
		}
	}
	c.simpleCollation()
	if len(c.doc("let")) > 5 {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "aggregate: let is not supported"))
	}
	explain := c.bool("explain")
	if c.err == nil && options == nil && !explain {
		c.fail(mongoerr.New(mongoerr.FailedToParse, "The 'cursor' option is required, except for aggregate with the explain argument"))
	}
	if c.err != nil {
		return nil, c.err
	}
	if n, ok := asInt(c.fields[0].value); ok && n == 1 {
		return s.aggregateCluster(ctx, c, stages, int(batch))
	}
	ns := c.namespace()
	if c.err != nil {
		return nil, c.err
	}
	if len(stages) > 0 {
		if name, spec := stage(stages[0]); name == "$collStats" && !explain {
			return s.aggregateStats(ctx, c, ns, spec, stages, int(batch))
		}
	}
	if _, err := document.ParsePipeline(stageArray(stages)); err != nil {
		return nil, err
	}
	p := push(stages)
	p.query.Level, p.query.At, p.query.MaxTime = c.level, c.at, c.maxTime
	if explain {
		return s.explainReply(ctx, &explained{call: c, ns: ns, query: p.query, pipe: p, stages: stages}, onlyPlan)
	}
	s.counts.command.Add(1)
	ctx, cancel := c.limited(ctx)
	defer cancel()
	r, err := s.pipeline(ctx, ns, p)
	if err != nil {
		return nil, err
	}
	return s.first(ctx, c, &cursor{ns: ns.String(), session: c.session, rows: r}, int(batch), false)
}

// pipeline starts what was pushed, and the rest on top of it.
func (s *Commands) pipeline(ctx context.Context, ns router.Namespace, p pushed) (rows, error) {
	var r rows
	if p.count != nil {
		n, err := s.countRows(ctx, ns, p.query)
		if err != nil {
			return nil, err
		}
		r = &docRows{p.count(n)}
	} else {
		var err error
		if r, err = s.read(ctx, ns, p.query); err != nil {
			return nil, err
		}
	}
	if len(p.rest) == 0 {
		return r, nil
	}
	rest, err := document.ParsePipeline(stageArray(p.rest))
	if err != nil {
		r.Close(ctx)
		return nil, err
	}
	return pipe(ctx, rest, r, document.RunLimits{MemoryBytes: s.options.PipelineBytes, NowMillis: s.host.Wall().UnixMilli()}, s.options.Sorts), nil
}

// pushed is a pipeline cut in two: a query for the owners, perhaps only counted, and the
// stages that are left.
type pushed struct {
	query router.Query
	// count makes the output of a counting stage; nil: the documents are wanted.
	count func(n int64) []bson.Raw
	rest  []bson.Raw
}

// push takes stages off the front as long as they are, in this order, any $match, a $sort,
// a $skip and a $limit, and then a count.
func push(stages []bson.Raw) (p pushed) {
	const (
		matching = iota
		sorted
		skipped
		limited
	)
	var matches []bson.Raw
	state := matching
	i := 0
scan:
	for ; i < len(stages); i++ {
		name, spec := stage(stages[i])
		switch {
		case name == "$match" && state == matching:
			d, ok := spec.DocumentOK()
			if !ok {
				break scan
			}
			matches = append(matches, d)
		case name == "$sort" && state == matching:
			d, ok := spec.DocumentOK()
			if !ok {
				break scan
			}
			p.query.Sort, state = clone(d), sorted
		case name == "$skip" && state < skipped:
			n, ok := asInt(spec)
			if !ok || n < 0 {
				break scan
			}
			p.query.Skip, state = n, skipped
		case name == "$limit" && state < limited:
			n, ok := asInt(spec)
			if !ok || n <= 0 {
				break scan
			}
			p.query.Limit, state = n, limited
		default:
			break scan
		}
	}
	p.query.Filter = allOf(matches)
	if i < len(stages) {
		if p.count = counting(stages[i]); p.count != nil {
			p.query.Sort = nil
			i++
		}
	}
	for _, d := range stages[i:] {
		p.rest = append(p.rest, clone(d))
	}
	return p
}

// stage is the name and the argument of a stage.
func stage(d bson.Raw) (string, bson.RawValue) {
	e, _, ok := bsoncore.ReadElement(d[4:])
	if !ok {
		return "", bson.RawValue{}
	}
	v := e.Value()
	return string(e.KeyBytes()), bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}
}

// allOf is a filter for all of several.
func allOf(filters []bson.Raw) bson.Raw {
	switch len(filters) {
	case 0:
		return nil
	case 1:
		return clone(filters[0])
	}
	return bson.Raw(build().AppendArray("$and", array(filters)).Build())
}

// counting recognises {$count: "n"} and what drivers send for countDocuments,
// {$group: {_id: <constant>, n: {$sum: 1}}}; nil when the stage is something else. Nothing
// counted is no document.
func counting(d bson.Raw) func(n int64) []bson.Raw {
	name, spec := stage(d)
	switch name {
	case "$count":
		field, ok := spec.StringValueOK()
		if !ok {
			return nil
		}
		return func(n int64) []bson.Raw { return counted(n, appendCount(build(), field, n)) }
	case "$group":
		g, ok := spec.DocumentOK()
		if !ok {
			return nil
		}
		return countingGroup(g)
	}
	return nil
}

func countingGroup(g bson.Raw) func(n int64) []bson.Raw {
	es, err := g.Elements()
	if err != nil || len(es) != 2 || es[0].Key() != "_id" {
		return nil
	}
	id := es[0].Value()
	switch id.Type {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeNull, bson.TypeBoolean:
	default:
		return nil
	}
	sum, ok := es[1].Value().DocumentOK()
	if !ok {
		return nil
	}
	op, one := stage(sum)
	n, isInt := one.AsInt64OK()
	if op != "$sum" || len(elements(es[1].Value())) != 1 || !isInt || n != 1 || one.Type == bson.TypeDouble {
		return nil
	}
	id.Value = slices.Clone(id.Value)
	field := es[1].Key()
	return func(n int64) []bson.Raw {
		return counted(n, appendCount(build().AppendValue("_id", core(id)), field, n))
	}
}

func counted(n int64, b *bsoncore.DocumentBuilder) []bson.Raw {
	if n == 0 {
		return nil
	}
	return []bson.Raw{bson.Raw(b.Build())}
}

// appendCount adds a count as MongoDB does: an int when it fits.
func appendCount(b *bsoncore.DocumentBuilder, name string, n int64) *bsoncore.DocumentBuilder {
	if n == int64(int32(n)) {
		return b.AppendInt32(name, int32(n))
	}
	return b.AppendInt64(name, n)
}

// stageArray is stages as the array that they came in.
func stageArray(stages []bson.Raw) bson.RawValue {
	start, a := bsoncore.AppendArrayStart(nil)
	for i, d := range stages {
		a = bsoncore.AppendDocumentElement(a, strconv.Itoa(i), d)
	}
	a, _ = bsoncore.AppendArrayEnd(a, start)
	return bson.RawValue{Type: bson.TypeArray, Value: a}
}
