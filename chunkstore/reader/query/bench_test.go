package query

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const benchDocs = 40_000

// benchWorld is one chunk of documents of about 300 bytes in the given number of segments,
// all of it cached, with the key {_id: 1}.
func benchWorld(b *testing.B, segments int) (*world, []bson.Raw) {
	w := newWorld(b)
	w.key = pattern(b, bson.D{{Key: "_id", Value: 1}})
	all := make([]bson.Raw, benchDocs)
	for s := range segments {
		var part []bson.Raw
		for id := s; id < benchDocs; id += segments {
			all[id] = doc(id%100, id, bson.E{Key: "n", Value: id * 7919 % benchDocs}, bson.E{Key: "t", Value: strings.Repeat("x", 250)})
			part = append(part, all[id])
		}
		w.flush(part...)
	}
	for range 2 {
		for _, d := range all { // the cache keeps what was asked for twice
			if _, _, err := w.store.Get(ctx, w.targets()[0].View, w.rowKey(d)); err != nil {
				b.Fatal(err)
			}
		}
	}
	return w, all
}

// BenchmarkFindOneByID is a point read at a warm owner: Open with its filter, and Next.
func BenchmarkFindOneByID(b *testing.B) {
	for _, segments := range []int{1, 4} {
		b.Run(map[int]string{1: "1segment", 4: "4segments"}[segments], func(b *testing.B) {
			w, all := benchWorld(b, segments)
			targets := make([][]Target, 1024)
			filters := make([]bson.Raw, len(targets))
			for i := range targets {
				d := all[rand.IntN(benchDocs)]
				targets[i] = w.targets(w.point(d))
				filters[i] = raw(bson.D{{Key: "_id", Value: d.Lookup("_id")}})
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				n := i % len(targets)
				c, err := Open(ctx, w.store, targets[n], rpc.Query{Filter: filters[n], Limit: 1}, Limits{})
				if err != nil {
					b.Fatal(err)
				}
				if docs, done, err := c.Next(ctx, rpc.Batch{}); len(docs) != 1 || !done || err != nil {
					b.Fatal(docs, done, err)
				}
				i++
			}
		})
	}
}

func benchQuery(b *testing.B, q rpc.Query, batch rpc.Batch) {
	w, _ := benchWorld(b, 2)
	targets := w.targets()
	b.ReportAllocs()
	for b.Loop() {
		c, err := Open(ctx, w.store, targets, q, Limits{})
		if err != nil {
			b.Fatal(err)
		}
		for done := false; !done; {
			if _, done, err = c.Next(ctx, batch); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchDocs, "ns/row")
}

func BenchmarkFindAll(b *testing.B) { benchQuery(b, rpc.Query{}, rpc.Batch{Docs: 1000}) }

func BenchmarkFindFiltered(b *testing.B) {
	benchQuery(b, rpc.Query{Filter: raw(bson.D{{Key: "n", Value: bson.D{{Key: "$lt", Value: benchDocs / 100}}}})}, rpc.Batch{})
}

func BenchmarkFindProjected(b *testing.B) {
	benchQuery(b, rpc.Query{Projection: raw(bson.D{{Key: "n", Value: 1}})}, rpc.Batch{Docs: 1000})
}

func BenchmarkSortTop10(b *testing.B) {
	benchQuery(b, rpc.Query{Sort: raw(bson.D{{Key: "n", Value: -1}}), Limit: 10}, rpc.Batch{})
}

func BenchmarkSortAll(b *testing.B) {
	benchQuery(b, rpc.Query{Sort: raw(bson.D{{Key: "n", Value: -1}})}, rpc.Batch{Docs: 1000})
}

func BenchmarkDistinct(b *testing.B) {
	benchQuery(b, rpc.Query{Mode: rpc.Distinct, Field: "g"}, rpc.Batch{})
}
