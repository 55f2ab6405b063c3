package manifest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// PageRef is what a root says about a page that is an object of its own.
type PageRef struct {
	Collection CollectionID
	Location   LocationID
	// Base and Nonce name the object. Base is the version of the root that its commit was
	// planned on; only the commit that follows Base can have brought a reference to it.
	Base  Version
	Nonce uint64
	// Chunks and FirstKey are how many chunks are in it, and where the first begins; of a page
	// in another location than the cluster's own bucket the root does not tell FirstKey.
	Chunks   int
	FirstKey []byte

	id pageID
}

// PagePrefix is where pages are, in order of their base versions.
const PagePrefix = "meta/page/"

// Key is the object key: meta/page/<base version>/<nonce>.
func (p PageRef) Key() string {
	return fmt.Sprintf("%s%020d/%016x", PagePrefix, uint64(p.Base), p.Nonce)
}

// PageBase is the base version in the object key of a page; false for other keys.
func PageBase(key string) (Version, bool) {
	var p PageRef
	_, err := fmt.Sscanf(key, "meta/page/%d/%x", &p.Base, &p.Nonce)
	return p.Base, err == nil && p.Key() == key
}

// Pages are the pages of s that are objects, by collection and key: what GC must keep as
// long as this version can be read.
func (s *State) Pages() []PageRef {
	var refs []PageRef
	for _, t := range s.tables {
		for _, p := range t.pages {
			if p.stored != nil {
				refs = append(refs, p.ref(t.collection))
			}
		}
	}
	return refs
}

func (p *page) ref(c CollectionID) PageRef {
	o := p.stored
	return PageRef{
		Collection: c, Location: o.location, Base: o.base, Nonce: o.nonce,
		Chunks: len(p.chunks), FirstKey: p.told(), id: p.id,
	}
}

// told is where a stored page begins, as the root may tell it.
func (p *page) told() []byte {
	if p.stored.location != 0 {
		return nil
	}
	return p.min()
}

// pageExtra are the fields of a page object between header and body: cluster id 16,
// collection 4, version 8 and number 4 of the page's id, nonce 8.
const pageExtra = 40

// encodePage makes the object of a page that ref refers to.
func encodePage(cluster ClusterID, ref PageRef, chunks []*Chunk) ([]byte, error) {
	extra := make([]byte, 0, pageExtra)
	extra = append(extra, cluster[:]...)
	extra = binary.LittleEndian.AppendUint32(extra, uint32(ref.Collection))
	extra = binary.LittleEndian.AppendUint64(extra, uint64(ref.id.version))
	extra = binary.LittleEndian.AppendUint32(extra, ref.id.number)
	extra = binary.LittleEndian.AppendUint64(extra, ref.Nonce)
	return pack(pageMagic, extra, EncodeChunks(chunks))
}

// DecodePage reads the object of a page and checks that it is the one that ref means: of
// this cluster, with that content and name. Errors: Corrupt, naming the object.
func DecodePage(cluster ClusterID, ref PageRef, object []byte) ([]*Chunk, error) {
	extra, body, err := unpack(pageMagic, pageExtra, object)
	if err != nil {
		return nil, fmt.Errorf("page %s: %w", ref.Key(), err)
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("page %s: %w: "+format, append([]any{ref.Key(), errkind.Corrupt}, args...)...)
	}
	r := reader{b: extra}
	owner, collection := r.id16(), CollectionID(r.u32())
	id, nonce := pageID{version: Version(r.u64()), number: r.u32()}, r.u64()
	if owner != cluster || collection != ref.Collection || id != ref.id || nonce != ref.Nonce {
		return nil, bad("it is %v of collection %d, nonce %016x, of cluster %x; expected %v of %d, %016x, %x",
			id, collection, nonce, owner, ref.id, ref.Collection, ref.Nonce, cluster)
	}
	chunks, err := DecodeChunks(ref.Collection, body)
	if err != nil {
		return nil, fmt.Errorf("page %s: %w", ref.Key(), err)
	}
	if len(chunks) != ref.Chunks || ref.Location == 0 && string(chunks[0].Range.Min) != string(ref.FirstKey) {
		return nil, bad("%d chunks from %x, expected %d from %x", len(chunks), chunks[0].Range.Min, ref.Chunks, ref.FirstKey)
	}
	return chunks, nil
}

// Flags of a chunk and of a reference in a page.
const (
	chunkHasFloor = 1 << iota
	chunkEstimated
)

