package router

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// send asks one shard; it only reads w, so that runs of several shards go at once. What the
// answer says is kept in the run.
func (w *writing) send(ctx context.Context, r *run) error {
	reply, err := w.ask(ctx, r)
	if err != nil {
		return err
	}
	if len(reply.Results) > len(r.ops) {
		return fmt.Errorf("write to %s: %d results for %d operations: %w", w.ns, len(reply.Results), len(r.ops), errkind.UnknownOutcome)
	}
	r.results, r.until = reply.Results, reply.Until
	return nil
}

func (w *writing) ask(ctx context.Context, r *run) (*rpc.WriteReply, error) {
	req := &rpc.WriteRequest{
		Header:  w.a.header(w.state, w.coll, r.shard),
		Targets: r.targets, Ops: r.ops, Ordered: w.ordered, Early: r.early, After: r.after,
	}
	return ask(ctx, w.a, w.state, r.shard, func(o rpc.Owner) (*rpc.WriteReply, error) { return o.Write(ctx, req) })
}

// settleRun takes the results of a run over into its statements. The error, of the request
// or StaleVersion, has those that are left tried again.
func (w *writing) settleRun(r *run, err error) error {
	if err != nil {
		for i, at := range r.at {
			if at >= 0 && r.works[at].unkeyed(r.ops[i]) && !nothingDone(err) {
				t := r.targets[r.ops[i].Target]
				r.works[at].direct = &manifest.ChunkAt{ID: t.ID, Version: t.Version}
			}
		}
		return lost(err, r.works...)
	}
	w.owe(r)
	stale := len(r.results) < len(r.ops)
	for i, res := range r.results {
		at := r.at[i]
		switch {
		case res.Stale:
			stale = true
			if at >= 0 && r.works[at].Multi {
				r.works[at].partly = r.works[at].partly || res.N > 0
			}
		case at < 0:
			w.intended(r.works[-1-at], res)
		default:
			w.take(r.works[at], res)
			if w.ordered && (res.Err != nil || !r.works[at].done) {
				return nil
			}
		}
	}
	if stale {
		return w.stale()
	}
	return nil
}

// unkeyed reports whether op may be applied to a row that only its owner knows.
func (w *work) unkeyed(op rpc.WriteOp) bool {
	return w.Kind != insert && op.Key == nil && !w.Multi
}

// intended reads the answer to an intent that went along with its statement. When another
// try of the client's was first, its "no match" may mean that the other one refused it.
func (w *writing) intended(k *work, res rpc.WriteResult) {
	if g, err := decodeGoal(res.Value); err == nil && g.direct != k.try {
		k.follow = true
	}
}

// take makes an owner's result the statement's.
func (w *writing) take(k *work, res rpc.WriteResult) {
	if k.follow && !applied(res) {
		return
	}
	k.finish(res)
}

// applied reports whether a result is of a statement that found its document.
func applied(res rpc.WriteResult) bool {
	return res.N > 0 || res.UpsertedID.Type != 0 || res.Value != nil
}
