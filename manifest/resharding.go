package manifest

import (
	"crypto/sha256"
	"encoding/binary"
)

// The record of a job that gives a collection another key has the fields `job`, its id, and
// `segments`, below which are the numbers of all segments that it may have stored so far. What
// else it tells is for people. A number makes a name (ReshardSegment), so that whoever ends a job
// that died can name what it left, without a listing.
const (
	jobField      = "job"
	segmentsField = "segments"
)

// ReshardSegment is the name of a job's n-th segment.
func ReshardSegment(job JobID, n int64) SegmentID {
	var b [24]byte
	copy(b[:], job[:])
	binary.BigEndian.PutUint64(b[16:], uint64(n))
	sum := sha256.Sum256(b[:])
	id := SegmentID{Creator: Creator{Kind: CreatorJob, Job: job}}
	copy(id.Random[:], sum[:])
	return id
}

// ReshardJob is the job that wrote a record of its resharding.
func (r Record) ReshardJob() (job JobID) {
	_, id, _ := r.Body.Lookup(jobField).BinaryOK()
	copy(job[:], id)
	return job
}

// EndResharding are the changes that end the job of such a record, which must still be the one
// that was seen: from then on nothing of it can be committed, and what it stored is for GC.
func EndResharding(r Record) []Change {
	job := r.ReshardJob()
	n, _ := r.Body.Lookup(segmentsField).Int64OK()
	left := make([]SegmentRef, 0, max(0, min(n, DroppedEntries)))
	for i := range int64(cap(left)) {
		left = append(left, SegmentRef{Segment: ReshardSegment(job, i)})
	}
	return []Change{
		PutRecord{Record: r, IfBody: r.Body},
		ExpelJob{ID: job, Left: left},
		DropRecord{Kind: r.Kind, ID: r.ID},
	}
}
