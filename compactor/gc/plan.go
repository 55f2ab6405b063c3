package gc

import (
	"slices"
	"time"

	"github.com/granarydb/granary/manifest"
)

// Courtesy is how long a dropped segment is kept for readers that still use an older root.
const Courtesy = 15 * time.Minute

// Plan is what one sweep deletes, and why nothing else.
type Plan struct {
	// Root is the version that shows all of this unreferenced.
	Root manifest.Version
	// WAL holds the keys of log objects below their shard's floor, in key order.
	WAL []string
	// Segments were dropped, are referenced by nothing, and have waited.
	Segments []manifest.DroppedSegment
	// Shared were dropped by one chunk, and are still referenced by another or were so
	// until a later drop: forgotten, not deleted; the last chunk to drop them lists them
	// again.
	Shared []manifest.DroppedSegment
	// Waiting counts dropped segments that are kept out of courtesy.
	Waiting int
	// Strange are keys under wal/ that are no WAL objects: never deleted, reported.
	Strange []string
}

// Make decides what to delete. roots are the root and every pinned root, the root first;
// walKeys is a listing of wal/ in key order; nowMillis is the sweeper's wall clock.
func Make(roots []*manifest.State, walKeys []string, nowMillis int64, courtesy time.Duration) Plan {
	root := roots[0]
	p := Plan{Root: root.Version()}
	p.planWAL(root, walKeys)
	p.planSegments(roots, nowMillis, courtesy)
	return p
}

func (p *Plan) planWAL(root *manifest.State, keys []string) {
	for i, key := range keys {
		shard, epoch, index, err := manifest.ParseWALKey(key)
		if err != nil {
			p.Strange = append(p.Strange, key)
			continue
		}
		s := root.Shard(shard)
		if s == nil || !s.Floor.Covers(epoch, index) || slices.Contains(s.OpenEpochs, epoch) {
			continue
		}
		if epoch < s.Epoch && lastOfEpoch(keys, i, shard, epoch) {
			continue // it may be the seal
		}
		p.WAL = append(p.WAL, key)
	}
}

// lastOfEpoch reports whether no later key of the listing belongs to the same epoch. A
// listing that forgets keys makes more objects look last, which only keeps more.
func lastOfEpoch(keys []string, i int, shard manifest.ShardID, epoch manifest.Epoch) bool {
	if i+1 == len(keys) {
		return true
	}
	s, e, _, err := manifest.ParseWALKey(keys[i+1])
	return err != nil || s != shard || e != epoch
}

func (p *Plan) planSegments(roots []*manifest.State, nowMillis int64, courtesy time.Duration) {
	dropped := roots[0].Dropped()
	if len(dropped) == 0 {
		return
	}
	used, pinned := references(roots[:1]), references(roots[1:])
	last := map[manifest.SegmentID]int{} // the newest drop of each: the wait counts from it
	for i, d := range dropped {
		last[d.Segment] = i
	}
	for i, d := range dropped {
		switch {
		case used[d.Segment] || last[d.Segment] != i:
			p.Shared = append(p.Shared, d)
		case pinned[d.Segment] || nowMillis-d.Millis < courtesy.Milliseconds():
			p.Waiting++
		default:
			p.Segments = append(p.Segments, d)
		}
	}
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
