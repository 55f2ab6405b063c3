package plan

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest"
)

// Segments of a chunk are merged so that three costs stay bounded together.
//
//	read    a point read asks every segment that may hold the key: no key is in more than
//	        Refs references for long;
//	write   a row is written again when the segments beside it have grown as large as its own,
//	        so about log2(chunk size / flush size) times, and once more for each Garbage share
//	        of the chunk that was changed or deleted;
//	space   rows that are hidden by newer ones, and deletions, are at most Garbage of the live
//	        ones; and a segment of which less than half is anybody's is written again first, also
//	        one that is kept for retry ids alone since its rows have expired or were dropped.
//
// Only neighbours in a chunk's list are merged, so that the list stays in the order of seqs.

// MergeSettings tune what is merged. Zero fields mean the defaults.
type MergeSettings struct {
	// Fan is how many segments of about one size are left side by side before they are
	// merged; 4.
	Fan int
	// Refs is how many segments a chunk may have before the cheapest of them are merged,
	// whatever their sizes; 12. What one merge wrote into several objects counts as one.
	Refs int
	// Garbage is how many rows may be hidden or deletions, in shares of the live ones; 0.25.
	Garbage float64
	// Unused is the size, in bytes as stored, up to which it does not matter how much of a
	// segment is in use; 64 KiB.
	Unused uint64
}

func (s MergeSettings) withDefaults() MergeSettings {
	s.Fan, s.Refs = cmp.Or(s.Fan, 4), cmp.Or(s.Refs, 12)
	s.Garbage, s.Unused = cmp.Or(s.Garbage, 0.25), cmp.Or(s.Unused, 64<<10)
	return s
}

// Why is what a compaction is for, the most urgent first.
type Why uint8

// The reasons.
const (
	Clipped  Why = iota // a segment of which most is nobody's
	Crowded             // more references than a chunk may have
	Tiered              // segments of about one size
	Obsolete            // hidden rows and deletions
)

var whys = [...]string{"clipped", "crowded", "tiered", "obsolete"}

// String is the reason as a word.
func (w Why) String() string { return whys[w] }

// Compaction is a run of one chunk's references to be merged.
type Compaction struct {
	Chunk *manifest.Chunk
	// From and To are the run: Chunk.Refs[From:To].
	From, To int
	Why      Why
	// Oldest: nothing older is beside the run and all that is newer than it has higher seqs, so
	// that deletions in it hide nothing.
	Oldest bool
	// Bytes is about what is read, as stored, and Rows how many rows.
	Bytes, Rows uint64
	// Reason is a sentence's part, for logs.
	Reason string
}

// Inputs are the references to be merged, oldest first.
func (c *Compaction) Inputs() []manifest.SegmentRef { return c.Chunk.Refs[c.From:c.To] }

