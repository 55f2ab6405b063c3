package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// MoveCollection gives an unsharded collection to a shard, all of it. Errors: mongoerr
// NamespaceNotFound, IllegalOperation when it is sharded, ShardNotFound.
func (r *Router) MoveCollection(ctx context.Context, ns Namespace, to manifest.ShardID, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	for {
		left, err := r.moveElsewhere(ctx, a, ns, to)
		if err == nil && !left {
			return nil
		}
		if err == nil {
			a.progress()
			continue
		}
		if errors.Is(err, errkind.Conflict) {
			err = fmt.Errorf("%w: %w", errkind.StaleVersion, err)
		}
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
}

// moveElsewhere moves one chunk of the collection that is not on the shard; false: there is none.
func (r *Router) moveElsewhere(ctx context.Context, a *attempts, ns Namespace, to manifest.ShardID) (bool, error) {
	s, err := a.load(ctx)
	if err != nil {
		return false, err
	}
	c := s.CollectionByName(ns.Database, ns.Collection)
	switch {
	case c == nil:
		return false, mongoerr.New(mongoerr.NamespaceNotFound, "collection %s not found", ns)
	case c.Sharded:
		return false, mongoerr.New(mongoerr.IllegalOperation, "collection %s is sharded: moveCollection moves unsharded ones; "+
			"its chunks are moved by sh.moveChunk and sh.moveRange", ns)
	}
	if err := known(s, to); err != nil {
		return false, err
	}
	for chunk := range s.Chunks(c.ID) {
		if chunk.Shard != to {
			return true, r.handOver(ctx, a, s, c, []*manifest.Chunk{chunk}, to)
		}
	}
	return false, nil
}
