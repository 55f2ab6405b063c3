package router

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/router/plan"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// inOrder visits runs of chunks one after another, for a sort by the shard key: the first
// ten of a hundred chunks ask one shard. A run is opened when the one before is spent, on
// the newest map: what is left of the key space is planned again. That is exact as long as no
// document of the collection has ever gone from chunk to chunk: data version 0. When one has
// by the time that a run is opened, all runs are opened together, unless a document has left.
type inOrder struct {
	r       *Router
	rd      *read
	plan    *plan.Plan // of what is left
	run     *shardStream
	all     stream // of all runs, opened together
	emitted int64
	limit   int64 // of all runs together, skipped documents included; 0: none
}

func newInOrder(r *Router, rd *read) *inOrder {
	return &inOrder{r: r, rd: rd, plan: rd.plan, limit: rd.most()}
}

func (o *inOrder) next(ctx context.Context, want int) (bson.Raw, error) {
	for {
		if o.all != nil {
			return o.all.next(ctx, want)
		}
		if o.run != nil {
			doc, err := o.run.next(ctx, want)
			if err != nil {
				return nil, err
			}
			if doc != nil {
				o.emitted++
				return doc, nil
			}
			o.run = nil
		}
		if o.spent() {
			return nil, nil
		}
		if err := o.reopen(ctx); err != nil {
			return nil, err
		}
	}
}

// reopen opens the next run, with the patience of an operation of its own.
func (o *inOrder) reopen(ctx context.Context) error {
	ctx, a, cancel := o.r.begin(ctx, o.rd.MaxTime)
	defer cancel()
	a.begun = true // a part of the answer has left
	for {
		err := o.replan(ctx, a)
		if err == nil && o.emitted == 0 && o.rd.coll.DataVersion > 0 {
			if runs := o.rd.plan.Runs(); len(runs) > 0 {
				o.all, _, err = o.r.together(ctx, a, o.rd, runs[0])
			}
		} else if err == nil {
			err = o.advance(ctx, a)
		}
		if err == nil {
			return nil
		}
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
}

// replan puts what is left on the newest map.
func (o *inOrder) replan(ctx context.Context, a *attempts) error {
	if len(o.plan.Targets) == 0 {
		return nil
	}
	rest := o.plan.Rest(o.plan.Targets[0])
	was := o.rd.coll
	exists, err := o.rd.prepare(ctx, a)
	if err != nil {
		return err
	}
	if exists && o.rd.coll.ID != was.ID && o.rd.coll.UUID == was.UUID {
		return mongoerr.New(mongoerr.QueryPlanKilled, "collection %s was given the shard key %v while the cursor was open; run the query again", o.rd.ns, o.rd.coll.Key)
	}
	if !exists || o.rd.coll.ID != was.ID || !o.rd.coll.Key.Equal(was.Key) {
		return mongoerr.New(mongoerr.NamespaceNotFound, "collection %s was dropped while the cursor was open", o.rd.ns)
	}
	o.plan = o.plan.Within(o.rd.state, was.ID, rest)
	return nil
}

// advance opens the next run of the present plan.
func (o *inOrder) advance(ctx context.Context, a *attempts) error {
	runs := o.plan.Runs()
	if len(runs) == 0 {
		return nil
	}
	q := o.rd.request(len(runs) + 1)
	if o.limit > 0 {
		q.Limit = o.limit - o.emitted
	}
	start := o.r.host.Mono()
	st, err := o.r.openShard(ctx, a, o.rd, runs[0], q, 1)
	o.rd.Trace.wait(o.r, start)
	a.answered(ctx, runs[0].Shard, err)
	if err != nil {
		return err
	}
	switch {
	case st.data > 0 && o.emitted > 0:
		st.close(ctx)
		return mongoerr.New(mongoerr.SnapshotUnavailable, "documents of %s changed their shard key while the cursor was open; run the query again", o.rd.ns)
	case st.data > 0:
		st.close(ctx)
		return fmt.Errorf("visit %s in order: it has data version %d by now: %w", o.rd.ns, st.data, errkind.StaleVersion)
	}
	o.run = st
	rest := *o.plan
	rest.Targets = rest.Targets[len(runs[0].Targets):]
	o.plan = &rest
	return nil
}

func (o *inOrder) spent() bool {
	if o.all != nil {
		return o.all.spent()
	}
	if o.run != nil && !o.run.spent() {
		return false
	}
	return len(o.plan.Targets) == 0 || o.limit > 0 && o.emitted >= o.limit
}

func (o *inOrder) close(ctx context.Context) {
	if o.all != nil {
		o.all.close(ctx)
	}
	if o.run != nil {
		o.run.close(ctx)
	}
}
