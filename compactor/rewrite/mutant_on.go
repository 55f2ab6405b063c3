//go:build mutants

package rewrite

import (
	"slices"

	"github.com/granarydb/granary/manifest"
)

// takeHead lets a compaction take the place of everything that its chunk has now, as if it had
// read it: what was flushed since is lost. That the retry ids of the inputs are kept is a check of
// the change (manifest.Compact), which refuses most of these; so the outputs claim to have them.
func takeHead(x manifest.Compact, s *manifest.State) manifest.Compact {
	c := s.ChunkAt(x.Chunk)
	if c == nil || len(c.Refs) == 0 || len(x.Outputs) == 0 {
		return x
	}
	x.Inputs, x.Outputs = c.Refs, slices.Clone(x.Outputs)
	for i := range c.Refs {
		x.Outputs[0].RetryUntil = max(x.Outputs[0].RetryUntil, c.Refs[i].RetryUntil)
	}
	return x
}
