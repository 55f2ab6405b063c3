package fsck

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Mark is how far a scrub got: what a process that goes on with it must know.
type Mark struct {
	Cluster string `json:"cluster"`
	// Began is when the round began, in Unix milliseconds.
	Began int64 `json:"began"`
	// After is the key of the last segment that was read; "" before the first.
	After string `json:"after"`
	// Segments and Bytes were read in this round, and Problems found, so far.
	Segments int       `json:"segments"`
	Bytes    int64     `json:"bytes"`
	Problems []Problem `json:"problems"`
}

// Scrub reads every byte that the cluster refers to, once: bits that rot are found while there
// is a backup that has them. Segments are read one after another in the order of their keys,
// so that a mark says what was read; after them the pins, the copies of the root and the log.
// It finds less than a deep Run, which also merges the rows of each chunk and counts them, and
// needs no more memory than one segment's tail and a block.
//
// It goes on at mark, which is the zero value for a new round, and hands every further mark to
// noted, after each segment. The report is that of the whole round; its counts of segments and
// problems are also those from before mark. Errors: as Run, and noted's; Invalid for the mark of
// another cluster.
func (c *Checker) Scrub(ctx context.Context, mark Mark, noted func(Mark) error) (*Report, error) {
	deep := *c
	deep.Deep = true
	r := &Report{Problems: slices.Clone(mark.Problems), Segments: mark.Segments, Bytes: mark.Bytes}
	if r.Problems == nil {
		r.Problems = []Problem{}
	}
	state, err := deep.begin(ctx, r)
	if err != nil || state == nil {
		return r, err
	}
	cluster := fmt.Sprintf("%x", state.ClusterID())
	if mark.Cluster == "" {
		mark.Cluster = cluster
	}
	if mark.Cluster != cluster {
		return r, fmt.Errorf("scrub: %w: the mark is of cluster %s, the store holds %s: begin a new round", errkind.Invalid, mark.Cluster, cluster)
	}
	if err := deep.scrubSegments(ctx, state, r, mark, noted); err != nil {
		return r, err
	}
	if err := deep.checkWAL(ctx, state, r); err != nil {
		return r, err
	}
	return r, deep.checkOrphans(ctx, state, r)
}

// scrubSegments reads the segments that are behind the mark.
func (c *Checker) scrubSegments(ctx context.Context, state *manifest.State, r *Report, mark Mark, noted func(Mark) error) error {
	w, chunks := newChunkCheck(c, state, r)
	r.Collections, r.Chunks = len(state.Collections()), chunks
	ids := make([]manifest.SegmentID, 0, len(w.views))
	for id := range w.views {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b manifest.SegmentID) int { return strings.Compare(a.Key(), b.Key()) })
	for i, id := range ids {
		if id.Key() <= mark.After {
			continue
		}
		if err := w.scrub(ctx, id); err != nil {
			return err
		}
		mark.After, mark.Segments, mark.Bytes, mark.Problems = id.Key(), r.Segments, r.Bytes, r.Problems
		if err := noted(mark); err != nil {
			return err
		}
		if c.Progress != nil {
			c.Progress(i+1, len(ids))
		}
	}
	return nil
}

// scrub reads one segment and blames it for every chunk that refers to it.
func (w *chunkCheck) scrub(ctx context.Context, id manifest.SegmentID) error {
	views := w.views[id]
	err := w.segment(ctx, views[0].ref)
	for _, v := range views {
		if err == nil {
			w.unbounded(v)
			continue
		}
		if err := w.blame(ctx, v.chunk, v.ref, err); err != nil {
			return err
		}
	}
	return nil
}
