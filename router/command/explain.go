package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// explained is a command to explain: where it goes is decided by a query, or by a write.
type explained struct {
	*call
	ns    router.Namespace
	query router.Query
	write *router.Statement // nil: a query
	field string            // of a distinct
	// Of an aggregate: its stages as written, and cut in two.
	stages []bson.Raw
	pipe   pushed
}

// verbosity is how much an explain tells.
type verbosity int

const (
	onlyPlan verbosity = iota
	withStats
	withAllPlans
)

var verbosities = map[string]verbosity{"queryPlanner": onlyPlan, "executionStats": withStats, "allPlansExecution": withAllPlans, "": withAllPlans}

// explain shows where a command goes, and why. Unless only the plan is wanted the command is
// carried out, except that nothing is written: the figures are those of that.
func (s *Commands) explain(ctx context.Context, c *call) (bson.Raw, error) {
	body, isDoc := c.fields[0].value.DocumentOK()
	if !isDoc || len(body) <= 5 {
		return nil, wrongType("explain", "explain", c.fields[0].value, "'object'")
	}
	v, known := verbosities[c.string("verbosity")]
	if c.err == nil && !known {
		c.fail(mongoerr.New(mongoerr.BadValue, "Enumeration value '%s' for field 'explain.verbosity' is not a valid value: "+
			"it is queryPlanner, executionStats or allPlansExecution", c.string("verbosity")))
	}
	if c.err != nil {
		return nil, c.err
	}
	e, err := body.IndexErr(0)
	if err != nil {
		return nil, err
	}
	cmd := s.table[e.Key()]
	if cmd == nil {
		return nil, mongoerr.New(mongoerr.CommandNotFound, "Explain failed due to unknown command: %s", e.Key())
	}
	inner, err := s.newCall(ctx, cmd, &wire.Request{Command: e.Key(), DB: c.DB, Body: body}, c.peer)
	if err != nil {
		return nil, err
	}
	x, err := inner.explained()
	if err != nil {
		return nil, err
	}
	x.query.MaxTime = c.maxTime
	ctx, cancel := c.limited(ctx)
	defer cancel()
	return s.explainReply(ctx, x, v)
}

// explained reads a command for explain.
func (c *call) explained() (*explained, error) {
	x := &explained{call: c}
	var err error
	switch c.cmd.Name {
	case "find":
		x.query = c.findQuery()
	case "count":
		x.query = c.countQuery()
	case "distinct":
		x.query.Filter, x.field = c.doc("query"), c.string("key")
	case "findAndModify":
		st := c.findAndModifyStatement()
		x.write = &st
	case "update":
		x.write, err = c.single("updates", c.updateStatement)
	case "delete":
		x.write, err = c.single("deletes", c.deleteStatement)
	case "aggregate":
		x.stages = c.list("pipeline", c.value("pipeline"))
		x.pipe = push(x.stages)
		x.query = x.pipe.query
		if c.err == nil {
			_, err = document.ParsePipeline(stageArray(x.stages))
		}
	default:
		err = mongoerr.New(mongoerr.IllegalOperation, "explain of %s is not supported", c.cmd.Name)
	}
	if err == nil {
		x.ns, err = c.namespace(), c.err
	}
	if x.write != nil && err == nil {
		x.query = searchOf(x.write)
	}
	x.query.Level, x.query.At = c.level, c.at
	return x, err
}

// single is the one statement that can be explained.
func (c *call) single(list string, parse func(bson.Raw) (router.Statement, error)) (*router.Statement, error) {
	docs := c.docs(list)
	if c.err == nil && len(docs) != 1 {
		return nil, mongoerr.New(mongoerr.InvalidLength, "explained write batches must be of size 1. Got %d operations.", len(docs))
	}
	if c.err != nil {
		return nil, c.err
	}
	st, err := parse(docs[0])
	return &st, err
}

// searchOf is the query that finds what a write concerns.
func searchOf(st *router.Statement) router.Query {
	q := router.Query{Filter: st.Filter, Sort: st.Sort}
	if !st.Multi {
		q.Limit = 1
	}
	if st.Kind == rpc.Delete {
		q.Projection = bson.Raw(build().AppendInt32("_id", 1).Build())
	}
	return q
}

// explainReply plans, and carries out what is asked for.
func (s *Commands) explainReply(ctx context.Context, x *explained, v verbosity) (bson.Raw, error) {
	where, err := s.router.Explain(ctx, x.ns, x.query)
	if x.write != nil {
		where, err = s.router.ExplainWrite(ctx, x.ns, *x.write, x.query)
	}
	if err != nil {
		return nil, err
	}
	p := &planned{explained: x, Explanation: where}
	b := build()
	if x.cmd.Name == "aggregate" {
		p.appendSplit(b)
	}
	var r *ran
	if v != onlyPlan {
		if r, err = s.carryOut(ctx, x); err != nil {
			return nil, err
		}
	}
	b.AppendDocument("queryPlanner", p.planner(r))
	if r != nil {
		b.AppendDocument("executionStats", r.stats(p, v == withAllPlans))
	}
	b.AppendDocument("serverInfo", build().AppendString("host", s.options.Address).AppendString("version", Version).Build()).
		AppendDocument("command", x.Body)
	return ok(b), nil
}
