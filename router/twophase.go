package router

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router/plan"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// A statement about one document whose filter does not pin the shard key could match in
// several chunks. It must change exactly one document, once, also when the client or the
// router sends it again after a lost answer, on another map, through another router:
//
//	choose   a match is looked for in all chunks that can have one; or none is found, and an
//	         upsert makes the document
//	intend   when the client may send the statement again: the row is recorded at the
//	         statement's home, a key that comes from its OpID alone. The first record wins,
//	         and whoever comes later goes to that row
//	write    the statement goes to exactly that row, and its filter is checked again there
//	refuse   the row no longer matches: its owner records that this attempt will never be
//	         applied (or answers that it was); then the next attempt chooses again
//
// A statement that one chunk decides goes there in one request, without a choice. When its
// answer is lost and the chunk was split since, every chunk that can have seen it is asked
// to refuse it first. A client's second try on the new map learns this from the intent,
// which went along with the request.

// targetsMax bounds the rows that one statement tries: each was changed by others between
// the choice and the write.
const targetsMax = 1000

// twoPhase runs k until its outcome is known. The error is one that again could not help.
func (w *writing) twoPhase(ctx context.Context, k *work) error {
	for !k.done {
		if k.op.Attempt > targetsMax {
			k.fail(mongoerr.New(mongoerr.WriteConflict, "%d matching documents were changed by others before they could be written", targetsMax))
			return nil
		}
		if err := w.phase(ctx, k); err != nil {
			return err
		}
		if k.Multi && k.goal == nil {
			return nil // the insert of its upsert lost a race: it matches again
		}
	}
	return nil
}

// phase takes k one step further. Whatever is known stays in k when it fails.
func (w *writing) phase(ctx context.Context, k *work) error {
	switch {
	case k.direct != nil:
		return w.refuseDirect(ctx, k)
	case k.goal == nil:
		return w.choose(ctx, k)
	case k.goal.key == nil:
		k.finish(rpc.WriteResult{})
		return nil
	}
	return w.writeGoal(ctx, k)
}

// choose finds the row, and records it when the client may come again.
func (w *writing) choose(ctx context.Context, k *work) error {
	g, err := w.find(ctx, k)
	if err != nil {
		return err
	}
	if g == nil && k.Upsert {
		if g, err = w.newGoal(k, w.r.ids.value); err != nil {
			k.fail(err)
			return nil
		}
	}
	if g == nil {
		g = &goal{}
	}
	g.attempt = k.op.Attempt
	if w.retry != nil {
		if g, err = w.intend(ctx, k, g); err != nil {
			return err
		}
	}
	k.follow = false
	if g.direct {
		// An earlier try went to a chunk without a key; nobody knows which is its heir.
		k.op.Attempt = g.attempt
		k.direct = &manifest.ChunkAt{}
		return nil
	}
	if !g.id.IsZero() {
		if g, err = w.again(k, g); err != nil {
			k.fail(err)
			return nil
		}
	}
	k.goal, k.op.Attempt = g, g.attempt
	return nil
}

// again makes the document of an upsert that another try of the client's made before.
func (w *writing) again(k *work, recorded *goal) (*goal, error) {
	g, err := w.newGoal(k, func() bson.RawValue { return recorded.id })
	if err != nil {
		return nil, err
	}
	g.attempt = recorded.attempt
	return g, nil
}

