package segment

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// object is an uploaded segment whose ranged GETs are recorded.
type object struct {
	mu   sync.Mutex
	body []byte
	gets []string // "offset+length"
}

func (o *object) fetch(_ context.Context, off, length int64) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gets = append(o.gets, fmt.Sprintf("%d+%d", off, length))
	if off >= int64(len(o.body)) {
		return nil, fmt.Errorf("get: %w: range beyond the end", errkind.Invalid)
	}
	return bytes.Clone(o.body[off:min(off+length, int64(len(o.body)))]), nil
}

func (o *object) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.gets)
}

func segmentID(n byte) manifest.SegmentID {
	return manifest.SegmentID{
		Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "shard01", Epoch: 7},
		Random:  [16]byte{n, 0xd0, 15: 0xa5},
	}
}

// doc is {_id: id, v: text}.
func doc(id int, text string) bson.Raw {
	i, b := bsoncore.AppendDocumentStart(nil)
	b = bsoncore.AppendInt64Element(b, "_id", int64(id))
	b = bsoncore.AppendStringElement(b, "v", text)
	b, _ = bsoncore.AppendDocumentEnd(b, i)
	return b
}

// key is a key of 9 bytes that orders by n.
func key(n int) []byte { return fmt.Appendf(nil, "k%08d", n) }

func put(c manifest.CollectionID, n int, seq manifest.Seq, text string) Row {
	return Row{Collection: c, Key: key(n), Seq: seq, Doc: doc(n, text)}
}

func del(c manifest.CollectionID, n int, seq manifest.Seq) Row {
	return Row{Collection: c, Key: key(n), Seq: seq, Delete: true}
}

func compareRows(a, b Row) int {
	if c := cmp.Compare(a.Collection, b.Collection); c != 0 {
		return c
	}
	if c := bytes.Compare(a.Key, b.Key); c != 0 {
		return c
	}
	return cmp.Compare(b.Seq, a.Seq)
}

// build writes the rows, which are sorted, and the entries with one Cut per collection.
func build(t testing.TB, o *WriterOptions, rows []Row, retries []RetryEntry) ([]byte, []manifest.SegmentRef) {
	t.Helper()
	w := NewWriter(segmentID(1), o)
	collections := map[manifest.CollectionID]bool{}
	for _, r := range rows {
		collections[r.Collection] = true
	}
	for _, e := range retries {
		collections[e.Collection] = true
	}
	var order []manifest.CollectionID
	for c := range collections {
		order = append(order, c)
	}
	slices.Sort(order)
	for _, c := range order {
		for _, r := range rows {
			if r.Collection == c {
				check(t, w.Add(r))
			}
		}
		for _, e := range retries {
			if e.Collection == c {
				check(t, w.AddRetry(e))
			}
		}
		check(t, w.Cut(Part{Collection: c}))
	}
	body, tail, err := w.Finish()
	check(t, err)
	for _, ref := range w.Refs() {
		if ref.TailOffset != tail.Offset || ref.TailLength != tail.Length || ref.Size != uint64(len(body)) {
			t.Fatalf("reference %+v does not name the tail %+v", ref, tail)
		}
	}
	return body, w.Refs()
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens what build returned.
func open(t testing.TB, body []byte, refs []manifest.SegmentRef, cache *Cache) (*Reader, *object) {
	t.Helper()
	o := &object{body: body}
	r, err := Open(t.Context(), o.fetch, refs[0], cache)
	check(t, err)
	return r, o
}

func scan(t testing.TB, r *Reader, c manifest.CollectionID, rng shardkey.Range, reverse bool) []Row {
	t.Helper()
	it := r.Scan(c, rng, reverse)
	var rows []Row
	for it.Next(t.Context()) {
		rows = append(rows, it.Row())
	}
	check(t, it.Err())
	return rows
}

func sameRows(t testing.TB, got, want []Row) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		if compareRows(g, w) != 0 || g.Delete != w.Delete || !bytes.Equal(g.Doc, w.Doc) {
			t.Fatalf("row %d is %d %q seq %d delete %v %x, want %d %q seq %d delete %v %x", i,
				g.Collection, g.Key, g.Seq, g.Delete, g.Doc, w.Collection, w.Key, w.Seq, w.Delete, w.Doc)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
}

// text is n bytes that compress about as well as documents do.
func text(r *rand.Rand, n int) string {
	words := []string{"alpha", "beta", "gamma", "delta", "order", "city", "price", "2026-01-01"}
	var b []byte
	for len(b) < n {
		b = append(b, words[r.IntN(len(words))]...)
		b = fmt.Appendf(b, " %d ", r.IntN(1000))
	}
	return string(b[:n])
}

// sample is n rows of each collection, a third with an older version, a few deleted.
func sample(n int, collections ...manifest.CollectionID) []Row {
	r := rand.New(rand.NewPCG(1, 2))
	var rows []Row
	for _, c := range collections {
		for i := range n {
			seq := manifest.Seq(1000 + r.IntN(1000))
			switch r.IntN(10) {
			case 0:
				rows = append(rows, del(c, i, seq))
			default:
				rows = append(rows, put(c, i, seq, text(r, 20+r.IntN(200))))
			}
			if i%3 == 0 {
				rows = append(rows, put(c, i, seq-1-manifest.Seq(r.IntN(900)), text(r, 30)))
			}
		}
	}
	return rows
}
