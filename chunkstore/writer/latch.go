package writer

import (
	"context"
	"slices"
)

// latches make the steps of one operation on one shard-key value happen without another's
// in between: reading the present row, perhaps from the bucket, deciding, and appending.
// A latch is named by a hash: two values that share one only wait for each other.
//
// A latch is no mutex. It is held across bucket requests, therefore those who wait for it
// wait on a channel, and it goes from hand to hand in the order in which they came.
//
// Latches are of two kinds: rows, and operations by their id (a retry must not run beside
// the first attempt). An operation takes the latch of its id first, then those of rows, the
// lower hash first; so no circle of waiters can close.
//
// Owned by: the shard's mutex.
type latches struct {
	// held has an entry for each latch that is held: those who wait for it, in order.
	held map[latch][]chan struct{}
}

// latch names one latch.
type latch struct {
	op   bool
	hash uint64
}

func (l *latches) busy(h latch) bool {
	if len(l.held) == 0 {
		return false
	}
	_, ok := l.held[h]
	return ok
}

// take takes a latch that nobody holds.
func (l *latches) take(h latch) {
	if l.held == nil {
		l.held = make(map[latch][]chan struct{})
	}
	l.held[h] = nil
}

// release hands the latch to the first in the queue, or frees it.
func (l *latches) release(h latch) {
	queue := l.held[h]
	if len(queue) == 0 {
		delete(l.held, h)
		return
	}
	l.held[h] = queue[1:]
	close(queue[0])
}

// acquire takes the latch, waiting for whoever holds it. Errors: the shard's end, the cause
// of ctx; then it is not held.
func (s *shard) acquire(ctx context.Context, h latch) error {
	s.mu.Lock()
	if !s.latches.busy(h) {
		s.latches.take(h)
		s.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	s.latches.held[h] = append(s.latches.held[h], turn)
	s.mu.Unlock()
	err := s.first(ctx, turn)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-turn: // it came while we gave up
		s.latches.release(h)
	default:
		if queue, ok := s.latches.held[h]; ok {
			s.latches.held[h] = slices.DeleteFunc(queue, func(c chan struct{}) bool { return c == turn })
		}
	}
	return err
}

// release gives latches back.
func (s *shard) release(held ...latch) {
	if len(held) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range held {
		s.latches.release(h)
	}
}

// acquireAll takes several row latches in the order of their hashes.
func (s *shard) acquireAll(ctx context.Context, want []latch) (held []latch, err error) {
	want = slices.Clone(want)
	slices.SortFunc(want, func(a, b latch) int {
		switch {
		case a.hash < b.hash:
			return -1
		case a.hash > b.hash:
			return 1
		}
		return 0
	})
	want = slices.Compact(want)
	for i, h := range want {
		if err := s.acquire(ctx, h); err != nil {
			s.release(want[:i]...)
			return nil, err
		}
	}
	return want, nil
}
