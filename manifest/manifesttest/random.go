package manifesttest

import (
	"fmt"
	"math"
	"slices"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Draw is a source of choices: a number in [0, n).
type Draw func(n int) int

// chance is true once in n times.
func (d Draw) chance(n int) bool { return d(n) == 0 }

func choose[T any](d Draw, list []T) (v T, ok bool) {
	if len(list) == 0 {
		return v, false
	}
	return list[d(len(list))], true
}

// RandomEdit is an edit of one change that mostly fits s and sometimes just misses it. op
// must be fresh.
func RandomEdit(d Draw, s *manifest.State, op manifest.OpID) manifest.Edit {
	e := manifest.Edit{Op: op, Millis: int64(s.Version()) * 1000, Background: d.chance(4)}
	for len(e.Changes) == 0 {
		g := &generator{draw: d, s: s}
		kinds := []func() manifest.Change{
			g.claim, g.flush, g.flush, g.flush, g.free, g.move, g.move, g.split, g.split, g.merge, g.merge,
			g.compact, g.compact, g.batch, g.direct, g.create, g.drop, g.dropRange, g.expire, g.job, g.small, g.shard,
		}
		if c := kinds[d(len(kinds))](); c != nil {
			e.Changes = append(e.Changes, c)
		}
	}
	return e
}

type generator struct {
	draw Draw
	s    *manifest.State
}

// off is 0, and once in ten times 1: the precondition that just misses.
func (g *generator) off() uint64 {
	if g.draw.chance(10) {
		return 1
	}
	return 0
}

func (g *generator) anyShard() *manifest.Shard {
	h, _ := choose(g.draw, g.s.Shards())
	return h
}

func (g *generator) chunksOf(id manifest.ShardID) []*manifest.Chunk {
	var list []*manifest.Chunk
	for c := range g.s.AllChunks() {
		if id == "" || c.Shard == id {
			list = append(list, c)
		}
	}
	return list
}

func (g *generator) at(c *manifest.Chunk) manifest.ChunkAt {
	at := c.At()
	at.Version += manifest.ChunkVersion(g.off())
	return at
}

// key is a key inside a chunk.
func (g *generator) key(c *manifest.Chunk) []byte {
	for range 20 {
		k := fmt.Appendf(nil, "%c%c", 'a'+g.draw(26), 'a'+g.draw(26))
		if c.Range.Contains(k) {
			return k
		}
	}
	return append(slices.Clone(c.Range.Min), 'a') // may miss
}

func (g *generator) random16() (id [16]byte) {
	for i := range id {
		id[i] = byte(g.draw(256))
	}
	return id
}

// added is some rows for c by that creator, above its MaxSeq.
func (g *generator) added(c *manifest.Chunk, by manifest.Creator) manifest.Added {
	var a manifest.Added
	for range g.draw(3) {
		low, high := g.key(c), g.key(c)
		if string(low) > string(high) {
			low, high = high, low
		}
		rows := 1 + g.draw(5)
		r := manifest.SegmentRef{
			Segment: manifest.SegmentID{Creator: by, Random: g.random16()}, MinKey: low, MaxKey: high,
			MinSeq: c.MaxSeq + 1, MaxSeq: c.MaxSeq + manifest.Seq(rows), Rows: uint64(rows), Bytes: uint64(rows * 10),
			Clip: c.Range, Size: 1000, TailOffset: 900, TailLength: 100,
		}
		if g.draw.chance(3) {
			r.RetryUntil = int64(g.s.Version()) + int64(g.draw(20))
		}
		if g.draw.chance(3) {
			r.Dates = manifest.DateBounds{Of: 1 + uint64(g.draw(2)), Min: int64(g.draw(100)) - 50, Max: math.MaxInt64}
		}
		a.Refs = append(a.Refs, r)
		a.RowsDelta += int64(rows) - int64(g.draw(3))
		a.BytesDelta += int64(rows * 10)
	}
	return a
}

// beyond is a position of the shard's epoch above all its floors.
func (g *generator) beyond(h *manifest.Shard) manifest.Position {
	p := h.Floor
	for _, c := range g.chunksOf(h.ID) {
		p = manifest.MaxPosition(p, c.OwnFloor)
	}
	if p.Epoch < h.Epoch {
		return manifest.Position{Epoch: h.Epoch, Next: uint64(g.draw(3))}
	}
	p.Next += uint64(g.draw(3))
	return p
}

func (g *generator) claim() manifest.Change {
	h := g.anyShard()
	return manifest.Claim{Shard: h.ID, Epoch: h.Epoch + manifest.Epoch(g.off()), Holder: fmt.Sprintf("p%d", g.draw(4)), LeaseMillis: uint32(g.draw(3)) * 1000}
}

func (g *generator) flushed(h *manifest.Shard) []manifest.FlushedChunk {
	by := manifest.Creator{Kind: manifest.CreatorShard, Shard: h.ID, Epoch: h.Epoch}
	var list []manifest.FlushedChunk
	for _, c := range g.chunksOf(h.ID) {
		if g.draw.chance(3) {
			list = append(list, manifest.FlushedChunk{At: g.at(c), Added: g.added(c, by)})
		}
	}
	return list
}

func (g *generator) flush() manifest.Change {
	h := g.anyShard()
	return manifest.Flush{Shard: h.ID, Epoch: h.Epoch, Snapshot: g.beyond(h), Complete: !g.draw.chance(3), Chunks: g.flushed(h)}
}

func (g *generator) free() manifest.Change {
	h := g.anyShard()
	return manifest.Free{Shard: h.ID, Epoch: h.Epoch, Snapshot: g.beyond(h), Chunks: g.flushed(h)}
}

func (g *generator) move() manifest.Change {
	c, ok := choose(g.draw, g.chunksOf(""))
	to := g.anyShard()
	if !ok {
		return nil
	}
	from := g.s.Shard(c.Shard)
	m := manifest.Move{Chunk: g.at(c), From: from.ID, FromEpoch: from.Epoch, To: to.ID, ToEpoch: to.Epoch}
	if to.Status != manifest.ShardFree {
		m.Promise = manifest.Position{Epoch: to.Epoch, Next: uint64(g.draw(6))}
	}
	if from.Status != manifest.ShardFree {
		m.Added = g.added(c, manifest.Creator{Kind: manifest.CreatorShard, Shard: from.ID, Epoch: from.Epoch})
	}
	return m
}

func (g *generator) split() manifest.Change {
	c, ok := choose(g.draw, g.chunksOf(""))
	if !ok {
		return nil
	}
	keys := map[string]bool{}
	for range 1 + g.draw(3) {
		keys[string(g.key(c))] = true
	}
	x := manifest.Split{Chunk: g.at(c)}
	for k := range keys {
		x.Points = append(x.Points, Bound(k, false))
	}
	slices.SortFunc(x.Points, func(a, b manifest.Bound) int { return slices.Compare(a.Key, b.Key) })
	return x
}

func (g *generator) merge() manifest.Change {
	list := g.chunksOf("")
	if len(list) < 2 {
		return nil
	}
	i := g.draw(len(list) - 1)
	return manifest.Merge{Left: g.at(list[i]), Right: g.at(list[i+1])}
}

func (g *generator) compact() manifest.Change {
	c, ok := choose(g.draw, g.chunksOf(""))
	j, hasJob := choose(g.draw, g.s.Jobs())
	if !ok || !hasJob || len(c.Refs) == 0 {
		return nil
	}
	from := g.draw(len(c.Refs))
	x := manifest.Compact{Job: j.ID, Chunk: g.at(c), Inputs: c.Refs[from : from+1+g.draw(len(c.Refs)-from)], Oldest: g.draw.chance(2), Rows: int64(g.draw(20)) - 1}
	if x.Oldest && g.draw.chance(4) {
		x.Expired, x.Indexes = int64(g.draw(5)), g.s.Collection(c.Collection).Indexes
	}
	if g.draw.chance(8) {
		return x // everything was deleted
	}
	out := x.Inputs[0]
	out.Segment = manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorJob, Job: j.ID}, Random: g.random16()}
	out.FixedSeq, out.Clip = 0, c.Range
	for _, r := range x.Inputs {
		out.MinSeq, out.MaxSeq = min(out.MinSeq, r.MinSeq), max(out.MaxSeq, r.MaxSeq)
		out.RetryUntil = max(out.RetryUntil, r.RetryUntil)
		if r.Rows > 0 {
			out.MinKey, out.MaxKey = r.MinKey, r.MaxKey
		}
	}
	x.Outputs = []manifest.SegmentRef{out}
	return x
}

