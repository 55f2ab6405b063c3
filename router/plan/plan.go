// Package plan decides which chunks an operation has to visit. It is pure: a filter, a
// shard key and a chunk map in, a Plan out.
//
// # How a filter becomes ranges
//
// A row's key is the encoding of the shard-key fields, and then of _id unless the shard key
// has it. Each condition on one of these fields is a set of spans of that field's bytes:
//
//	{a: 7}                one point               {a: {$in: [1, 2]}}    two points
//	{a: {$gt: 5}}         (5, end of the numbers) comparisons never leave their type
//	{a: null}             the points null and undefined; a missing field is null
//	{a: /^abc/}           the strings that begin so
//
// A filter is expanded into conjunctions, each with one span set per field. A conjunction
// becomes key ranges from the first field on: points are prefixes under which the next
// field's spans go; the first field that is not a point, or has no condition, ends it.
// Ranges of all conjunctions are united, and the chunks that overlap them are visited.
//
// # What a plan promises
//
// Soundness: every document that matches lies in a range of the plan. A condition that is
// not understood ($ne, $not, $nor, other regular expressions, arrays) narrows nothing. Arrays
// would need care, since {a: 7} also matches {a: [5, 7]}; but a shard-key field never holds
// one. Minimality: a chunk that no range overlaps is not visited.
//
// The expansion is bounded by MaxConjunctions and MaxRanges; beyond them a plan is wider
// than it could be, never narrower than it must.
package plan

