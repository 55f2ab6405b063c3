package reshard

import "github.com/granarydb/granary/manifest"

// Estimate is about what a job will cost, as long as nothing is written meanwhile.
type Estimate struct {
	Documents int64 // about, when the count of a chunk is not exact
	Bytes     int64 // uncompressed
	Stored    int64 // compressed: what the new chunks take, beside the old ones while these are kept
	// Requests to the bucket, and the bytes of their bodies.
	Puts, Gets    int64
	Written, Read int64
}

// What an estimate counts on: a long scan reads about a megabyte at once, and opens a segment
// with two requests; beside the data there are the commits and their reads, and what each
// owner flushes, three times.
const (
	readBytes      = 1 << 20
	opens          = 2
	commits        = 10
	flushesOfOwner = 3
)

// Estimated is what giving c another key will cost. Pure.
func Estimated(s *manifest.State, c *manifest.Collection, settings Settings) (e Estimate) {
	settings = settings.withDefaults()
	segments := make(map[manifest.SegmentID]int64)
	owners := make(map[manifest.ShardID]bool)
	for k := range s.Chunks(c.ID) {
		e.Documents, e.Bytes = e.Documents+k.Rows, e.Bytes+k.Bytes
		owners[k.Shard] = true
		for i := range k.Refs {
			segments[k.Refs[i].Segment] = int64(k.Refs[i].Size)
		}
	}
	for _, size := range segments {
		e.Stored += size
	}
	e.Stored = min(e.Stored, e.Bytes) // a segment may be shared with other collections
	passes := int64(2)                // the old chunks, and the new ones to verify them
	fresh := above(e.Stored, int64(settings.SegmentBytes))
	e.Puts, e.Written = fresh, e.Stored
	if memory := e.Bytes + e.Documents*rowBytes; memory > int64(settings.MemoryBytes) {
		runs := above(memory, int64(settings.MemoryBytes))
		passes, e.Puts, e.Written = passes+1, e.Puts+runs, e.Written+e.Stored
		e.Gets += runs * opens
	}
	e.Read = passes * e.Stored
	e.Gets += (int64(len(segments))+fresh)*opens + above(e.Read, readBytes) + commits
	e.Puts += commits + flushesOfOwner*int64(len(owners))
	return e
}

// above is n / of, rounded up.
func above(n, of int64) int64 { return (n + of - 1) / of }
