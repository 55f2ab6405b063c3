package manifest

import (
	"encoding/binary"
	"slices"

	"github.com/granarydb/granary/manifest/shardkey"
)

// RewriteFormat is the root object with other format numbers and its checksum repaired.
func RewriteFormat(object []byte, minReader, minWriter uint16) []byte {
	binary.LittleEndian.PutUint16(object[24:], minReader)
	binary.LittleEndian.PutUint16(object[26:], minWriter)
	return Repair(object)
}

// Repair puts the right checksum into an object.
func Repair(object []byte) []byte {
	if len(object) >= frameHeader {
		binary.LittleEndian.PutUint32(object[20:], frameCRC(object))
	}
	return object
}

// RootOf is a root object, not compressed, with any body.
func RootOf(body []byte) []byte {
	extra := []byte{byte(FormatVersion & 0xFF), byte(FormatVersion >> 8), byte(FormatVersion & 0xFF), byte(FormatVersion >> 8)}
	return frameOf(rootMagic, extra, body)
}

func frameOf(magic string, extra, body []byte) []byte {
	head := make([]byte, frameHeader)
	copy(head, magic)
	head[8], head[9] = byte(FormatVersion>>8), byte(FormatVersion&0xFF)
	binary.LittleEndian.PutUint32(head[12:], uint32(len(body)))
	binary.LittleEndian.PutUint32(head[16:], uint32(len(body)))
	return Repair(slices.Concat(head, extra, body))
}

// PackRoot is a root object, compressed however well, with any body.
func PackRoot(body []byte) []byte {
	packed := packer.EncodeAll(body, nil)
	o := frameOf(rootMagic, []byte{0, 1, 0, 1}, packed)
	o[10] = flagZstd
	binary.LittleEndian.PutUint32(o[16:], uint32(len(body)))
	return Repair(o)
}

// WithSection is body with a section more.
func WithSection(body []byte, tag uint64, payload string) []byte {
	w := &writer{b: slices.Clone(body)}
	w.section(tag, []byte(payload))
	return w.b
}

// PageSizes are the estimated and the encoded size of each page, and its chunks.
func PageSizes(s *State) (estimated, encoded, chunks []int) {
	for _, t := range s.tables {
		for _, p := range t.pages {
			estimated = append(estimated, p.size)
			encoded = append(encoded, len(EncodeChunks(p.chunks)))
			chunks = append(chunks, len(p.chunks))
		}
	}
	return estimated, encoded, chunks
}

// Spill is s with all its pages as objects, by key.
func Spill(s *State, r *Root) (*State, map[string][]byte) {
	r.o.PageBudget = 1
	next, writes, err := r.spill(s, s.version)
	if err != nil {
		panic(err)
	}
	objects := map[string][]byte{}
	for _, w := range writes {
		objects[w.key] = w.object
	}
	return next, objects
}

