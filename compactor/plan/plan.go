// Package plan decides which chunks are cut and which are merged: values in, values out.
//
// A chunk is cut
//
//	by size   at the median of its data, or into more parts, when it is half as large again
//	          as its target;
//	by load   at the median of what is asked of it, when that is more than a chunk should
//	          bear, so that a part of it can go elsewhere;
//	ahead     above its highest row, when nearly all inserts come at its upper end and it has
//	          grown to most of its target: what is complete stays where it is, and the
//	          part that everything goes to is small.
//
// Neighbours of one shard are merged when both together are less than half the target and
// little is asked of them. Between the size of a merged chunk and that of one to cut lies a
// factor of three, so that the two never alternate while the data stays as it is. Chunks cut
// by hand are left alone for a time, and so are the borders of zones.
//
// A chunk whose rows have one shard-key value is marked by whoever tried to cut it. It is
// tried again only when it has grown by as much as it was, or by its target.
//
// The size of a chunk is that of its live rows, as far as the root tells: the bytes of its
// references, in the ratio of live rows to all, and what its owner has not flushed. After a
// cut it is an estimate.
package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Settings tune the plan. Zero fields mean the defaults.
type Settings struct {
	// LoadMax is how many requests and records a second one chunk should bear; 5000.
	LoadMax float64
	// LoadSeconds is for how long a load must have been counted to act on it; 60.
	LoadSeconds float64
	// TailShare is the part of a chunk's inserts that must come at its upper end for it to
	// count as a hot tail, and TailInserts how many inserts a second there must be; 0.8 and 1.
	TailShare, TailInserts float64
	// Jobs bounds the jobs of one plan; 256.
	Jobs int
}

func (s Settings) withDefaults() Settings {
	s.LoadMax, s.LoadSeconds = cmp.Or(s.LoadMax, 5000), cmp.Or(s.LoadSeconds, 60)
	s.TailShare, s.TailInserts = cmp.Or(s.TailShare, 0.8), cmp.Or(s.TailInserts, 1)
	s.Jobs = cmp.Or(s.Jobs, 256)
	return s
}

// Kind is what a job does.
type Kind uint8

// The kinds.
const (
	SplitBySize Kind = iota // at quantiles of the data
	SplitByLoad             // near Job.At
	SplitAhead              // above the highest row
	Merge                   // Chunks[0] and Chunks[1]
)

// Job is one chunk to cut, or two to merge.
type Job struct {
	Kind   Kind
	Chunks []*manifest.Chunk
	// Pieces is into how many parts a cut by size goes, at least 2.
	Pieces int
	// At is a row key, for a cut by load.
	At []byte
	// Bytes is the size of the chunks together, and InMemory the part of it that is not flushed.
	Bytes, InMemory int64
	// Reason is a sentence's part, for logs.
	Reason string
}

// HotTail is a collection of which nearly all inserts go to the upper end of one chunk.
type HotTail struct {
	Collection *manifest.Collection
	Chunk      *manifest.Chunk
	// Share is the part of the collection's inserts that the chunk takes, Inserts how many
	// that are a second.
	Share, Inserts float64
}

// Loads are the loads of chunks, as their owners told them.
type Loads map[manifest.ChunkID]rpc.ChunkLoad

// Plan is what to do now, cuts first, the largest first, and what to warn of.
type Plan struct {
	Jobs     []Job
	HotTails []HotTail
}

// Make plans for the chunks of the shards that mine accepts; now is the wall clock, in unix
// seconds.
func Make(s *manifest.State, mine func(manifest.ShardID) bool, loads Loads, now int64, set Settings) Plan {
	p := planner{s: s, mine: mine, loads: loads, now: now, set: set.withDefaults()}
	var plan Plan
	for _, c := range s.Collections() {
		if !c.Sharded || c.Reshaping() {
			continue
		}
		cuts, merges := p.collection(c)
		plan.Jobs = append(append(plan.Jobs, cuts...), merges...)
		plan.HotTails = append(plan.HotTails, p.hotTail(c)...)
	}
	slices.SortStableFunc(plan.Jobs, func(a, b Job) int {
		if (a.Kind == Merge) != (b.Kind == Merge) {
			return cmp.Compare(a.Kind, b.Kind)
		}
		return cmp.Compare(b.Bytes, a.Bytes)
	})
	plan.Jobs = plan.Jobs[:min(len(plan.Jobs), p.set.Jobs)]
	return plan
}

type planner struct {
	s     *manifest.State
	mine  func(manifest.ShardID) bool
	loads Loads
	now   int64
	set   Settings
}

