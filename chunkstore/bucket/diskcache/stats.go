package diskcache

import "sync/atomic"

// Stats says how the cache does.
type Stats struct {
	// Hits are Gets of immutable objects that were answered from files, Partial those of
	// them for which a part came from the store, Misses those that went there.
	Hits, Partial, Misses int64
	HitBytes              int64 // of the answers
	Entries, Bytes        int64 // files, and what they take on disk
	Written, Evicted      int64
	// Skipped are answers that were not kept: too large, the queue was full, or writing is
	// paused after an error.
	Skipped int64
	// Corrupt files did not match their checksums; Vanished ones were not there any more.
	Corrupt, Vanished       int64
	ReadErrors, WriteErrors int64
}

type counters struct {
	hits, partial, misses, hitBytes, written, evicted, skipped, corrupt, vanished, readErrors, writeErrors atomic.Int64
}

// Stats reads the counters.
func (c *Cached) Stats() Stats {
	n := &c.count
	entries, bytes := c.index.usage()
	return Stats{
		Hits: n.hits.Load(), Partial: n.partial.Load(), Misses: n.misses.Load(), HitBytes: n.hitBytes.Load(),
		Entries: int64(entries), Bytes: bytes, Written: n.written.Load(), Evicted: n.evicted.Load(), Skipped: n.skipped.Load(),
		Corrupt: n.corrupt.Load(), Vanished: n.vanished.Load(), ReadErrors: n.readErrors.Load(), WriteErrors: n.writeErrors.Load(),
	}
}
