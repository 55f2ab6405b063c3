package manifest

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest/shardkey"
)

func (x CreateCollection) apply(b *builder) error {
	c := x.Collection
	if old := b.s.CollectionByName(c.Database, c.Name); old != nil {
		return conflict("create collection", c.Namespace(), "it exists, with id %d", old.ID)
	}
	for _, other := range b.s.collections {
		if other.UUID == c.UUID {
			return conflict("create collection", c.Namespace(), "%s has the same UUID", other.Namespace())
		}
	}
	c.ID = b.collectionID()
	return b.create("create collection", c, x.Chunks)
}

// collectionID takes the next free collection id.
func (b *builder) collectionID() CollectionID {
	id := b.s.nextCollection
	b.s.nextCollection++
	return id
}

// create adds a collection under an id that was taken for it, and its chunks.
func (b *builder) create(verb string, c Collection, chunks []NewChunk) error {
	t, err := b.newTable(verb, &c, chunks)
	if err != nil {
		return err
	}
	i, _ := b.s.searchName(c.Database, c.Name)
	b.setCollections(inserted(b.s.collections, i, &c))
	at, _ := slices.BinarySearchFunc(b.s.tables, c.ID, compareTable)
	b.s.tables = inserted(b.s.tables, at, t)
	b.tables[c.ID] = t
	what := "createCollection"
	if c.Sharded {
		what = "shardCollection.end"
	}
	b.log(what, c.Namespace(), detail().AppendDocument("key", doc(c.Key.BSON())).AppendInt32("numChunks", int32(t.count)))
	return nil
}

// newTable places the chunks of a new collection.
func (b *builder) newTable(verb string, c *Collection, chunks []NewChunk) (*table, error) {
	if len(chunks) == 0 {
		return nil, invalid(verb, c.Namespace(), "no chunks: they must cover the key space")
	}
	t := &table{collection: c.ID, count: len(chunks)}
	p := &page{chunks: make([]*Chunk, 0, len(chunks))}
	var last []byte
	for i, n := range chunks {
		end := i == len(chunks)-1
		if !bytes.Equal(n.Min.Key, last) || (len(n.Max.Key) == 0) != end || !end && bytes.Compare(n.Min.Key, n.Max.Key) >= 0 {
			return nil, invalid(verb, c.Namespace(), "chunk %d is %s, expected to start at %s: chunks cover the key space in order",
				i, shardkey.Range{Min: n.Min.Key, Max: n.Max.Key}, show(last))
		}
		if b.s.Shard(n.Shard) == nil {
			return nil, conflict(verb, c.Namespace(), "no shard %s for chunk %d", n.Shard, i)
		}
		last = n.Max.Key
		maxBSON := n.Max.BSON
		if !end {
			maxBSON = chunks[i+1].Min.BSON // one bound, one spelling
		}
		p.chunks = append(p.chunks, &Chunk{
			ID: b.chunkID(), Collection: c.ID, Version: 1, Shard: n.Shard, ManualUntil: n.ManualUntil,
			Range:   shardkey.Range{Min: n.Min.Key, Max: n.Max.Key},
			MinBSON: n.Min.BSON, MaxBSON: maxBSON,
		})
	}
	t.pages = []*page{p}
	return t, nil
}

func (x ReshapeCollection) apply(b *builder) error {
	const verb = "reshape collection"
	old := b.s.Collection(x.Collection.ID)
	if old == nil || old.UUID != x.Collection.UUID {
		return conflict(verb, x.Collection.Namespace(), "no collection has id %d and that UUID", x.Collection.ID)
	}
	if n := b.s.NumChunks(old.ID); n != len(x.At) {
		return conflict(verb, old.Namespace(), "it has %d chunks, expected %d", n, len(x.At))
	}
	for i, at := range x.At {
		if err := x.checkChunk(b, old, i, at); err != nil {
			return err
		}
	}
	n := x.Collection
	n.Database, n.Name = old.Database, old.Name
	b.removeCollection(old)
	if x.Restored != nil {
		return x.Restored.create(b, n)
	}
	if x.Rebuilt == nil {
		n.ID = b.collectionID()
		return b.create(verb, n, x.Chunks)
	}
	j, ok := b.s.Job(x.Rebuilt.Job)
	if !ok {
		return conflict(verb, n.Namespace(), "job %x is not registered: it was expelled", x.Rebuilt.Job)
	}
	n.ID = j.Builds()
	return x.Rebuilt.create(b, n, x.Chunks)
}

// checkChunk makes sure that a chunk is as the planner saw it.
func (x ReshapeCollection) checkChunk(b *builder, old *Collection, i int, at ChunkAt) error {
	const verb = "reshape collection"
	c, err := b.chunk(verb+" "+old.Namespace(), at)
	if err != nil {
		return err
	}
	from := x.from(i)
	switch {
	case c.Collection != old.ID:
		return invalid(verb, old.Namespace(), "chunk %d is of another collection", c.ID)
	case len(from) == 0 && len(c.Refs) > 0:
		return conflict(verb, old.Namespace(), "chunk %d holds data, expected none", c.ID)
	case !slices.EqualFunc(c.Refs, from, sameRows):
		return conflict(verb, old.Namespace(), "chunk %d has other references than those that were rewritten", c.ID)
	}
	return x.checkOwner(b, c)
}