const (
	refClipFromMin = 1 << iota // the clip begins where the chunk does
	refClipToMax               // the clip ends where the chunk does
	refFixedSeq
	refDates // it bounds the dates of its rows
)

// EncodeChunks is the body of a page, and what programs note of chunks that they saw: up to
// PageChunksMax of one collection, which follow one another in key order. First come dictionaries
// of owners and creators, then the n+1 bounds of n chunks, then the chunks.
func EncodeChunks(chunks []*Chunk) []byte {
	w := &writer{b: make([]byte, 0, 4096)}
	w.uint(uint64(len(chunks)))
	shards, creators := dictionaries(chunks)
	w.uint(uint64(len(shards)))
	for _, id := range shards {
		w.text(string(id))
	}
	w.uint(uint64(len(creators)))
	for _, c := range creators {
		w.creator(c)
	}
	for _, c := range chunks {
		w.bytes(c.Range.Min)
		w.bytes(c.MinBSON)
	}
	last := chunks[len(chunks)-1]
	w.bytes(last.Range.Max)
	w.bytes(last.MaxBSON)
	for _, c := range chunks {
		at, _ := slices.BinarySearch(shards, c.Shard)
		w.chunk(c, uint64(at), creators)
	}
	return w.b
}

// dictionaries are the distinct owners and creators of some chunks, sorted.
func dictionaries(chunks []*Chunk) (shards []ShardID, creators []Creator) {
	seen := map[Creator]bool{}
	for _, c := range chunks {
		shards = append(shards, c.Shard)
		for i := range c.Refs {
			if k := c.Refs[i].Segment.Creator; !seen[k] {
				seen[k] = true
				creators = append(creators, k)
			}
		}
	}
	slices.Sort(shards)
	slices.SortFunc(creators, compareCreator)
	return slices.Compact(shards), creators
}

func compareCreator(a, b Creator) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.Epoch, b.Epoch),
		slices.Compare(a.Job[:], b.Job[:]))
}

func (w *writer) creator(c Creator) {
	w.u8(byte(c.Kind))
	if c.Kind == CreatorJob {
		w.fixed(c.Job[:])
		return
	}
	w.text(string(c.Shard))
	w.uint(uint64(c.Epoch))
}

func (r *reader) creator() Creator {
	c := Creator{Kind: CreatorKind(r.u8())}
	switch c.Kind {
	case CreatorJob:
		c.Job = r.id16()
	case CreatorShard, CreatorDirect:
		c.Shard, c.Epoch = ShardID(r.text()), Epoch(r.uint())
	default:
		r.fail("unknown creator %q", byte(c.Kind))
	}
	return c
}

func (w *writer) position(p Position) { w.uint(uint64(p.Epoch)); w.uint(p.Next) }
func (r *reader) position() Position  { return Position{Epoch: Epoch(r.uint()), Next: r.uint()} }

func (w *writer) chunk(c *Chunk, shard uint64, creators []Creator) {
	w.uint(uint64(c.ID))
	w.uint(uint64(c.Version))
	w.uint(shard)
	hasFloor := c.OwnFloor != Position{}
	w.flags(hasFloor, c.RowsEstimated)
	if hasFloor {
		w.position(c.OwnFloor)
	}
	w.uint(uint64(c.MaxSeq))
	w.uint(uint64(c.Rows))
	w.uint(uint64(c.Bytes))
	w.uint(uint64(c.Flags))
	if c.Flags&ChunkIndivisible != 0 {
		w.bytes(c.Indivisible.Value)
		w.uint(uint64(c.Indivisible.Bytes))
	}
	w.int(c.ManualUntil)
	w.uint(uint64(len(c.Refs)))
	for i := range c.Refs {
		at, _ := slices.BinarySearchFunc(creators, c.Refs[i].Segment.Creator, compareCreator)
		w.ref(&c.Refs[i], c.Range, uint64(at))
	}
}

func (w *writer) ref(r *SegmentRef, chunk shardkey.Range, creator uint64) {
	w.uint(creator)
	w.fixed(r.Segment.Random[:])
	w.uint(uint64(r.Location))
	fromMin, toMax := string(r.Clip.Min) == string(chunk.Min), string(r.Clip.Max) == string(chunk.Max)
	w.flags(fromMin, toMax, r.FixedSeq != 0, r.Dates != (DateBounds{}))
	if !fromMin {
		w.bytes(r.Clip.Min)
	}
	if !toMax {
		w.bytes(r.Clip.Max)
	}
	w.bytes(r.MinKey)
	w.bytes(r.MaxKey)
	w.uint(uint64(r.MinSeq))
	if r.FixedSeq == 0 {
		w.uint(uint64(r.MaxSeq - r.MinSeq))
	}
	w.uint(r.TailOffset)
	w.uint(uint64(r.TailLength))
	w.uint(r.Size)
	w.uint(r.Rows)
	w.uint(r.Bytes)
	w.int(r.RetryUntil)
	if r.Dates != (DateBounds{}) {
		w.u64(r.Dates.Of)
		w.int(r.Dates.Min)
		w.int(r.Dates.Max)
	}
}

