package router

import (
	"context"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router/plan"
)

// Explanation is where a query goes on the newest map, and why. Plan is nil when the
// collection does not exist.
type Explanation struct {
	State      *manifest.State
	Collection *manifest.Collection
	Plan       *plan.Plan
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
