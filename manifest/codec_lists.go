package manifest

import (
	"github.com/granarydb/granary/manifest/shardkey"
)

// One pair of functions for each kind of entry in the sections of a root; FORMAT.md has
// the same fields in the same order.

func (w *writer) core(s *State) {
	w.fixed(s.cluster[:])
	w.uint(uint64(s.version))
	w.fixed(s.nonce[:])
	w.uint(uint64(s.nextCollection))
	w.uint(uint64(s.nextChunk))
	w.uint(uint64(s.recentSince))
	w.int(s.copiedMillis)
}

func (r *reader) core(s *State) {
	s.cluster, s.version, s.nonce = r.id16(), Version(r.uint()), r.id16()
	s.nextCollection, s.nextChunk = CollectionID(r.upTo(1<<32-1)), ChunkID(r.uint())
	s.recentSince, s.copiedMillis = Version(r.uint()), r.int()
	if s.version == 0 || s.nextCollection == 0 || s.nextChunk == 0 {
		r.fail("version or a counter is 0")
	}
}

func (w *writer) recent(o RecentOp) { w.fixed(o.Op[:]); w.uint(uint64(o.Version)) }
func (r *reader) recent() RecentOp  { return RecentOp{Op: r.id16(), Version: Version(r.uint())} }

func (w *writer) shard(h *Shard) {
	w.text(string(h.ID))
	w.uint(uint64(h.Epoch))
	w.u8(byte(h.Kind))
	w.u8(byte(h.Status))
	w.text(h.Holder)
	w.text(h.Address)
	w.uint(uint64(h.LeaseMillis))
	w.uint(uint64(h.Location))
	w.uint(uint64(len(h.Zones)))
	for _, z := range h.Zones {
		w.text(z)
	}
	w.position(h.Floor)
	w.uint(uint64(len(h.OpenEpochs)))
	for _, e := range h.OpenEpochs {
		w.uint(uint64(e))
	}
}

func (r *reader) shard() *Shard {
	h := &Shard{ID: ShardID(r.text()), Epoch: Epoch(r.uint()), Kind: EpochKind(r.u8()), Status: ShardStatus(r.u8())}
	h.Holder, h.Address = r.text(), r.text()
	h.LeaseMillis, h.Location = uint32(r.upTo(1<<32-1)), LocationID(r.upTo(1<<32-1))
	h.Zones = list(r, r.count(1), (*reader).text)
	h.Floor = r.position()
	h.OpenEpochs = list(r, r.count(1), func(r *reader) Epoch { return Epoch(r.uint()) })
	return h
}

func (w *writer) retired(x RetiredShard) {
	w.text(string(x.ID))
	w.uint(uint64(x.Epoch))
	w.position(x.Floor)
}

func (r *reader) retired() RetiredShard {
	return RetiredShard{ID: ShardID(r.text()), Epoch: Epoch(r.uint()), Floor: r.position()}
}

func (w *writer) collection(c *Collection) {
	w.uint(uint64(c.ID))
	w.fixed(c.UUID[:])
	w.text(c.Database)
	w.text(c.Name)
	w.uint(uint64(len(c.Key.Fields)))
	for _, f := range c.Key.Fields {
		w.text(f.Path)
		w.flags(f.Hashed, f.Descending)
	}
	w.flags(c.Sharded, c.Unique, c.NoBalance, c.SplitWithinKey)
	w.bytes(c.Options)
	w.uint(uint64(len(c.Indexes)))
	for _, x := range c.Indexes {
		w.text(x.Name)
		w.bytes(x.Spec)
	}
	w.uint(uint64(len(c.Zones)))
	for _, z := range c.Zones {
		w.text(z.Zone)
		w.bytes(z.Range.Min)
		w.bytes(z.Range.Max)
		w.bytes(z.MinBSON)
		w.bytes(z.MaxBSON)
	}
	w.uint(uint64(c.DataVersion))
	w.int(c.CreatedMillis)
}

func (r *reader) collection() *Collection {
	c := &Collection{ID: CollectionID(r.upTo(1<<32 - 1)), UUID: r.id16(), Database: r.text(), Name: r.text()}
	c.Key.Fields = list(r, r.count(2), func(r *reader) shardkey.Field {
		path, flags := r.text(), r.flags(2)
		return shardkey.Field{Path: path, Hashed: flags&1 != 0, Descending: flags&2 != 0}
	})
	flags := r.flags(4)
	c.Sharded, c.Unique, c.NoBalance, c.SplitWithinKey = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0
	c.Options = r.bytes()
	c.Indexes = list(r, r.count(2), func(r *reader) Index { return Index{Name: r.text(), Spec: r.bytes()} })
	c.Zones = list(r, r.count(5), func(r *reader) ZoneRange {
		return ZoneRange{Zone: r.text(), Range: shardkey.Range{Min: r.bytes(), Max: r.bytes()}, MinBSON: r.bytes(), MaxBSON: r.bytes()}
	})
	c.DataVersion, c.CreatedMillis = DataVersion(r.uint()), r.int()
	return c
}