// DecodeChunks is the inverse of EncodeChunks. The chunks alias b. Errors: Corrupt.
func DecodeChunks(collection CollectionID, body []byte) ([]*Chunk, error) {
	r := &reader{b: body}
	n := int(r.upTo(PageChunksMax))
	shards := list(r, r.count(1), func(r *reader) ShardID { return ShardID(r.text()) })
	creators := list(r, r.count(3), (*reader).creator)
	type bound struct{ key, bson []byte }
	bounds := list(r, n+1, func(r *reader) bound { return bound{r.bytes(), r.bytes()} })
	if r.err == nil && n == 0 {
		r.fail("no chunks")
	}
	if r.err != nil {
		return nil, r.err
	}
	chunks := make([]*Chunk, n)
	for i := range chunks {
		low, high := bounds[i], bounds[i+1]
		c := &Chunk{Collection: collection, Range: shardkey.Range{Min: low.key, Max: high.key}, MinBSON: low.bson, MaxBSON: high.bson}
		if r.chunk(c, shards, creators); r.err != nil {
			return nil, r.err
		}
		chunks[i] = c
	}
	return chunks, r.end()
}

func (r *reader) chunk(c *Chunk, shards []ShardID, creators []Creator) {
	c.ID, c.Version = ChunkID(r.uint()), ChunkVersion(r.uint())
	c.Shard = pick(r, shards)
	flags := r.flags(2)
	if flags&chunkHasFloor != 0 {
		c.OwnFloor = r.position()
	}
	c.RowsEstimated = flags&chunkEstimated != 0
	c.MaxSeq = Seq(r.uint())
	c.Rows, c.Bytes = int64(r.upTo(1<<63-1)), int64(r.upTo(1<<63-1))
	c.Flags = ChunkFlags(r.upTo(1<<32 - 1))
	if c.Flags&ChunkIndivisible != 0 {
		c.Indivisible = Indivisible{Value: r.bytes(), Bytes: int64(r.upTo(1<<63 - 1))}
	}
	c.ManualUntil = r.int()
	c.Refs = list(r, r.count(refSizeMin), func(r *reader) SegmentRef { return r.ref(c.Range, creators) })
}

// pick reads an index into a dictionary.
func pick[T any](r *reader, from []T) (v T) {
	i := r.uint()
	if i >= uint64(len(from)) {
		r.fail("entry %d of a dictionary of %d", i, len(from))
		return v
	}
	return from[i]
}

// refSizeMin is the fewest bytes that a reference takes: 16 random ones, and 12 fields.
const refSizeMin = 16 + 12

func (r *reader) ref(chunk shardkey.Range, creators []Creator) (x SegmentRef) {
	x.Segment = SegmentID{Creator: pick(r, creators), Random: r.id16()}
	x.Location = LocationID(r.upTo(1<<32 - 1))
	flags := r.flags(4)
	x.Clip = chunk
	if flags&refClipFromMin == 0 {
		x.Clip.Min = r.bytes()
	}
	if flags&refClipToMax == 0 {
		x.Clip.Max = r.bytes()
	}
	x.MinKey, x.MaxKey = r.bytes(), r.bytes()
	x.MinSeq = Seq(r.uint())
	if flags&refFixedSeq != 0 {
		x.FixedSeq, x.MaxSeq = x.MinSeq, x.MinSeq
		if x.FixedSeq == 0 {
			r.fail("fixed seq 0")
		}
	} else if x.MaxSeq = x.MinSeq + Seq(r.uint()); x.MaxSeq < x.MinSeq {
		r.fail("seq overflow")
	}
	x.TailOffset, x.TailLength = r.uint(), uint32(r.upTo(1<<32-1))
	x.Size, x.Rows, x.Bytes = r.uint(), r.uint(), r.uint()
	x.RetryUntil = r.int()
	if flags&refDates != 0 {
		x.Dates = DateBounds{Of: r.u64(), Min: r.int(), Max: r.int()}
		if x.Dates == (DateBounds{}) {
			r.fail("dates without bounds")
		}
	}
	return x
}
