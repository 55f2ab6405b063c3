package gc

import (
	"fmt"
	"strings"
	"time"

	"github.com/granarydb/granary/manifest"
)

// Verdict is what is done with one object, and why.
type Verdict struct {
	Key string `json:"key"`
	// Bytes is its size; 0: not known.
	Bytes  int64  `json:"bytes,omitempty"`
	Delete bool   `json:"delete"`
	Why    string `json:"why"`
}

func (s *Sweeper) report(v Verdict) {
	if s.Report != nil {
		s.Report(v)
	}
}

// explain reports why the dropped segments go that do, and why the others stay.
func (w *sweep) explain(roots []*manifest.State, courtesy time.Duration) {
	if w.Report == nil {
		return
	}
	goes := make(map[manifest.DroppedSegment]bool)
	for _, d := range w.Plan.Segments {
		goes[d] = true
	}
	shared := make(map[manifest.DroppedSegment]bool)
	for _, d := range w.Plan.Shared {
		shared[d] = true
	}
	pinned, now := references(roots[1:]), w.Host.Wall().UnixMilli()
	for _, d := range roots[0].Dropped() {
		wait := courtesy - time.Duration(now-d.Millis)*time.Millisecond
		v := Verdict{Key: d.Segment.Key(), Delete: goes[d], Why: fmt.Sprintf("nothing has referred to it since root version %d", d.Version)}
		switch {
		case goes[d]:
		case shared[d]:
			v.Why = fmt.Sprintf("one chunk does not refer to it since root version %d, another does, or did so longer", d.Version)
		case pinned[d.Segment]:
			v.Why += ", but a snapshot does: granary snapshot list"
		case w.copied != nil && d.Version > w.copied.Version():
			v.Why += ", but the newest copy of the root does, until there is a later one"
		case wait > 0:
			v.Why += fmt.Sprintf("; for %v it is kept for those that still read an older root", wait.Round(time.Second))
		case rewrites(roots[0], now):
			v.Why += "; a collection that is getting another shard key may need it"
		}
		w.report(v)
	}
}

// explained reports an object that goes; segments have been.
func (w *sweep) explained(key string) {
	switch {
	case w.Report == nil || strings.HasPrefix(key, "seg/"):
	case strings.HasPrefix(key, "wal/"):
		w.report(Verdict{Key: key, Delete: true, Why: "the floor of its shard covers it: its records are in segments"})
	case strings.HasPrefix(key, manifest.PagePrefix):
		w.report(Verdict{Key: key, Delete: true, Why: "no root that can be read refers to this part of a chunk list, and the commit that could has not come"})
	default:
		w.report(Verdict{Key: key, Delete: true, Why: "nothing in the root names it any more"})
	}
}
