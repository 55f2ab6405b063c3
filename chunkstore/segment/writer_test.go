package segment

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func wantKind(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want %v", err, kind)
	}
}

// One file holds chunks of several collections; each Cut gives a reference with exactly
// what the chunk's rows are, and reading through it gives exactly these rows.
func TestCutsBecomeReferences(t *testing.T) {
	t.Parallel()
	w := NewWriter(segmentID(1), &WriterOptions{BlockSize: 300, Location: 4})
	type chunk struct {
		Part
		rows []Row
		want manifest.SegmentRef
	}
	chunks := []chunk{
		{Part: Part{Collection: 1, Clip: shardkey.Range{Max: key(10)}}},
		{Part: Part{Collection: 1, Clip: shardkey.Range{Min: key(10), Max: key(20)}}},
		{Part: Part{Collection: 1, Clip: shardkey.Range{Min: key(20)}}},
		{Part: Part{Collection: 2}},
	}
	for i := range chunks {
		c := &chunks[i]
		from, to := 10*i, 10*i+10
		if i == 1 {
			from = to // no rows, only a retry entry
			check(t, w.AddRetry(RetryEntry{Collection: 1, Key: key(11), ExpiresAt: 50}))
			check(t, w.AddRetry(RetryEntry{Collection: 1, Key: key(10), ExpiresAt: 40}))
		}
		c.want = manifest.SegmentRef{Segment: segmentID(1), Location: 4, Clip: c.Clip}
		for n := from; n < to; n++ {
			r := put(c.Collection, n, manifest.Seq(100+n%7), "text")
			c.rows = append(c.rows, r)
			check(t, w.Add(r))
			c.want.Rows++
			c.want.Bytes += uint64(len(r.Key) + len(r.Doc))
		}
		if from < to {
			c.want.MinKey, c.want.MaxKey, c.want.MinSeq, c.want.MaxSeq = key(from), key(to-1), 100, 106
		}
		check(t, w.Cut(c.Part))
	}
	chunks[1].want.RetryUntil = 50
	body, tail, err := w.Finish()
	check(t, err)
	obj := &object{body: body}
	for i, ref := range w.Refs() {
		want := chunks[i].want
		want.TailOffset, want.TailLength, want.Size = tail.Offset, tail.Length, uint64(len(body))
		if d := cmp.Diff(want, ref); d != "" {
			t.Errorf("chunk %d: -want +got:\n%s", i, d)
		}
		r, err := Open(t.Context(), obj.fetch, ref, nil)
		check(t, err)
		sameRows(t, scan(t, r, chunks[i].Collection, ref.Clip, false), chunks[i].rows)
		check(t, Verify(t.Context(), obj.fetch, ref, nil))
	}
}

