package writer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/granarydb/granary/manifest/errkind"
)

// memory is the process's budget for unflushed rows. At half of the limit it asks for
// flushes (high); at the limit writes wait until rows have left.
type memory struct {
	limit  int64
	high   chan struct{} // capacity 1: half of the limit, or all of it, was passed
	chunks atomic.Int64  // owned by all shards together
	used   atomic.Int64

	// crowded is set before a waiter looks at used for the last time, so that whoever
	// makes room afterwards sees it.
	crowded atomic.Bool
	mu      sync.Mutex
	crowd   *gate // who waits for memory; nil: nobody
	waiting int
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
	}
}

// join queues one more waiter; a nil gate means that there is room. Errors: Throttled.
func (m *memory) join(t *turns, most int) (*gate, int, error) {
	if m.used.Load() < m.limit {
		return nil, 0, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting >= most {
		return nil, 0, fmt.Errorf("%w: %d requests wait for memory", errkind.Throttled, m.waiting)
	}
	m.crowded.Store(true)
	if m.used.Load() < m.limit {
		m.disperse()
		return nil, 0, nil
	}
	if m.crowd == nil {
		m.crowd = newGate()
	}
	m.waiting++
	return m.crowd, t.join(), nil
}

func (m *memory) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting--
}

// admit waits until there is memory for a write, and until what a takeover would replay is
// within its bounds. Errors: Throttled (nothing was done), the shard's end.
func (s *shard) admit(ctx context.Context) error {
	for {
		g, place, err := s.w.memory.join(&s.w.turns, s.w.set.WaitersMax)
		if err != nil {
			s.count(func(c *Counts) { c.Throttled++ })
			return fmt.Errorf("write to shard %s: %w", s.id, err)
		}
		leave := s.w.memory.leave
		if g == nil {
			if g, place = s.longWAL(); g == nil {
				return nil
			}
			leave = func() {}
		}
		err = s.await(ctx, g, place)
		leave()
		if err == nil {
			continue
		}
		if ctx.Err() == nil {
			return err
		}
		s.count(func(c *Counts) { c.Throttled++ })
		return fmt.Errorf("write to shard %s: %w: no room within the deadline (%v)", s.id, errkind.Throttled, err)
	}
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
