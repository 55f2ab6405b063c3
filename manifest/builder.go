package manifest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// builder is a State in the making. Lists are replaced, never written through, because they
// are shared with the state that the Edit started from; chunk pages are copied once, and
// the copies (known by their zero id) are written in place until finish names them.
type builder struct {
	s      *State
	edit   *Edit
	tables map[CollectionID]*table // those that this builder may write to
	logged []HistoryEntry
	gone   map[SegmentID]bool // dropped by this Edit
}

func newBuilder(s *State, e *Edit, nonce [16]byte, v Version) *builder {
	next := *s
	if v != s.version {
		next.pageNumber = 0
	}
	next.version, next.nonce = v, nonce
	return &builder{s: &next, edit: e, tables: map[CollectionID]*table{}}
}

// conflict says that a precondition does not hold: what was found, and what was expected.
func conflict(verb string, subject any, format string, args ...any) error {
	return fmt.Errorf("%s %v: %w: %s", verb, subject, errkind.Conflict, fmt.Sprintf(format, args...))
}

// invalid says that a change could never be right.
func invalid(verb string, subject any, format string, args ...any) error {
	return fmt.Errorf("%s %v: %w: %s", verb, subject, errkind.Invalid, fmt.Sprintf(format, args...))
}

func inserted[T any](list []T, i int, v T) []T { return slices.Concat(list[:i], []T{v}, list[i:]) }
func removed[T any](list []T, i int) []T       { return slices.Concat(list[:i], list[i+1:]) }
func replaced[T any](list []T, i int, v T) []T {
	out := slices.Clone(list)
	out[i] = v
	return out
}

// shard finds a shard that must exist.
func (b *builder) shard(verb string, id ShardID) (*Shard, error) {
	if h := b.s.Shard(id); h != nil {
		return h, nil
	}
	return nil, conflict(verb, id, "no such shard")
}

// shardAt finds a shard that must be at an epoch, free or not.
func (b *builder) shardAt(verb string, id ShardID, e Epoch) (*Shard, error) {
	h, err := b.shard(verb, id)
	if err == nil && h.Epoch != e {
		err = conflict(verb, id, "epoch is %d, expected %d", h.Epoch, e)
	}
	return h, err
}

// heldAt finds a shard that must be held at an epoch.
func (b *builder) heldAt(verb string, id ShardID, e Epoch) (*Shard, error) {
	h, err := b.shardAt(verb, id, e)
	if err == nil && h.Status == ShardFree {
		err = conflict(verb, id, "nobody holds it, expected the holder of epoch %d", e)
	}
	return h, err
}

// freeAt finds a shard that must be free at an epoch.
func (b *builder) freeAt(verb string, id ShardID, e Epoch) (*Shard, error) {
	h, err := b.shardAt(verb, id, e)
	if err == nil && h.Status != ShardFree {
		err = conflict(verb, id, "held by %q, expected free", h.Holder)
	}
	return h, err
}

// putShard adds or replaces a shard.
func (b *builder) putShard(h *Shard) {
	i, ok := slices.BinarySearchFunc(b.s.shards, h.ID, func(x *Shard, id ShardID) int { return cmp.Compare(x.ID, id) })
	if ok {
		b.s.shards = replaced(b.s.shards, i, h)
	} else {
		b.s.shards = inserted(b.s.shards, i, h)
	}
}

// setCollections replaces the list of collections, which is sorted by name, and its index.
func (b *builder) setCollections(list []*Collection) {
	b.s.collections = list
	b.s.byID = indexByID(list)
}

func indexByID(list []*Collection) []*Collection {
	byID := slices.Clone(list)
	slices.SortFunc(byID, func(x, y *Collection) int { return cmp.Compare(x.ID, y.ID) })
	return byID
}

// chunk finds a chunk that must be exactly as named.
func (b *builder) chunk(verb string, at ChunkAt) (*Chunk, error) {
	if c := b.s.ChunkAt(at); c != nil {
		return c, nil
	}
	subject := fmt.Sprintf("chunk %d", at.ID)
	c := b.s.ChunkOf(at.Collection, at.Min)
	if c == nil {
		return nil, conflict(verb, subject, "no collection %d", at.Collection)
	}
	return nil, conflict(verb, subject, "at %s is chunk %d version %d from %s, expected version %d",
		show(at.Min), c.ID, c.Version, show(c.Range.Min), at.Version)
}

// table returns the chunk table of a collection for writing.
func (b *builder) table(id CollectionID) *table {
	if t := b.tables[id]; t != nil {
		return t
	}
	i, _ := slices.BinarySearchFunc(b.s.tables, id, compareTable)
	t := *b.s.tables[i]
	t.pages = slices.Clone(t.pages)
	b.s.tables = replaced(b.s.tables, i, &t)
	b.tables[id] = &t
	return &t
}

// writable returns page i of t for writing.
func (t *table) writable(i int) *page {
	p := t.pages[i]
	if p.id != (pageID{}) {
		p = &page{chunks: slices.Clone(p.chunks)}
		t.pages[i] = p
	}
	return p
}

// replace puts chunks in the place of the chunk that starts where the first of them starts.
func (b *builder) replace(chunks ...*Chunk) {
	t := b.table(chunks[0].Collection)
	p := t.writable(t.pageOf(chunks[0].Range.Min))
	at := p.chunkOf(chunks[0].Range.Min)
	p.chunks = slices.Replace(p.chunks, at, at+1, chunks...)
	t.count += len(chunks) - 1
}

// remove takes out the chunk that starts at c's start.
func (b *builder) remove(c *Chunk) {
	t := b.table(c.Collection)
	i := t.pageOf(c.Range.Min)
	p := t.writable(i)
	at := p.chunkOf(c.Range.Min)
	p.chunks = slices.Delete(p.chunks, at, at+1)
	t.count--
	if len(p.chunks) == 0 {
		t.pages = slices.Delete(t.pages, i, i+1)
	}
}

// chunkID takes the next free chunk id.
func (b *builder) chunkID() ChunkID {
	id := b.s.nextChunk
	b.s.nextChunk++
	return id
}

// drop makes segments that lost a reference candidates for GC, each once per Edit.
func (b *builder) drop(refs []SegmentRef) {
	for _, r := range refs {
		if b.gone[r.Segment] {
			continue
		}
		if b.gone == nil {
			b.gone = map[SegmentID]bool{}
			b.s.dropped = slices.Clone(b.s.dropped)
		}
		b.gone[r.Segment] = true
		b.s.dropped = append(b.s.dropped, DroppedSegment{
			Segment: r.Segment, Location: r.Location, Version: b.s.version, Millis: b.edit.Millis,
		})
	}
}

// log adds an entry to the history. The names are those of MongoDB's config.changelog where
// it has one.
func (b *builder) log(what, ns string, detail *bsoncore.DocumentBuilder) {
	b.logged = append(b.logged, HistoryEntry{
		Version: b.s.version, Millis: b.edit.Millis, What: what, NS: ns, Detail: bson.Raw(detail.Build()),
	})
}

func detail() *bsoncore.DocumentBuilder { return bsoncore.NewDocumentBuilder() }

// doc embeds a document without looking into it.
func doc(d bson.Raw) bsoncore.Document { return bsoncore.Document(d) }

// namespace is the name of a chunk's collection, for the history.
func (b *builder) namespace(id CollectionID) string {
	if c := b.s.Collection(id); c != nil {
		return c.Namespace()
	}
	return ""
}