// find looks for a match: the first in k's order, in key order when it has none.
func (w *writing) find(ctx context.Context, k *work) (*goal, error) {
	rd := &read{Query: Query{Filter: k.Filter, Projection: onlyID, Limit: 1, First: 1}, ns: w.ns, filter: k.filter, sort: k.sort}
	if k.sort != nil {
		rd.Sort = k.Sort
	}
	exists, err := rd.prepare(ctx, w.a)
	if err != nil || !exists || len(rd.plan.Targets) == 0 {
		return nil, err
	}
	q := rd.request(2)
	q.Mode, q.KeyOrder, q.Sort, q.WithSortKey = rpc.Keys, 0, rd.Sort, k.sort != nil
	streams, err := w.r.scatter(ctx, w.a, rd, rd.plan.ByShard(), q)
	if err != nil {
		return nil, err
	}
	defer closeAll(ctx, streams)
	var best *goal
	var bestKey []byte
	for _, st := range streams {
		row, err := st.next(ctx, 1)
		if err != nil {
			return nil, fmt.Errorf("find a match for a write: %w: %w", err, errkind.StaleVersion)
		}
		if row == nil {
			continue
		}
		key, order, err := keyRow(row, k.sort != nil)
		if err != nil {
			return nil, err
		}
		if best == nil || string(order) < string(bestKey) {
			best, bestKey = &goal{key: key}, order
		}
	}
	return best, nil
}

// onlyID is the projection of a search whose documents nobody looks at.
var onlyID = bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 1)))

// keyRow reads a row of a Keys read: its row key, and the key it is ordered by.
func keyRow(row bson.Raw, sorted bool) (key, order []byte, err error) {
	k, _ := document.Lookup(row, "k")
	_, key, ok := k.BinaryOK()
	order = key
	if sorted {
		s, _ := document.Lookup(row, "s")
		var isKey bool
		_, order, isKey = s.BinaryOK()
		ok = ok && isKey
	}
	if !ok {
		return nil, nil, fmt.Errorf("a shard answered %d bytes that are no {k, d}: %w", len(row), errkind.Corrupt)
	}
	return key, order, nil
}

// newGoal makes the document that an upsert inserts, and its row key.
func (w *writing) newGoal(k *work, newID func() bson.RawValue) (*goal, error) {
	doc, err := k.update.Upsert(nil, k.filter, newID)
	if err != nil {
		return nil, err
	}
	id, at, err := findID(doc)
	if err != nil {
		return nil, err
	}
	if at == 0 {
		return nil, mongoerr.New(mongoerr.NoSuchKey, "the document of the upsert has no _id")
	}
	key, err := w.coll.Key.AppendKey(nil, doc)
	if err != nil {
		return nil, mongoerr.New(mongoerr.ShardKeyNotFound, "%v", err)
	}
	return &goal{key: key, id: id, doc: doc}, nil
}

// intend records g at k's home; the answer is the goal that counts.
func (w *writing) intend(ctx context.Context, k *work, g *goal) (*goal, error) {
	home := homeKey(k.op)
	res, err := w.one(ctx, home, rpc.WriteOp{Kind: rpc.Intent, Op: k.op, Key: home, Doc: g.encode()})
	if err != nil {
		return nil, err
	}
	if res.Err != nil {
		return nil, res.Err
	}
	if res.Value == nil {
		return g, nil
	}
	got, err := decodeGoal(res.Value)
	if err != nil {
		return nil, err
	}
	if string(got.key) == string(g.key) {
		got.doc = g.doc
	}
	return got, nil
}

// writeGoal sends k to its row.
func (w *writing) writeGoal(ctx context.Context, k *work) error {
	op := k.request(0)
	op.Key, op.Sort, op.Upsert = k.goal.key, nil, false
	if k.goal.doc != nil {
		op = rpc.WriteOp{Kind: insert, Op: k.op, Doc: k.goal.doc}
	}
	res, err := w.one(ctx, k.goal.key, op)
	if err != nil {
		return lost(err, k)
	}
	raced := k.goal.doc != nil && res.Err != nil && res.Err.Code == mongoerr.DuplicateKey
	switch {
	case k.goal.doc != nil && res.Err == nil:
		k.finish(w.upserted(k))
		return nil
	case !raced && (applied(res) || res.Err != nil || res.MovesTo != nil):
		w.take(k, res)
		return nil
	}
	// No match any more. Nobody may apply this attempt later: neither a try of the client's
	// that is under way elsewhere, nor a request of ours that got lost.
	if w.retry != nil || k.uncertain {
		res, err := w.one(ctx, k.goal.key, rpc.WriteOp{Kind: rpc.Refuse, Op: k.op, Key: k.goal.key})
		if err != nil {
			return err
		}
		if applied(res) {
			if k.goal.doc != nil {
				res = w.upserted(k)
			}
			w.take(k, res)
			return nil
		}
	}
	k.op.Attempt++
	k.goal, k.uncertain = nil, false
	return nil
}

