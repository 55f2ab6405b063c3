package writer

import (
	"context"
	"time"
)

// gate keeps requests waiting until it opens: a batch that is full, a chunk that moves, a
// shard that is not served yet. It opens once.
//
// Requests that waited go on one microsecond apart, in the order in which they came. That
// costs nothing anyone can feel, and it makes what they do next happen in one order: the
// same seed gives the same run.
type gate struct {
	opened  chan struct{}
	waiters int // Owned by: whoever's mutex guards the gate
}

func newGate() *gate { return &gate{opened: make(chan struct{})} }

// join counts one more waiter and returns its place in the queue. Requires: the mutex that
// guards the gate.
func (g *gate) join() (place int) {
	g.waiters++
	return g.waiters - 1
}

// await waits at the place that join gave. It prefers an open gate to anything that
// happened at the same time. Errors: the shard's end, the cause of ctx.
func (s *shard) await(ctx context.Context, g *gate, place int) error {
	if err := s.first(ctx, g.opened); err != nil {
		return err
	}
	if place == 0 {
		return nil
	}
	return s.w.host.Sleep(ctx, time.Duration(place)*time.Microsecond)
}

// first waits for ready, the end of the shard or the end of ctx. Of those that happened,
// it takes the first in this order.
func (s *shard) first(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-s.ended:
	case <-ctx.Done():
	}
	select {
	case <-ready:
		return nil
	default:
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.endedErr()
}
