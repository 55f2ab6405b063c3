package gc

import (
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/wal"
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
	// Waiting counts dropped segments that are kept out of courtesy, or for a pin, and Uncopied
	// those that wait for a copy of the root without them.
	Waiting, Uncopied int
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
//   - the seal of an epoch older than the shard's, which stays for ever. Without it a PUT of
//     that epoch that was on its way all the time would find its place free.
//
// The seal is the last object of its epoch, if it has one: an epoch that ended in an orderly way
// has none, and neither has one that a listing lacks. Therefore who is last is in doubt, unless
// it is so small that it can be nothing else, and goes only when it says that it is data: that
// is safe wherever it lies, since the floor covers it.
type logPlan struct {
	shard *manifest.Shard
	// held is covered, and goes when a later object of its epoch shows that it is no seal.
	held  bucket.Attrs
	epoch manifest.Epoch // of held
}

// verdict is what is known of a log after one object more.
type verdict struct {
	garbage string // to delete, or ""
	doubt   string // to delete if it is data, or ""
	past    bool   // neither this object nor any after it is below the floor
}

// next takes the next object. Keys that name no object of the log are passed over: fsck
// reports them.
func (p *logPlan) next(o bucket.Attrs) (v verdict) {
	shard, epoch, index, err := manifest.ParseWALKey(o.Key)
	if err != nil || shard != p.shard.ID {
		return v
	}
	switch {
	case epoch != p.epoch:
		v.doubt = p.end()
	case o.Key > p.held.Key:
		v.garbage = p.held.Key
	}
	p.held = bucket.Attrs{}
	switch {
	case !p.shard.Floor.Covers(epoch, index):
		v.past = true
	case slices.Contains(p.shard.OpenEpochs, epoch):
	case epoch < p.shard.Epoch:
		p.held, p.epoch = o, epoch
	default:
		v.garbage = o.Key // held none of this epoch
	}
	return v
}

// end is the object in doubt when no further one comes.
func (p *logPlan) end() (doubt string) {
	if p.held.Size > wal.SealBytes {
		return p.held.Key
	}
	return ""
}

// logs are the shards whose logs are swept: those that are, and those that were removed. What
// such a one left is below its floor; should its name come back, its epochs go on above that.
func logs(root *manifest.State) []*manifest.Shard {
	list := slices.Clone(root.Shards())
	for _, r := range root.Retired() {
		list = append(list, &manifest.Shard{ID: r.ID, Epoch: r.Epoch, Floor: r.Floor})
	}
	return list
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
