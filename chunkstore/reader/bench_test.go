package reader

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

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

// BenchmarkScanCold is a full scan of 64 MiB of which nothing is cached, in a bucket whose
// GETs take 25 ms: reading ahead, and reading when a block is needed.
func BenchmarkScanCold(b *testing.B) {
	w := newWorld(b)
	w.block = 64 << 10
	const mib = 64
	w.add(noisy(0, mib<<10, 1000)...)
	for _, ahead := range []bool{true, false} {
		b.Run(map[bool]string{true: "ahead", false: "when needed"}[ahead], func(b *testing.B) {
			gets := 0
			for b.Loop() {
				w.store = w.open(slow{w.bucket, 25 * time.Millisecond})
				if !ahead {
					w.store.prefetch = nil
				}
				gets = w.spent(func() {
					it := w.store.Scan(ctx, w.view, shardkey.Range{}, false)
					for it.Next(ctx) {
					}
					w.must(it.Err())
				})
			}
			b.SetBytes(mib << 20)
			b.ReportMetric(float64(gets), "gets/op")
		})
	}
}

// BenchmarkGetManyCold is 256 keys of 4 segments of which nothing is cached, in a bucket
// whose GETs take 25 ms: together, and one after another.
func BenchmarkGetManyCold(b *testing.B) {
	w := newWorld(b)
	w.block = 64 << 10
	for i := range 4 {
		w.add(noisy(i*10_000, 10_000, 1000)...)
	}
	list := make([][]byte, 256)
	for i := range list {
		list[i] = key(rand.IntN(40_000))
	}
	for _, together := range []bool{true, false} {
		b.Run(map[bool]string{true: "together", false: "one by one"}[together], func(b *testing.B) {
			gets := 0
			for b.Loop() {
				w.store = w.open(slow{w.bucket, 25 * time.Millisecond})
				gets = w.spent(func() {
					if together {
						w.store.GetMany(ctx, w.view, list)
						return
					}
					for _, k := range list {
						_, _, _ = w.store.Get(ctx, w.view, k)
					}
				})
			}
			b.ReportMetric(float64(gets), "gets/op")
		})
	}
}

// BenchmarkGetManyWarm is a list of 256 keys, all in the cache.
func BenchmarkGetManyWarm(b *testing.B) {
	w := benchWorld(b, 4)
	list := make([][]byte, 256)
	for i := range list {
		list[i] = key(rand.IntN(40_000))
	}
	b.ReportAllocs()
	for b.Loop() {
		w.store.GetMany(ctx, w.view, list)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(list)), "ns/key")
}
