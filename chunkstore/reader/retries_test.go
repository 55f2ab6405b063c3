package reader

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
)

// Retry entries are those of the chunk's references, inside their clips, that have not
// expired; references whose last entry has are not even opened.
func TestRetriesAreThoseOfTheChunkThatAreStillKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	entry := func(k int, txn, expires int64) segment.RetryEntry {
		return segment.RetryEntry{Collection: collection, Key: key(k), Op: segment.OpID{Txn: txn}, ExpiresAt: expires, Reply: []byte("r")}
	}
	w.addRetries(entry(1, 1, 50))
	w.addRetries(entry(1, 2, 100), entry(2, 3, 60), entry(9, 4, 200))
	w.addRetries(entry(3, 5, 90))
	w.view.Chunk.Refs[1].Clip = keys(0, 5)
	var got []int64
	n := w.spent(func() {
		entries, err := w.store.Retries(ctx, w.view, 60)
		w.must(err)
		for _, e := range entries {
			got = append(got, e.Op.Txn)
		}
	})
	if want := []int64{2, 5}; !slices.Equal(got, want) {
		t.Errorf("transactions %v, want %v", got, want)
	}
	if n != 2 {
		t.Errorf("%d GETs, want the tails of the two references that may have some", n)
	}
	w.view.Chunk.Range = keys(4, 5)
	w.view.Chunk.Refs[2].Clip = keys(0, 4)
	if entries, err := w.store.Retries(ctx, w.view, 60); len(entries) != 0 || err != nil {
		t.Errorf("of a chunk without any: %v, %v", entries, err)
	}
}

// addRetries appends a reference that has retry entries and no rows.
func (w *world) addRetries(entries ...segment.RetryEntry) {
	w.t.Helper()
	w.next++
	id := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "shard01", Epoch: 1}}
	id.Random[15] = byte(w.next)
	sw := segment.NewWriter(id, nil)
	for _, e := range entries {
		w.must(sw.AddRetry(e))
	}
	w.must(sw.Cut(segment.Part{Collection: collection}))
	body, _, err := sw.Finish()
	w.must(err)
	_, err = w.inner.Put(ctx, id.Key(), body, bucket.Condition{})
	w.must(err)
	w.view.Chunk.Refs = append(w.view.Chunk.Refs, sw.Refs()...)
}

// Of more than is worth its memory the youngest stay, in the same order, those of a session's
// newest number before any other; what is little stays as it is.
func TestRetriesAreBounded(t *testing.T) {
	t.Parallel()
	parts := func() [][]segment.RetryEntry {
		var parts [][]segment.RetryEntry
		for p := range 3 {
			var part []segment.RetryEntry
			for k := range 4 {
				part = append(part, segment.RetryEntry{
					Key: key(k), Reply: make([]byte, 92), Op: segment.OpID{Session: [32]byte{byte(k)}, Txn: int64(p)}, ExpiresAt: int64(10*p + k),
				})
			}
			parts = append(parts, part)
		}
		return parts
	}
	one := parts()[0][0].MemoryBytes()
	for _, c := range []struct {
		bytes      int64
		superseded int
		want       string // session and number, a part after another
	}{
		{12 * one, 16, "00 10 20 30 | 01 11 21 31 | 02 12 22 32"},
		{12 * one, 8, "00 10 20 30 | 01 11 21 31 | 02 12 22 32"},
		{12 * one, 3, " | 11 21 31 | 02 12 22 32"},
		{7 * one, 8, " | 11 21 31 | 02 12 22 32"},
		{4 * one, 8, " |  | 02 12 22 32"},
		{2*one + 1, 8, " |  | 22 32"},
		{one - 1, 8, " |  | "},
	} {
		list := parts()
		boundRetries(list, c.bytes, c.superseded)
		var got []string
		for _, part := range list {
			var names []string
			for _, e := range part {
				names = append(names, fmt.Sprint(e.Op.Session[0], e.Op.Txn))
			}
			got = append(got, strings.ReplaceAll(strings.Join(names, ","), " ", ""))
		}
		if got := strings.ReplaceAll(strings.Join(got, " | "), ",", " "); got != c.want {
			t.Errorf("%d bytes, %d superseded: %q, want %q", c.bytes, c.superseded, got, c.want)
		}
	}
}

// A chunk that was written to for long, with something of it in every segment, is read a few
// segments at a time, and gives no more than is worth its memory.
func TestRetriesOfManySegmentsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const segments, each = 8, 6000
	for p := range segments {
		var entries []segment.RetryEntry
		for i := range each {
			entries = append(entries, segment.RetryEntry{
				Collection: collection, Key: key(i), Op: segment.OpID{Session: [32]byte{1}, Txn: int64(p*each + i)}, ExpiresAt: int64(100 + p), Reply: []byte("r"),
			})
		}
		w.addRetries(entries...)
	}
	entries, err := w.store.Retries(ctx, w.view, 60)
	w.must(err)
	if len(entries) != RetrySupersededMax+1 {
		t.Errorf("%d entries, want %d of older numbers and the newest", len(entries), RetrySupersededMax)
	}
	if last := entries[len(entries)-1]; last.Op.Txn != segments*each-1 {
		t.Errorf("the last one is of number %d", last.Op.Txn)
	}
}