// from are the references that chunk i must have.
func (x ReshapeCollection) from(i int) []SegmentRef {
	var all [][]SegmentRef
	switch {
	case x.Rebuilt != nil:
		all = x.Rebuilt.From
	case x.Restored != nil:
		all = x.Restored.From
	}
	if i < len(all) {
		return all[i]
	}
	return nil
}

// sameRows reports whether two references show the same rows of the same segment. One whose
// rows were dropped has no keys.
func sameRows(a, b SegmentRef) bool {
	return a.Segment == b.Segment && a.FixedSeq == b.FixedSeq && a.Clip.Equal(b.Clip) &&
		bytes.Equal(a.MinKey, b.MinKey) && bytes.Equal(a.MaxKey, b.MaxKey)
}

// create makes the collection with its data.
func (r *Rebuilt) create(b *builder, c Collection, chunks []NewChunk) error {
	const verb = "reshape collection"
	switch {
	case len(r.Added) != len(chunks):
		return invalid(verb, c.Namespace(), "data of %d chunks, expected %d", len(r.Added), len(chunks))
	case c.ID == 0 || c.ID >= b.s.nextCollection || b.s.Collection(c.ID) != nil:
		return invalid(verb, c.Namespace(), "id %d was not reserved, or is in use", c.ID)
	}
	if err := b.create(verb, c, chunks); err != nil {
		return err
	}
	for i, k := range b.tables[c.ID].pages[0].chunks { // its own, and on one page until the Edit ends
		if err := b.add(verb+" "+c.Namespace(), k, r.Added[i], ""); err != nil {
			return err
		}
	}
	return nil
}

// checkOwner makes sure that no row of a chunk waits in memory or WAL, beyond its
// references: its shard is free, or its owner holds the chunk (takes no writes) at the epoch
// that is named.
func (x ReshapeCollection) checkOwner(b *builder, c *Chunk) error {
	h := b.s.Shard(c.Shard)
	if h.Status == ShardFree {
		return nil
	}
	for _, o := range x.Owners {
		if o.Shard == h.ID && o.Epoch == h.Epoch {
			return nil
		}
	}
	return conflict("reshape collection", b.namespace(c.Collection),
		"chunk %d is owned by %s at epoch %d, which is not among the owners that answered %v", c.ID, h.ID, h.Epoch, x.Owners)
}

func (x DropCollection) apply(b *builder) error {
	c := b.s.Collection(x.ID)
	if c == nil {
		return conflict("drop collection", fmt.Sprintf("id %d", x.ID), "it does not exist")
	}
	b.removeCollection(c)
	b.log("dropCollection", c.Namespace(), detail().AppendBinary("uuid", 4, c.UUID[:]))
	return nil
}

// removeCollection takes out a collection and its chunks; their segments become candidates
// for GC.
func (b *builder) removeCollection(c *Collection) {
	for k := range b.s.Chunks(c.ID) {
		b.drop(k.Refs)
	}
	b.setCollections(slices.DeleteFunc(slices.Clone(b.s.collections), func(x *Collection) bool { return x.ID == c.ID }))
	b.s.tables = slices.DeleteFunc(slices.Clone(b.s.tables), func(t *table) bool { return t.collection == c.ID })
	delete(b.tables, c.ID)
}

func (x AlterCollection) apply(b *builder) error {
	const verb = "alter collection"
	c := b.s.Collection(x.Now.ID)
	if c == nil || x.Was.ID != x.Now.ID {
		return conflict(verb, x.Now.Namespace(), "no collection has id %d", x.Now.ID)
	}
	if field := alterable(c, &x.Was); field != "" {
		return conflict(verb, c.Namespace(), "%s changed meanwhile", field)
	}
	n := *c
	n.Options, n.Indexes, n.Zones = x.Now.Options, x.Now.Indexes, x.Now.Zones
	n.NoBalance, n.SplitWithinKey = x.Now.NoBalance, x.Now.SplitWithinKey
	n.Sharded, n.Unique = x.Now.Sharded, x.Now.Unique
	list := slices.Clone(b.s.collections)
	list[slices.Index(list, c)] = &n
	b.setCollections(list)
	switch alterable(c, &n) {
	case "zones":
		b.log("setZones", c.Namespace(), detail().AppendInt32("ranges", int32(len(n.Zones))))
	case "sharded":
		b.log("shardCollection.end", c.Namespace(), detail().AppendDocument("key", doc(c.Key.BSON())).AppendInt32("numChunks", int32(b.s.NumChunks(c.ID))))
	}
	return nil
}

// alterable names the first field that an AlterCollection can change and in which a and b
// differ, zones first; "" when there is none.
func alterable(a, b *Collection) string {
	switch {
	case !slices.EqualFunc(a.Zones, b.Zones, equalZone):
		return "zones"
	case !bytes.Equal(a.Options, b.Options):
		return "options"
	case !slices.EqualFunc(a.Indexes, b.Indexes, equalIndex):
		return "indexes"
	case a.NoBalance != b.NoBalance:
		return "noBalance"
	case a.SplitWithinKey != b.SplitWithinKey:
		return "splitWithinKey"
	case a.Sharded != b.Sharded:
		return "sharded"
	case a.Unique != b.Unique:
		return "unique"
	}
	return ""
}

func equalIndex(a, b Index) bool { return a.Name == b.Name && bytes.Equal(a.Spec, b.Spec) }

func equalZone(a, b ZoneRange) bool {
	return a.Zone == b.Zone && a.Range.Equal(b.Range) && bytes.Equal(a.MinBSON, b.MinBSON) && bytes.Equal(a.MaxBSON, b.MaxBSON)
}
