//go:build mutants

package manifest

// unclip lets every reference of a chunk show all of its segment. Where both parts of a merge
// still refer to a segment, checkTwice would refuse the chunk, and nothing would be lost: those
// stay clipped. What is left are the segments that one of the two does not have any more, since
// a compaction has written its rows anew: of these it would be seen what was deleted since.
func unclip(c *Chunk) {
	times := map[SegmentID]int{}
	for i := range c.Refs {
		times[c.Refs[i].Segment]++
	}
	for i := range c.Refs {
		if times[c.Refs[i].Segment] == 1 {
			c.Refs[i].Clip = c.Range
		}
	}
}
