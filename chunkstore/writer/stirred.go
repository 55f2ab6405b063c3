package writer

import "github.com/granarydb/granary/manifest"

// A shard may own a hundred thousand chunks, of which few are written between two flushes.
// What a flush, a root or a question has to look at are those few: the stirred ones.
//
// Invariant: a chunk that is not stirred has no row in memory, no retry entry that the WAL
// alone has, and no floor of its own above the shard's. It becomes stirred before any of
// this can be so, and stays so until an absorbed root shows that none of it is.

// stir notes that the log has something of a chunk below pos, or will. Requires: the mutex.
func (s *shard) stir(c *chunk, pos manifest.Position) {
	c.last = manifest.MaxPosition(c.last, pos)
	s.stirred[c.info.ID] = c
}

// pending is where the log ends once the open batch is stored. Requires: the mutex.
func (s *shard) pending() manifest.Position {
	return manifest.Position{Epoch: s.epoch, Next: s.open.number}
}

// still reports whether a chunk has nothing that the shard has to look at. Requires: the mutex.
func (s *shard) still(c *chunk) bool {
	return c.mem.len() == 0 && c.frozen == nil && !s.floor(c).Less(c.last) && !s.rootFloor.Less(c.info.OwnFloor)
}

// cover drops what the floors of the absorbed root cover: in all stirred chunks when the
// shard's floor has grown, else in those that are new, or were told something. Requires: the
// mutex.
func (s *shard) cover(grown bool, told []*chunk) {
	for _, c := range told {
		s.stirred[c.info.ID] = c
		s.settleChunk(c)
	}
	if grown {
		for _, c := range s.stirred {
			s.settleChunk(c)
		}
	}
}

func (s *shard) settleChunk(c *chunk) {
	s.dropCovered(c)
	if s.still(c) {
		delete(s.stirred, c.info.ID)
		s.age(c)
	}
}

// aging is a chunk that has retry entries and is still: no flush will look at it, so it is looked
// at when all that it has then must have expired.
type aging struct {
	chunk *chunk
	due   int64 // unix seconds, as expiredBy tells them
}

// age has the retry entries of a chunk forgotten in time. Requires: the mutex.
func (s *shard) age(c *chunk) {
	if c.aging || c.retries.silent == nil {
		return
	}
	c.aging = true
	kept := int64((s.w.set.RetryFor + manifest.ClockError).Seconds()) + 1
	s.aging = append(s.aging, aging{c, s.w.expiredBy() + kept})
}

// forgetAged forgets the retry entries that have expired, of chunks that nobody writes to.
// Requires: the mutex.
func (s *shard) forgetAged(now int64) {
	for len(s.aging) > 0 && s.aging[0].due <= now {
		c := s.aging[0].chunk
		s.aging = s.aging[1:]
		c.aging = false
		if c.gone {
			continue
		}
		c.retries.expire(now)
		if s.stirred[c.info.ID] == nil {
			s.age(c)
		}
	}
}
