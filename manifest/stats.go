package manifest

import "sync/atomic"

// Stats counts what a Root did since it was made.
type Stats struct {
	// Loads counts GETs of the root, NotModified those that found it unchanged, and Stale
	// those that came back older than what was seen before.
	Loads, NotModified, Stale int64
	// Commits counts PUTs of the root that landed, Edits the Edits in them, and Bytes the
	// bytes of these roots and of the pages written for them.
	Commits, Edits, Bytes int64
	// LostRaces counts PUTs that another process's commit overtook, Unclear those that got
	// no clear answer, and Unknown Edits that were answered with UnknownOutcome.
	LostRaces, Unclear, Unknown int64
	// PagesWritten and PagesFetched count page objects.
	PagesWritten, PagesFetched int64
}

type counters struct {
	loads, notModified, stale, commits, edits, bytes, lostRaces, unclear, unknown, pagesWritten, pagesFetched atomic.Int64
}

// Stats is a copy of the counters, for metrics.
func (r *Root) Stats() Stats {
	c := &r.stats
	return Stats{
		Loads: c.loads.Load(), NotModified: c.notModified.Load(), Stale: c.stale.Load(),
		Commits: c.commits.Load(), Edits: c.edits.Load(), Bytes: c.bytes.Load(),
		LostRaces: c.lostRaces.Load(), Unclear: c.unclear.Load(), Unknown: c.unknown.Load(),
		PagesWritten: c.pagesWritten.Load(), PagesFetched: c.pagesFetched.Load(),
	}
}
