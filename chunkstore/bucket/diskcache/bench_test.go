package diskcache

import (
	"fmt"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest/host"
)

// BenchmarkHit reads what is on disk, and in the machine's page cache: a block of a segment
// alone in its file, the same in the middle of a large file, and a large range.
func BenchmarkHit(b *testing.B) {
	for _, c := range []struct {
		name              string
		kept, off, length int64
	}{{"block", 30_000, 0, 30_000}, {"block of 4 MiB", 4 << 20, 1_000_000, 30_000}, {"4 MiB", 4 << 20, 0, 4 << 20}} {
		b.Run(c.name, func(b *testing.B) {
			inner := membucket.New()
			_, err := inner.Put(ctx, "seg/a", noise("a", 8<<20), bucket.Condition{})
			if err != nil {
				b.Fatal(err)
			}
			cache, err := Open(inner, host.System(), b.TempDir(), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer cache.Close()
			if _, err := cache.Get(ctx, "seg/a", bucket.GetOptions{Length: c.kept}); err != nil {
				b.Fatal(err)
			}
			cache.Sync()
			b.SetBytes(c.length)
			for b.Loop() {
				if _, err := cache.Get(ctx, "seg/a", bucket.GetOptions{Offset: c.off, Length: c.length}); err != nil {
					b.Fatal(err)
				}
			}
			if s := cache.Stats(); s.Misses != 1 {
				b.Fatalf("%+v", s)
			}
		})
	}
}

// BenchmarkOpen is a start on a slot of 20,000 files.
func BenchmarkOpen(b *testing.B) {
	inner := membucket.New()
	dir := b.TempDir()
	cache, err := Open(inner, host.System(), dir, nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := range 20_000 {
		key := fmt.Sprint("seg/", i)
		if _, err = inner.Put(ctx, key, []byte("x"), bucket.Condition{}); err == nil {
			_, err = cache.Get(ctx, key, bucket.GetOptions{})
		}
		if err != nil {
			b.Fatal(err)
		}
		if i%500 == 0 {
			cache.Sync()
		}
	}
	_ = cache.Close()
	for b.Loop() {
		if cache, err = Open(inner, host.System(), dir, nil); err != nil {
			b.Fatal(err)
		}
		_ = cache.Close()
	}
}
