package writer

import (
	"context"
	"sync"
	"time"

	"github.com/granarydb/granary/manifest"
)

// keepEvery is how often Keep looks after its shards.
const keepEvery = time.Second

// Keep takes back shards that this process lost by itself: a claim ends when the outcome of
// an append, a flush or a release stays unknown, and then the root still names this process,
// or nobody. A shard that another process claimed is left to it. It returns when ctx ends,
// with nothing left running.
func (w *Writer) Keep(ctx context.Context) error {
	h := w.actor("keep")
	for h.Sleep(ctx, h.Jitter(keepEvery)) == nil {
		st := w.root.State()
		if st == nil {
			continue
		}
		var all sync.WaitGroup
		for _, x := range st.Shards() {
			if !w.lost(x) {
				continue
			}
			all.Go(func() {
				if err := w.Hold(ctx, x.ID); err != nil && ctx.Err() == nil {
					w.log.Warn("shard not taken back, the next try follows", "shard", x.ID, "cause", err)
				}
			})
			w.turns.yield(ctx) // one claim begins after another
		}
		all.Wait()
	}
	return nil
}

// lost reports whether nobody else holds the shard and this process does not serve it.
func (w *Writer) lost(h *manifest.Shard) bool {
	if h.Status != manifest.ShardFree && h.Holder != w.holder {
		return false
	}
	s := w.shard(h.ID)
	return s == nil || s.endedErr() != nil
}
