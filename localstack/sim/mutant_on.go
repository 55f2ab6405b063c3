//go:build mutants

package sim

import (
	"context"

	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/compactor/gc"
	"github.com/granarydb/granary/manifest"
)

// collectSeals goes on after a sweep, when the rule that seals stay is switched off: it
// deletes what the sweep spared below the floors, as if the last object of an epoch were
// like any other.
func collectSeals(ctx context.Context, s *gc.Sweeper) {
	root := s.Root.State()
	if writer.SwitchedOff().String() != "seals-collected" || root == nil {
		return
	}
	page, _, _ := s.Bucket.List(ctx, "wal/", "", 0)
	for _, o := range page {
		shard, epoch, index, err := manifest.ParseWALKey(o.Key)
		if err == nil && root.Shard(shard).Floor.Covers(epoch, index) {
			_ = s.Bucket.Delete(ctx, o.Key)
		}
	}
}
