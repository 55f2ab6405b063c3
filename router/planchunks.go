package router

import (
	"bytes"
	"context"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// What commands about chunks would do to a root: the commands themselves ask the same.

// PlanSplits is where the points cut a collection: the points that are bounds already are left
// out. Errors: mongoerr NamespaceNotSharded, BadValue.
func PlanSplits(s *manifest.State, ns Namespace, points []bson.Raw) ([]manifest.Split, error) {
	c, err := sharded(s, ns)
	if err != nil {
		return nil, err
	}
	var at []shardkey.Bound
	for _, d := range points {
		p, err := boundAt(c, d)
		if err != nil {
			return nil, err
		}
		at = append(at, shardkey.Bound{Key: p.Key, BSON: p.BSON})
	}
	var splits []manifest.Split
	for _, change := range splitsAt(s, c, sortedPoints(at), 0) {
		splits = append(splits, change.(manifest.Split))
	}
	return splits, nil
}

// SplitAt cuts a collection at all points, in one commit. Points that are bounds already count
// for nothing. Errors as PlanSplits.
func (r *Router) SplitAt(ctx context.Context, ns Namespace, points []bson.Raw, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.change(ctx, a, func(s *manifest.State) (changes []manifest.Change, err error) {
		splits, err := PlanSplits(s, ns, points)
		for _, split := range splits {
			if err := r.cuttable(s.CollectionByName(ns.Database, ns.Collection), split.Points...); err != nil {
				return nil, err
			}
			split.ManualUntil = r.host.Wall().Add(manualFor).Unix()
			changes = append(changes, split)
		}
		return changes, err
	})
	return err
}

// PlanMerge is the chunks between two bounds, which can become one; at least one. Errors:
// mongoerr NamespaceNotSharded, BadValue for bounds that are not those of chunks,
// IllegalOperation when they are of several shards, or a zone ends between them.
func PlanMerge(s *manifest.State, ns Namespace, bounds [2]bson.Raw) ([]*manifest.Chunk, error) {
	c, err := sharded(s, ns)
	if err != nil {
		return nil, err
	}
	want, err := c.Bounds(bounds[0], bounds[1])
	if err != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	var chunks []*manifest.Chunk
	for chunk := range s.ChunksIn(c.ID, want) {
		chunks = append(chunks, chunk)
	}
	first, last := chunks[0], chunks[len(chunks)-1]
	if !bytes.Equal(first.Range.Min, want.Min) || !bytes.Equal(last.Range.Max, want.Max) {
		return nil, mongoerr.New(mongoerr.BadValue, "[%v, %v) does not begin and end with chunks: the ones there are [%v, ... %v)", bounds[0], bounds[1], first.MinBSON, last.MaxBSON)
	}
	for _, chunk := range chunks {
		if chunk.Shard != first.Shard {
			return nil, mongoerr.New(mongoerr.IllegalOperation, "cannot merge chunks of shards %s and %s; move them to one shard first: sh.moveChunk", first.Shard, chunk.Shard)
		}
	}
	if _, inside := c.ZoneOf(want); !inside && len(chunks) > 1 {
		return nil, mongoerr.New(mongoerr.IllegalOperation, "cannot merge [%v, %v): a zone range of %s begins or ends inside; config.tags has them", bounds[0], bounds[1], ns)
	}
	return chunks, nil
}

// PlanMove is the chunks that are moved to a shard: the one that Find names, or those that
// Bounds overlap, without those that are there. Errors as MoveChunk.
func PlanMove(s *manifest.State, ns Namespace, at Where, to manifest.ShardID) ([]*manifest.Chunk, error) {
	c, err := sharded(s, ns)
	if err != nil {
		return nil, err
	}
	if err := known(s, to); err != nil {
		return nil, err
	}
	var found, chunks []*manifest.Chunk
	if at.Find != nil {
		chunk, err := chunkAt(s, c, at)
		if err != nil {
			return nil, err
		}
		found = []*manifest.Chunk{chunk}
	} else if found, err = chunksIn(s, c, at.Bounds[0], at.Bounds[1]); err != nil {
		return nil, err
	}
	for _, chunk := range found {
		if chunk.Shard == to {
			continue
		}
		if err := zoneAllows(s, c, chunk, to); err != nil {
			return nil, err
		}
		chunks = append(chunks, chunk)
	}
	return chunks, nil
}
