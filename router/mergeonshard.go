package router

import (
	"context"
	"time"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// MergeOnShard makes one chunk of all neighbours that a shard owns, at most `most` of them in
// each (0: no bound). Errors as MergeChunks, and ShardNotFound.
func (r *Router) MergeOnShard(ctx context.Context, ns Namespace, shard manifest.ShardID, most int, maxTime time.Duration) error {
	s, err := r.State(ctx, maxTime)
	if err != nil {
		return err
	}
	c, err := sharded(s, ns)
	if err != nil {
		return err
	}
	if err := known(s, shard); err != nil {
		return err
	}
	for _, bounds := range neighbours(s, c, shard, most) {
		if err := r.MergeChunks(ctx, ns, bounds, maxTime); err != nil {
			return err
		}
	}
	return nil
}

// neighbours are the bounds of the runs of chunks that a shard owns, two at least and at most
// `most` in each. The ends of zone ranges stay bounds.
func neighbours(s *manifest.State, c *manifest.Collection, shard manifest.ShardID, most int) (runs [][2]bson.Raw) {
	var run [2]bson.Raw
	n := 0
	var zone *manifest.ZoneRange
	end := func() {
		if n > 1 {
			runs = append(runs, run)
		}
		n = 0
	}
	for chunk := range s.Chunks(c.ID) {
		z, _ := c.ZoneOf(chunk.Range)
		if chunk.Shard != shard || most > 0 && n == most || z != zone {
			end()
		}
		zone = z
		if chunk.Shard != shard {
			continue
		}
		if n++; n == 1 {
			run[0] = chunk.MinBSON
		}
		run[1] = chunk.MaxBSON
	}
	end()
	return runs
}
