package router

import (
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router/plan"
)

// Trace is what a query asked of shards, request by request: what explain shows of it is what
// happened. A Query with a Trace fills it until its cursor is closed. Not to be used by two
// queries; safe to read at any time. A nil Trace records nothing.
type Trace struct {
	mu     sync.Mutex
	visits []Visit
	waited time.Duration
}

// Visit is what one shard did for a query.
type Visit struct {
	Shard manifest.ShardID
	// Chunks it was asked for, each once, the first first.
	Chunks []manifest.ChunkID
	// Requests are those that it answered: for the first batch, for more, for a count.
	Requests int
	// Documents it sent; N is what it counted.
	Documents, N int64
	Stats        rpc.ReadStats
	// Took is how long its requests took, one after another.
	Took time.Duration
}

// Visits are the shards that answered, in the order in which they were asked.
func (t *Trace) Visits() []Visit {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(t.visits), func(v Visit) bool { return v.Requests == 0 })
}

// Waited is how long the router waited for shards. What is left of a query's time it spent
// on planning and merging.
func (t *Trace) Waited() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waited
}

// asked records the shards that are asked now.
func (t *Trace) asked(groups []plan.Group) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range groups {
		t.visit(g.Shard)
	}
}

// visit is the entry of a shard.
func (t *Trace) visit(shard manifest.ShardID) *Visit {
	i := slices.IndexFunc(t.visits, func(v Visit) bool { return v.Shard == shard })
	if i < 0 {
		i = len(t.visits)
		t.visits = append(t.visits, Visit{Shard: shard})
	}
	return &t.visits[i]
}

// answered records one answer of a shard.
func (t *Trace) answered(shard manifest.ShardID, targets []plan.Target, reply *rpc.ReadReply, took time.Duration) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.visit(shard)
	for _, x := range targets {
		if !slices.Contains(v.Chunks, x.Chunk.ID) {
			v.Chunks = append(v.Chunks, x.Chunk.ID)
		}
	}
	v.Requests++
	v.Documents += int64(len(reply.Docs))
	v.N += reply.N
	v.Stats.DocsExamined += reply.Stats.DocsExamined
	v.Stats.BucketRequests += reply.Stats.BucketRequests
	v.Stats.BucketBytes += reply.Stats.BucketBytes
	v.Took += took
}

// wait adds the time since start, by a router's monotonic clock, to what was waited.
func (t *Trace) wait(r *Router, start time.Duration) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waited += r.host.Mono() - start
}
