package sim

import (
	"context"
	"fmt"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
)

// rootChecker holds every new root against all invariants, against the root before it, and
// against the bucket.
type rootChecker struct {
	state *manifest.State
	pins  kept
	roots int
	// copied counts the chunks that went to another location.
	copied int
}

// next checks the root that was just written to b.
func (c *rootChecker) next(b bucket.Bucket, _ []byte) error {
	ctx := context.Background()
	now, err := manifest.ReadCopy(ctx, bucket.NewCell(b), cellsOf(b), "meta/root")
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	c.roots++
	if err := manifest.Validate(now); err != nil {
		return fmt.Errorf("version %d: %w", now.Version(), err)
	}
	was := c.state
	c.state = now
	c.pins.follow(now)
	if was == nil {
		return nil
	}
	if now.Version() == was.Version() {
		return nil // the same bytes once more
	}
	if err := manifest.ValidateStep(was, now); err != nil {
		return fmt.Errorf("version %d after %d: %w", now.Version(), was.Version(), err)
	}
	return c.checkObjects(ctx, b, was)
}

// checkObjects requires that every newly referenced segment is there.
func (c *rootChecker) checkObjects(ctx context.Context, b bucket.Bucket, was *manifest.State) error {
	for old, chunk := range manifest.ChangedChunks(was, c.state) {
		if chunk == nil {
			continue
		}
		known := map[manifest.SegmentID]bool{}
		if old != nil {
			if was.LocationOf(old.Shard) != c.state.LocationOf(chunk.Shard) {
				c.copied++
			}
			for _, r := range old.Refs {
				known[r.Segment] = true
			}
		}
		for _, r := range chunk.Refs {
			if known[r.Segment] {
				continue
			}
			a, err := at(b, r.Location).Head(ctx, r.Segment.Key())
			if err != nil {
				return fmt.Errorf("version %d: chunk %d refers to %s: %w", c.state.Version(), chunk.ID, r.Segment, err)
			}
			if a.Size != int64(r.Size) {
				return fmt.Errorf("version %d: chunk %d refers to %s of %d bytes, it has %d", c.state.Version(), chunk.ID, r.Segment, r.Size, a.Size)
			}
		}
	}
	return nil
}

// summary is a short line of counted events, in a fixed order.
func summary(events map[string]int) string {
	var parts []string
	for _, k := range sortedKeys(events) {
		parts = append(parts, fmt.Sprintf("%s %d", k, events[k]))
	}
	return strings.Join(parts, ", ")
}