// Compactions are the merges that the chunks of the shards that are mine need, at most one of
// each chunk, the most urgent first. Collections that are being given another key are left
// alone: that job compares references, and must not miss a deletion.
func Compactions(s *manifest.State, mine func(*manifest.Shard) bool, set MergeSettings) []Compaction {
	m := merger{set: set.withDefaults(), used: make(map[manifest.SegmentID]uint64)}
	m.weigh(s)
	var list []Compaction
	for _, coll := range s.Collections() {
		if s.Resharding(coll.Namespace()) {
			continue
		}
		for c := range s.Chunks(coll.ID) {
			if h := s.Shard(c.Shard); h == nil || !mine(h) {
				continue
			}
			if job, ok := m.chunk(c); ok {
				list = append(list, job)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Compaction) int {
		return cmp.Or(cmp.Compare(a.Why, b.Why), cmp.Compare(len(b.Chunk.Refs), len(a.Chunk.Refs)))
	})
	return list
}

type merger struct {
	set MergeSettings
	// used is the bytes of a segment that any chunk refers to, of segments of which some chunk
	// refers to less than half.
	used map[manifest.SegmentID]uint64
	runs []sorted // of the chunk at hand
}

// weigh fills used. Most segments are one chunk's, and need no place in it.
func (m *merger) weigh(s *manifest.State) {
	for c := range s.AllChunks() {
		for i := range c.Refs {
			if m.suspect(&c.Refs[i]) {
				m.used[c.Refs[i].Segment] = 0
			}
		}
	}
	if len(m.used) == 0 {
		return
	}
	for c := range s.AllChunks() {
		for i := range c.Refs {
			if n, ok := m.used[c.Refs[i].Segment]; ok {
				m.used[c.Refs[i].Segment] = n + c.Refs[i].Bytes
			}
		}
	}
}

// chunk is what one chunk needs most.
func (m *merger) chunk(c *manifest.Chunk) (Compaction, bool) {
	for i := range c.Refs {
		if !m.clipped(&c.Refs[i]) {
			continue
		}
		if !spent(&c.Refs[i]) {
			return m.job(c, i, i+1, Clipped, "most of the segment belongs to no chunk"), true
		}
		to := i + 1
		for to < len(c.Refs) && spent(&c.Refs[to]) && m.clipped(&c.Refs[to]) {
			to++
		}
		return m.job(c, i, to, Clipped, "the rows have left, and only retry ids are in force"), true
	}
	if len(c.Refs) >= m.set.Fan {
		if job, ok := m.stacked(c); ok {
			return job, true
		}
	}
	if dead, live := m.garbage(c); float64(dead) > m.set.Garbage*float64(live) {
		return m.job(c, 0, len(c.Refs), Obsolete, fmt.Sprintf("%d rows are hidden or deletions, %d live", dead, live)), true
	}
	return Compaction{}, false
}

// stacked is a chunk that has too many segments, of about one size or at all.
func (m *merger) stacked(c *manifest.Chunk) (Compaction, bool) {
	m.runs = appendRuns(m.runs[:0], c)
	runs := m.runs
	if from, to, ok := m.tier(runs); ok {
		return m.job(c, runs[from].from, runs[to-1].to, Tiered, fmt.Sprintf("%d segments of about one size", to-from)), true
	}
	if n := len(runs); n > m.set.Refs && n >= m.set.Fan {
		from := m.cheapest(runs)
		return m.job(c, runs[from].from, runs[from+m.set.Fan-1].to, Crowded, fmt.Sprintf("%d segments, at most %d are wanted", n, m.set.Refs)), true
	}
	return Compaction{}, false
}

// clipped reports whether less than half of a segment is in use. What a job wrote for one
// chunk and was not cut since is never written again for that: it would come out the same.
func (m *merger) clipped(r *manifest.SegmentRef) bool {
	return m.suspect(r) && 2*m.used[r.Segment] < r.Size
}

// suspect reports whether less than half of a segment is in use as far as one reference tells.
func (m *merger) suspect(r *manifest.SegmentRef) bool {
	if r.Size <= m.set.Unused || 2*r.Bytes >= r.Size || r.Rows == 0 {
		return r.Size > m.set.Unused && spent(r)
	}
	cut := bytes.Compare(r.MinKey, r.Clip.Min) < 0 || len(r.Clip.Max) > 0 && bytes.Compare(r.MaxKey, r.Clip.Max) >= 0
	return cut || r.Segment.Creator.Kind != manifest.CreatorJob
}

// spent reports whether all rows of a reference have left, and it is there for retry ids alone:
// these are kept for days, and the rows need not be. What a job wrote for retry ids alone never
// had rows: it has no dates, and one seq.
func spent(r *manifest.SegmentRef) bool {
	return r.Rows == 0 && len(r.MinKey) == 0 && len(r.MaxKey) == 0 && (r.Dates.Of != 0 || r.MinSeq < r.MaxSeq)
}

// sorted is a part of a chunk's references that one merge wrote: together they are one segment,
// too large for one object, and no key is in two of them.
type sorted struct {
	from, to int
	bytes    uint64
}

func appendRuns(runs []sorted, c *manifest.Chunk) []sorted {
	for i := range c.Refs {
		r := &c.Refs[i]
		if i > 0 && follows(&c.Refs[i-1], r) {
			last := &runs[len(runs)-1]
			last.to, last.bytes = i+1, last.bytes+r.Bytes
			continue
		}
		runs = append(runs, sorted{i, i + 1, max(r.Bytes, 1)}) // one without rows is not free
	}
	return runs
}

// follows reports whether b goes on where a ends.
func follows(a, b *manifest.SegmentRef) bool {
	x, y := a.Segment.Creator, b.Segment.Creator
	return x.Kind == manifest.CreatorJob && x == y && a.Rows > 0 && bytes.Compare(a.MaxKey, b.MinKey) < 0
}

// tier is the longest run of at least Fan segments in which none is larger than all that are
// newer together: merging it at least doubles the size that each row is in.
func (m *merger) tier(runs []sorted) (from, to int, ok bool) {
	for end := len(runs); end >= m.set.Fan; end-- {
		sum, start := runs[end-1].bytes, end-1
		for start > 0 && runs[start-1].bytes <= sum {
			start--
			sum += runs[start].bytes
		}
		if end-start >= m.set.Fan && end-start > to-from {
			from, to, ok = start, end, true
		}
	}
	return from, to, ok
}

// cheapest is where the Fan neighbours with the fewest bytes begin.
func (m *merger) cheapest(runs []sorted) (from int) {
	least := ^uint64(0)
	for i := 0; i+m.set.Fan <= len(runs); i++ {
		var sum uint64
		for _, r := range runs[i : i+m.set.Fan] {
			sum += r.bytes
		}
		if sum < least {
			from, least = i, sum
		}
	}
	return from
}

// garbage counts the rows that nobody sees, and those that somebody does. After a cut both are
// estimates; a merge of all makes them exact.
func (m *merger) garbage(c *manifest.Chunk) (dead, live uint64) {
	var all uint64
	for i := range c.Refs {
		all += c.Refs[i].Rows
	}
	live = uint64(max(c.Rows, 0))
	return all - min(live, all), live
}

func (m *merger) job(c *manifest.Chunk, from, to int, why Why, reason string) Compaction {
	j := Compaction{Chunk: c, From: from, To: to, Why: why, Oldest: from == 0, Reason: reason}
	var highest manifest.Seq
	for i := from; i < to; i++ {
		r := &c.Refs[i]
		j.Rows += r.Rows
		j.Bytes += min(r.Size, r.Bytes+uint64(r.TailLength))
		highest = max(highest, r.MaxSeq, r.FixedSeq)
	}
	for i := to; i < len(c.Refs); i++ {
		if r := &c.Refs[i]; r.Rows > 0 && cmp.Or(r.FixedSeq, r.MinSeq) <= highest && overlap(c.Refs[from:to], r) {
			j.Oldest = false
		}
	}
	return j
}

// overlap reports whether a reference may have a key that one of the others has.
func overlap(refs []manifest.SegmentRef, r *manifest.SegmentRef) bool {
	for i := range refs {
		if bytes.Compare(refs[i].MinKey, r.MaxKey) <= 0 && bytes.Compare(r.MinKey, refs[i].MaxKey) <= 0 && refs[i].Clip.Overlaps(r.Clip) {
			return true
		}
	}
	return false
}
