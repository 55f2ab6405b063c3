package bench

import (
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/localstack"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestCachesOfWritersAddUp reads documents that do not fit into the cache of one writer and do
// fit into those of two: with two, each of which caches its own chunks only, nothing is asked
// of the store any more.
func TestCachesOfWritersAddUp(t *testing.T) {
	const cache, documents = 1 << 20, 4500 // about 1.5 MB
	misses := map[int]float64{}
	for _, writers := range []int{1, 2} {
		store := layer.Metrics(membucket.New())
		f := startFleet(t, store, writers, localstack.Options{Shards: writers, Lease: 5 * time.Second, CacheBytes: cache, CollectEvery: time.Hour})
		coll, d := f.spread(t, "bench.pooled"), newDocs(1)
		var ids []bson.RawValue
		for len(ids) < documents {
			list := d.batch(500)
			if _, err := coll.InsertMany(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			for _, doc := range list {
				ids = append(ids, doc.Lookup("_id"))
			}
		}
		f.flush(t)
		pass := func() float64 {
			before := store.Snapshot()
			for range 1000 {
				if err := findOne(coll, ids); err != nil {
					t.Fatal(err)
				}
			}
			return float64(store.Snapshot().Sub(before).Of(layer.Get, layer.Segment).Requests) / 1000
		}
		for range 2 {
			pass()
		}
		misses[writers] = pass()
	}
	t.Logf("of 1000 reads %.0f asked the store with one writer, %.0f with two", 1000*misses[1], 1000*misses[2])
	if misses[1] < 0.1 || misses[2] > 0.01 {
		t.Errorf("requests for a read: %.3f with one writer, %.3f with two", misses[1], misses[2])
	}
}
