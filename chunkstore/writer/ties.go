package writer

import "github.com/granarydb/granary/manifest"

// A document whose key changes leaves one chunk of the shard and comes to another, in one record
// batch: two halves of one change. Readers of the shard see both or neither, but whoever reads the
// root alone (a snapshot, a backup, a pin) sees what is in segments: a flush of one of the two
// chunks by itself, before a move of it say, would show the document twice, or not at all.
//
// Invariant: in every version of the root both halves of a change are in segments, or neither is.
// Chunks with a half above their floor are tied, all of the shard together: they are flushed in
// one commit, which conflicts when one of them is another chunk by then. Changes of keys are rare,
// and what a flush of some chunks takes along is no more than a flush of the shard would.

// tie notes that two chunks have the halves of a change that is in the log below pos, or will be.
// One chunk that has both is tied, too: a cut between the two keys hands that on to its parts.
// Requires: the mutex.
func (s *shard) tie(c, d *chunk, pos manifest.Position) {
	c.tied, d.tied = manifest.MaxPosition(c.tied, pos), manifest.MaxPosition(d.tied, pos)
}

// isTied reports whether the chunk may have a half of a change that is not in segments. Requires:
// the mutex.
func (s *shard) isTied(c *chunk) bool { return s.floor(c).Less(c.tied) && !broken(tieIgnored) }

// withTied are the chunks and, if one of them is tied, all that are. Requires: the mutex.
func (s *shard) withTied(only []*chunk) []*chunk {
	named, tied := make(map[*chunk]bool, len(only)), false
	for _, c := range only {
		named[c] = true
		tied = tied || s.isTied(c)
	}
	if !tied {
		return only
	}
	all := append([]*chunk(nil), only...)
	for _, c := range s.stirred {
		if s.isTied(c) && !named[c] {
			all = append(all, c)
		}
	}
	return all
}