// upserted is the result of an upsert whose document the router made.
func (w *writing) upserted(k *work) rpc.WriteResult {
	res := rpc.WriteResult{N: 1, UpsertedID: k.goal.id}
	if k.Return != rpc.ReturnAfter {
		return res
	}
	res.Value = k.goal.doc
	if !isEmpty(k.Projection) {
		p, err := document.ParseProjection(k.Projection) // parsed before: no error
		if err == nil {
			res.Value, err = p.Append(nil, k.goal.doc)
		}
		if err != nil {
			res.Value = k.goal.doc
		}
	}
	return res
}

// refuseDirect asks every chunk that can have applied k without a key to refuse it, or to
// say that it did.
func (w *writing) refuseDirect(ctx context.Context, k *work) error {
	groups := w.heirs(k).ByShard()
	runs := make([]*run, len(groups))
	for i, g := range groups {
		runs[i] = newRun(g.Shard)
		for _, t := range g.Targets {
			at := runs[i].targetOf(plan.Target{Chunk: t.Chunk})
			runs[i].ops = append(runs[i].ops, rpc.WriteOp{Kind: rpc.Refuse, Op: k.op, Target: at, Key: anyKey(t.Chunk.Range)})
		}
	}
	errs := make([]error, len(runs))
	w.r.each(len(runs), func(i int) { errs[i] = w.send(ctx, runs[i]) })
	for i, r := range runs {
		w.a.answered(ctx, r.shard, errs[i])
	}
	all := firstError(errs) == nil
	for _, r := range runs {
		all = all && len(r.results) == len(r.ops)
		for _, res := range r.results {
			if !res.Stale && applied(res) {
				w.take(k, res)
				return nil
			}
			all = all && !res.Stale
		}
	}
	switch err := firstError(errs); {
	case err != nil:
		return err
	case !all:
		return w.stale()
	}
	if k.verdict != nil {
		k.finish(*k.verdict)
	}
	k.op.Attempt++
	k.direct, k.uncertain = nil, false
	return nil
}

// heirs are the chunks that can have seen k without a key.
func (w *writing) heirs(k *work) *plan.Plan {
	switch {
	case k.Kind == insert:
		key, err := w.coll.Key.AppendKey(nil, k.Doc)
		if err == nil {
			return &plan.Plan{Targets: []plan.Target{{Chunk: w.state.ChunkOf(w.coll.ID, key)}}}
		}
	case !k.Upsert:
		return plan.Make(w.state, w.coll, k.filter, nil)
	}
	return plan.Whole(w.state, w.coll) // the new document can be anywhere
}

// anyKey is a key inside a chunk.
func anyKey(r shardkey.Range) []byte {
	if len(r.Min) == 0 {
		return []byte{0x01} // below every bound: the key of MinKey
	}
	return r.Min
}

// one sends one operation to the chunk of a key.
func (w *writing) one(ctx context.Context, key []byte, op rpc.WriteOp) (rpc.WriteResult, error) {
	chunk := w.state.ChunkOf(w.coll.ID, key)
	r := newRun(chunk.Shard)
	op.Target = r.targetOf(plan.Target{Chunk: chunk})
	r.ops = []rpc.WriteOp{op}
	err := w.send(ctx, r)
	w.a.answered(ctx, r.shard, err)
	switch {
	case err != nil:
		return rpc.WriteResult{}, err
	case len(r.results) == 0 || r.results[0].Stale:
		return rpc.WriteResult{}, w.stale()
	}
	return r.results[0], nil
}