func (g *generator) batch() manifest.Change {
	j, ok := choose(g.draw, g.s.Jobs())
	if !ok {
		return nil
	}
	x := manifest.Batch{Token: manifest.Token{App: "app", Batch: fmt.Sprint(g.draw(50)), Committed: true, ExpiresAt: int64(g.draw(100))}}
	for _, c := range g.chunksOf("") {
		if !g.draw.chance(3) {
			continue
		}
		h := g.s.Shard(c.Shard)
		x.Chunks = append(x.Chunks, manifest.BatchChunk{
			At: c.At(), Shard: h.ID, Epoch: h.Epoch, Seq: c.MaxSeq + 1,
			Added: g.added(c, manifest.Creator{Kind: manifest.CreatorJob, Job: j.ID}),
		})
	}
	return x
}

func (g *generator) direct() manifest.Change {
	c, ok := choose(g.draw, g.chunksOf(""))
	if !ok {
		return nil
	}
	h := g.s.Shard(c.Shard)
	return manifest.DirectCommit{
		Shard: h.ID, Epoch: h.Epoch, Chunk: g.at(c), MaxSeq: c.MaxSeq,
		Added: g.added(c, manifest.Creator{Kind: manifest.CreatorDirect, Shard: h.ID, Epoch: h.Epoch}),
	}
}

