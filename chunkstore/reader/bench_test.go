package reader

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest/shardkey"
)

// benchWorld is a chunk of documents of about 300 bytes, four segments wide, all cached.
func benchWorld(b *testing.B, segments int) *world {
	w := newWorld(b)
	w.block = 64 << 10
	for i := range segments {
		rows := run(0, 0, 0, "")
		for k := i; k < 40_000; k += segments {
			rows = append(rows, put(k, 1, strings.Repeat("x", 280)))
		}
		w.add(rows...)
	}
	w.scan(shardkey.Range{}, false, 0)
	for k := range 40_000 { // a scan alone does not fill the cache with blocks
		w.get(k)
	}
	return w
}

func BenchmarkGetWarm(b *testing.B) {
	for _, segments := range []int{1, 4} {
		b.Run(map[int]string{1: "1segment", 4: "4segments"}[segments], func(b *testing.B) {
			w := benchWorld(b, segments)
			keys := make([][]byte, 4096)
			for i := range keys {
				keys[i] = key(rand.IntN(40_000))
			}
			b.ReportAllocs()
			i := 0
			sent := w.spent(func() {
				for b.Loop() {
					if _, live, err := w.store.Get(ctx, w.view, keys[i%len(keys)]); !live || err != nil {
						b.Fatal(live, err)
					}
					i++
				}
			})
			b.ReportMetric(float64(sent)/float64(b.N), "gets/op")
		})
	}
}

func BenchmarkScanWarm(b *testing.B) {
	for _, segments := range []int{1, 4} {
		b.Run(map[int]string{1: "1segment", 4: "4segments"}[segments], func(b *testing.B) {
			w := benchWorld(b, segments)
			b.ReportAllocs()
			rows := 0
			sent := w.spent(func() {
				for b.Loop() {
					it := w.store.Scan(ctx, w.view, shardkey.Range{}, false)
					for it.Next(ctx) {
						rows++
					}
					if it.Err() != nil {
						b.Fatal(it.Err())
					}
				}
			})
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
			b.ReportMetric(float64(sent)/float64(b.N), "gets/op")
		})
	}
}

// BenchmarkShortScanWarm is a prefix of the key that holds one row.
func BenchmarkShortScanWarm(b *testing.B) {
	w := benchWorld(b, 4)
	b.ReportAllocs()
	for b.Loop() {
		it := w.store.Scan(ctx, w.view, keys(20_000, 20_001), false)
		if !it.Next(ctx) || it.Next(ctx) {
			b.Fatal(it.Err())
		}
	}
}
