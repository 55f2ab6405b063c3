package policy

import (
	"slices"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
)

// work is a copy of the placement on which a plan is played.
type work struct {
	in          Input
	shards      []*shard // by id
	byID        map[manifest.ShardID]*shard
	failures    map[manifest.ChunkID]*balancing.Failure
	collections []*collection // by namespace
}

// shard is one with what a plan gives it.
type shard struct {
	id    manifest.ShardID
	index int // among all
	// takes: chunks can go to it. drains: it is to be emptied. free: nobody holds it.
	takes, drains, free bool
	zones               *manifest.Shard
	bytes               int64
	chunks              int
	load                float64
}

// collection is one with its chunks, and what was decided about them.
type collection struct {
	w       *work
	info    *manifest.Collection
	target  int64 // bytes that a chunk is meant to have
	items   []*item
	spread  []*group // once asked for
	actions []Action
	// stuck are chunks that should move and cannot, each with a sentence.
	stuck []stuck
}

type stuck struct {
	reason   Reason
	sentence string
}

// item is a chunk where the plan has it.
type item struct {
	chunk *manifest.Chunk
	on    *shard
	zone  string // "": none
	cross bool   // it reaches over the end of a zone
	bytes int64  // in segments and, as far as owners told, in memory
	small bool
	dealt bool // small, and spread by number
	load  float64
	moved bool
	waits *balancing.Failure // nil: it does not
}

// fixed: the chunk stays, whatever the rules that even out would like.
func (x *item) fixed() bool { return x.moved || x.waits != nil || x.on.free || x.cross || !x.on.takes }

func newWork(in Input) *work {
	w := &work{in: in, byID: map[manifest.ShardID]*shard{}, failures: map[manifest.ChunkID]*balancing.Failure{}}
	for i := range in.Failures {
		f := &in.Failures[i]
		if f.Waits(in.NowMillis) {
			w.failures[f.Chunk] = f
		}
	}
	for _, h := range in.State.Shards() {
		_, wish := balancing.Draining(in.State, h.ID)
		s := &shard{id: h.ID, index: len(w.shards), zones: h, free: h.Status == manifest.ShardFree, drains: wish || h.Status == manifest.ShardDraining}
		s.takes = !s.free && !s.drains
		w.shards = append(w.shards, s)
		w.byID[h.ID] = s
	}
	for _, info := range in.State.Collections() {
		w.add(info)
	}
	return w
}

func (w *work) add(info *manifest.Collection) {
	c := &collection{w: w, info: info, target: w.in.State.ChunkSize(info)}
	all := make([]item, w.in.State.NumChunks(info.ID))
	c.items = make([]*item, 0, len(all))
	var on *shard
	for chunk := range w.in.State.Chunks(info.ID) {
		if on == nil || on.id != chunk.Shard {
			on = w.byID[chunk.Shard]
		}
		load := w.in.Loads[chunk.ID]
		x := &all[len(c.items)]
		x.chunk, x.on, x.load, x.bytes = chunk, on, load.sum(), chunk.Bytes+load.Unflushed
		x.small = x.bytes*smallShare < c.target
		x.waits = w.failures[chunk.ID]
		if z, inside := info.ZoneOf(chunk.Range); z != nil {
			x.zone = z.Zone
		} else {
			x.cross = !inside
		}
		x.on.bytes += x.bytes
		x.on.chunks++
		x.on.load += x.load
		c.items = append(c.items, x)
	}
	c.leaveToMerges()
	w.collections = append(w.collections, c)
}

// leaveToMerges chooses the small chunks that are spread by number: not those that will be one
// with a neighbour soon, which they could not if they were on two shards.
func (c *collection) leaveToMerges() {
	merging := func(x *item) bool {
		return x.small && x.chunk.ManualUntil*1000 <= c.w.in.NowMillis && c.w.in.State.AutoMerge(c.info) && !x.jumbo()
	}
	for i, x := range c.items {
		x.dealt = x.small
		for _, k := range []int{i - 1, i + 1} {
			if k < 0 || k == len(c.items) {
				continue
			}
			if y := c.items[k]; y.on == x.on && y.zone == x.zone && merging(x) && merging(y) {
				x.dealt = false
			}
		}
	}
}

// move plays an action.
func (c *collection) move(x *item, to *shard, reason Reason) {
	for _, s := range []*shard{x.on, to} {
		sign := int64(1)
		if s == x.on {
			sign = -1
		}
		s.bytes += sign * x.bytes
		s.chunks += int(sign)
		s.load += float64(sign) * x.load
	}
	c.actions = append(c.actions, Action{
		Chunk: x.chunk.At(), Namespace: c.info.Namespace(), From: x.on.id, To: to.id, Reason: reason, Bytes: x.bytes, Small: x.small, Copies: x.on.at() != to.at(),
	})
	x.on, x.moved = to, true
}

// at is where the shard's data is. A chunk that goes to another location is copied, and its
// keys come to another place: that is only for what must be elsewhere, never to even out.
func (s *shard) at() manifest.LocationID { return s.zones.Location }

// takers are the shards that a chunk of a zone ("": of none) can go to.
func (w *work) takers(zone string) []*shard {
	return slices.DeleteFunc(slices.Clone(w.shards), func(s *shard) bool {
		return !s.takes || zone != "" && !s.zones.InZone(zone)
	})
}

// group is the chunks of one collection, one zone and one location, and the shards that they are
// spread over.
type group struct {
	c      *collection
	zone   string
	shards []*shard
	items  []*item
	// What each shard has of it, by the shard's index; small counts those that are dealt.
	bytes         []int64
	chunks, small []int
}

// groups are a collection's, in the order of their first chunk. Chunks that are where
// nothing is evened out are in none.
//
// Requires: what must be elsewhere was moved. Later moves are the groups' own.
func (c *collection) groups() (list []*group) {
	if !c.info.Sharded || c.spread != nil {
		return c.spread
	}
	type place struct {
		zone string
		at   manifest.LocationID
	}
	n := len(c.w.shards)
	byPlace := map[place]*group{}
	for _, x := range c.items {
		if x.cross || !x.on.takes || x.zone != "" && !x.on.zones.InZone(x.zone) {
			continue
		}
		in := place{x.zone, x.on.at()}
		g := byPlace[in]
		if g == nil {
			shards := slices.DeleteFunc(c.w.takers(x.zone), func(s *shard) bool { return s.at() != in.at })
			g = &group{c: c, zone: x.zone, shards: shards, bytes: make([]int64, n), chunks: make([]int, n), small: make([]int, n)}
			byPlace[in] = g
			list = append(list, g)
		}
		g.items = append(g.items, x)
		g.count(x, 1)
	}
	c.spread = list
	return list
}

func (g *group) count(x *item, sign int) {
	g.bytes[x.on.index] += int64(sign) * x.bytes
	g.chunks[x.on.index] += sign
	if x.dealt {
		g.small[x.on.index] += sign
	}
}

// move plays an action inside the group.
func (g *group) move(x *item, to *shard, reason Reason) {
	g.count(x, -1)
	g.c.move(x, to, reason)
	g.count(x, 1)
}

// ends are the shards with the most and the least of something; the first of equals.
func ends[N int | int64 | float64](shards []*shard, of func(*shard) N) (most, least *shard) {
	for _, s := range shards {
		if most == nil || of(s) > of(most) {
			most = s
		}
		if least == nil || of(s) < of(least) {
			least = s
		}
	}
	return most, least
}

// jumbo: one shard-key value fills the chunk.
func (x *item) jumbo() bool { return x.chunk.Flags&manifest.ChunkIndivisible != 0 }
