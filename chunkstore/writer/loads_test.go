package writer

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
)

// loads asks for the loads of a shard, by chunk.
func (p *proc) loads(s manifest.ShardID) map[manifest.ChunkID]rpc.ChunkLoad {
	p.w.t.Helper()
	r, err := p.Loads(p.w.t.Context(), &rpc.LoadsRequest{Header: rpc.Header{Shard: s}})
	check(p.w.t, err)
	list := make(map[manifest.ChunkID]rpc.ChunkLoad)
	for _, l := range r.Chunks {
		list[l.ID] = l
	}
	return list
}

func about(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > want/10 {
		t.Errorf("%s: %.3f, want about %.3f", what, got, want)
	}
}

// Each chunk's owner tells how often it is read and written, and what of it is unflushed;
// what is not in use is not mentioned, and what is no more fades away. It costs no request.
func TestOwnersTellTheLoadsOfTheirChunks(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", longLease, quiet).holds("a")
		w.collection("a,a,a", 1000, 2000)
		c := w.client()
		_, _, err := p.root.Load(t.Context())
		check(t, err)
		before := p.metered.Snapshot()
		for i := range 50 {
			c.insert(fmt.Sprintf("{_id: %d}", 999-i)) // descending: never at the end
			c.insert(fmt.Sprintf("{_id: %d}", 1000+i))
			time.Sleep(100 * time.Millisecond)
			if i == 24 {
				p.loads("a")
			}
		}
		for range 10 {
			c.do(updateOp(1000, "{$set: {v: 1}}"))
		}
		l := p.loads("a")
		low, high := l[w.chunk(1).ID], l[w.chunk(1000).ID]
		diff(t, len(l), 2)
		about(t, "writes low", low.Writes, 10)
		about(t, "inserts low", low.Inserts, 10)
		about(t, "inserts high", high.Inserts, 10)
		diff(t, low.TailShare, 0.0)
		if high.TailShare < 0.9 {
			t.Errorf("of ascending inserts, %.2f count as at the end", high.TailShare)
		}
		diff(t, []int64{low.UnflushedRows, high.UnflushedRows}, []int64{50, 50})
		if size := high.UnflushedBytes; size < 50*15 || size > 50*40 {
			t.Errorf("50 small rows take %d bytes; one that is written again does not count twice", size)
		}
		if r := w.chunk(1).Range; !r.Contains(low.Median) || string(low.Median) < string(idKey(955)) {
			t.Errorf("median %x of the lowest is not among what was written", low.Median)
		}
		for range 100 {
			c.all()
			time.Sleep(100 * time.Millisecond)
		}
		l = p.loads("a")
		about(t, "reads of the chunk that has no rows", l[w.chunk(3000).ID].Reads, 10)
		if cost := p.metered.Snapshot().Sub(before).String(); cost != "put wal=110" {
			t.Errorf("requests: %q", cost)
		}
		p.flushAll("a")
		for range 30 {
			time.Sleep(time.Minute)
			l = p.loads("a")
		}
		diff(t, l, map[manifest.ChunkID]rpc.ChunkLoad{})
		diff(t, len(p.shard("a").warm), 0)
	})
}

// Almost all inserts of clients with ascending keys count as at the upper end, though the
// clients overtake one another; of inserts in any order almost none do.
func TestAHotTailIsNoticed(t *testing.T) {
	t.Parallel()
	for order, want := range map[string]float64{"ascending": 1, "any": 0} {
		h := &heat{stride: 1}
		key := make([]byte, 4)
		for i := range 100_000 {
			k := uint32(i ^ 15) // sixteen at a time, the other way round
			if order == "any" {
				k = uint32(i) * 2654435761
			}
			key[0], key[1], key[2], key[3] = byte(k>>24), byte(k>>16), byte(k>>8), byte(k)
			h.wrote(wal.Insert, key)
			if i%1000 == 999 {
				h.fold(h.since + loadInterval)
			}
		}
		if share := h.perSecond.tail / h.perSecond.ranked; math.Abs(share-want) > 0.05 {
			t.Errorf("in %s order: %.2f", order, share)
		}
	}
}

// The middle of the sample is about the middle of what was written, however much that was.
func TestLoadMedian(t *testing.T) {
	t.Parallel()
	for _, n := range []int{16, 1000, 100_000} {
		h := &heat{stride: 1}
		for i := range n {
			k := uint32(i) * 2654435761
			h.wrote(wal.Replace, []byte{byte(k >> 24), byte(k >> 16)})
		}
		h.fold(loadInterval)
		if m := h.median[0]; m < 64 || m > 192 {
			t.Errorf("of %d: %d of 256", n, m)
		}
	}
}

// Counting allocates nothing.
func TestLoadsAreCountedWithoutAllocation(t *testing.T) {
	h := &heat{stride: 1}
	key := []byte("0123456789abcdef")
	target := &rpc.Target{Ranges: pointRange(7)}
	count := func() {
		for range 1000 {
			key[15]++
			key[14] += key[15] >> 7
			h.wrote(wal.Insert, key)
			h.read(target)
		}
	}
	count()
	if n := testing.AllocsPerRun(10, count); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCountingAWrite(b *testing.B) {
	h := &heat{stride: 1}
	key := []byte("0123456789abcdef")
	for b.Loop() {
		key[15]++
		h.wrote(wal.Insert, key)
	}
}
