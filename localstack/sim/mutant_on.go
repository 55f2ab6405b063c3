//go:build mutants

package sim

import (
	"context"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/compactor/gc"
	"github.com/granarydb/granary/manifest"
)

// collectMore goes on after a sweep, when one of the collector's rules is switched off.
func collectMore(ctx context.Context, s *gc.Sweeper) {
	root := s.Root.State()
	if root == nil {
		return
	}
	switch writer.SwitchedOff().String() {
	case "seals-collected":
		collectSeals(ctx, s, root)
	case "gc-by-age":
		collectOld(ctx, s)
	}
}

// collectSeals deletes what the sweep spared below the floors, as if the last object of an
// epoch were like any other.
func collectSeals(ctx context.Context, s *gc.Sweeper, root *manifest.State) {
	page, _, _ := s.Bucket.List(ctx, "wal/", "", 0)
	for _, o := range page {
		shard, epoch, index, err := manifest.ParseWALKey(o.Key)
		if h := root.Shard(shard); err == nil && h != nil && h.Floor.Covers(epoch, index) {
			_ = s.Bucket.Delete(ctx, o.Key)
		}
	}
}

// oldAge is the age from which collectOld takes a segment for one that nobody wants: some are
// that long on their way.
const oldAge = 2 * time.Second

// collectOld deletes segments that are old, and that the root does not refer to, also those of a
// creator that may yet commit them. While there are pins it does nothing: they are another rule.
func collectOld(ctx context.Context, s *gc.Sweeper) {
	page, _, _ := s.Bucket.List(ctx, "seg/", "", 0)
	if s.Host.Sleep(ctx, oldAge) != nil {
		return
	}
	root, _, err := s.Root.Load(ctx)
	if err != nil || len(root.Pins()) > 0 {
		return
	}
	for _, o := range page {
		if refersTo(root, o.Key) == nil {
			_ = s.Bucket.Delete(ctx, o.Key)
		}
	}
}

// withoutPins is what a collector sees that takes a pin for nothing when it cannot read it: the
// root again, which keeps what is kept already.
func withoutPins(b bucket.Bucket) bucket.Bucket {
	if writer.SwitchedOff().String() != "unreadable-pin-ignored" {
		return b
	}
	return blind{b}
}

type blind struct{ bucket.Bucket }

func (b blind) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	object, err := b.Bucket.Get(ctx, key, o)
	if err != nil && strings.HasPrefix(key, "meta/pin/") {
		return b.Bucket.Get(ctx, "meta/root", o)
	}
	return object, err
}
