package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/plan"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// explain shows where a command would go, without running it.
func (s *Commands) explain(ctx context.Context, c *call) (bson.Raw, error) {
	body, isDoc := c.fields[0].value.DocumentOK()
	if !isDoc || len(body) <= 5 {
		return nil, wrongType("explain", "explain", c.fields[0].value, "'object'")
	}
	e, err := body.IndexErr(0)
	if err != nil {
		return nil, err
	}
	cmd := s.table[e.Key()]
	if cmd == nil {
		return nil, mongoerr.New(mongoerr.CommandNotFound, "Explain failed due to unknown command: %s", e.Key())
	}
	inner, err := s.newCall(cmd, &wire.Request{Command: e.Key(), DB: c.DB, Body: body}, c.peer)
	if err != nil {
		return nil, err
	}
	q, err := s.explained(inner)
	if err != nil {
		return nil, err
	}
	ns := inner.namespace()
	if inner.err != nil {
		return nil, inner.err
	}
	q.MaxTime = c.maxTime
	return s.explainQuery(ctx, c, ns, q)
}

// explained is the query that decides where a command goes.
func (s *Commands) explained(c *call) (q router.Query, err error) {
	statement := func(list string) bson.Raw {
		if docs := c.docs(list); len(docs) > 0 {
			d, _ := docs[0].Lookup("q").DocumentOK()
			return d
		}
		return nil
	}
	switch c.cmd.Name {
	case "find":
		q = c.findQuery()
	case "count", "distinct":
		q.Filter = c.doc("query")
	case "findAndModify":
		q.Filter, q.Sort = c.doc("query"), c.doc("sort")
	case "update":
		q.Filter = statement("updates")
	case "delete":
		q.Filter = statement("deletes")
	case "aggregate":
		q = push(c.list("pipeline", c.value("pipeline"))).query
	default:
		err = mongoerr.New(mongoerr.IllegalOperation, "explain of %s is not supported", c.cmd.Name)
	}
	return q, err
}

func (s *Commands) explainQuery(ctx context.Context, c *call, ns router.Namespace, q router.Query) (bson.Raw, error) {
	x, err := s.router.Explain(ctx, ns, q)
	if err != nil {
		return nil, err
	}
	b := build().
		AppendDocument("queryPlanner", planner(ns, q, x)).
		AppendDocument("serverInfo", build().AppendString("host", s.options.Address).AppendString("version", Version).Build()).
		AppendDocument("command", c.Body)
	return ok(b), nil
}

func planner(ns router.Namespace, q router.Query, x *router.Explanation) []byte {
	filter := q.Filter
	if filter == nil {
		filter = bson.Raw(build().Build())
	}
	winning := build()
	if x.Plan == nil {
		winning.AppendString("stage", "EOF").AppendString("reason", "the collection does not exist")
	} else {
		groups := x.Plan.ByShard()
		winning.AppendString("stage", stageName(x.Plan, q, len(groups))).
			AppendString("targeting", x.Plan.Kind.String()).
			AppendString("reason", x.Plan.Reason()).
			AppendInt32("chunks", int32(len(x.Plan.Targets)))
		if x.Plan.Order != 0 {
			winning.AppendInt32("inKeyOrder", int32(x.Plan.Order))
		}
		var shards []bson.Raw
		for _, g := range groups {
			shards = append(shards, explainGroup(x.State, g))
		}
		winning.AppendArray("shards", array(shards))
	}
	return build().
		AppendInt32("mongosPlannerVersion", 1).
		AppendString("namespace", ns.String()).
		AppendDocument("parsedQuery", filter).
		AppendDocument("winningPlan", winning.Build()).Build()
}

// stageName is MongoDB's name for how the shards' answers come together.
func stageName(p *plan.Plan, q router.Query, shards int) string {
	switch {
	case shards == 0:
		return "EOF"
	case shards == 1:
		return "SINGLE_SHARD"
	case len(q.Sort) > 5 && p.Order == 0:
		return "SHARD_MERGE_SORT"
	}
	return "SHARD_MERGE"
}

// explainGroup is one shard's part: its chunks, and whether the whole of each is read.
func explainGroup(st *manifest.State, g plan.Group) bson.Raw {
	b := build().AppendString("shardName", string(g.Shard))
	if h := st.Shard(g.Shard); h != nil {
		b.AppendString("connectionString", shardHost(h))
	}
	stage := "COLLSCAN"
	var chunks []bson.Raw
	for _, t := range g.Targets {
		if t.Ranges != nil {
			stage = "IXSCAN"
		}
		chunks = append(chunks, bson.Raw(build().
			AppendDocument("min", t.Chunk.MinBSON).AppendDocument("max", t.Chunk.MaxBSON).
			AppendInt32("ranges", int32(len(t.Ranges))).Build()))
	}
	return bson.Raw(b.AppendDocument("winningPlan", build().AppendString("stage", stage).Build()).AppendArray("chunks", array(chunks)).Build())
}
