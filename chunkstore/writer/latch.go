package writer

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
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
	held map[latch][]waiter
}

// waiter waits for a latch to be released: to have it, or only to look again. One that only
// looks never gets it: two of them would hand it to and fro, each finding it with the other.
type waiter struct {
	turn  chan struct{}
	looks bool
}

// latch names one latch.
type latch struct {
	op   bool
	hash uint64
}

// opLatch is the latch of an operation: all attempts of one statement have one.
func opLatch(op rpc.OpID) latch {
	var b [44]byte
	copy(b[:], op.Session[:])
	binary.LittleEndian.PutUint64(b[32:], uint64(op.Txn))
	binary.LittleEndian.PutUint32(b[40:], uint32(op.Stmt))
	return latch{op: true, hash: xxhash.Sum64(b[:])}
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
		l.held = make(map[latch][]waiter)
	}
	l.held[h] = nil
}

// release wakes those at the head of the queue who only look, and hands the latch to the
// first who wants it, or frees it.
func (l *latches) release(h latch) {
	queue := l.held[h]
	for len(queue) > 0 {
		first := queue[0]
		queue = queue[1:]
		close(first.turn)
		if !first.looks {
			l.held[h] = queue
			return
		}
	}
	delete(l.held, h)
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
	return s.line(ctx, h, waiter{turn: make(chan struct{})})
}

// released waits until the latch is free, or was handed on. Errors: as acquire's.
func (s *shard) released(ctx context.Context, h latch) error {
	s.mu.Lock()
	if !s.latches.busy(h) {
		s.mu.Unlock()
		return nil
	}
	return s.line(ctx, h, waiter{turn: make(chan struct{}), looks: true})
}

// line waits in line for the turn of x. Requires: the mutex, which it releases.
func (s *shard) line(ctx context.Context, h latch, x waiter) error {
	s.latches.held[h] = append(s.latches.held[h], x)
	place := s.w.turns.join()
	s.mu.Unlock()
	err := s.w.turns.take(ctx, place, func() error { return s.first(ctx, x.turn) })
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-x.turn: // it came while we gave up
		if !x.looks {
			s.latches.release(h)
		}
	default:
		if queue, ok := s.latches.held[h]; ok {
			s.latches.held[h] = slices.DeleteFunc(queue, func(y waiter) bool { return y == x })
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
