package router

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/reader/query"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/router/plan"
)

// freeShard answers one read straight from the bucket: of a shard that nobody holds, or of
// a snapshot. The root it reads by was loaded after the operation began, and a free shard's
// data is all in segments: the answer is as fresh as an owner's.
type freeShard struct {
	r       *Router
	state   *manifest.State
	coll    *manifest.Collection
	targets []plan.Target
	at      manifest.Version // Query.At

	cursor *query.Cursor
	seen   rpc.ReadStats // already reported
}

// freeCursor is the id of the one cursor that a freeShard has.
const freeCursor = 1

// Read starts the query. It answers SnapshotUnavailable when a segment is gone because a
// newer root no longer names it.
func (f *freeShard) Read(ctx context.Context, r *rpc.ReadRequest) (*rpc.ReadReply, error) {
	var ts []query.Target
	moment := expiry.Of(f.coll).By(f.r.host.Wall().UnixMilli())
	for _, t := range f.targets {
		ts = append(ts, query.Target{View: reader.View{Chunk: t.Chunk, Moment: moment}, Ranges: t.Ranges, Key: f.coll.Key})
	}
	var err error
	if f.cursor, err = query.Open(ctx, f.r.store, ts, r.Query, query.Limits{Sorts: f.r.sorts}); err != nil {
		return nil, f.gone(ctx, err)
	}
	if r.Query.Mode != rpc.Count {
		return f.Cursor(ctx, &rpc.CursorRequest{Header: r.Header, Batch: r.Batch})
	}
	n, err := f.cursor.Count(ctx)
	if err != nil {
		return nil, f.gone(ctx, err)
	}
	return &rpc.ReadReply{N: n, DataVersion: f.coll.DataVersion, Stats: f.spent()}, nil
}

// Cursor continues the query.
func (f *freeShard) Cursor(ctx context.Context, r *rpc.CursorRequest) (*rpc.ReadReply, error) {
	if r.Close {
		f.cursor = nil
		return &rpc.ReadReply{}, nil
	}
	docs, done, err := f.cursor.Next(ctx, r.Batch)
	if err != nil {
		return nil, f.gone(ctx, err)
	}
	reply := &rpc.ReadReply{Docs: docs, Cursor: freeCursor, DataVersion: f.coll.DataVersion, Stats: f.spent()}
	if done {
		reply.Cursor = 0
	}
	return reply, nil
}

// spent is what was spent since it was last asked.
func (f *freeShard) spent() rpc.ReadStats {
	now := f.cursor.Stats()
	d := rpc.ReadStats{
		DocsExamined:   now.DocsExamined - f.seen.DocsExamined,
		BucketRequests: now.BucketRequests - f.seen.BucketRequests,
		BucketBytes:    now.BucketBytes - f.seen.BucketBytes,
	}
	f.seen = now
	return d
}

// gone tells a segment that GC took from one that is lost: the newest root still names a
// lost one, and that is corruption, never emptiness.
func (f *freeShard) gone(ctx context.Context, err error) error {
	if !errors.Is(err, errkind.NotFound) {
		return err
	}
	s, _, loadErr := f.r.root.Load(ctx)
	if loadErr != nil {
		return fmt.Errorf("%w: %w", loadErr, errkind.Throttled)
	}
	for _, t := range f.targets {
		now := s.ChunkAt(t.Chunk.At())
		kept := f.at != 0 && slices.ContainsFunc(s.Pins(), func(p manifest.Pin) bool { return p.Version == f.at })
		if !kept && (now == nil || !sameRefs(now.Refs, t.Chunk.Refs)) {
			return fmt.Errorf("read chunk %d: %v: %w", t.Chunk.ID, err, errkind.SnapshotUnavailable)
		}
	}
	return fmt.Errorf("read collection %s: root version %d names a segment that is not there: %w: %w", f.coll.Namespace(), s.Version(), err, errkind.Corrupt)
}

func sameRefs(a, b []manifest.SegmentRef) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Segment != b[i].Segment {
			return false
		}
	}
	return true
}
