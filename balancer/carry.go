package balancer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
)

const (
	// sourcesMax bounds the owners that are asked at a time, each for one batch.
	sourcesMax = 4
	// batchMax bounds the chunks of one request that are not small.
	batchMax = 8
	// moveWait bounds one request, and copyWait one for a chunk whose rows are copied to another
	// location.
	moveWait = 30 * time.Second
	copyWait = 10 * time.Minute
)

// batch is chunks that go together.
type batch []policy.Action

// batches are the actions by owner, each owner's by destination and size, in the order of the
// first of them.
func batches(actions []policy.Action) (sources [][]batch) {
	type way struct {
		from, to manifest.ShardID
		small    bool
	}
	at, open := map[manifest.ShardID]int{}, map[way]int{}
	for _, a := range actions {
		w := way{a.From, a.To, a.Small && !a.Copies}
		i, ok := at[a.From]
		if !ok {
			i = len(sources)
			at[a.From], sources = i, append(sources, nil)
		}
		most := batchMax
		switch {
		case a.Copies:
			most = 1
		case a.Small:
			most = rpc.MovesMax
		}
		k, ok := open[w]
		if !ok || len(sources[i][k]) == most {
			k = len(sources[i])
			open[w], sources[i] = k, append(sources[i], nil)
		}
		sources[i][k] = append(sources[i][k], a)
	}
	return sources
}

// carryOut asks owners to hand chunks over: several owners side by side, one batch of each.
func (r *round) carryOut(ctx context.Context, actions []policy.Action) {
	until := r.b.c.Host.Mono() + roundMax
	slots := make(chan struct{}, sourcesMax)
	var all sync.WaitGroup
	for _, source := range batches(actions) {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			for _, x := range source {
				if r.b.c.Host.Mono() >= until || r.pace(ctx) != nil || !r.handOver(ctx, x) {
					return
				}
			}
		})
	}
	all.Wait()
}

// pace waits until the next request may be sent.
func (r *round) pace(ctx context.Context) error {
	r.mu.Lock()
	now := r.b.c.Host.Mono()
	wait := max(r.b.next-now, 0)
	r.b.next = now + wait + soonest
	r.mu.Unlock()
	if wait == 0 {
		return nil
	}
	return r.b.c.Host.Sleep(ctx, wait)
}

// handOver carries out one batch on the newest root. It reports whether to go on.
func (r *round) handOver(ctx context.Context, x batch) bool {
	st, err := r.b.load(ctx)
	if err != nil || balancing.Of(st).Stopped {
		return false
	}
	if x = still(st, x); len(x) == 0 {
		return true
	}
	err = r.b.ask(ctx, st, x)
	if err == nil {
		r.done(x)
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	// Whatever the answer was, the root tells what happened.
	now, lookErr := r.b.load(ctx)
	if lookErr != nil {
		r.failed(x, errors.Join(err, lookErr))
		return false
	}
	var went, stayed batch
	for _, a := range x {
		switch c := now.ChunkOf(a.Chunk.Collection, a.Chunk.Min); {
		case c == nil:
		case c.ID == a.Chunk.ID && c.Shard == a.To:
			went = append(went, a)
		case now.ChunkAt(a.Chunk) != nil:
			stayed = append(stayed, a)
		}
	}
	r.done(went)
	r.b.c.Log.Debug("chunks stay for now", "chunks", len(stayed), "from", x[0].From, "to", x[0].To, "cause", err)
	r.failed(stayed, fmt.Errorf("move from %s to %s: %w", x[0].From, x[0].To, err))
	return true
}

// still is what of a batch can be done on a later root than the one that it was planned on.
func still(st *manifest.State, x batch) (rest batch) {
	from, to := st.Shard(x[0].From), st.Shard(x[0].To)
	if from == nil || to == nil || from.Status == manifest.ShardFree || to.Status != manifest.ShardHeld {
		return nil
	}
	if _, wish := balancing.Draining(st, to.ID); wish {
		return nil
	}
	for _, a := range x {
		chunk, c := st.ChunkAt(a.Chunk), st.Collection(a.Chunk.Collection)
		if chunk == nil || chunk.Shard != from.ID || c.NoBalance || !c.PermitsMigrations() {
			continue
		}
		if z, _ := c.ZoneOf(chunk.Range); z != nil && !to.InZone(z.Zone) {
			continue
		}
		rest = append(rest, a)
	}
	return rest
}

// ask asks the owner of a batch.
func (b *Balancer) ask(ctx context.Context, st *manifest.State, x batch) error {
	wait := moveWait
	if x[0].Copies {
		wait = copyWait
	}
	ctx, cancel := b.c.Host.WithTimeout(ctx, wait)
	defer cancel()
	from := st.Shard(x[0].From)
	owner, err := b.c.Dial.Dial(from.ID, from.Holder, from.Address)
	if err != nil {
		return err
	}
	req := &rpc.MoveRequest{
		Header: rpc.Header{Shard: from.ID, Collection: x[0].Chunk.Collection, RootVersion: st.Version(), Deadline: wait},
		To:     x[0].To,
	}
	for _, a := range x {
		req.Chunks = append(req.Chunks, a.Chunk)
	}
	_, err = owner.Move(ctx, req)
	return err
}
