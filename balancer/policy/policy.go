package policy

import (
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
)

// Reason is the rule that an action follows.
type Reason string

// The reasons, the most urgent first.
const (
	Drain Reason = "drain"
	Zone  Reason = "zone"
	Size  Reason = "size"
	Busy  Reason = "load"
	Count Reason = "count"
)

// Load is what is asked of a chunk, per second, and how many bytes of it are in its owner's
// memory alone: they will be in segments before long.
type Load struct {
	Reads, Writes float64
	Unflushed     int64
}

func (l Load) sum() float64 { return l.Reads + l.Writes }

// Input is what a plan is made of.
type Input struct {
	State *manifest.State
	// Settings are those of State, parsed (balancing.Of).
	Settings balancing.Settings
	// NowMillis is the wall clock: for windows and for waits after failures.
	NowMillis int64
	// Loads are by chunk; nil: not known, and the rule is left out. Calm leaves it out, too,
	// while rates tell of the past; sizes count.
	Loads map[manifest.ChunkID]Load
	Calm  bool
	// Failures are the chunks that wait (balancing.Round).
	Failures []balancing.Failure
}

// Action is one chunk that should be elsewhere.
type Action struct {
	Chunk     manifest.ChunkAt
	Namespace string
	From, To  manifest.ShardID
	Reason    Reason
	// Bytes are the chunk's: those in segments, which the move does not touch unless it Copies,
	// the shards being in two locations, and those that its owner will flush. Small: below 1 % of
	// the chunk size; many of them go in one commit.
	Bytes  int64
	Small  bool
	Copies bool
}

// Plan is what to do now, the most urgent first, and how each collection stands.
type Plan struct {
	Actions  []Action
	Verdicts []balancing.Verdict // by namespace
}

// Bounds of one plan. The rest is for the next one.
const (
	// LargeMax bounds the actions that are not Small, and SmallMax those that are.
	LargeMax = 64
	SmallMax = 8192
)

// smallShare of the chunk size: chunks below are spread by number.
const smallShare = 100

// Make plans.
func Make(in Input) Plan {
	w := newWork(in)
	var p Plan
	var budget bounds
	for _, c := range w.collections {
		c.empty()
		c.settleZones()
	}
	for _, c := range w.collections {
		for _, g := range c.groups() {
			if in.Settings.Policy == balancing.ByCount {
				g.evenByCount()
				continue
			}
			g.evenBySize()
			g.deal()
		}
	}
	if in.Loads != nil && !in.Calm && in.Settings.Policy != balancing.ByCount {
		w.calm()
	}
	for _, reason := range []Reason{Drain, Zone, Size, Busy, Count} {
		for _, c := range w.collections {
			for _, a := range c.actions {
				if a.Reason == reason && c.gate(a) == "" && budget.take(a) {
					p.Actions = append(p.Actions, a)
				}
			}
		}
	}
	for _, c := range w.collections {
		p.Verdicts = append(p.Verdicts, c.verdict())
	}
	return p
}

// bounds counts actions.
type bounds struct{ large, small int }

func (b *bounds) take(a Action) bool {
	if a.Small {
		b.small++
		return b.small <= SmallMax
	}
	b.large++
	return b.large <= LargeMax
}