func (w *writer) record(x Record) {
	w.u8(byte(x.Kind))
	w.text(x.ID)
	w.bytes(x.Body)
}

func (r *reader) record() Record {
	return Record{Kind: RecordKind(r.u8()), ID: r.text(), Body: r.bytes()}
}

func (w *writer) job(j Job) {
	w.fixed(j.ID[:])
	w.text(j.Kind)
	w.text(j.Holder)
	w.int(j.StartedMillis)
	w.bytes(j.Detail)
}

func (r *reader) job() Job {
	return Job{ID: r.id16(), Kind: r.text(), Holder: r.text(), StartedMillis: r.int(), Detail: r.bytes()}
}

func (w *writer) dropped(d DroppedSegment) {
	w.creator(d.Segment.Creator)
	w.fixed(d.Segment.Random[:])
	w.uint(uint64(d.Location))
	w.uint(uint64(d.Version))
	w.int(d.Millis)
}

func (r *reader) dropped() DroppedSegment {
	return DroppedSegment{
		Segment:  SegmentID{Creator: r.creator(), Random: r.id16()},
		Location: LocationID(r.upTo(1<<32 - 1)), Version: Version(r.uint()), Millis: r.int(),
	}
}

func (w *writer) token(t Token) {
	w.text(t.App)
	w.text(t.Batch)
	w.flags(t.Committed)
	w.uint(uint64(t.Version))
	w.bytes(t.Result)
	w.int(t.ExpiresAt)
}

func (r *reader) token() Token {
	return Token{
		App: r.text(), Batch: r.text(), Committed: r.flags(1) != 0, Version: Version(r.uint()),
		Result: r.bytes(), ExpiresAt: r.int(),
	}
}

func (w *writer) pin(p Pin) {
	w.fixed(p.ID[:])
	w.text(p.Name)
	w.uint(uint64(p.Version))
	w.int(p.ExpiresAt)
}

func (r *reader) pin() Pin {
	return Pin{ID: r.id16(), Name: r.text(), Version: Version(r.uint()), ExpiresAt: r.int()}
}

func (w *writer) history(h HistoryEntry) {
	w.uint(uint64(h.Version))
	w.int(h.Millis)
	w.text(h.What)
	w.text(h.NS)
	w.bytes(h.Detail)
}

func (r *reader) history() HistoryEntry {
	return HistoryEntry{Version: Version(r.uint()), Millis: r.int(), What: r.text(), NS: r.text(), Detail: r.bytes()}
}

// table is the directory of one collection's pages: those in the root with their bodies,
// the others by name.
func (w *writer) table(t *table) {
	w.uint(uint64(t.collection))
	w.uint(uint64(len(t.pages)))
	for _, p := range t.pages {
		w.uint(uint64(p.id.version))
		w.uint(uint64(p.id.number))
		w.flags(p.stored != nil)
		if p.stored == nil {
			w.bytes(EncodeChunks(p.chunks))
			continue
		}
		w.uint(uint64(p.stored.base + 1 - p.id.version)) // a page is written by its own commit or a later one
		w.u64(p.stored.nonce)
		w.uint(uint64(p.stored.location))
		w.uint(uint64(len(p.chunks)))
		w.bytes(p.told())
	}
}

func (r *reader) table() imageTable {
	t := imageTable{collection: CollectionID(r.upTo(1<<32 - 1))}
	t.pages = list(r, r.count(4), func(r *reader) imagePage {
		p := imagePage{id: pageID{version: Version(r.uint()), number: uint32(r.upTo(1<<32 - 1))}}
		if p.stored = r.flags(1) != 0; !p.stored {
			p.inline = r.bytes()
			return p
		}
		p.ref = PageRef{
			Collection: t.collection, Base: Version(r.uint()) + p.id.version - 1, Nonce: r.u64(),
			Location: LocationID(r.upTo(1<<32 - 1)), Chunks: int(r.upTo(PageChunksMax)), FirstKey: r.bytes(), id: p.id,
		}
		return p
	})
	return t
}
