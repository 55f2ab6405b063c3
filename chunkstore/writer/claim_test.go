package writer

import (
	"context"
	"errors"
	"testing"

	"github.com/granarydb/granary/manifest/errkind"
)

// Two processes saw one epoch: the slower one takes nothing from the faster one. What it
// sees afterwards it may take, and what it has it keeps.
func TestHoldAtTakesNothingFromWhoWasFaster(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		seen := w.state().Shard("a").Epoch
		w.process("fast").holds("a")
		slow := w.process("slow")
		if err := slow.HoldAt(context.Background(), "a", seen); !errors.Is(err, errkind.Conflict) {
			t.Errorf("at the epoch before: %v", err)
		}
		if h := w.state().Shard("a").Holder; h != "fast" {
			t.Errorf("%s holds it", h)
		}
		check(t, slow.HoldAt(context.Background(), "a", w.state().Shard("a").Epoch))
		check(t, slow.HoldAt(context.Background(), "a", seen)) // it holds it
		if now := w.state().Shard("a"); now.Holder != "slow" || now.Epoch != seen+2 {
			t.Errorf("%s holds epoch %d", now.Holder, now.Epoch)
		}
	})
}