// Broken are states that each break one invariant of s, by what Validate must say of it.
// Requires: two collections, shards a (held, with an open epoch) and b; the first
// collection has at least two chunks, the first of which has a reference.
func Broken(s *State) map[string]*State {
	out := map[string]*State{}
	add := func(name string, change func(*State)) {
		n := *s
		change(&n)
		out[name] = &n
	}
	shard := func(change func(*Shard)) func(*State) {
		return func(n *State) {
			h := *n.shards[0]
			change(&h)
			n.shards = replaced(n.shards, 0, &h)
		}
	}
	chunk := func(i int, change func(*Chunk)) func(*State) {
		return func(n *State) {
			t := *n.tables[0]
			p := *t.pages[0]
			c := *p.chunks[i]
			c.Refs = slices.Clone(c.Refs)
			change(&c)
			p.chunks = replaced(p.chunks, i, &c)
			t.pages = replaced(t.pages, 0, &p)
			n.tables = replaced(n.tables, 0, &t)
		}
	}
	collection := func(change func(*Collection)) func(*State) {
		return func(n *State) {
			c := *n.collections[0]
			change(&c)
			n.collections = replaced(n.collections, 0, &c)
			n.byID = indexByID(n.collections)
		}
	}
	add("version, cluster id or a counter is zero", func(n *State) { n.version = 0 })
	add("shards: invalid: they are out of order", func(n *State) { n.shards = []*Shard{n.shards[1], n.shards[0]} })
	add("retired shards: invalid: a is there, too", func(n *State) { n.retired = []RetiredShard{{ID: "a"}} })
	add("recent ops: invalid: 1100, at most", func(n *State) { n.recent = make([]RecentOp, 1100) })
	add("recent ops: invalid: version 0 after", func(n *State) { n.recent = []RecentOp{{Version: 1}, {Version: 0}} })
	add("history: invalid: 300 entries", func(n *State) { n.history = make([]HistoryEntry, 300) })
	add("dropped segments: invalid: 5000", func(n *State) { n.dropped = make([]DroppedSegment, 5000) })
	add("dropped segments: invalid: seg/", func(n *State) { n.dropped = []DroppedSegment{{Version: 1 << 40}} })
	add("pins: invalid: \"late\" pins", func(n *State) { n.pins = []Pin{{ID: [16]byte{1}, Name: "late", Version: 1 << 40}} })
	add("token App/: invalid", func(n *State) { n.tokens = []Token{{App: "App"}} })
	add("job rebuild: invalid", func(n *State) { n.jobs = []Job{{Kind: "rebuild"}} })
	add("collections: invalid: 2, but 1 chunk tables", func(n *State) { n.tables = n.tables[:1] })
	add("id 1 is not below the next id", func(n *State) { n.nextCollection = 1 })
	add("counts 9 chunks, and has", func(n *State) {
		t := *n.tables[0]
		t.count = 9
		n.tables = replaced(n.tables, 0, &t)
	})
	add("named wrongly or twice", func(n *State) {
		t, p := *n.tables[0], *n.tables[0].pages[0]
		p.id = n.tables[1].pages[0].id
		t.pages = replaced(t.pages, 0, &p)
		n.tables = replaced(n.tables, 0, &t)
	})
	add("page 0 has 0 chunks", func(n *State) {
		n.tables = replaced(n.tables, 0, &table{collection: 1, pages: []*page{{id: pageID{version: 1, number: 99}}}})
	})
	add("none: they must cover", func(n *State) { n.tables = replaced(n.tables, 0, &table{collection: 1}) })
	add("a shard's name is", shard(func(h *Shard) { h.ID = "A" }))
	add("unknown status", shard(func(h *Shard) { h.Status = 9 }))
	add("held at epoch 0", shard(func(h *Shard) { h.Epoch, h.OpenEpochs, h.Floor = 0, nil, Position{} }))
	add("free, but with open epochs", shard(func(h *Shard) { h.Status = ShardFree }))
	add("is beyond epoch", shard(func(h *Shard) { h.Floor = Position{Epoch: h.Epoch + 1} }))
	add("holder or address is longer", shard(func(h *Shard) { h.Holder = string(make([]byte, 2000)) }))
	add("open epochs [7]: they ascend", shard(func(h *Shard) { h.OpenEpochs = []Epoch{7} }))
	add("zones [\"eu\" \"eu\"]", shard(func(h *Shard) { h.Zones = []string{"eu", "eu"} }))
	add("no id or no UUID", collection(func(c *Collection) { c.UUID = [16]byte{} }))
	add("options are not a document", collection(func(c *Collection) { c.Options = []byte{1} }))
	add("shard key field \"\"", collection(func(c *Collection) { c.Key = shardkey.Pattern{Fields: []shardkey.Field{{}}} }))
	add("index \"x\": it needs", collection(func(c *Collection) { c.Indexes = []Index{{Name: "x"}} }))
	add("it needs a zone and two bounds", collection(func(c *Collection) { c.Zones = []ZoneRange{{Zone: "eu"}} }))
	add("id is outside", chunk(0, func(c *Chunk) { c.ID = 1 << 40 }))
	add("owner x does not exist", chunk(0, func(c *Chunk) { c.Shard = "x" }))
	add("a bound has no BSON", chunk(0, func(c *Chunk) { c.MinBSON = nil }))
	add("is not above the shard's", chunk(0, func(c *Chunk) { c.OwnFloor = Position{Next: 1} }))
	add("own floor (9,<0) is beyond", chunk(0, func(c *Chunk) { c.OwnFloor = Position{Epoch: 9} }))
	add("are negative", chunk(0, func(c *Chunk) { c.Rows = -1 }))
	add("says that it is of collection 9", chunk(0, func(c *Chunk) { c.Collection = 9 }))
	add("they start at 61", chunk(0, func(c *Chunk) { c.Range.Min = []byte("a") }))
	add("gap or overlap", chunk(1, func(c *Chunk) { c.Range.Min = append(slices.Clone(c.Range.Min), 'x') }))
	add("spell the bound between them differently", chunk(1, func(c *Chunk) { c.MinBSON = c.MaxBSON }))
	add("is in collection 1 and in 1", chunk(1, func(c *Chunk) { c.ID = s.tables[0].pages[0].chunks[0].ID }))
	last := len(s.tables[0].pages[0].chunks) - 1
	add("expected the end of the key space", chunk(last, func(c *Chunk) { c.Range.Max, c.Refs = []byte("zzz"), nil }))
	ref := func(change func(*SegmentRef)) func(*State) { return chunk(0, func(c *Chunk) { change(&c.Refs[0]) }) }
	add("is empty or not inside", ref(func(r *SegmentRef) { r.Clip = shardkey.Range{} }))
	add("chunk has", ref(func(r *SegmentRef) { r.MaxSeq = 1 << 40 }))
	add("are in the wrong order", ref(func(r *SegmentRef) { r.MinKey = []byte("zz") }))
	add("has nothing inside its clip", ref(func(r *SegmentRef) { r.MinKey, r.MaxKey, r.RetryUntil = []byte("x"), []byte("y"), 0 }))
	add("no such shard, now or before", ref(func(r *SegmentRef) { r.Segment.Creator = Creator{Kind: CreatorShard, Shard: "zz"} }))
	add("epoch is beyond the shard's", ref(func(r *SegmentRef) { r.Segment.Creator = Creator{Kind: CreatorShard, Shard: "a", Epoch: 99} }))
	add("unknown kind", ref(func(r *SegmentRef) { r.Segment.Creator.Kind = 'x' }))
	add("a job has no shard", ref(func(r *SegmentRef) { r.Segment.Creator.Shard = "a" }))
	add("is referenced twice", chunk(0, func(c *Chunk) { c.Refs = append(c.Refs, c.Refs[0]) }))
	return out
}

