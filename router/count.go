package router

import (
	"context"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Count counts the matches after Skip and Limit; projection and sort do not matter.
func (r *Router) Count(ctx context.Context, ns Namespace, q Query) (int64, error) {
	q.Sort, q.Projection = nil, nil
	rd, err := newRead(ns, q)
	if err != nil {
		return 0, err
	}
	ctx, a, cancel := r.begin(ctx, q.MaxTime)
	defer cancel()
	for {
		n, err := r.count(ctx, a, rd)
		if err == nil {
			r.counted(CountVerb, rd)
			n = max(n-rd.Skip, 0)
			if rd.Limit > 0 {
				n = min(n, rd.Limit)
			}
			return n, nil
		}
		if err := a.again(ctx, err); err != nil {
			return 0, err
		}
	}
}

// count makes one attempt; skipped documents are in the sum.
func (r *Router) count(ctx context.Context, a *attempts, rd *read) (n int64, err error) {
	exists, err := rd.prepare(ctx, a)
	if err != nil || !exists || len(rd.plan.Targets) == 0 {
		return 0, err
	}
	q := rd.request(2)
	q.Mode = rpc.Count
	streams, err := r.scatter(ctx, a, rd, rd.plan.ByShard(), q)
	for _, s := range streams {
		n += s.n
	}
	return n, err
}

// Distinct is the set of values at a path, arrays unwound, in MongoDB's order.
func (r *Router) Distinct(ctx context.Context, ns Namespace, field string, q Query) ([]bson.RawValue, error) {
	q.Sort, q.Projection, q.Skip, q.Limit = nil, nil, 0, 0
	rd, err := newRead(ns, q)
	if err != nil {
		return nil, err
	}
	rd.First = 0
	ctx, a, cancel := r.begin(ctx, q.MaxTime)
	defer cancel()
	for {
		values, err := r.distinct(ctx, a, rd, field)
		if err == nil {
			r.counted(DistinctVerb, rd)
			return values, nil
		}
		if err := a.again(ctx, err); err != nil {
			return nil, err
		}
	}
}

func (r *Router) distinct(ctx context.Context, a *attempts, rd *read, field string) ([]bson.RawValue, error) {
	exists, err := rd.prepare(ctx, a)
	if err != nil || !exists || len(rd.plan.Targets) == 0 {
		return nil, err
	}
	q := rd.request(2)
	q.Mode, q.Field = rpc.Distinct, field
	streams, err := r.scatter(ctx, a, rd, rd.plan.ByShard(), q)
	if err != nil {
		return nil, err
	}
	all := concat(streams)
	defer all.close(ctx)
	var values []bson.RawValue
	seen := make(map[string]bool)
	size := 0
	for {
		row, err := all.next(ctx, 0)
		if row == nil || err != nil {
			slices.SortStableFunc(values, document.Compare)
			return values, err
		}
		v, ok := document.Lookup(row, "v")
		if !ok {
			return nil, fmt.Errorf("distinct %s: a shard answered a row without v: %w", rd.ns, errkind.Corrupt)
		}
		key := string(shardkey.AppendValue(nil, v, false))
		if seen[key] {
			continue
		}
		seen[key] = true
		if size += len(v.Value); size > r.settings.DistinctBytes {
			return nil, mongoerr.New(17217, "distinct too big, %dmb cap", r.settings.DistinctBytes>>20)
		}
		values = append(values, v)
	}
}
