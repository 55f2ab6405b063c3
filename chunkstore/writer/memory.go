package writer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// memory is the process's budget for unflushed rows. At half of the limit it asks for
// flushes (high); at the limit writes wait until rows have left.
type memory struct {
	limit  int64
	clock  host.Clock
	high   chan struct{} // capacity 1: half of the limit, or all of it, was passed
	chunks atomic.Int64  // owned by all shards together
	used   atomic.Int64
	line   line

	// crowded is set before a waiter looks at used for the last time, so that whoever
	// makes room afterwards sees it.
	crowded atomic.Bool
	mu      sync.Mutex
	crowd   *gate         // who waits for memory; nil: nobody
	since   time.Duration // Mono when the crowd began
	usual   time.Duration // about how long a crowd has to wait; 0: there was none yet
}

// add counts bytes that came or, negative, left.
func (m *memory) add(n int64) {
	used := m.used.Add(n)
	if passed := func(mark int64) bool { return used > mark && used-n <= mark }; passed(m.limit/2) || passed(m.limit) {
		m.signal()
	}
	if n < 0 && used < m.limit && m.crowded.Load() {
		m.mu.Lock()
		m.disperse()
		m.mu.Unlock()
	}
}

// signal asks Run for flushes.
func (m *memory) signal() {
	select {
	case m.high <- struct{}{}:
	default:
	}
}

// disperse lets those go on who wait. Requires: the mutex.
func (m *memory) disperse() {
	m.crowded.Store(false)
	if m.crowd != nil {
		close(m.crowd.opened)
		m.crowd = nil
		took := m.clock.Mono() - m.since
		if m.usual == 0 {
			m.usual = took
		}
		m.usual += (took - m.usual) / 4
	}
}

// expected is how long who comes now would wait for memory. A wait that is longer than usual
// is expected to go on as long as it has lasted. Requires: the mutex.
func (m *memory) expected() time.Duration {
	if m.crowd == nil {
		return m.usual
	}
	lasted := m.clock.Mono() - m.since
	if m.usual > lasted {
		return m.usual - lasted
	}
	return lasted
}

// join finds what to wait for, and how long that may take; a nil gate means that there is
// room.
func (m *memory) join(t *turns) (g *gate, place int, expected time.Duration) {
	if m.used.Load() < m.limit {
		return nil, 0, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crowded.Store(true)
	if m.used.Load() < m.limit {
		m.disperse()
		return nil, 0, 0
	}
	expected = m.expected()
	if m.crowd == nil {
		m.crowd, m.since = newGate(), m.clock.Mono()
	}
	return m.crowd, t.join(), expected
}

// line bounds the writes that wait, for memory, for a shorter WAL or for their batch.
type line struct {
	mu      sync.Mutex
	waiting int
	bytes   int64
	refused int64
}

// fewWait is how many may wait however long it takes: who has few clients is slowed down by
// their waiting, and that is enough.
const fewWait = 64

// enter takes a place for a write of some bytes that will wait about so long, and has left
// until its deadline (0: none). Errors: admission.Overloaded.
func (l *line) enter(set *Settings, bytes int64, expected, left time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.waiting >= set.WaitersMax:
		l.refused++
		return admission.Refuse("%d writes wait in this process, which is the most (WaitersMax): the store takes less than is written", l.waiting)
	case l.waiting > 0 && l.bytes+bytes > set.WaitersBytes:
		l.refused++
		return admission.Refuse("writes of %d bytes wait in this process, and %d more are too many (WaitersBytes): the store takes less than is written", l.bytes, bytes)
	case left > 0 && expected > left:
		l.refused++
		return admission.Refuse("memory for rows is full, room is expected in %v, and the time limit is %v", expected.Round(time.Millisecond), left.Round(time.Millisecond))
	case l.waiting >= fewWait && expected > set.WaitMax:
		l.refused++
		return admission.Refuse("memory for rows is full, room is expected in %v, and %d writes wait already", expected.Round(time.Millisecond), l.waiting)
	}
	l.waiting++
	l.bytes += bytes
	return nil
}

func (l *line) leave(bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
	l.bytes -= bytes
}

// bound tells how many wait, in bytes.
func (l *line) bound(set *Settings) admission.Bound {
	l.mu.Lock()
	defer l.mu.Unlock()
	return admission.Bound{Name: "waiting_writes", Used: l.bytes, Limit: set.WaitersBytes, Waiting: int64(l.waiting), Refused: l.refused}
}

// admit waits until there is memory for a write, and until what a takeover would replay is
// within its bounds. Errors: Throttled, and admission.Overloaded without a wait (nothing was
// done); the shard's end.
func (x *exec) admit(ctx context.Context) error {
	s := x.s
	for {
		g, place, expected := s.w.memory.join(&s.w.turns)
		if g == nil {
			if g, place = s.longWAL(); g == nil {
				return nil
			}
		}
		left := time.Duration(0)
		if x.until > 0 && !x.wrote {
			left = max(x.until-s.w.host.Mono(), 1)
		}
		if x.wrote {
			expected = 0 // it was begun: to give it up would leave its outcome open
		}
		if err := s.inLine(ctx, g, place, x.bytes, expected, left); err != nil {
			return err
		}
	}
}

// inLine waits for a gate, in line. Errors: as admit.
func (s *shard) inLine(ctx context.Context, g *gate, place int, bytes int64, expected, left time.Duration) error {
	if err := s.w.memory.line.enter(&s.w.set, bytes, expected, left); err != nil {
		s.count(func(c *Counts) { c.Throttled++ })
		return fmt.Errorf("write to shard %s: %w", s.id, err)
	}
	err := s.await(ctx, g, place)
	s.w.memory.line.leave(bytes)
	if err == nil || ctx.Err() == nil {
		return err
	}
	s.count(func(c *Counts) { c.Throttled++ })
	return fmt.Errorf("write to shard %s: %w: no room within the deadline (%v)", s.id, errkind.Throttled, err)
}

// longWAL joins those who wait for a flush because the WAL has become too long; nil when it
// has not.
func (s *shard) longWAL() (*gate, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil || len(s.log.objects) < 2*s.w.set.WALObjects && s.log.bytes < 2*s.w.set.WALBytes {
		return nil, 0
	}
	if s.long == nil {
		s.long = newGate()
		s.w.memory.signal()
	}
	return s.long, s.w.turns.join()
}
