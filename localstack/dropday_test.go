package localstack_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// thirty is a month of documents, a chunk and a segment a day, of which the twelfth is dropped:
// the count is right at once, and the bytes are gone when the garbage was collected. It returns
// what the drop cost.
func thirty(t *testing.T, each int) (cost layer.Snapshot) {
	synctest.Test(t, func(t *testing.T) {
		const days, day = 30, 12
		b := layer.Metrics(membucket.New())
		s := open(t, b, localstack.Options{Shards: 2})
		do(t, s, "admin", bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "day", Value: 1}}}})
		for d := 2; d <= days; d++ {
			do(t, s, "admin", bson.D{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "day", Value: d}}}})
		}
		noise := rand.NewChaCha8([32]byte{1})
		for d := 1; d <= days; d++ {
			var docs bson.A
			for i := range each {
				pad := make([]byte, 100_000/each)
				_, _ = noise.Read(pad)
				docs = append(docs, bson.D{{Key: "_id", Value: d*each + i}, {Key: "day", Value: d}, {Key: "pad", Value: pad}})
			}
			do(t, s, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs}})
			for _, h := range s.Root.State().Shards() {
				if _, err := s.Writer.Flush(t.Context(), &rpc.FlushRequest{Header: rpc.Header{Shard: h.ID}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		full := stored(t, b)
		before := b.Snapshot()
		do(t, s, "admin", bson.D{{Key: "dropRange", Value: "shop.orders"}, {Key: "min", Value: bson.D{{Key: "day", Value: day}}}, {Key: "max", Value: bson.D{{Key: "day", Value: day + 1}}}})
		cost = b.Snapshot().Sub(before)
		if n := count(t, s); n != int64((days-1)*each) {
			t.Errorf("%d documents of %d days with %d each", n, days-1, each)
		}
		time.Sleep(40 * time.Minute)
		if left := stored(t, b); left > full-95_000 || left < full-150_000 {
			t.Errorf("%d bytes of %d are left", left, full)
		}
		if n := count(t, s); n != int64((days-1)*each) {
			t.Errorf("%d documents after the collection", n)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		whole(t, b, (days-1)*each)
	})
	return cost
}

// stored is how many bytes of segments there are.
func stored(t *testing.T, b bucket.Bucket) (n int64) {
	t.Helper()
	found, _, err := b.List(t.Context(), "seg/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range found {
		n += o.Size
	}
	return n
}

// A day out of thirty is dropped with as many requests whether it has ten documents or a thousand.
func TestADayIsDroppedAtOnce(t *testing.T) {
	t.Parallel()
	few, many := thirty(t, 10), thirty(t, 1000)
	t.Logf("a day of ten documents: %s; of a thousand: %s", few, many)
	if few.String() != many.String() || few.Total(layer.Put).Requests > 6 || few.Total(layer.Get).Requests > 6 || few.Of(layer.Get, layer.Segment).Requests > 0 {
		t.Errorf("a day of ten documents: %s; of a thousand: %s", few, many)
	}
}
