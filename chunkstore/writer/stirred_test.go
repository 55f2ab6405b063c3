package writer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/manifest"
)

// checkStill asserts of every chunk that is not stirred that there is nothing to look at. The
// rig calls it for every root that a process absorbs.
func (p *proc) checkStill() {
	for _, s := range p.held() {
		s.mu.Lock()
		for id, c := range s.chunks {
			floor := s.floor(c)
			if s.stirred[id] == c {
				continue
			}
			if n := c.mem.len() + c.frozen.len() + len(c.retries.unflushed(floor)); n > 0 || c.frozen != nil || s.rootFloor.Less(c.info.OwnFloor) {
				p.w.t.Errorf("chunk %d of shard %s is not stirred, with %d rows and retry ids above %v, own floor %v", id, s.id, n, floor, c.info.OwnFloor)
			}
		}
		for id, c := range s.stirred {
			if s.chunks[id] != c {
				p.w.t.Errorf("chunk %d of shard %s is stirred, but gone", id, s.id)
			}
		}
		s.mu.Unlock()
	}
}

func (s *shard) numStirred() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.stirred)
}

// TestOnlyChunksThatWereWrittenAreLookedAt: of many chunks those are stirred that were written
// since the last flush, and those that came from elsewhere; a flush leaves none.
func TestOnlyChunksThatWereWrittenAreLookedAt(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", quiet).holds("a", "b")
		w.cutAt("a", 500)
		want := func(what string, n int) {
			t.Helper()
			if got := p.shard("a").numStirred(); got != n {
				t.Errorf("%s: %d chunks are stirred, want %d", what, got, n)
			}
		}
		want("nothing written", 0)
		c := w.client()
		c.insert("{_id: 7}", "{_id: 8}", "{_id: 400}")
		want("three written", 3)
		p.flushAll("a")
		want("flushed", 0)
		c.insert("{_id: 8.5}")
		w.split(t, 8, 8.3)
		_, _, err := p.root.Load(t.Context())
		check(t, err)
		want("cut with a row in memory", 2)
		p.flushAll("a")
		want("flushed again", 0)
		check(t, c.move(400, "b"))
		c.insert("{_id: 9}")
		check(t, c.move(400, "a"))
		want("one written, and one that came", 2)
		p.flushAll("a")
		want("flushed at last", 0)
		diff(t, len(c.all()), 5)
	})
}

// TestRetryIDsOfChunksThatNobodyWritesAreForgotten: a chunk is written once and never again;
// flushes of others forget what it knows when that has expired.
func TestRetryIDsOfChunksThatNobodyWritesAreForgotten(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", quiet, func(s *Settings) { s.RetryFor = time.Minute }).holds("a")
		w.cutAt("a", 10)
		c := w.client()
		knows := func(id any) bool {
			s := p.shard("a")
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.chunks[w.chunk(id).ID].retries.silent != nil
		}
		c.insert("{_id: 3}")
		p.flushAll("a")
		if !knows(3) {
			t.Fatal("the retry id of a row was forgotten at once")
		}
		time.Sleep(time.Minute + manifest.ClockError + 3*time.Second)
		synctest.Wait()
		c.insert("{_id: 7}")
		p.flushAll("a")
		if knows(3) {
			t.Error("an expired retry id is remembered")
		}
		if !knows(7) {
			t.Error("a retry id that has not expired is forgotten")
		}
	})
}
