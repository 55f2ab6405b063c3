package writer

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
)

// What is asked of a chunk is counted where the shard's mutex is held anyway: a few additions
// for an operation, no clock, and no allocation once a chunk has been in use. Clocks and
// exponentials come in when somebody asks (Loads), which ends an interval: what was counted
// since the one before becomes a rate.
//
// A chunk has a heat from its first operation until it has cooled down and has nothing
// unflushed. A chunk that is cut or moved begins anew.

const (
	// loadMemory is how long what was counted counts: after it, a third of its weight is left.
	loadMemory = time.Minute
	// loadInterval is the shortest one: who asks again before it is over gets the rates of the
	// one before.
	loadInterval = time.Second
	// loadNone is the rate, per second, below which a chunk counts as idle.
	loadNone = 1.0 / 600
	// heatKeys is how many keys of an interval are kept as its sample.
	heatKeys = 16
)

// heat is what is counted of one chunk. Owned by: the shard's mutex.
type heat struct {
	born, since            time.Duration // Mono: of the first operation, and of the interval
	reads, writes, inserts int64         // in the interval
	// ranked are the inserts for which a mark was known, tail those of them above it.
	ranked, tail int64
	perSecond    struct{ reads, writes, inserts, ranked, tail float64 }

	// top is the highest key inserted so far, mark what it was when the interval began: an
	// insert above mark is at the chunk's upper end. Clients that insert ascending keys side
	// by side overtake one another by less than an interval.
	top, mark []byte

	// keys are those of every stride-th operation of the interval. When they are too many,
	// every other goes, and the stride doubles.
	keys         [][]byte // heatKeys, of which n are in use; nil before the first
	n            int
	seen, stride int64
	// median is the middle of the last sample that was large enough.
	median []byte
}

// heatOf is what is counted of the chunk. Requires: the mutex.
func (s *shard) heatOf(c *chunk) *heat {
	if c.heat == nil {
		now := s.w.host.Mono()
		c.heat = &heat{born: now, since: now, stride: 1}
		s.warm = append(s.warm, c)
	}
	return c.heat
}

// read counts a read of a chunk, of which ranges are asked for.
func (h *heat) read(t *rpc.Target) {
	h.reads++
	if len(t.Ranges) > 0 {
		h.sample(t.Ranges[0].Min)
	}
}

// wrote counts a record.
func (h *heat) wrote(op wal.RecordOp, key []byte) {
	h.writes++
	h.sample(key)
	if op != wal.Insert {
		return
	}
	h.inserts++
	if len(h.mark) > 0 {
		h.ranked++
		if bytes.Compare(key, h.mark) > 0 {
			h.tail++
		}
	}
	if bytes.Compare(key, h.top) > 0 {
		h.top = append(h.top[:0], key...)
	}
}

func (h *heat) sample(key []byte) {
	h.seen++
	if h.seen%h.stride != 0 || len(key) == 0 {
		return
	}
	if h.keys == nil {
		h.keys = make([][]byte, heatKeys)
	}
	if h.n == heatKeys {
		for i := range heatKeys / 2 {
			h.keys[i], h.keys[2*i+1] = h.keys[2*i+1], h.keys[i]
		}
		h.n, h.stride = heatKeys/2, 2*h.stride
		if h.seen%h.stride != 0 {
			return
		}
	}
	h.keys[h.n] = append(h.keys[h.n][:0], key...)
	h.n++
}

// fold ends the interval, if it is long enough.
func (h *heat) fold(now time.Duration) {
	took := now - h.since
	if took < loadInterval {
		return
	}
	old := math.Exp(-float64(took) / float64(loadMemory))
	if h.since == h.born {
		old = 0
	}
	add := func(rate *float64, n *int64) {
		*rate = *rate*old + float64(*n)/took.Seconds()*(1-old)
		*n = 0
	}
	r := &h.perSecond
	add(&r.reads, &h.reads)
	add(&r.writes, &h.writes)
	add(&r.inserts, &h.inserts)
	add(&r.ranked, &h.ranked)
	add(&r.tail, &h.tail)
	h.since, h.mark = now, append(h.mark[:0], h.top...)
	if h.n >= heatKeys/2 {
		slices.SortFunc(h.keys[:h.n], bytes.Compare)
		h.median = append(h.median[:0], h.keys[h.n/2]...)
		h.n, h.seen, h.stride = 0, 0, 1
	}
}

// cold reports whether there is nothing to tell.
func (h *heat) cold() bool {
	return h.perSecond.reads+h.perSecond.writes < loadNone && h.reads+h.writes == 0
}

// loadsAtOnce bounds the chunks that are looked at while requests wait.
const loadsAtOnce = 256

// Loads tells what is asked of the chunks of a shard, and how much of them is unflushed.
// Chunks of which there is nothing to tell are left out. It asks nobody.
func (w *Writer) Loads(ctx context.Context, r *rpc.LoadsRequest) (*rpc.LoadsReply, error) {
	ctx, cancel := w.deadline(ctx, &r.Header)
	defer cancel()
	s, err := w.enter(ctx, &r.Header)
	if err != nil {
		return nil, err
	}
	now := w.host.Mono()
	s.mu.Lock()
	warm := s.warm
	s.warm = nil
	s.mu.Unlock()
	reply := &rpc.LoadsReply{}
	for part := range slices.Chunk(warm, loadsAtOnce) {
		s.mu.Lock()
		for _, c := range part {
			if l, ok := s.loadOf(c, now); ok {
				reply.Chunks = append(reply.Chunks, l)
			}
		}
		s.mu.Unlock()
	}
	if r := w.relocating.Load(); r != nil && r.s == s {
		reply.Copying = []rpc.Copying{r.copying()}
	}
	slices.SortFunc(reply.Chunks, func(a, b rpc.ChunkLoad) int { return cmp.Compare(a.ID, b.ID) })
	return reply, s.endedErr()
}

// loadOf is the load of one warm chunk, which stays so, or gets cold. Requires: the mutex.
func (s *shard) loadOf(c *chunk, now time.Duration) (rpc.ChunkLoad, bool) {
	h := c.heat
	if c.gone || s.endErr != nil {
		return rpc.ChunkLoad{}, false
	}
	h.fold(now)
	rows := c.mem.len() + c.frozen.len()
	if h.cold() && rows == 0 {
		c.heat = nil
		return rpc.ChunkLoad{}, false
	}
	s.warm = append(s.warm, c)
	l := rpc.ChunkLoad{
		Collection: c.info.Collection, ID: c.info.ID, Version: c.info.Version,
		Reads: h.perSecond.reads, Writes: h.perSecond.writes, Inserts: h.perSecond.inserts,
		UnflushedRows: int64(rows), UnflushedBytes: c.mem.size,
		Median: bytes.Clone(h.median), Age: now - h.born,
	}
	if c.frozen != nil {
		l.UnflushedBytes += c.frozen.size
	}
	if h.perSecond.ranked > 0 {
		l.TailShare = min(h.perSecond.tail/h.perSecond.ranked, 1)
	}
	return l, true
}
