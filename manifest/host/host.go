// Package host is what a process gets from the machine it runs on: a clock and randomness.
//
// Nothing in this module reads the ambient ones; they are handed in, so that a simulation
// can give every node its own skewed clock and its own seeded randomness, and so that the
// same seed gives the same run. Whoever waits, waits through Clock.
package host

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"time"
)

// Clock tells and passes time.
type Clock interface {
	// Wall is the calendar time of this machine. It may be wrong by hours: it is for
	// people, for expiry of documents and for log lines, never for safety.
	Wall() time.Time
	// Mono is a monotonic reading since an arbitrary start. Leases are counted on it.
	Mono() time.Duration
	// Sleep waits d on this clock; it returns the context's cause when ctx ends first.
	Sleep(ctx context.Context, d time.Duration) error
	// WithTimeout is context.WithTimeout on this clock.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// Rand is a source of randomness, safe for concurrent use.
type Rand interface {
	Uint64() uint64
}

// Host is the clock and the randomness of one process.
type Host struct {
	Clock
	Rand
}

// System is the real machine: its clocks, and the operating system's randomness.
func System() Host { return Host{Clock: systemClock{start: time.Now()}, Rand: systemRand{}} }

// ID16 draws 16 random bytes: nonces, segment names, operation ids.
func (h Host) ID16() (id [16]byte) {
	binary.LittleEndian.PutUint64(id[:8], h.Uint64())
	binary.LittleEndian.PutUint64(id[8:], h.Uint64())
	return id
}

// Jitter is a duration drawn evenly from [d/2, d): the wait between two attempts.
func (h Host) Jitter(d time.Duration) time.Duration {
	if d < 2 {
		return d
	}
	return d/2 + time.Duration(h.Uint64()%uint64(d/2))
}

// Repeat does something again and again until ctx ends, the first time after a wait: every so
// often while there is more to do, and ever more seldom, down to once in idle, while there is not.
func (h Host) Repeat(ctx context.Context, every, idle time.Duration, do func() (more bool)) {
	for wait := every; h.Sleep(ctx, h.Jitter(wait)) == nil; {
		if wait = min(2*wait, idle); do() {
			wait = every
		}
	}
}

type systemClock struct{ start time.Time }

func (systemClock) Wall() time.Time       { return time.Now() }
func (c systemClock) Mono() time.Duration { return time.Since(c.start) }

func (systemClock) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (systemClock) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

type systemRand struct{}

func (systemRand) Uint64() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails: the runtime aborts the process instead
	return binary.LittleEndian.Uint64(b[:])
}
