package gc

import (
	"slices"
	"time"

	"github.com/granarydb/granary/manifest"
)

// Courtesy is how long a dropped segment is kept for readers that still use an older root.
const Courtesy = 15 * time.Minute

// Plan is what one sweep does about dropped segments, and why nothing else.
type Plan struct {
	// Root is the version that shows all of this unreferenced.
	Root manifest.Version
	// Segments were dropped, are referenced by nothing, and have waited.
	Segments []manifest.DroppedSegment
	// Shared were dropped by one chunk, and are still referenced by another or were so
	// until a later drop: forgotten, not deleted; the last chunk to drop them lists them
	// again.
	Shared []manifest.DroppedSegment
	// Waiting counts dropped segments that are kept out of courtesy, or for a pin.
	Waiting int
}

// Make decides about the dropped segments. roots are the root and every pinned root, the
// root first; nowMillis is the sweeper's wall clock.
func Make(roots []*manifest.State, nowMillis int64, courtesy time.Duration) Plan {
	p := Plan{Root: roots[0].Version()}
	p.planSegments(roots, nowMillis, courtesy)
	return p
}

// logPlan decides about the objects of one shard's log, which it is shown in key order, one
// at a time: it knows no pages.
//
// Garbage is what the floor covers, but not
//   - in an open epoch: a takeover may be looking for its end;
//   - the last object of an epoch older than the shard's: it may be the seal, which stays
//     for ever. Without it a PUT of that epoch that was on its way all the time would find
//     its place free.
//
// An object that a listing lacks makes more of the others look last, which only keeps more.
type logPlan struct {
	shard *manifest.Shard
	// held is covered, and goes when a later object of its epoch shows that it is no seal.
	held  string
	epoch manifest.Epoch // of held
}

// next takes the next key. garbage is an object to delete, or ""; past says that neither
// this key nor any after it is below the floor. Keys that name no object of the log are
// passed over: fsck reports them.
func (p *logPlan) next(key string) (garbage string, past bool) {
	shard, epoch, index, err := manifest.ParseWALKey(key)
	if err != nil || shard != p.shard.ID {
		return "", false
	}
	if epoch == p.epoch && key > p.held {
		garbage = p.held
	}
	p.held = ""
	switch {
	case !p.shard.Floor.Covers(epoch, index):
		return garbage, true
	case slices.Contains(p.shard.OpenEpochs, epoch):
	case epoch < p.shard.Epoch:
		p.held, p.epoch = key, epoch
	default:
		garbage = key // held none: that was of an older epoch
	}
	return garbage, false
}

func (p *Plan) planSegments(roots []*manifest.State, nowMillis int64, courtesy time.Duration) {
	dropped := roots[0].Dropped()
	if len(dropped) == 0 {
		return
	}
	used, pinned := references(roots[:1]), references(roots[1:])
	rewriting := rewrites(roots[0], nowMillis)
	last := map[manifest.SegmentID]int{} // the newest drop of each: the wait counts from it
	for i, d := range dropped {
		last[d.Segment] = i
	}
	for i, d := range dropped {
		switch {
		case used[d.Segment] || last[d.Segment] != i:
			p.Shared = append(p.Shared, d)
		case pinned[d.Segment] || rewriting || nowMillis-d.Millis < courtesy.Milliseconds():
			p.Waiting++
		default:
			p.Segments = append(p.Segments, d)
		}
	}
}

// rewriteMax is how long GC waits for a job that reads a collection as it was when it began.
const rewriteMax = 48 * time.Hour

// rewrites reports whether a collection is being rewritten under another key: the job reads
// what was referenced when it began, and compares each version with the one before.
func rewrites(s *manifest.State, nowMillis int64) bool {
	return slices.ContainsFunc(s.Jobs(), func(j manifest.Job) bool {
		return j.Kind == manifest.JobReshard && nowMillis-j.StartedMillis < rewriteMax.Milliseconds()
	})
}

// references are the segments that any chunk of any of the roots refers to.
func references(roots []*manifest.State) map[manifest.SegmentID]bool {
	used := map[manifest.SegmentID]bool{}
	for _, r := range roots {
		for c := range r.AllChunks() {
			for i := range c.Refs {
				used[c.Refs[i].Segment] = true
			}
		}
	}
	return used
}
