package reader

import (
	"slices"
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
