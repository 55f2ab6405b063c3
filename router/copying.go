package router

import (
	"context"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
)

// Copying is a move of chunks to another location, which copies their rows there first.
type Copying struct {
	Namespace string
	From      manifest.ShardID
	rpc.Copying
}

// copyingWait is how long an owner may take to say how far it is.
const copyingWait = time.Second

// Copyings are the moves to other locations that are under way, by shard. Owners that do not answer
// are left out; none is asked as long as the root knows of no such move.
func (r *Router) Copyings(ctx context.Context, maxTime time.Duration) (list []Copying, err error) {
	s, err := r.State(ctx, maxTime)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(s.Jobs(), manifest.Job.Moves) {
		return nil, nil
	}
	ctx, a, cancel := r.begin(ctx, copyingWait)
	defer cancel()
	for _, h := range s.Shards() {
		if h.Status == manifest.ShardFree {
			continue
		}
		reply, err := ask(ctx, a, s, h.ID, func(o rpc.Owner) (*rpc.LoadsReply, error) {
			return o.Loads(ctx, &rpc.LoadsRequest{Header: rpc.Header{Shard: h.ID, Deadline: copyingWait}})
		})
		if err != nil {
			continue
		}
		for _, c := range reply.Copying {
			if coll := s.Collection(c.Collection); coll != nil {
				list = append(list, Copying{Namespace: coll.Namespace(), From: h.ID, Copying: c})
			}
		}
	}
	return list, nil
}
