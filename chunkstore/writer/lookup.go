package writer

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/reader/query"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// flushedRow finds the newest flushed version of a row; live is false when there is none, or
// a deletion.
func (s *shard) flushedRow(ctx context.Context, v reader.View, key []byte) (row segment.Row, live bool, err error) {
	err = s.w.turns.read(ctx, func() (err error) {
		row, live, err = s.w.store.Get(ctx, v, key)
		return err
	})
	return row, live, err
}

// flushedRows is flushedRow for many rows.
func (s *shard) flushedRows(ctx context.Context, v reader.View, rows []*insertion) (found []reader.Found) {
	keys := make([][]byte, len(rows))
	for i, in := range rows {
		keys[i] = in.path[4:]
	}
	_ = s.w.turns.read(ctx, func() error {
		found = s.w.store.GetMany(ctx, v, keys)
		return nil
	})
	return found
}

// more continues a search.
func (s *shard) more(ctx context.Context, cur *query.Cursor, size rpc.Batch) (docs []bson.Raw, done bool, err error) {
	err = s.w.turns.read(ctx, func() (err error) {
		docs, done, err = cur.Next(ctx, size)
		return err
	})
	return docs, done, err
}

// errOtherRefs says that a read met a segment that is gone because the chunk has others by
// now: look again.
var errOtherRefs = errors.New("the chunk's segments changed")

// missing says what a failed read of chunks means. A segment that is not there is not an
// empty one: the root is read again, and a segment that is still referenced is lost.
// Errors: errOtherRefs, Corrupt, or err itself when no segment was missing.
func (s *shard) missing(ctx context.Context, err error, seen ...*manifest.Chunk) error {
	if !errors.Is(err, errkind.NotFound) {
		return err
	}
	var st *manifest.State
	rootErr := s.w.turns.take(ctx, s.w.turns.join(), func() (err error) {
		st, _, err = s.w.root.Load(ctx)
		return err
	})
	if rootErr != nil {
		return fmt.Errorf("read the root after a segment was missing: %w", rootErr)
	}
	for _, was := range seen {
		if !refersToAll(st, was) {
			return errOtherRefs
		}
	}
	s.w.log.Error("segment lost", "shard", s.id, "root", st.Version(), "cause", err)
	return fmt.Errorf("%w: root version %d refers to it: %w", errkind.Corrupt, st.Version(), err)
}

// refersToAll reports whether every segment that the chunk had is still referenced in its
// range.
func refersToAll(st *manifest.State, was *manifest.Chunk) bool {
	now := make(map[manifest.SegmentID]bool)
	for c := range st.ChunksIn(was.Collection, was.Range) {
		for i := range c.Refs {
			now[c.Refs[i].Segment] = true
		}
	}
	for i := range was.Refs {
		if !now[was.Refs[i].Segment] {
			return false
		}
	}
	return true
}
