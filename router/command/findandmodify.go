package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func (s *Commands) findAndModify(ctx context.Context, c *call) (bson.Raw, error) {
	ns, st := c.written(), c.findAndModifyStatement()
	if c.err != nil {
		return nil, c.err
	}
	s.counts.command.Add(1)
	results, err := s.router.Write(ctx, ns, router.Writes{Statements: []router.Statement{st}, Ordered: true, Retry: c.retry, MaxTime: c.maxTime})
	if err != nil {
		return nil, err
	}
	return findAndModifyReply(results[0], st.Kind == rpc.Delete)
}

// findAndModifyStatement reads the command.
func (c *call) findAndModifyStatement() router.Statement {
	st := router.Statement{
		Kind: rpc.Update, Filter: c.doc("query"), Sort: c.doc("sort"), Update: c.value("update"), Upsert: c.bool("upsert"),
		Projection: c.doc("fields"), Return: rpc.ReturnBefore, Stmt: int32(c.int("stmtId")),
	}
	remove, after := c.bool("remove"), c.bool("new")
	if v := c.value("arrayFilters"); !absent(v) {
		st.ArrayFilters = c.list("arrayFilters", v)
	}
	c.simpleCollation()
	if len(c.doc("let")) > 5 {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "findAndModify: let is not supported"))
	}
	switch {
	case c.err != nil:
	case remove && !absent(st.Update):
		c.fail(mongoerr.New(mongoerr.FailedToParse, "Cannot specify both an update and remove=true"))
	case remove && st.Upsert:
		c.fail(mongoerr.New(mongoerr.FailedToParse, "Cannot specify both upsert=true and remove=true"))
	case remove && after:
		c.fail(mongoerr.New(mongoerr.FailedToParse, "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document"))
	case !remove && absent(st.Update):
		c.fail(mongoerr.New(mongoerr.FailedToParse, "Either an update or remove=true must be specified"))
	}
	if after {
		st.Return = rpc.ReturnAfter
	}
	if remove {
		st.Kind = rpc.Delete
	}
	return st
}

func findAndModifyReply(r router.Result, remove bool) (bson.Raw, error) {
	if r.Err != nil {
		return nil, r.Err
	}
	last := build().AppendInt32("n", int32(r.N))
	if !remove {
		last.AppendBoolean("updatedExisting", r.N > 0 && r.UpsertedID.Type == 0)
	}
	if r.UpsertedID.Type != 0 {
		last.AppendValue("upserted", core(r.UpsertedID))
	}
	b := build().AppendDocument("lastErrorObject", last.Build())
	if r.Value == nil {
		b.AppendNull("value")
	} else {
		b.AppendDocument("value", r.Value)
	}
	return ok(b), nil
}
