package router

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/router/plan"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Query is a read. The zero Query is everything, in any order. Its documents must not change
// while the query's cursor is open.
type Query struct {
	Filter     bson.Raw // nil or empty: all
	Projection bson.Raw // nil or empty: whole documents
	Sort       bson.Raw // nil or empty: any order
	// Skip and Limit count documents; Limit 0 is none.
	Skip, Limit int64
	Level       rpc.Level
	// At is the version of a snapshot (Pin.Version) to read; 0: now.
	At manifest.Version
	// First is how many documents the caller will take first; it sizes the first requests.
	// 0: 101.
	First int
	// MaxTime limits the operation, without the batches that follow the first; 0: the
	// router's patience.
	MaxTime time.Duration
	// Trace records what shards were asked; nil: nobody looks.
	Trace *Trace
}

// firstBatch is how many documents a find sends when nobody says: MongoDB's number.
const firstBatch = 101

// read is a query as parsed, and the plan of its present attempt.
type read struct {
	Query
	ns     Namespace
	filter *document.Filter
	sort   *document.Sort // nil: any order

	// Of the present attempt:
	state *manifest.State
	coll  *manifest.Collection
	plan  *plan.Plan
}

func newRead(ns Namespace, q Query) (*read, error) {
	rd := &read{Query: q, ns: ns}
	if rd.First <= 0 {
		rd.First = firstBatch
	}
	if q.Limit > 0 {
		rd.First = int(min(int64(rd.First), q.Limit))
	}
	var err error
	if rd.filter, err = document.ParseFilter(orEmpty(q.Filter)); err != nil {
		return nil, err
	}
	if isEmpty(q.Projection) {
		rd.Projection = nil
	} else if _, err := document.ParseProjection(q.Projection); err != nil {
		return nil, err
	}
	if isEmpty(q.Sort) || isNatural(q.Sort) {
		rd.Sort = nil
	} else if rd.sort, err = document.ParseSort(q.Sort); err != nil {
		return nil, err
	}
	return rd, nil
}

// isEmpty reports whether a document has no fields, or is not there.
func isEmpty(doc bson.Raw) bool { return len(doc) <= 5 }

// isNatural recognises {$natural: 1}, the wish for any order that tools send.
func isNatural(sort bson.Raw) bool {
	_, ok := document.Lookup(sort, "$natural")
	return ok
}

// orEmpty is doc, or the empty document when it is not there.
func orEmpty(doc bson.Raw) bson.Raw {
	if doc == nil {
		return bson.Raw{5, 0, 0, 0, 0}
	}
	return doc
}

func sortFields(s *document.Sort) []document.SortField {
	if s == nil {
		return nil
	}
	return s.Fields()
}

// prepare plans rd on the newest map. false: the collection does not exist, in a root that
// was read after the operation began.
func (rd *read) prepare(ctx context.Context, a *attempts) (bool, error) {
	if rd.At != 0 {
		return rd.prepareAt(ctx, a)
	}
	for {
		s, err := a.state(ctx)
		if err != nil {
			return false, err
		}
		rd.state, rd.coll = s, s.CollectionByName(rd.ns.Database, rd.ns.Collection)
		if rd.coll != nil {
			rd.plan = plan.Make(s, rd.coll, rd.filter, sortFields(rd.sort))
		}
		if a.fresh || rd.coll != nil && !readsBucket(s, rd.plan) {
			return rd.coll != nil, nil
		}
		if _, err := a.load(ctx); err != nil {
			return false, err
		}
	}
}

// readsBucket reports whether a target belongs to a free shard: such a read is as fresh as
// the root it is planned on.
func readsBucket(s *manifest.State, p *plan.Plan) bool {
	for _, t := range p.Targets {
		if h := s.Shard(t.Chunk.Shard); h != nil && h.Status == manifest.ShardFree {
			return true
		}
	}
	return false
}

// ordered reports whether the shards are visited one after another.
func (rd *read) ordered() bool { return rd.sort != nil && rd.plan.Order != 0 }

// request is the query for one of `shards` shards that are asked at once.
func (rd *read) request(shards int) rpc.Query {
	q := rpc.Query{Filter: rd.Filter, Projection: rd.Projection}
	if isEmpty(rd.Filter) {
		q.Filter = nil
	}
	switch {
	case rd.ordered():
		q.KeyOrder = rd.plan.Order
	case rd.sort != nil:
		q.Sort = rd.Sort
		q.WithSortKey = shards > 1
	}
	if shards == 1 {
		q.Skip, q.Limit = rd.Skip, rd.Limit
	} else {
		q.Limit = rd.most()
	}
	return q
}

// most is how many documents can be wanted of all shards together, skipped ones included;
// 0: no bound.
func (rd *read) most() int64 {
	if rd.Limit == 0 || rd.Limit > math.MaxInt64-rd.Skip {
		return 0
	}
	return rd.Limit + rd.Skip
}