// What breaks order, limits or cuts is refused and changes nothing.
func TestWriterRefusesWhatWouldNotRead(t *testing.T) {
	t.Parallel()
	w := NewWriter(segmentID(1), nil)
	check(t, w.Add(put(2, 5, 10, "x")))
	long := put(2, 6, 1, "x")
	long.Key = make([]byte, MaxKeyBytes+1)
	half := put(2, 6, 1, "x")
	half.Doc = half.Doc[:len(half.Doc)-1]
	tombstone := del(2, 6, 1)
	tombstone.Doc = doc(6, "x")
	for name, r := range map[string]Row{
		"lower key": put(2, 4, 1, "x"), "lower collection": put(1, 9, 1, "x"), "same seq": put(2, 5, 10, "y"),
		"higher seq of the same key": put(2, 5, 11, "y"), "no collection": put(0, 6, 1, "x"), "no key": {Collection: 2, Doc: doc(1, "x")},
		"long key": long, "half a document": half, "document in a delete": tombstone, "another collection before the cut": put(3, 1, 1, "x"),
	} {
		if err := w.Add(r); !errors.Is(err, errkind.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []Part{
		{Collection: 1}, {Collection: 2, Clip: shardkey.Range{Min: key(6)}}, {Collection: 2, Clip: shardkey.Range{Max: key(5)}},
	} {
		wantKind(t, w.Cut(c), errkind.Invalid)
	}
	for _, e := range []RetryEntry{{Key: key(1)}, {Collection: 2, Span: shardkey.Range{Max: make([]byte, MaxKeyBytes+2)}}, {Collection: 2, Key: long.Key}, {Collection: 2, Key: key(1), Reply: make([]byte, MaxDocBytes+1)}} {
		wantKind(t, w.AddRetry(e), errkind.Invalid)
	}
	_, _, err := w.Finish()
	wantKind(t, err, errkind.Invalid)
	check(t, w.AddRetry(RetryEntry{Collection: 2, Key: key(7)}))
	wantKind(t, w.Cut(Part{Collection: 2, Clip: shardkey.Range{Max: key(6)}}), errkind.Invalid)
	check(t, w.Add(put(2, 5, 9, "older")))
	check(t, w.Cut(Part{Collection: 2}))
	if w.Rows() != 2 || w.Size() <= headerSize {
		t.Errorf("%d rows, %d bytes", w.Rows(), w.Size())
	}
	body, _, err := w.Finish()
	check(t, err)
	check(t, Verify(t.Context(), (&object{body: body}).fetch, w.Refs()[0], nil))
}

func bigDoc(n int) bson.Raw {
	b := bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n]
	b[0], b[1], b[2], b[3] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
	b[n-1] = 0
	return b
}

// A row at its limits makes a block of its own: its small neighbours stay cheap to read.
func TestLargeDocumentsMakeTheirOwnBlock(t *testing.T) {
	t.Parallel()
	for _, c := range []Codec{S2, Zstd} {
		huge := Row{Collection: 1, Key: bytes.Repeat([]byte("k"), MaxKeyBytes), Seq: 1, Doc: bigDoc(MaxDocBytes)}
		rows := []Row{put(1, 0, 1, "a"), put(1, 1, 1, "b"), huge, {Collection: 1, Key: []byte("l"), Seq: 1, Doc: doc(1, "c")}}
		body, refs := build(t, &WriterOptions{Codec: c}, rows, nil)
		r, _ := open(t, body, refs, nil)
		if got := r.tail.blocks.rows; !cmp.Equal(got, []uint32{2, 1, 1}) {
			t.Errorf("blocks of %d rows", got)
		}
		sameRows(t, scan(t, r, 1, shardkey.Range{}, false), rows)
		row, ok, err := r.Get(t.Context(), 1, huge.Key)
		if err != nil || !ok || !bytes.Equal(row.Doc, huge.Doc) {
			t.Errorf("get: %v %v", ok, err)
		}
	}
}

// A decoded block, restarts and all, is never larger than the block size, unless it is one
// row: its memory is what the options say.
func TestBlocksKeepTheirSize(t *testing.T) {
	t.Parallel()
	body, refs := build(t, &WriterOptions{BlockSize: 4096}, sample(2000, 1), nil)
	r, _ := open(t, body, refs, nil)
	for i := range r.tail.blocks.frames() {
		b, err := r.block(t.Context(), i)
		check(t, err)
		if n := b.sizeBytes(); n > 4096+96 || n < 3000 && i < r.tail.blocks.frames()-1 {
			t.Errorf("block %d takes %d bytes", i, n)
		}
	}
}

// An empty segment, and one with retry entries only, are readable.
func TestSegmentWithoutRows(t *testing.T) {
	t.Parallel()
	for n := range 2 {
		var entries []RetryEntry
		for range n {
			entries = append(entries, RetryEntry{Collection: 1, Key: key(1), ExpiresAt: 9})
		}
		w := NewWriter(segmentID(1), nil)
		for _, e := range entries {
			check(t, w.AddRetry(e))
		}
		check(t, w.Cut(Part{Collection: 1}))
		body, _, err := w.Finish()
		check(t, err)
		r, obj := open(t, body, w.Refs(), nil)
		sameRows(t, scan(t, r, 1, shardkey.Range{}, false), nil)
		_, ok, err := r.Get(t.Context(), 1, key(1))
		if ok || err != nil {
			t.Error(ok, err)
		}
		got, err := r.Retries(t.Context(), 1, shardkey.Range{})
		check(t, err)
		if len(got) != n || obj.count() != 1 {
			t.Errorf("%d entries with %d requests", len(got), obj.count())
		}
		check(t, Verify(t.Context(), obj.fetch, w.Refs()[0], nil))
	}
}

// Long keys with long common prefixes do not make the decoded index much larger than the
// stored one.
func TestIndexExpandsLittle(t *testing.T) {
	t.Parallel()
	w := NewWriter(segmentID(1), &WriterOptions{BlockSize: 1})
	for i := range 1000 {
		k := append(bytes.Repeat([]byte("p"), 5000), key(i)...)
		check(t, w.Add(Row{Collection: 1, Key: k, Delete: true}))
	}
	check(t, w.Cut(Part{Collection: 1}))
	body, _, err := w.Finish()
	check(t, err)
	r, _ := open(t, body, w.Refs(), nil)
	stored := len(w.index.buf)
	if got := len(r.tail.blocks.seps); got > indexExpansion*stored+indexSlack || got < stored {
		t.Errorf("%d bytes of separators from an index of %d", got, stored)
	}
	check(t, Verify(t.Context(), (&object{body: body}).fetch, w.Refs()[0], nil))
}
