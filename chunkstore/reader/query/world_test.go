package query

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const collection manifest.CollectionID = 7

var ctx = context.Background()

// failer is what *testing.T, *testing.B and *rapid.T share.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// world is a collection with the shard key {g: 1}, cut into chunks at values of g.
type world struct {
	t      failer
	bucket bucket.Bucket
	store  *reader.Store
	key    shardkey.Pattern
	chunks []*chunk // in key order
	next   uint64
}

type chunk struct {
	entry   manifest.Chunk
	mems    []reader.Mem
	flushed map[string]bool // row keys
}

func newWorld(t failer, cuts ...int) *world {
	w := &world{t: t, bucket: membucket.New(), key: pattern(t, bson.D{{Key: "g", Value: 1}})}
	w.cool()
	var low []byte
	for i := range len(cuts) + 1 {
		c := &chunk{entry: manifest.Chunk{ID: manifest.ChunkID(i + 1), Collection: collection, Range: shardkey.Range{Min: low}}, flushed: map[string]bool{}}
		if i < len(cuts) {
			c.entry.Range.Max = w.prefix(cuts[i])
			low = c.entry.Range.Max
		}
		w.chunks = append(w.chunks, c)
	}
	return w
}

// cool forgets everything that was cached.
func (w *world) cool() { w.over(w.bucket) }

func (w *world) over(b bucket.Bucket) {
	w.store = reader.NewStore(func(manifest.LocationID) (bucket.Bucket, error) { return b, nil }, segment.NewCache(64<<20))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// flush stores documents as one more segment of each chunk that has some of them.
func (w *world) flush(docs ...bson.Raw) {
	w.t.Helper()
	for _, c := range w.chunks {
		rows := w.rows(c, docs)
		if len(rows) == 0 {
			continue
		}
		w.next++
		id := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "shard01", Epoch: 1}}
		binary.BigEndian.PutUint64(id.Random[:], w.next)
		sw := segment.NewWriter(id, nil)
		for _, r := range rows {
			w.must(sw.Add(r))
			c.flushed[string(r.Key)] = true
		}
		w.must(sw.Cut(segment.Part{Collection: collection, Clip: c.entry.Range}))
		body, _, err := sw.Finish()
		w.must(err)
		_, err = w.bucket.Put(ctx, id.Key(), body, bucket.Condition{})
		w.must(err)
		c.entry.Refs = append(c.entry.Refs, sw.Refs()...)
		c.entry.Rows = int64(len(c.flushed))
	}
}

// hold puts documents into a new memtable of each chunk that has some of them.
func (w *world) hold(docs ...bson.Raw) {
	for _, c := range w.chunks {
		if rows := w.rows(c, docs); len(rows) > 0 {
			c.mems = append([]reader.Mem{mem(rows)}, c.mems...)
		}
	}
}

// rows is the rows of those documents that belong to a chunk, each with a new seq.
func (w *world) rows(c *chunk, docs []bson.Raw) (rows []segment.Row) {
	for _, d := range docs {
		key := w.rowKey(d)
		if c.entry.Range.Contains(key) {
			c.entry.MaxSeq++
			rows = append(rows, segment.Row{Collection: collection, Key: key, Seq: c.entry.MaxSeq, Doc: d})
		}
	}
	slices.SortFunc(rows, func(a, b segment.Row) int {
		return cmp.Or(bytes.Compare(a.Key, b.Key), cmp.Compare(b.Seq, a.Seq))
	})
	return rows
}

func (w *world) rowKey(d bson.Raw) []byte {
	key, err := w.key.AppendKey(nil, d)
	w.must(err)
	return key
}

// prefix is the shard key bytes of a value of g.
func (w *world) prefix(g int) []byte {
	key, err := w.key.AppendShardKey(nil, raw(bson.D{{Key: "g", Value: g}}))
	w.must(err)
	return key
}

// targets is every chunk, and of each what the ranges have in common with it.
func (w *world) targets(ranges ...shardkey.Range) (all []Target) {
	for _, c := range w.chunks {
		entry := c.entry
		t := Target{View: reader.View{Chunk: &entry, Mems: c.mems}, Key: w.key}
		for _, r := range ranges {
			if r.Overlaps(entry.Range) {
				t.Ranges = append(t.Ranges, r)
			}
		}
		if len(ranges) == 0 || len(t.Ranges) > 0 {
			all = append(all, t)
		}
	}
	return all
}

// point is the range of exactly one document.
func (w *world) point(d bson.Raw) shardkey.Range {
	key := w.rowKey(d)
	return shardkey.Range{Min: key, Max: shardkey.PrefixEnd(key)}
}

func (w *world) open(q rpc.Query, targets []Target) *Cursor {
	w.t.Helper()
	c, err := Open(ctx, w.store, targets, q, Limits{})
	w.must(err)
	return c
}

// all drains a cursor in batches.
func (w *world) all(c *Cursor, b rpc.Batch) (docs []bson.Raw) {
	w.t.Helper()
	for {
		part, done, err := c.Next(ctx, b)
		w.must(err)
		if docs = append(docs, part...); done {
			return docs
		}
		if len(part) == 0 {
			w.t.Fatal("an empty batch that is not the last")
		}
	}
}

func (w *world) find(q rpc.Query, targets []Target) []bson.Raw {
	w.t.Helper()
	return w.all(w.open(q, targets), rpc.Batch{})
}

func raw(d bson.D) bson.Raw {
	b, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return b
}

func pattern(t failer, d bson.D) shardkey.Pattern {
	p, err := shardkey.ParsePattern(raw(d))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// doc is a document of the collection.
func doc(g, id int, more ...bson.E) bson.Raw {
	return raw(append(bson.D{{Key: "_id", Value: id}, {Key: "g", Value: g}}, more...))
}

// mem is a memtable: rows by key, the newest of each key first.
type mem []segment.Row

func (m mem) Get(key []byte) (segment.Row, bool) {
	for _, r := range m {
		if bytes.Equal(r.Key, key) {
			return r, true
		}
	}
	return segment.Row{}, false
}

func (m mem) Scan(r shardkey.Range, reverse bool) reader.MemIter {
	var in []segment.Row
	for _, row := range m {
		if r.Contains(row.Key) && (len(in) == 0 || !bytes.Equal(in[len(in)-1].Key, row.Key)) {
			in = append(in, row)
		}
	}
	if reverse {
		slices.Reverse(in)
	}
	return &memIter{rows: in, at: -1}
}

type memIter struct {
	rows []segment.Row
	at   int
}

func (it *memIter) Next() bool       { it.at++; return it.at < len(it.rows) }
func (it *memIter) Row() segment.Row { return it.rows[it.at] }
