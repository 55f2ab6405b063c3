package writer

import (
	"context"
	"testing"

	"github.com/granarydb/granary/manifest"
)

// A shard is removed while its holder has its log: the holder lets go of it without an error.
// The name comes back, and so does a chunk, in which a document was deleted elsewhere: what is
// in the log of before stays dead, also for the next holder.
func TestRemovedShardComesBackWithoutItsPast(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a", "b")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1, v: 1}", "{_id: 2, v: 1}")
		check(t, c.move(1, "b"))
		c.remove(2)
		check(t, w.commit(manifest.SetDraining{Shard: "a", Draining: true}, manifest.RemoveShard{ID: "a"}))
		check(t, p.Release(context.Background(), "a"))
		check(t, w.commit(manifest.AddShards{IDs: []manifest.ShardID{"a"}}))
		_, _, err := p.root.Load(context.Background())
		check(t, err)
		p.holds("a")
		check(t, c.move(1, "a"))
		c.want("{_id: 1, v: 1}")
		c.update(1, "{$set: {v: 2}}")
		p.kill()
		w.process("q").holds("a", "b")
		c.want("{_id: 1, v: 2}")
	})
}
