package router

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/router/plan"
)

// errNoWriter: the shard is free, and a write needs a holder.
var errNoWriter = fmt.Errorf("no writer holds it, start one with granary writer --any: %w", rpc.Unreachable)

// ask calls the holder of a shard. An error of the dial is Unreachable, others are the
// owner's.
func ask[Reply any](ctx context.Context, a *attempts, s *manifest.State, shard manifest.ShardID, call func(rpc.Owner) (Reply, error)) (Reply, error) {
	var none Reply
	h := s.Shard(shard)
	if h == nil {
		return none, fmt.Errorf("shard %s is not in root version %d: %w", shard, s.Version(), errkind.StaleVersion)
	}
	if h.Status == manifest.ShardFree {
		return none, fmt.Errorf("ask shard %s: %w", shard, errNoWriter)
	}
	owner, err := a.r.dialer.Dial(shard, h.Holder, h.Address)
	if err != nil {
		return none, fmt.Errorf("ask shard %s: %w: %w", shard, rpc.Unreachable, err)
	}
	reply, err := call(owner)
	if err != nil {
		return none, fmt.Errorf("ask shard %s: %w", shard, err)
	}
	return reply, nil
}

// answered keeps count of silent holders, and asks for a writer where one is missing. It
// must be called for the outcome of every request of the operation, not concurrently.
func (a *attempts) answered(ctx context.Context, shard manifest.ShardID, err error) {
	switch {
	case errors.Is(err, errNoWriter):
		a.r.claim(ctx, shard)
		return
	case err == nil || nothingDone(err) && !errors.Is(err, rpc.Unreachable):
		delete(a.silent, shard)
		return
	}
	now := a.r.host.Mono()
	s := a.silent[shard]
	if s.n == 0 {
		s.since = now
	}
	if s.n++; s.n >= UnreachableMax && now-s.since >= UnreachableFor {
		a.r.claim(ctx, shard)
		s = silence{}
	}
	if a.silent == nil {
		a.silent = make(map[manifest.ShardID]silence)
	}
	a.silent[shard] = s
}

// waited is answered for the shards that an answer says must answer first.
func (w *writing) waited(ctx context.Context, results []rpc.WriteResult) {
	for i := range results {
		shard := results[i].Waits
		if shard == "" {
			continue
		}
		err := fmt.Errorf("a document goes to shard %s: %w", shard, rpc.Unreachable)
		if h := w.state.Shard(shard); h != nil && h.Status == manifest.ShardFree {
			err = fmt.Errorf("a document goes to shard %s: %w", shard, errNoWriter)
		}
		w.a.answered(ctx, shard, err)
	}
}

// claim asks the Claimer for a writer; one question a shard is in the air at a time, others
// wait by their backoff.
func (r *Router) claim(ctx context.Context, shard manifest.ShardID) {
	if r.claimer == nil || ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	busy := r.claiming[shard]
	r.claiming[shard] = true
	r.mu.Unlock()
	if busy {
		return
	}
	if err := r.claimer.Claim(ctx, shard); err != nil {
		r.log.Warn("no writer for a shard", "shard", shard, "cause", err)
	}
	r.mu.Lock()
	delete(r.claiming, shard)
	r.mu.Unlock()
}

// header begins a request to a shard.
func (a *attempts) header(s *manifest.State, c *manifest.Collection, shard manifest.ShardID) rpc.Header {
	return rpc.Header{Shard: shard, Collection: c.ID, RootVersion: s.Version(), Deadline: a.left()}
}

// target is t as owners are asked for it.
func target(t plan.Target) rpc.Target {
	return rpc.Target{ID: t.Chunk.ID, Version: t.Chunk.Version, Min: t.Chunk.Range.Min, Ranges: t.Ranges}
}

func targets(ts []plan.Target) []rpc.Target {
	out := make([]rpc.Target, len(ts))
	for i, t := range ts {
		out[i] = target(t)
	}
	return out
}
