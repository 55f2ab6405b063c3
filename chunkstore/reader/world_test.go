package reader

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const collection manifest.CollectionID = 7

var ctx = context.Background()

// world is a bucket that counts, and a chunk whose segments are in it.
type world struct {
	t      failer
	bucket *layer.Metered
	inner  bucket.Bucket
	store  *Store
	view   View
	block  int // block size of the segments
	next   uint64
}

// failer is what *testing.T and *rapid.T share.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func newWorld(t failer) *world {
	w := &world{t: t, inner: membucket.New(), block: 256}
	w.bucket = layer.Metrics(w.inner)
	w.view.Chunk = &manifest.Chunk{ID: 3, Collection: collection, Version: 1}
	w.cool()
	return w
}

// cool forgets everything that was cached.
func (w *world) cool() { w.store = w.open(w.bucket) }

// open makes a store to which the segments of tests, all of them small, are as large ones:
// tail and blocks are fetched apart.
func (w *world) open(b bucket.Bucket) *Store {
	s := NewStore(func(manifest.LocationID) (bucket.Bucket, error) { return b, nil }, segment.NewCache(64<<20))
	s.whole = 0
	return s
}

// add uploads rows as one segment and appends its reference to the chunk.
func (w *world) add(rows ...segment.Row) *manifest.SegmentRef {
	w.t.Helper()
	w.next++
	var id manifest.SegmentID
	id.Creator = manifest.Creator{Kind: manifest.CreatorShard, Shard: "shard01", Epoch: 1}
	binary.BigEndian.PutUint64(id.Random[:], w.next)
	slices.SortFunc(rows, func(a, b segment.Row) int {
		return cmp.Or(bytes.Compare(a.Key, b.Key), cmp.Compare(b.Seq, a.Seq))
	})
	sw := segment.NewWriter(id, &segment.WriterOptions{BlockSize: w.block})
	for _, r := range rows {
		w.must(sw.Add(r))
	}
	w.must(sw.Cut(segment.Part{Collection: collection}))
	body, _, err := sw.Finish()
	w.must(err)
	w.upload(id, body)
	c := *w.view.Chunk
	c.Refs = append(slices.Clone(c.Refs), sw.Refs()[0])
	w.view.Chunk = &c
	return &c.Refs[len(c.Refs)-1]
}

func (w *world) upload(id manifest.SegmentID, body []byte) {
	w.t.Helper()
	_, err := w.inner.Put(ctx, id.Key(), body, bucket.Condition{})
	w.must(err)
}

// spent is how many GETs do sends, and fails at anything else that it sends.
func (w *world) spent(do func()) int {
	w.t.Helper()
	before := w.bucket.Snapshot()
	do()
	d := w.bucket.Snapshot().Sub(before)
	gets := d.Total(layer.Get).Requests
	if all := fmt.Sprintf("get seg=%d", gets); gets != 0 && d.String() != all || gets == 0 && d.String() != "" {
		w.t.Fatalf("requests: %s, want only GETs of segments", d)
	}
	return int(gets)
}

func (w *world) get(k int) (string, bool) {
	w.t.Helper()
	row, live, err := w.store.Get(ctx, w.view, key(k))
	w.must(err)
	if !live {
		return "", false
	}
	return text(row), true
}

// scan is the rows of a range as "key=text".
func (w *world) scan(r shardkey.Range, reverse bool, limit int) (out []string) {
	w.t.Helper()
	it := w.store.Scan(ctx, w.view, r, reverse)
	for (limit == 0 || len(out) < limit) && it.Next(ctx) {
		out = append(out, fmt.Sprintf("%s=%s", it.Row().Key, text(it.Row())))
	}
	w.must(it.Err())
	return out
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func key(k int) []byte { return fmt.Appendf(nil, "k%05d", k) }

func keys(from, to int) shardkey.Range { return shardkey.Range{Min: key(from), Max: key(to)} }

func put(k int, seq manifest.Seq, text string) segment.Row {
	doc, err := bson.Marshal(bson.D{{Key: "t", Value: text}})
	if err != nil {
		panic(err)
	}
	return segment.Row{Collection: collection, Key: key(k), Seq: seq, Doc: doc}
}

func del(k int, seq manifest.Seq) segment.Row {
	return segment.Row{Collection: collection, Key: key(k), Seq: seq, Delete: true}
}

func text(r segment.Row) string { return r.Doc.Lookup("t").StringValue() }

// run is rows from..to-1, each with the text.
func run(from, to int, seq manifest.Seq, text string) (rows []segment.Row) {
	for k := from; k < to; k++ {
		rows = append(rows, put(k, seq, text))
	}
	return rows
}

// mem is a memtable: its rows by key, one for each.
type mem []segment.Row

func newMem(rows ...segment.Row) mem {
	slices.SortFunc(rows, func(a, b segment.Row) int { return bytes.Compare(a.Key, b.Key) })
	return slices.CompactFunc(rows, func(a, b segment.Row) bool { return bytes.Equal(a.Key, b.Key) })
}

func (m mem) Get(key []byte) (segment.Row, bool) {
	for _, r := range m {
		if bytes.Equal(r.Key, key) {
			return r, true
		}
	}
	return segment.Row{}, false
}

func (m mem) Scan(r shardkey.Range, reverse bool) MemIter {
	var in []segment.Row
	for _, row := range m {
		if r.Contains(row.Key) {
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
