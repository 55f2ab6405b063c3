package router

import (
	"context"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router/plan"
)

// Explanation is where an operation goes on the newest map, and why. Plan is nil when the
// collection does not exist.
type Explanation struct {
	State      *manifest.State
	Collection *manifest.Collection
	Plan       *plan.Plan
	// Way says in a phrase how a write is carried out; "" for a query.
	Way string
}

// Explain plans a query without running it. Errors: *mongoerr.Error.
func (r *Router) Explain(ctx context.Context, ns Namespace, q Query) (*Explanation, error) {
	rd, err := newRead(ns, q)
	if err != nil {
		return nil, err
	}
	ctx, a, cancel := r.begin(ctx, q.MaxTime)
	defer cancel()
	exists, err := rd.prepare(ctx, a)
	if err != nil {
		return nil, err
	}
	x := &Explanation{State: rd.state, Collection: rd.coll, Plan: rd.plan}
	if !exists {
		x.Plan = nil
	}
	return x, nil
}

// ExplainWrite plans an Update or Delete without running it; q limits the time. Errors:
// *mongoerr.Error, among them what the statement itself would be refused with.
func (r *Router) ExplainWrite(ctx context.Context, ns Namespace, st Statement, q Query) (*Explanation, error) {
	k := &work{Statement: st, counted: true}
	if k.prepare(r); k.done {
		return nil, k.result.Err
	}
	x, err := r.Explain(ctx, ns, Query{Filter: st.Filter, MaxTime: q.MaxTime})
	if err != nil || x.Plan == nil {
		return x, err
	}
	w := &writing{r: r, ns: ns, state: x.State, coll: x.Collection}
	d, err := w.route(k)
	switch {
	case err != nil:
		return nil, err
	case k.done && k.result.Err != nil:
		return nil, k.result.Err
	}
	x.Way = d.String()
	return x, nil
}

// String is how a statement goes, for people.
func (d way) String() string {
	switch d.kind {
	case direct:
		return "one request to the owner of the chunk"
	case everywhere:
		return "all shards at once, each document once"
	}
	return "a match is looked for first, then written by its key"
}