func (g *generator) create() manifest.Change {
	l := &args{s: g.s, named: map[string]string{"chunks": fmt.Sprintf("%s,m,%s", g.anyShard().ID, g.anyShard().ID)}}
	c := l.collection(fmt.Sprintf("db.c%d", g.draw(6)))
	return manifest.CreateCollection{Collection: c, Chunks: l.newChunks()}
}

func (g *generator) drop() manifest.Change {
	c, ok := choose(g.draw, g.s.Collections())
	if !ok || !g.draw.chance(4) {
		return nil
	}
	return manifest.DropCollection{ID: c.ID}
}

// dropRange announces one, or carries out one that was announced.
func (g *generator) dropRange() manifest.Change {
	h, ok := choose(g.draw, g.s.RangeHolds())
	if !ok {
		c, ok := choose(g.draw, g.chunksOf(""))
		if !ok {
			return nil
		}
		h = manifest.RangeHold{ID: fmt.Sprint(g.s.Version()), Collection: c.Collection, Range: shardkey.Range{Min: g.key(c)}}
		if max := g.key(c); string(max) > string(h.Range.Min) {
			h.Range.Max = max
		}
		return manifest.PutRecord{Record: h.Record(), IfAbsent: true}
	}
	x := manifest.DropRange{Hold: h, Min: Bound(string(h.Range.Min), false), Max: Bound(string(h.Range.Max), true)}
	for _, h := range g.s.Shards() {
		if !g.draw.chance(10) {
			x.Owners = append(x.Owners, manifest.OwnerAt{Shard: h.ID, Epoch: h.Epoch})
		}
	}
	return x
}

// expire takes references out of a chunk, most often those that can go.
func (g *generator) expire() manifest.Change {
	c, ok := choose(g.draw, g.chunksOf(""))
	if !ok {
		return nil
	}
	x := manifest.Expire{Chunk: g.at(c), Indexes: g.s.Collection(c.Collection).Indexes}
	some := func(*manifest.SegmentRef) bool { return g.draw.chance(2) }
	if x.Refs = c.Expirable(some); len(x.Refs) == 0 && len(c.Refs) > 0 {
		x.Refs = c.Refs[:1]
	}
	return x
}

func (g *generator) job() manifest.Change {
	if j, ok := choose(g.draw, g.s.Jobs()); ok && g.draw.chance(2) {
		return manifest.ExpelJob{ID: j.ID}
	}
	return manifest.RegisterJob{Job: manifest.Job{ID: g.random16(), Kind: "compact"}}
}

// small is a change of one of the small lists.
func (g *generator) small() manifest.Change {
	switch g.draw(7) {
	case 0:
		return manifest.AddPin{Pin: manifest.Pin{ID: g.random16(), Name: "pin"}}
	case 1:
		if p, ok := choose(g.draw, g.s.Pins()); ok {
			return manifest.DropPin{ID: p.ID}
		}
	case 2:
		return manifest.ForgetDropped{Segments: g.s.Dropped()}
	case 3:
		return manifest.DecideToken{Token: manifest.Token{App: "app", Batch: fmt.Sprint(g.draw(50))}}
	case 4:
		return manifest.ExpireTokens{Now: int64(g.draw(100))}
	case 5:
		c, ok := choose(g.draw, g.chunksOf(""))
		if !ok {
			return nil
		}
		if g.draw.chance(3) {
			return manifest.MarkChunk{Chunk: g.at(c)}
		}
		return manifest.MarkChunk{Chunk: g.at(c), Flags: manifest.ChunkIndivisible, Indivisible: manifest.Indivisible{Value: Bound("x", false).BSON, Bytes: int64(g.draw(1000))}}
	case 6:
		return manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordSetting, ID: fmt.Sprint(g.draw(5)), Body: Bound("x", false).BSON}}
	}
	return nil
}

func (g *generator) shard() manifest.Change {
	h := g.anyShard()
	switch g.draw(5) {
	case 0:
		return manifest.AdvanceFree{Shard: h.ID, Epoch: h.Epoch}
	case 1:
		return manifest.SetDraining{Shard: h.ID, Draining: g.draw.chance(2)}
	case 2:
		return manifest.AddShards{IDs: []manifest.ShardID{manifest.ShardID(fmt.Sprintf("s%d", g.draw(9)))}}
	case 3:
		if len(g.s.Shards()) > 2 {
			return manifest.RemoveShard{ID: h.ID}
		}
	}
	return nil
}
