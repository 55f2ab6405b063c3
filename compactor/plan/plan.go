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

// HotTailRemedy is what helps against a hot tail.
const HotTailRemedy = "a hashed shard key, or one that begins with a field that does not ascend"

// String says it to people.
func (h HotTail) String() string {
	return fmt.Sprintf("%.0f%% of the inserts, %.0f a second, go to the upper end of one chunk, on %s: its owner takes them alone, however many shards there are; what helps is %s",
		100*h.Share, h.Inserts, h.Chunk.Shard, HotTailRemedy)
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
		cuts, merges, hot := p.collection(c)
		plan.Jobs = append(append(plan.Jobs, cuts...), merges...)
		plan.HotTails = append(plan.HotTails, hot...)
	}
	slices.SortStableFunc(plan.Jobs, func(a, b Job) int {
		if (a.Kind == Merge) != (b.Kind == Merge) {
			return cmp.Compare(a.Kind, b.Kind)
		}
		return cmp.Compare(b.Bytes, a.Bytes)
	})
	plan.Jobs = plan.Jobs[:min(len(plan.Jobs), p.set.Jobs)]
	for i := range plan.Jobs {
		if job := &plan.Jobs[i]; job.Kind == Merge {
			target := s.ChunkSize(s.Collection(job.Chunks[0].Collection))
			job.Reason = fmt.Sprintf("%d bytes together, less than half of %d", job.Bytes, target)
		}
	}
	return plan
}

type planner struct {
	s     *manifest.State
	mine  func(manifest.ShardID) bool
	loads Loads
	now   int64
	set   Settings
}

// collection looks at each chunk once: there may be a hundred thousand, and nothing is allocated
// for those that are as they should be.
func (p *planner) collection(c *manifest.Collection) (cuts, merges []Job, hot []HotTail) {
	split, merge := p.s.AutoSplit(c), p.s.AutoMerge(c) && !c.NoBalance
	if !split && !merge && len(p.loads) == 0 {
		return nil, nil, nil
	}
	target := p.s.ChunkSize(c)
	var left measured // a candidate to merge with the next one
	var tail hotTail
	for chunk := range p.s.Chunks(c.ID) {
		m := p.measure(chunk)
		if m.load != nil {
			tail.see(chunk, m.load, &p.set)
		}
		if !split && !merge || !p.mine(chunk.Shard) {
			left.chunk = nil
			continue
		}
		job, ok := p.cut(c, m, target)
		switch {
		case ok && split:
			cuts, left.chunk = append(cuts, job), nil
		case !merge || !p.mergeable(chunk):
			left.chunk = nil
		case left.chunk != nil && p.together(c, left, m, target):
			merges = append(merges, Job{Kind: Merge, Chunks: []*manifest.Chunk{left.chunk, chunk}, Bytes: left.size + m.size})
			left.chunk = nil
		default:
			left = m
		}
	}
	return cuts, merges, tail.of(c, &p.set)
}

// measured is a chunk, about how many bytes its live rows have, and what its owner told of it;
// nil: nothing.
type measured struct {
	chunk *manifest.Chunk
	size  int64
	load  *rpc.ChunkLoad
}

func (p *planner) measure(c *manifest.Chunk) measured {
	m := measured{chunk: c, size: Stored(c)}
	if len(p.loads) == 0 {
		return m
	}
	if l, ok := p.loads[c.ID]; ok {
		told := l // only this one goes to the heap
		m.size, m.load = m.size+l.UnflushedBytes, &told
	}
	return m
}

// rate is what is asked of the chunk, per second.
func (m *measured) rate() float64 {
	if m.load == nil {
		return 0
	}
	return m.load.Reads + m.load.Writes
}

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
func (p *planner) cut(coll *manifest.Collection, m measured, target int64) (job Job, ok bool) {
	if m.load == nil && m.size < target/4*3 {
		return job, false
	}
	var l rpc.ChunkLoad
	if m.load != nil {
		l = *m.load
	}
	c, size := m.chunk, m.size
	if job, ok = p.cutWhole(coll, c, l, size, target); ok {
		job.Chunks, job.Bytes, job.InMemory = []*manifest.Chunk{c}, size, l.UnflushedBytes
	}
	return job, ok
}

func (p *planner) cutWhole(coll *manifest.Collection, c *manifest.Chunk, l rpc.ChunkLoad, size, target int64) (job Job, ok bool) {
	tail := l.TailShare >= p.set.TailShare && l.Inserts >= p.set.TailInserts
	switch {
	case p.indivisible(coll, c) && size < regrown(c.Indivisible.Bytes, target):
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

// indivisible reports whether whoever tried to cut the chunk last could do no more today: a value
// that could not be cut then can be once chunks are cut inside values.
func (p *planner) indivisible(coll *manifest.Collection, c *manifest.Chunk) bool {
	return c.Flags&manifest.ChunkIndivisible != 0 && (coll.WithinKey(c.Indivisible.Value) || !coll.CutsWithinKey(p.now*1000))
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
func (p *planner) together(c *manifest.Collection, a, b measured, target int64) bool {
	if a.chunk.Shard != b.chunk.Shard || a.size+b.size >= target/2 || a.rate()+b.rate() >= p.set.LoadMax/4 {
		return false
	}
	_, inside := c.ZoneOf(shardkey.Range{Min: a.chunk.Range.Min, Max: b.chunk.Range.Max})
	return inside
}

// hotTail finds the chunk that nearly all inserts of a collection go to, at its end.
type hotTail struct {
	all  float64 // inserts a second into all chunks
	at   *manifest.Chunk
	load rpc.ChunkLoad
}

func (h *hotTail) see(c *manifest.Chunk, l *rpc.ChunkLoad, set *Settings) {
	h.all += l.Inserts
	if l.TailShare >= set.TailShare && l.Inserts >= set.TailInserts {
		h.at, h.load = c, *l
	}
}

func (h *hotTail) of(c *manifest.Collection, set *Settings) []HotTail {
	if h.at == nil || h.load.Inserts < set.TailShare*h.all {
		return nil
	}
	return []HotTail{{Collection: c, Chunk: h.at, Share: h.load.Inserts / h.all, Inserts: h.load.Inserts}}
}