// BrokenSteps are states that are no successors of s, by what ValidateStep must say.
func BrokenSteps(s *State) map[string]*State {
	out := map[string]*State{}
	add := func(name string, change func(*State)) {
		n := *s
		n.version++
		change(&n)
		out[name] = &n
	}
	chunk := func(change func(*Chunk)) func(*State) {
		return func(n *State) {
			t := *n.tables[0]
			p := *t.pages[0]
			c := *p.chunks[0]
			c.Refs = slices.Clone(c.Refs)
			change(&c)
			p.chunks = replaced(p.chunks, 0, &c)
			p.id.version = n.version
			t.pages = replaced(t.pages, 0, &p)
			n.tables = replaced(n.tables, 0, &t)
		}
	}
	add("cluster id changed", func(n *State) { n.cluster = ClusterID{9} })
	add("version went from", func(n *State) { n.version-- })
	add("a counter went back", func(n *State) { n.nextChunk-- })
	add("format went from", func(n *State) { n.format = Format{} })
	add("gone without a trace", func(n *State) { n.shards = n.shards[1:] })
	add("epoch went from", func(n *State) {
		h := *n.shards[0]
		h.Epoch--
		n.shards = replaced(n.shards, 0, &h)
	})
	add("UUID or key changed", func(n *State) {
		c := *n.collections[0]
		c.UUID = [16]byte{77}
		n.setAll(replaced(n.collections, 0, &c))
	})
	add("chunk id was given out before", chunk(func(c *Chunk) { c.ID++ }))
	add("version went from 1 to 1 with owner", chunk(func(c *Chunk) { c.Shard = "b" }))
	add("maxSeq 0 is below", chunk(func(c *Chunk) { c.MaxSeq = 0 }))
	add("is below", chunk(func(c *Chunk) { c.OwnFloor = Position{} }))
	add("its creator was not registered", chunk(func(c *Chunk) { c.Refs[0].Segment.Random = [16]byte{5} }))
	return out
}

func (s *State) setAll(list []*Collection) { s.collections, s.byID = list, indexByID(list) }

// Unpacked is the body of a root or page object.
func Unpacked(object []byte) ([]byte, error) {
	magic, extra := rootMagic, rootExtra
	if len(object) > 8 && string(object[:8]) == pageMagic {
		magic, extra = pageMagic, pageExtra
	}
	_, body, err := unpack(magic, extra, object)
	return body, err
}

// Sections are the payloads of the sections of a body, by tag.
func Sections(body []byte) map[uint64][]byte {
	r := &reader{b: body}
	out := map[uint64][]byte{}
	for len(r.b) > 0 && r.err == nil {
		tag := r.uint()
		out[tag] = r.bytes()
	}
	return out
}

// JoinSections is the inverse of Sections.
func JoinSections(sections map[uint64][]byte) []byte {
	w := &writer{}
	for tag := range uint64(64) {
		w.section(tag, sections[tag])
	}
	return w.b
}
