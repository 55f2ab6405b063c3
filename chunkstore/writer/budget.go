package writer

import (
	"github.com/granarydb/granary/chunkstore/reader"
)

// Rows have a bound of their own (memory). What a Writer needs beside them comes from the memory
// that all of the process's work shares, through two accounts: Settings.Retries, what it remembers
// of retryable writes, and Settings.Segments, what flushes build.

const (
	retryShareMin = 256 << 10
	retryShareMax = reader.RetryBytesMax
	// segmentLeast is how large a segment may always become.
	segmentLeast = 1 << 20
)

// weigh counts what a chunk's retry entries take. Requires: the mutex.
func (s *shard) weigh(c *chunk) {
	n := c.retries.bytes - c.retries.weighed
	c.retries.weighed += n
	s.w.set.Retries.Add(n)
}

// unweigh gives back what a chunk's retry entries took: it is gone. Requires: the mutex.
func (s *shard) unweigh(c *chunk) {
	s.w.set.Retries.Add(-c.retries.weighed)
	c.retries.weighed = 0
}

// retryShare is one chunk's share of the memory for retry entries. When all of them together
// have taken too much, because there are more chunks than smallest shares, it is smaller than
// that.
func (w *Writer) retryShare() int64 {
	chunks := max(w.memory.chunks.Load(), 1)
	share := min(max(w.set.RetryBytes/chunks, retryShareMin), retryShareMax)
	if b := w.set.Retries.Bound(); b.Used > b.Limit {
		share = min(share, b.Limit/chunks)
	}
	return share
}

// trimRetries has every chunk forget what is beyond its share, also those that nobody writes to:
// what was read from segments, or was a smaller part of the process when it came.
func (w *Writer) trimRetries() {
	for _, s := range w.held() {
		s.mu.Lock()
		for _, c := range s.chunks {
			c.retries.trim(w.retryShare())
			s.weigh(c)
		}
		s.mu.Unlock()
	}
}

// borrow takes memory for a flush of parts, and says how large its segments may become; back
// gives it back. Where little is left they are smaller, and more.
func (w *Writer) borrow(parts []*part) (segmentMost int, back func()) {
	rows, entries := int64(0), int64(0)
	for _, p := range parts {
		if p.rows != nil {
			rows += p.rows.size
		}
		for i := range p.retries {
			entries += p.retries[i].MemoryBytes()
		}
	}
	want := min(rows+entries, int64(w.set.SegmentBytes))
	got := w.set.Segments.Take(want, segmentLeast)
	w.set.Segments.Add(entries) // they are copied for the flush, and kept until the segment ends
	segmentMost = w.set.SegmentBytes
	if got < want {
		segmentMost = int(got)
	}
	return segmentMost, func() { w.set.Segments.Add(-got - entries) }
}
