package router

import (
	"context"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router/plan"
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

// intend records g at k's home; the answer is the goal that counts. A row that is kept in
// another location than the home is not named there: what is recorded is that this try went
// somewhere, and another one has every chunk that it can have gone to refuse it first.
func (w *writing) intend(ctx context.Context, k *work, g *goal) (*goal, error) {
	home, told := homeKey(k.op), g
	if w.apart(home, g) {
		told = &goal{attempt: g.attempt, direct: w.nameTry(k)}
	}
	res, err := w.one(ctx, home, rpc.WriteOp{Kind: rpc.Intent, Op: k.op, Key: home, Doc: told.encode()})
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
	if told != g && got.direct == told.direct && got.attempt == told.attempt {
		return g, nil
	}
	if string(got.key) == string(g.key) {
		got.doc = g.doc
	}
	return got, nil
}

// apart reports whether the row of a goal is kept in another location than a key.
func (w *writing) apart(key []byte, g *goal) bool {
	if g.key == nil || !w.state.Spread() {
		return false
	}
	of := func(key []byte) manifest.LocationID { return w.state.LocationOf(w.state.ChunkOf(w.coll.ID, key).Shard) }
	return of(key) != of(g.key)
}

// writeGoal sends k to its row.
func (w *writing) writeGoal(ctx context.Context, k *work) error {
	done, err := w.tryGoal(ctx, k)
	if done || err != nil {
		return err
	}
	// No match any more. Nobody may apply this attempt later: neither a try of the client's
	// that is under way elsewhere, nor a request of ours that got lost.
	if w.retry != nil || k.uncertain {
		res, err := w.one(ctx, k.goal.key, rpc.WriteOp{Kind: rpc.Refuse, Op: k.op, Key: k.goal.key})
		switch {
		case err != nil:
			return err
		case applied(res) && !k.goal.id.IsZero():
			k.finish(w.upserted(k))
			return nil
		case applied(res) || res.Err != nil:
			w.take(k, res)
			return nil
		}
	}
	k.op.Attempt++
	k.goal, k.uncertain = nil, false
	return nil
}

// tryGoal makes the request; done says that its answer, or its failure, is k's.
func (w *writing) tryGoal(ctx context.Context, k *work) (done bool, err error) {
	if !k.goal.id.IsZero() {
		return w.tryInsert(ctx, k)
	}
	op := k.request(0)
	op.Key, op.Sort, op.Upsert = k.goal.key, nil, false
	res, err := w.one(ctx, k.goal.key, op)
	if err != nil {
		return false, lost(err, k)
	}
	if applied(res) || res.Err != nil {
		w.take(k, res)
		return true, nil
	}
	return false, nil
}

// tryInsert inserts the document of an upsert. One that is there by now is no failure: it is
// matched at the next attempt.
func (w *writing) tryInsert(ctx context.Context, k *work) (done bool, err error) {
	if k.goal.doc == nil {
		return false, nil
	}
	res, err := w.one(ctx, k.goal.key, rpc.WriteOp{Kind: insert, Op: k.op, Doc: k.goal.doc})
	switch {
	case err != nil:
		return false, lost(err, k)
	case applied(res):
		k.finish(w.upserted(k))
		return true, nil
	case res.Err != nil && res.Err.Code != mongoerr.DuplicateKey:
		w.take(k, res)
		return true, nil
	}
	return false, nil
}

// upserted is the result of an upsert whose document the router made.
func (w *writing) upserted(k *work) rpc.WriteResult {
	res := rpc.WriteResult{N: 1, UpsertedID: k.goal.id}
	if k.Return != rpc.ReturnAfter {
		return res
	}
	res.Value = k.goal.doc
	if k.goal.doc != nil && !isEmpty(k.Projection) {
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
// say that it did. Another try of the client's must be able to tell that from "no match":
// it is told at k's home first.
func (w *writing) refuseDirect(ctx context.Context, k *work) error {
	if w.retry != nil && !k.told {
		g, err := w.intend(ctx, k, &goal{attempt: k.op.Attempt, direct: w.nameTry(k)})
		if err != nil {
			return err
		}
		return w.adopt(k, g)
	}
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
			if !res.Stale && (applied(res) || res.Err != nil) {
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
	k.op.Attempt++
	k.direct, k.told, k.uncertain = nil, false, false
	return nil
}

// heirs are the chunks that can have seen k without a key.
func (w *writing) heirs(k *work) *plan.Plan {
	if !k.Upsert {
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
	w.waited(ctx, r.results)
	switch {
	case err != nil:
		return rpc.WriteResult{}, err
	case len(r.results) == 0 || r.results[0].Stale:
		return rpc.WriteResult{}, w.stale()
	}
	return r.results[0], nil
}
