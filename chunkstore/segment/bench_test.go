package segment

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/klauspost/compress/s2"
)

// Every benchmark does the same with the codec alone, on the same bytes, turn by turn in
// the same run. The figure to look at is "x-raw", our speed as a part of the codec's: it
// does not depend on the machine, nor on what else runs there.

const (
	benchRows = 10_000
	benchHint = 2 << 20
)

// beside runs raw and ours by turns and compares the fastest turns, which are those that
// nothing disturbed. bytes is what each of them gets through in one turn.
func beside(b *testing.B, bytes int64, raw, ours func()) {
	best := [2]time.Duration{time.Hour, time.Hour}
	b.ReportAllocs()
	for b.Loop() {
		for i, f := range []func(){raw, ours} {
			start := time.Now()
			f()
			best[i] = min(best[i], time.Since(start))
		}
	}
	b.ReportMetric(best[0].Seconds()/best[1].Seconds(), "x-raw")
	b.ReportMetric(float64(bytes)/1e6/best[1].Seconds(), "MB/s")
	b.ReportMetric(float64(best[1].Nanoseconds()), "ns/ours")
}

var benchCodecs = []struct {
	name  string
	codec Codec
}{{"s2", S2}, {"zstd", Zstd}}

// benchInput is rows of about 300 bytes.
func benchInput() (rows []Row, size int64) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range benchRows {
		rows = append(rows, put(1, i, manifest.Seq(1000+r.IntN(1000)), text(r, 250)))
		size += int64(len(rows[i].Key) + len(rows[i].Doc))
	}
	return rows, size
}

// rawBlocks is the same bytes cut into 64 KiB pieces: what the codec alone would see.
func rawBlocks(rows []Row) (blocks [][]byte) {
	var b []byte
	for _, r := range rows {
		if b = append(append(b, r.Key...), r.Doc...); len(b) >= blockSizeDefault {
			blocks, b = append(blocks, b), nil
		}
	}
	return append(blocks, b)
}

// rawEncode appends src, compressed, to dst, which has room.
func rawEncode(c Codec, dst, src []byte) []byte {
	if c == Zstd {
		return zstdEncoder.EncodeAll(src, dst)
	}
	return dst[:len(dst)+len(s2.Encode(dst[len(dst):cap(dst)], src))]
}

func rawDecode(c Codec, p []byte) {
	if c == Zstd {
		_, _ = zstdDecoder.DecodeAll(p, make([]byte, 0, blockSizeDefault+1000))
	} else {
		_, _ = s2.Decode(make([]byte, blockSizeDefault+1000), p)
	}
}

func packed(c Codec, rows []Row) (out [][]byte) {
	for _, block := range rawBlocks(rows) {
		out = append(out, rawEncode(c, make([]byte, 0, s2.MaxEncodedLen(len(block))), block))
	}
	return out
}

func benchBuild(b *testing.B, c Codec, rows []Row) *Writer {
	w := NewWriter(segmentID(1), &WriterOptions{Codec: c, SizeHint: benchHint})
	for _, r := range rows {
		if err := w.Add(r); err != nil {
			b.Fatal(err)
		}
	}
	check(b, w.Cut(Part{Collection: 1}))
	_, _, err := w.Finish()
	check(b, err)
	return w
}

func benchReader(b *testing.B, c Codec, rows []Row, cache *Cache) *Reader {
	w := benchBuild(b, c, rows)
	body := w.body
	fetch := func(_ context.Context, off, length int64) ([]byte, error) { return body[off : off+length], nil }
	r, err := Open(b.Context(), fetch, w.Refs()[0], cache)
	check(b, err)
	return r
}

func BenchmarkEncode(b *testing.B) {
	rows, size := benchInput()
	blocks := rawBlocks(rows)
	for _, c := range benchCodecs {
		b.Run(c.name, func(b *testing.B) {
			beside(b, size, func() {
				body := make([]byte, 0, benchHint)
				for _, block := range blocks {
					body = rawEncode(c.codec, body, block)
				}
			}, func() { benchBuild(b, c.codec, rows) })
		})
	}
}

func BenchmarkScan(b *testing.B) {
	rows, size := benchInput()
	for _, c := range benchCodecs {
		for _, reverse := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/reverse=%v", c.name, reverse), func(b *testing.B) {
				blocks := packed(c.codec, rows)
				r := benchReader(b, c.codec, rows, nil)
				beside(b, size, func() {
					for _, p := range blocks {
						rawDecode(c.codec, p)
					}
				}, func() {
					n := 0
					for it := r.Scan(1, shardkey.Range{}, reverse); it.Next(b.Context()); n++ {
					}
					if n != len(rows) {
						b.Fatal(n)
					}
				})
			})
		}
	}
}

// BenchmarkGet compares a lookup with decompressing one block: what it must do at least
// when the block is not cached.
func BenchmarkGet(b *testing.B) {
	rows, _ := benchInput()
	rnd := rand.New(rand.NewPCG(5, 6))
	for _, c := range benchCodecs {
		for _, cache := range []*Cache{nil, NewCache(64 << 20)} {
			b.Run(fmt.Sprintf("%s/cached=%v", c.name, cache != nil), func(b *testing.B) {
				blocks := packed(c.codec, rows)
				r := benchReader(b, c.codec, rows, cache)
				for i := 0; cache != nil && i < len(rows); i++ { // warm
					_, _, err := r.Get(b.Context(), 1, rows[i].Key)
					check(b, err)
				}
				beside(b, 0, func() { rawDecode(c.codec, blocks[rnd.IntN(len(blocks))]) }, func() {
					if _, ok, err := r.Get(b.Context(), 1, rows[rnd.IntN(len(rows))].Key); !ok || err != nil {
						b.Fatal(ok, err)
					}
				})
			})
		}
	}
	b.Run("absent", func(b *testing.B) {
		r := benchReader(b, S2, rows, nil)
		for b.Loop() {
			r.tail.filter.mayContain(keyHash(1, rows[rnd.IntN(len(rows))].Key))
		}
	})
}