func (p *planner) collection(c *manifest.Collection) (cuts, merges []Job) {
	split, merge := p.s.AutoSplit(c), p.s.AutoMerge(c) && !c.NoBalance
	if !split && !merge {
		return nil, nil
	}
	target := p.s.ChunkSize(c)
	var left *manifest.Chunk // a candidate to merge with the next one
	for chunk := range p.s.Chunks(c.ID) {
		if !p.mine(chunk.Shard) {
			left = nil
			continue
		}
		job, ok := p.cut(chunk, target)
		switch {
		case ok && split:
			cuts, left = append(cuts, job), nil
		case !merge || !p.mergeable(chunk):
			left = nil
		case left != nil && p.together(c, left, chunk, target):
			merges = append(merges, Job{
				Kind: Merge, Chunks: []*manifest.Chunk{left, chunk}, Bytes: p.size(left) + p.size(chunk),
				Reason: fmt.Sprintf("%d bytes together, less than half of %d", p.size(left)+p.size(chunk), target),
			})
			left = nil
		default:
			left = chunk
		}
	}
	return cuts, merges
}

// size is about how many bytes the chunk's live rows have.
func (p *planner) size(c *manifest.Chunk) int64 { return Stored(c) + p.loads[c.ID].UnflushedBytes }

// Stored is about how many bytes the live rows of a chunk have in segments.
func Stored(c *manifest.Chunk) int64 {
	var rows uint64
	for i := range c.Refs {
		rows += c.Refs[i].Rows
	}
	if rows == 0 || uint64(c.Rows) >= rows {
		return c.Bytes
	}
	return int64(float64(c.Bytes) * float64(c.Rows) / float64(rows))
}

// cut is how the chunk should be cut, if it should.
func (p *planner) cut(c *manifest.Chunk, target int64) (Job, bool) {
	l := p.loads[c.ID]
	size := p.size(c)
	job := Job{Chunks: []*manifest.Chunk{c}, Bytes: size, InMemory: l.UnflushedBytes}
	tail := l.TailShare >= p.set.TailShare && l.Inserts >= p.set.TailInserts
	switch {
	case c.Flags&manifest.ChunkIndivisible != 0 && size < regrown(c.Indivisible.Bytes, target):
		return job, false
	case tail && size >= target/4*3 && size < target/2*3:
		job.Kind = SplitAhead
		job.Reason = fmt.Sprintf("%.0f%% of %.0f inserts a second come at its upper end", 100*l.TailShare, l.Inserts)
		return job, true
	case size >= target/2*3:
		job.Kind, job.Pieces = SplitBySize, int(max((size+target-1)/target, 2))
		job.Pieces = min(job.Pieces, piecesMax)
		job.Reason = fmt.Sprintf("%d bytes, the target is %d", size, target)
		return job, true
	case !tail && l.Reads+l.Writes > p.set.LoadMax && l.Age.Seconds() >= p.set.LoadSeconds && len(l.Median) > 0 && c.Range.Contains(l.Median):
		job.Kind, job.At = SplitByLoad, l.Median
		job.Reason = fmt.Sprintf("%.0f reads and %.0f writes a second", l.Reads, l.Writes)
		return job, true
	}
	return job, false
}

// piecesMax bounds the parts of one cut.
const piecesMax = 256

// regrown is the size from which a chunk that could not be cut at some size is tried again.
func regrown(then, target int64) int64 { return then + max(then/2, target) }

// mergeable reports whether a chunk may be merged with a neighbour.
func (p *planner) mergeable(c *manifest.Chunk) bool {
	return c.ManualUntil <= p.now && c.Flags&manifest.ChunkIndivisible == 0
}

// together reports whether two neighbours are better one chunk.
func (p *planner) together(c *manifest.Collection, a, b *manifest.Chunk, target int64) bool {
	if a.Shard != b.Shard || p.size(a)+p.size(b) >= target/2 {
		return false
	}
	la, lb := p.loads[a.ID], p.loads[b.ID]
	if la.Reads+la.Writes+lb.Reads+lb.Writes >= p.set.LoadMax/4 {
		return false
	}
	_, inside := c.ZoneOf(shardkey.Range{Min: a.Range.Min, Max: b.Range.Max})
	return inside
}

// hotTail finds the chunk that nearly all inserts of a collection go to, at its end.
func (p *planner) hotTail(c *manifest.Collection) []HotTail {
	var all float64
	var hot *manifest.Chunk
	for chunk := range p.s.Chunks(c.ID) {
		l := p.loads[chunk.ID]
		all += l.Inserts
		if l.TailShare >= p.set.TailShare && l.Inserts >= p.set.TailInserts {
			hot = chunk
		}
	}
	if hot == nil {
		return nil
	}
	l := p.loads[hot.ID]
	if l.Inserts < p.set.TailShare*all {
		return nil
	}
	return []HotTail{{Collection: c, Chunk: hot, Share: l.Inserts / all, Inserts: l.Inserts}}
}
