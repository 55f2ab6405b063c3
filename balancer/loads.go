package balancer

import (
	"context"
	"sync"
	"time"

	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
)

const (
	// loadsWait bounds the question to one owner.
	loadsWait = 2 * time.Second
	// standbyLooks is how seldom a balancer asks that is not the active one.
	standbyLooks = 6
	// calmFor is how long rates are not looked at after a chunk moved because of them: they
	// are of the past.
	calmFor = 90 * time.Second
)

// loads asks every owner what is asked of its chunks; nil when one does not answer: a shard
// that seems idle would be given the load of all others.
func (b *Balancer) loads(ctx context.Context, st *manifest.State) map[manifest.ChunkID]policy.Load {
	var mu sync.Mutex
	var all sync.WaitGroup
	loads, complete := map[manifest.ChunkID]policy.Load{}, true
	for _, h := range st.Shards() {
		if h.Status == manifest.ShardFree {
			continue
		}
		all.Go(func() {
			reply, err := b.loadsOf(ctx, st, h)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				complete = false
				return
			}
			for _, c := range reply.Chunks {
				loads[c.ID] = policy.Load{Reads: c.Reads, Writes: c.Writes, Unflushed: c.UnflushedBytes}
			}
		})
	}
	all.Wait()
	if !complete {
		return nil
	}
	return loads
}

func (b *Balancer) loadsOf(ctx context.Context, st *manifest.State, h *manifest.Shard) (*rpc.LoadsReply, error) {
	ctx, cancel := b.c.Host.WithTimeout(ctx, loadsWait)
	defer cancel()
	owner, err := b.c.Dial.Dial(h.ID, h.Holder, h.Address)
	if err != nil {
		return nil, err
	}
	return owner.Loads(ctx, &rpc.LoadsRequest{Header: rpc.Header{Shard: h.ID, RootVersion: st.Version(), Deadline: loadsWait}})
}
