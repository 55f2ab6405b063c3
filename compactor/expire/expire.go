// Package expire removes rows that have expired, where that costs nothing but a change of the
// root: references of which every row is expired leave their chunks, and GC deletes their
// segments. Data that comes in the order of its dates goes this way, segment by segment, and
// no byte of it is read or written again. What shares a segment with rows that live longer
// waits for a compaction. References that were kept for their retry ids alone go when these have
// expired. Nobody waits for either: expired rows are seen by no one
// (chunkstore/expiry).
//
// Plan is pure; Sweep carries its changes out, each for itself, as background work. Any
// process may do it at any time, also two at once: a reference leaves once, and a plan that
// was made under another TTL index, or before a newer root, conflicts and is forgotten.
//
// The package may change with any release.
package expire

import (
	"context"
	"errors"

	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// changesMax bounds the chunks of one commit.
const changesMax = 256

// Plan is what can leave now, in Unix milliseconds by a clock that may be wrong by
// expiry.Grace: at most one change a chunk.
func Plan(s *manifest.State, now int64) (changes []manifest.Expire) {
	now -= expiry.Grace.Milliseconds()
	for _, c := range s.Collections() {
		if s.Resharding(c.Namespace()) {
			continue
		}
		rule := expiry.Of(c).By(now)
		for chunk := range s.Chunks(c.ID) {
			refs := chunk.Expirable(func(r *manifest.SegmentRef) bool {
				if r.Rowless() {
					return r.RetriesOver(now)
				}
				return rule.All(r)
			})
			if len(refs) > 0 {
				changes = append(changes, manifest.Expire{Chunk: chunk.At(), Refs: refs, Indexes: c.Indexes})
			}
		}
	}
	return changes
}

// Sweep removes what can leave as of the newest root that the process knows, and says how many
// references that were. Errors: those of commits, but Conflict.
func Sweep(ctx context.Context, root *manifest.Root, h host.Host) (gone int, err error) {
	s := root.State()
	if s == nil {
		return 0, nil
	}
	plan := Plan(s, h.Wall().UnixMilli())
	for len(plan) > 0 {
		n := min(len(plan), changesMax)
		edit := manifest.Edit{Op: h.ID16(), Millis: h.Wall().UnixMilli(), Background: true}
		refs := 0
		for _, x := range plan[:n] {
			edit.Changes = append(edit.Changes, x)
			refs += len(x.Refs)
		}
		plan = plan[n:]
		switch _, err := root.Commit(ctx, edit); {
		case err == nil:
			gone += refs
		case !errors.Is(err, errkind.Conflict):
			return gone, err
		}
	}
	return gone, nil
}