// Find starts a query. A collection that does not exist is empty. Errors: *mongoerr.Error,
// Corrupt.
func (r *Router) Find(ctx context.Context, ns Namespace, q Query) (*Cursor, error) {
	rd, err := newRead(ns, q)
	if err != nil {
		return nil, err
	}
	ctx, a, cancel := r.begin(ctx, q.MaxTime)
	defer cancel()
	for {
		src, skip, err := r.open(ctx, a, rd)
		if err == nil {
			r.counted(FindVerb, rd)
			return &Cursor{src: src, skip: skip, left: rd.Limit, limited: rd.Limit > 0}, nil
		}
		if err := a.again(ctx, err); err != nil {
			return nil, err
		}
	}
}

// counted counts a query that was planned, unless somebody watches it: explain counts for
// nothing. A visit in order ends at its limit, and need not see all shards.
func (r *Router) counted(v Verb, rd *read) {
	if rd.Trace != nil || rd.coll == nil || rd.plan == nil {
		return
	}
	reach := reachOf(rd.plan)
	if rd.ordered() && rd.Limit > 0 {
		reach = min(reach, SomeShards)
	}
	r.targeting.count(v, rd.ns, rd.coll, reach, rd.Filter, rd.Sort)
}

// open makes one attempt to start rd; skip is what the cursor still has to leave out.
func (r *Router) open(ctx context.Context, a *attempts, rd *read) (src stream, skip int64, err error) {
	exists, err := rd.prepare(ctx, a)
	if err != nil || !exists || len(rd.plan.Targets) == 0 {
		return concat(nil), 0, err
	}
	if rd.ordered() {
		if runs := rd.plan.Runs(); len(runs) > 1 {
			if rd.coll.DataVersion > 0 {
				return r.together(ctx, a, rd, runs[0])
			}
			o := newInOrder(r, rd)
			return o, rd.Skip, o.advance(ctx, a)
		}
	}
	groups := rd.plan.ByShard()
	streams, err := r.scatter(ctx, a, rd, groups, rd.request(len(groups)))
	if err != nil {
		return nil, 0, err
	}
	switch {
	case len(groups) == 1:
		return streams[0], 0, nil
	case rd.sort != nil:
		return newMerge(streams, "s", false), rd.Skip, nil
	}
	return concat(streams), rd.Skip, nil
}

// together is for a sort by the shard key in a collection whose documents go from chunk to
// chunk. Chunks that are read one after another could show one of them twice, or not at all.
// So all shards are asked at once, each for all of its chunks, and their rows, which come in
// key order, are merged. An answer that the first run of chunks makes alone needs no other.
func (r *Router) together(ctx context.Context, a *attempts, rd *read, first plan.Group) (stream, int64, error) {
	if rd.Skip == 0 && rd.Limit > 0 && rd.Limit <= firstBatch {
		start := r.host.Mono()
		st, err := r.openShard(ctx, a, rd, first, rd.request(1), 1)
		rd.Trace.wait(r, start)
		a.answered(ctx, first.Shard, err)
		if err != nil {
			return nil, 0, err
		}
		if int64(len(st.docs)) == rd.Limit {
			return st, 0, nil
		}
		st.close(ctx)
	}
	groups := rd.plan.ByShard()
	q := rd.request(len(groups))
	q.Mode = rpc.Keys
	streams, err := r.scatter(ctx, a, rd, groups, q)
	if err != nil {
		return nil, 0, err
	}
	return newMerge(streams, "k", rd.plan.Order < 0), rd.Skip, nil
}

// scatter sends q to all groups at once. Their answers agree, or the error is StaleVersion.
func (r *Router) scatter(ctx context.Context, a *attempts, rd *read, groups []plan.Group, q rpc.Query) ([]*shardStream, error) {
	streams := make([]*shardStream, len(groups))
	errs := make([]error, len(groups))
	rd.Trace.asked(groups)
	defer rd.Trace.wait(r, r.host.Mono())
	r.each(len(groups), func(i int) {
		streams[i], errs[i] = r.openShard(ctx, a, rd, groups[i], q, len(groups))
	})
	for i, g := range groups {
		a.answered(ctx, g.Shard, errs[i])
	}
	err := firstError(errs)
	if err == nil {
		err = rd.agree(streams)
	}
	if err != nil {
		closeAll(ctx, streams)
		return nil, err
	}
	return streams, nil
}

// agree makes sure that no document that went from one shard's chunks to another's is seen
// by half: a commit that moved one raises the data version, and a shard that moved one
// between chunks that are planned on different shards says that it got one of them since.
func (rd *read) agree(streams []*shardStream) error {
	for _, s := range streams[1:] {
		if s.data != streams[0].data {
			return fmt.Errorf("find %s: shard %s answers of data version %d, shard %s of %d: %w",
				rd.ns, streams[0].shard, streams[0].data, s.shard, s.data, errkind.StaleVersion)
		}
	}
	for _, s := range streams {
		if len(streams) > 1 && s.gained > rd.state.Version() {
			return fmt.Errorf("find %s: shard %s got a chunk with root version %d, planned on %d: %w",
				rd.ns, s.shard, s.gained, rd.state.Version(), errkind.StaleVersion)
		}
	}
	return nil
}

// firstError is the error that decides what happens next: one that ends the operation
// before one that has it tried again.
func firstError(errs []error) error {
	var first error
	for _, err := range errs {
		switch {
		case err == nil:
		case !passing(err):
			return err
		case first == nil:
			first = err
		}
	}
	return first
}
