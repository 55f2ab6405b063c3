package query

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// bulky is n documents {_id, g, even, text}, of about 1 KiB that do not compress.
func bulky(n int) (docs []bson.Raw) {
	rnd := rand.NewChaCha8([32]byte{1})
	text := make([]byte, 1000)
	for i := range n {
		_, _ = rnd.Read(text)
		docs = append(docs, raw(bson.D{{Key: "_id", Value: fmt.Sprintf("%06d", i)}, {Key: "g", Value: 1}, {Key: "even", Value: i%2 == 0}, {Key: "text", Value: bson.Binary{Data: text}}}))
	}
	return docs
}

// A scan that is answered in batches reads ahead inside of each, and hardly more than what
// it answers; what only wants a few rows reads few.
func TestBatchesReadWhatTheyAnswer(t *testing.T) {
	t.Parallel()
	const n = 12 << 10
	w := newWorld(t)
	w.flush(bulky(n)...)
	even := raw(bson.D{{Key: "even", Value: true}})
	for _, c := range []struct {
		what   string
		q      rpc.Query
		batch  rpc.Batch
		docs   int
		mib    float64 // at most
		rounds int     // at most
	}{
		{"all in large batches", rpc.Query{}, rpc.Batch{Docs: 1 << 20, Bytes: 4 << 20}, n, 14, 24},
		{"all in batches of 1000", rpc.Query{}, rpc.Batch{Docs: 1000}, n, 14, 40},
		{"half of all", rpc.Query{Filter: even}, rpc.Batch{Docs: 2000}, n / 2, 22, 30},
		{"backwards", rpc.Query{KeyOrder: -1}, rpc.Batch{Docs: 3000}, n, 14, 30},
		{"limit 10", rpc.Query{Limit: 10}, rpc.Batch{}, 10, 0.3, 2},
		{"limit 100", rpc.Query{Limit: 100}, rpc.Batch{}, 100, 0.5, 3},
		{"limit 1000", rpc.Query{Limit: 1000}, rpc.Batch{Docs: 5000}, 1000, 1.5, 8},
		{"half, limit 500", rpc.Query{Filter: even, Limit: 500}, rpc.Batch{Docs: 5000}, 500, 2, 8},
		{"sorted", rpc.Query{Sort: raw(bson.D{{Key: "_id", Value: -1}}), Limit: 5}, rpc.Batch{}, 5, 14, 12},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &world{t: t, bucket: w.bucket, key: w.key, chunks: w.chunks}
				w.over(slow{w.bucket})
				begin := time.Now()
				cur := w.open(c.q, w.targets())
				if got := len(w.all(cur, c.batch)); got != c.docs {
					t.Errorf("%d documents", got)
				}
				rounds, mib := int(time.Since(begin)/latency), float64(cur.Stats().BucketBytes)/(1<<20)
				t.Logf("%d GETs of %.1f MiB, waited for %d", cur.Stats().BucketRequests, mib, rounds)
				if mib > c.mib || rounds > c.rounds {
					t.Errorf("%.1f MiB, waited for %d; want %.1f and %d", mib, rounds, c.mib, c.rounds)
				}
			})
		})
	}
}

// A list of keys is read in ever larger parts, and not beyond the limit.
func TestListsOfKeysAreReadTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		docs := bulky(4 << 10)
		w.flush(docs...)
		var points []shardkey.Range
		for i := 0; i < len(docs); i += 8 {
			points = append(points, w.point(docs[i]))
		}
		slices.SortFunc(points, func(a, b shardkey.Range) int { return bytes.Compare(a.Min, b.Min) })
		for _, c := range []struct {
			limit        int64
			gets, rounds int64
		}{{0, 80, 14}, {3, 3, 3}} {
			w.over(slow{w.bucket})
			begin := time.Now()
			cur := w.open(rpc.Query{Limit: c.limit}, w.targets(points...))
			want := len(points)
			if c.limit > 0 {
				want = int(c.limit)
			}
			if got := len(w.all(cur, rpc.Batch{})); got != want {
				t.Errorf("%d documents, want %d", got, want)
			}
			gets, rounds := cur.Stats().BucketRequests, int64(time.Since(begin)/latency)
			t.Logf("limit %d: %d GETs, waited for %d", c.limit, gets, rounds)
			if gets > c.gets || rounds > c.rounds {
				t.Errorf("limit %d: %d GETs, waited for %d; want %d and %d", c.limit, gets, rounds, c.gets, c.rounds)
			}
		}
	})
}
