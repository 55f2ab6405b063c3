package writer

import (
	"slices"

	"github.com/granarydb/granary/manifest"
)

// pause keeps reads and writes away from chunks that a hold of a range in the absorbed root
// touches, and lets them go on where none does any more. What was appended before goes on to
// become durable, and a flush that is asked for under the hold takes it to segments: then
// nothing of the range is in memory or in the log alone. Requires: the mutex.
func (s *shard) pause() {
	holds := s.state.RangeHolds()
	was := s.paused
	s.paused = nil
	for _, h := range holds {
		s.eachOwned(h.Collection, h.Range, func(c *chunk) {
			if c.paused == nil {
				c.paused = newGate()
			}
			s.paused = append(s.paused, c)
		})
	}
	for _, c := range was {
		if !slices.ContainsFunc(holds, func(h manifest.RangeHold) bool { return h.Touches(c.info) }) {
			c.resume()
		}
	}
}

// resume lets those who waited for a pause look again. Requires: the mutex.
func (c *chunk) resume() {
	if c.paused != nil {
		close(c.paused.opened)
		c.paused = nil
	}
}
