package router

import (
	"context"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router/plan"
)

// everywhere runs a Multi in all chunks that can have a match: all shards at once, each
// chunk under the one OpID. A chunk that was changed meanwhile is visited again on the next
// map; its owner goes on where the statement stopped. What is finished stays in k.
func (w *writing) everywhere(ctx context.Context, k *work) error {
	p := plan.Make(w.state, w.coll, k.filter, nil)
	if k.left != nil {
		p = p.Within(w.state, w.coll.ID, k.left...)
	}
	groups := p.ByShard()
	runs := make([]*run, len(groups))
	for i, g := range groups {
		runs[i] = newRun(g.Shard)
		for _, t := range g.Targets {
			op := k.request(runs[i].targetOf(t))
			op.Upsert = false
			runs[i].ops = append(runs[i].ops, op)
		}
	}
	errs := make([]error, len(runs))
	w.r.each(len(runs), func(i int) { errs[i] = w.send(ctx, runs[i]) })
	done := make(map[manifest.ChunkID]bool)
	for i, r := range runs {
		w.a.answered(ctx, r.shard, errs[i])
		w.waited(ctx, r.results)
		errs[i] = lost(errs[i], k)
		for j, res := range r.results {
			if res.Stale {
				k.partly = k.partly || res.N > 0
			} else {
				w.sum(k, res)
				done[groups[i].Targets[j].Chunk.ID] = true
			}
		}
	}
	if k.total.Err != nil {
		k.finish(k.total)
		return nil
	}
	k.left = p.Ranges[:0:0]
	for _, t := range p.Targets {
		if !done[t.Chunk.ID] {
			k.left = append(k.left, t.Parts()...)
		}
	}
	if err := firstError(errs); err != nil {
		return err
	}
	if len(k.left) > 0 {
		return w.stale()
	}
	return w.visited(ctx, k)
}

// sum adds one chunk's result.
func (w *writing) sum(k *work, res rpc.WriteResult) {
	k.total.N += res.N
	k.total.Modified += res.Modified
	if k.total.Err == nil {
		k.total.Err = res.Err
	}
}

// visited ends a Multi that saw every chunk: an upsert without a match inserts.
func (w *writing) visited(ctx context.Context, k *work) error {
	if k.total.N > 0 || !k.Upsert {
		k.finish(k.total)
		return nil
	}
	g, err := w.newGoal(k, w.r.ids.value)
	if err != nil {
		k.fail(err)
		return nil
	}
	k.op.Attempt++ // chunks know the present attempt as the Multi
	g.attempt = k.op.Attempt
	k.goal, k.left, k.uncertain = g, nil, false
	return w.twoPhase(ctx, k)
}
