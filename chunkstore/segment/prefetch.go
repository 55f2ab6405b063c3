package segment

import "sync/atomic"

// Prefetch bounds, in bytes as stored, what scans read before they need it: of a whole
// process, and of one scan as a Part of that. What it refuses is read when it is needed, so
// that a bound that is reached costs time and nothing else. Safe for concurrent use; a nil
// *Prefetch allows nothing.
type Prefetch struct {
	whole *Prefetch // nil: this is the whole
	limit int64
	used  atomic.Int64
}

// NewPrefetch makes the bound of a process.
func NewPrefetch(bytes int64) *Prefetch { return &Prefetch{limit: bytes} }

// Part makes a bound within p: what it takes is taken from p too.
func (p *Prefetch) Part(bytes int64) *Prefetch {
	if p == nil {
		return nil
	}
	return &Prefetch{whole: p, limit: bytes}
}

// Used is how many bytes are taken at the moment.
func (p *Prefetch) Used() int64 { return p.used.Load() }

// Take takes n bytes and reports whether they were free. It never waits.
func (p *Prefetch) Take(n int64) bool {
	if p == nil {
		return false
	}
	if p.used.Add(n) <= p.limit && (p.whole == nil || p.whole.Take(n)) {
		return true
	}
	p.used.Add(-n)
	return false
}

// Give gives back what was taken.
func (p *Prefetch) Give(n int64) {
	for ; p != nil; p = p.whole {
		p.used.Add(-n)
	}
}
