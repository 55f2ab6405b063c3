package plan

import (
	"github.com/granarydb/granary/manifest"
)

// Shape is what the segments of some chunks cost now, as far as the root tells.
type Shape struct {
	Chunks int
	// ReadMost is how many segments a point read of the worst chunk may have to ask, and Reads
	// the sum over all chunks.
	ReadMost, Reads int
	// Rows are in segments, hidden ones and deletions included; Live are those that somebody
	// sees.
	Rows, Live uint64
}

// Read is how many segments a point read may have to ask, in the mean of the chunks.
func (s Shape) Read() float64 { return float64(s.Reads) / float64(max(s.Chunks, 1)) }

// Space is how many rows are stored for each live one.
func (s Shape) Space() float64 { return perLive(s.Rows, s.Live) }

func perLive(rows, live uint64) float64 {
	if rows == 0 {
		return 1
	}
	return float64(rows) / float64(max(live, 1))
}

// Measure is the shape of the chunks of the shards that are mine.
func Measure(s *manifest.State, mine func(*manifest.Shard) bool) (x Shape) {
	var room []sorted
	for c := range s.AllChunks() {
		h := s.Shard(c.Shard)
		if h == nil || !mine(h) {
			continue
		}
		room = appendRuns(room[:0], c)
		runs := len(room)
		x.Chunks, x.Reads, x.ReadMost = x.Chunks+1, x.Reads+runs, max(x.ReadMost, runs)
		rows := rowsOf(c.Refs)
		x.Rows, x.Live = x.Rows+rows, x.Live+min(uint64(max(c.Rows, 0)), rows)
	}
	return x
}

func rowsOf(refs []manifest.SegmentRef) (n uint64) {
	for i := range refs {
		n += refs[i].Rows
	}
	return n
}

// Outcome is what a compaction is expected to do.
type Outcome struct {
	// Rows and Bytes are at most about what is written; bytes as stored.
	Rows, Bytes uint64
	// ReadBefore and ReadAfter are how many segments a point read of the chunk may have to ask.
	ReadBefore, ReadAfter int
	// SpaceBefore and SpaceAfter are how many rows the chunk stores for each live one.
	SpaceBefore, SpaceAfter float64
	// Write is how many bytes are written for each that is freed, or that was in another than
	// the largest of the segments and comes into a larger one.
	Write float64
}

// Outcome estimates what the compaction does. It knows how many rows of the chunk are hidden
// only when all of them are merged.
func (c *Compaction) Outcome() Outcome {
	all, live := rowsOf(c.Chunk.Refs), uint64(max(c.Chunk.Rows, 0))
	o := Outcome{Rows: c.Rows, Bytes: c.Bytes, SpaceBefore: perLive(all, live)}
	if len(c.Inputs()) == len(c.Chunk.Refs) && live < c.Rows {
		o.Rows = live
		o.Bytes = uint64(float64(c.Bytes) * float64(live) / float64(c.Rows))
	}
	o.SpaceAfter = perLive(all-c.Rows+o.Rows, live)
	var largest uint64
	for _, r := range appendRuns(nil, c.Chunk) {
		o.ReadBefore++
		if r.from >= c.To || r.to <= c.From {
			o.ReadAfter++
		} else {
			largest = max(largest, min(r.bytes, c.Bytes))
		}
	}
	if o.Rows > 0 {
		o.ReadAfter++
	}
	gain := max(c.Bytes-largest, c.Bytes-o.Bytes)
	if c.Why == Clipped {
		gain = 0
		for _, r := range c.Inputs() {
			gain += r.Size - min(r.Size, r.Bytes)
		}
	}
	o.Write = float64(o.Bytes) / float64(max(gain, 1))
	return o
}
