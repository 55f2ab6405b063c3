package writer

import (
	"context"
	"sync"
	"time"

	"github.com/granarydb/granary/manifest/host"
)

// gate keeps requests waiting until it opens: a batch that is full, a chunk that moves, a
// shard that is not served yet. It opens once.
type gate struct{ opened chan struct{} }

func newGate() *gate { return &gate{opened: make(chan struct{})} }

// await waits until the gate opens, at the place that turns.join gave when the decision to
// wait was made. Errors: the shard's end, the cause of ctx.
func (s *shard) await(ctx context.Context, g *gate, place int) error {
	return s.w.turns.take(ctx, place, func() error { return s.first(ctx, g.opened) })
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

// turns makes requests that waited for one thing, and can go on at the same moment, go on
// one after another, in the order in which they began to wait, and the first a moment after
// whoever woke it. Nobody feels these microseconds, and what they do next then happens in
// one order: the same seed gives the same run.
type turns struct {
	clock host.Clock
	mu    sync.Mutex
	next  int // place of the next to wait
}

const (
	// turnFirst is the moment, turnApart what lies between two, and turnPlaces how many
	// differ. Time is cut into rounds of all places, so that two turns never fall together,
	// whenever their waits ended; all turns of one wake are over before the first of what they
	// wake.
	turnFirst  = 2 * time.Microsecond
	turnApart  = 4 * time.Nanosecond
	turnPlaces = 256
	turnRound  = turnPlaces * turnApart
)

// join takes a place. It must be given to take.
func (t *turns) join() (place int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	place = t.next
	t.next++
	return place
}

// take waits by wait, then for its turn. Errors: those of wait, the cause of ctx.
func (t *turns) take(ctx context.Context, place int, wait func() error) error {
	err := wait()
	if ended := t.sleep(ctx, place); err == nil {
		err = ended
	}
	return err
}

// turnReads: a read that took longer has waited for the bucket, perhaps for a request that
// others wait for too.
const turnReads = 20 * time.Microsecond

// read is take for a read, which has a turn to wait for only if it had to wait at all.
func (t *turns) read(ctx context.Context, read func() error) error {
	place, start := t.join(), t.clock.Mono()
	err := read()
	if t.clock.Mono()-start >= turnReads {
		_ = t.sleep(ctx, place) // its result stands, whatever ends ctx
	}
	return err
}

func (t *turns) sleep(ctx context.Context, place int) error {
	now := t.clock.Mono()
	round := (now + turnFirst + turnRound).Truncate(turnRound)
	return t.clock.Sleep(ctx, round-now+time.Duration(place%turnPlaces)*turnApart)
}

// yield lets what was just started go first.
func (t *turns) yield(ctx context.Context) {
	_ = t.take(ctx, t.join(), func() error { return nil })
}
