package manifest_test

import (
	"fmt"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// BenchmarkCommitAtManyChunks flushes one chunk of 100,000 through a memory cell: the CPU
// of apply, pages and codec. It reports the bytes and the requests of a commit.
func BenchmarkCommitAtManyChunks(b *testing.B) {
	for _, refs := range []int{1, 5} {
		b.Run(fmt.Sprintf("refs=%d", refs), func(b *testing.B) {
			cell := &manifesttest.MemCell{}
			r := big(b, cell, 100_000, refs)
			h := manifesttest.Host(11)
			by := manifest.Creator{Kind: manifest.CreatorShard, Shard: "a", Epoch: 1}
			before, requests := r.Stats(), len(cell.Requests("", ""))
			i := 0
			for b.Loop() {
				key := h.ID16()
				c := r.State().ChunkOf(1, append([]byte{0x10}, key[:]...))
				f := manifest.Flush{
					Shard: "a", Epoch: 1, Snapshot: manifest.Position{Epoch: 1, Next: uint64(20 + i)}, Complete: true,
					Chunks: []manifest.FlushedChunk{{At: c.At(), Added: rows(h.ID16, c, by, 1)}},
				}
				if _, err := r.Commit(b.Context(), edit(fmt.Sprint("flush", i), f)); err != nil {
					b.Fatal(err)
				}
				i++
			}
			b.ReportMetric(float64(r.Stats().Bytes-before.Bytes)/float64(i), "bytes/commit")
			b.ReportMetric(float64(len(cell.Requests("", ""))-requests)/float64(i), "requests/commit")
		})
	}
}

// BenchmarkLoadAtManyChunks is a router's refresh after one such commit, and the first load
// of a new process, both at 100,000 chunks.
func BenchmarkLoadAtManyChunks(b *testing.B) {
	cell := &manifesttest.MemCell{}
	r := big(b, cell, 100_000, 1)
	b.Run("refresh", func(b *testing.B) {
		reader := manifest.NewRoot(cell, manifesttest.Host(2), nil)
		i := 0
		for b.Loop() {
			b.StopTimer()
			if _, err := r.Commit(b.Context(), edit(fmt.Sprint(b.N, "split", i), splitOf(r.State(), i%97, 97))); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if _, _, err := reader.Load(b.Context()); err != nil {
				b.Fatal(err)
			}
			i++
		}
	})
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := manifest.NewRoot(cell, manifesttest.Host(2), nil).Load(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkLookup finds the chunk of a key among 100,000.
func BenchmarkLookup(b *testing.B) {
	s := big(b, &manifesttest.MemCell{}, 100_000, 0).State()
	h := manifesttest.Host(3)
	keys := make([][]byte, 1024)
	for i := range keys {
		id := h.ID16()
		keys[i] = append([]byte{0x10}, id[:]...)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if s.ChunkOf(1, keys[i%len(keys)]) == nil {
			b.Fatal("not found")
		}
		i++
	}
}