import (
	"bytes"
	"iter"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Kind is how far the shard key narrowed an operation.
type Kind uint8

const (
	// Nothing: the conditions contradict one another, no chunk is visited.
	Nothing Kind = iota
	// Targeted: every range is one value of the whole shard key.
	Targeted
	// Range: the ranges leave out a part of the key space.
	Range
	// Broadcast: every chunk of the collection may hold a match.
	Broadcast
)

// String is the word that explain and the metrics use.
func (k Kind) String() string {
	return [...]string{"nothing", "targeted", "range", "broadcast"}[k]
}

// Chunks is a chunk map; *manifest.State is one.
type Chunks interface {
	// ChunksIn yields the chunks that overlap r, in key order.
	ChunksIn(c manifest.CollectionID, r shardkey.Range) iter.Seq[*manifest.Chunk]
}

// Target is a chunk to visit, and the part of it. No Ranges: the whole chunk. Ranges
// ascend, do not overlap, and lie inside the chunk.
type Target struct {
	Chunk  *manifest.Chunk
	Ranges []shardkey.Range
}

// Group is what one shard is asked for in one request, in visiting order.
type Group struct {
	Shard   manifest.ShardID
	Targets []Target
}

// Parts are the ranges of the key space that t stands for.
func (t Target) Parts() []shardkey.Range {
	if t.Ranges != nil {
		return t.Ranges
	}
	return []shardkey.Range{t.Chunk.Range}
}

// Plan is where an operation goes, and why.
type Plan struct {
	Kind Kind
	// Order is 1 or -1 when visiting the targets one after another, in key order or
	// backwards, yields the rows in the order of the sort; else 0.
	Order int8
	// Ranges is the part of the key space that can hold matches: ascending, disjoint.
	Ranges []shardkey.Range
	// Row is the only row key that can match, or nil when there can be several.
	Row []byte
	// Targets are the chunks that Ranges overlap, in visiting order.
	Targets []Target

	keys *keys
}

// Make plans a query. filter nil matches all; sort may be empty.
func Make(m Chunks, c *manifest.Collection, filter *document.Filter, sort []document.SortField) *Plan {
	k := keysOf(c.Key, filter)
	p := &Plan{Kind: k.kind(), Ranges: k.ranges, Row: k.row(), keys: k}
	p.Order = k.order(sort)
	p.visit(m, c.ID)
	return p
}

// Within is the plan for the part of p's ranges that lies in rs (ascending, disjoint), on
// another chunk map: how an operation goes on after a refresh.
func (p *Plan) Within(m Chunks, c manifest.CollectionID, rs ...shardkey.Range) *Plan {
	q := *p
	q.Ranges, q.Targets = nil, nil
	for i, j := 0, 0; i < len(p.Ranges) && j < len(rs); {
		if y, ok := p.Ranges[i].Intersect(rs[j]); ok {
			q.Ranges = append(q.Ranges, y)
		}
		if shardkey.CompareMax(p.Ranges[i].Max, rs[j].Max) < 0 {
			i++
		} else {
			j++
		}
	}
	q.visit(m, c)
	return &q
}

// Whole is the plan that visits every chunk, whatever a query asks.
func Whole(m Chunks, c *manifest.Collection) *Plan { return Make(m, c, nil, nil) }

// visit fills Targets from Ranges.
func (p *Plan) visit(m Chunks, c manifest.CollectionID) {
	for _, r := range p.Ranges {
		if n := len(p.Targets); n > 0 {
			t := &p.Targets[n-1]
			x, ok := r.Intersect(t.Chunk.Range)
			if ok {
				t.Ranges = append(t.Ranges, x)
			}
			if shardkey.CompareMax(r.Max, t.Chunk.Range.Max) <= 0 {
				continue
			}
			if ok {
				r.Min = t.Chunk.Range.Max
			}
		}
		for chunk := range m.ChunksIn(c, r) {
			if x, ok := r.Intersect(chunk.Range); ok {
				p.Targets = append(p.Targets, Target{Chunk: chunk, Ranges: []shardkey.Range{x}})
			}
		}
	}
	for i := range p.Targets {
		if t := &p.Targets[i]; len(t.Ranges) == 1 && t.Ranges[0].Equal(t.Chunk.Range) {
			t.Ranges = nil
		}
	}
	if p.Order < 0 {
		for i, j := 0, len(p.Targets)-1; i < j; i, j = i+1, j-1 {
			p.Targets[i], p.Targets[j] = p.Targets[j], p.Targets[i]
		}
	}
}

// Reason says in a sentence for people why the plan is as it is: explain shows it. It is
// made when asked for, since most plans are never explained.
func (p *Plan) Reason() string { return p.keys.reason() }

// Single is the only target, when there is exactly one.
func (p *Plan) Single() (Target, bool) {
	if len(p.Targets) != 1 {
		return Target{}, false
	}
	return p.Targets[0], true
}

// ByShard groups the targets by shard, for a visit of all shards at once. Shards come in
// the order of their first target.
func (p *Plan) ByShard() []Group {
	var gs []Group
	at := make(map[manifest.ShardID]int)
	for _, t := range p.Targets {
		i, ok := at[t.Chunk.Shard]
		if !ok {
			i = len(gs)
			at[t.Chunk.Shard] = i
			gs = append(gs, Group{Shard: t.Chunk.Shard})
		}
		gs[i].Targets = append(gs[i].Targets, t)
	}
	return gs
}

// Runs groups neighbours of one shard, for a visit in order: a shard comes again when
// another one owns a chunk in between.
func (p *Plan) Runs() []Group {
	var gs []Group
	for _, t := range p.Targets {
		if n := len(gs); n > 0 && gs[n-1].Shard == t.Chunk.Shard {
			gs[n-1].Targets = append(gs[n-1].Targets, t)
			continue
		}
		gs = append(gs, Group{Shard: t.Chunk.Shard, Targets: []Target{t}})
	}
	return gs
}

// Rest is the part of the key space that a visit in order has still to see once it comes to
// the target at, which is not seen yet.
func (p *Plan) Rest(at Target) shardkey.Range {
	if p.Order < 0 {
		return shardkey.Range{Max: bytes.Clone(at.Chunk.Range.Max)}
	}
	return shardkey.Range{Min: bytes.Clone(at.Chunk.Range.Min)}
}
