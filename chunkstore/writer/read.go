package writer

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/reader/query"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// readAttempts bounds how often a read begins again because a segment went meanwhile.
const readAttempts = 4

// found is what a read saw: its targets at one moment, and of that moment the collection's
// data version and the root version with which the shard last got a chunk of it.
type found struct {
	targets []query.Target
	version manifest.DataVersion
	gained  manifest.Version
}

// Read answers from what was durable at one moment of the call at which this process surely
// was the owner. Errors: StaleVersion, Fenced, Throttled (not within the deadline), Corrupt,
// SnapshotUnavailable, *mongoerr.Error.
func (w *Writer) Read(ctx context.Context, r *rpc.ReadRequest) (*rpc.ReadReply, error) {
	ctx, cancel := w.deadline(ctx, &r.Header)
	defer cancel()
	s, err := w.enter(ctx, &r.Header)
	if err != nil {
		return nil, early(ctx, err)
	}
	for range readAttempts {
		f, err := s.find(ctx, r)
		if err != nil {
			return nil, early(ctx, fmt.Errorf("read shard %s: %w", s.id, err))
		}
		cur, err := query.Open(ctx, w.store, f.targets, r.Query, query.Limits{SortBytes: w.set.SortBytes, Sorts: w.set.Sorts})
		if err != nil {
			return nil, err
		}
		reply, err := s.answer(ctx, r, cur, f)
		if err == nil {
			return reply, nil
		}
		if err = s.lookedAway(ctx, f, err); !errors.Is(err, errOtherRefs) {
			return nil, fmt.Errorf("read shard %s: %w", s.id, err)
		}
	}
	return nil, fmt.Errorf("read shard %s: %w: segments were replaced under %d attempts", s.id, errkind.SnapshotUnavailable, readAttempts)
}

// find takes a view of all targets at once, at a moment at which the read's level is proved.
func (s *shard) find(ctx context.Context, r *rpc.ReadRequest) (found, error) {
	p := proof{level: r.Level}
	for {
		s.mu.Lock()
		f, g, err := s.viewAll(r)
		if err == nil && g == nil && s.holds(&p) {
			s.mu.Unlock()
			return f, nil
		}
		place := 0
		if g != nil {
			place = s.w.turns.join()
		}
		s.mu.Unlock()
		switch {
		case err != nil:
			return found{}, err
		case g != nil:
			err = s.await(ctx, g, place)
		default:
			err = s.verify(ctx, &p)
		}
		if err != nil {
			return found{}, err
		}
	}
}

// viewAll takes the views; a gate: one of the chunks is held. Requires: the mutex.
func (s *shard) viewAll(r *rpc.ReadRequest) (f found, g *gate, err error) {
	switch {
	case s.endErr != nil:
		return f, nil, s.endErr
	case s.unserved != nil && !broken(readsInHandoff):
		return f, s.unserved, nil
	}
	coll := s.state.Collection(r.Collection)
	if coll == nil {
		return f, nil, fmt.Errorf("%w: no collection %d", errkind.StaleVersion, r.Collection)
	}
	if s.reshaping[r.Collection] {
		return f, nil, fmt.Errorf("%w: collection %s is getting another key", errkind.StaleVersion, coll.Namespace())
	}
	f.version = coll.DataVersion
	if f.version > 0 {
		f.gained = max(s.since, s.gained[coll.ID])
	}
	f.targets = make([]query.Target, len(r.Targets))
	moment := s.moment(coll.ID)
	for i := range r.Targets {
		t := &r.Targets[i]
		c := s.target(r.Collection, t)
		if c == nil {
			return f, nil, fmt.Errorf("%w: chunk %d is not here in version %d", errkind.StaleVersion, t.ID, t.Version)
		}
		if g := c.gate(); g != nil && !broken(readsInHandoff) {
			return f, g, nil
		}
		if h := s.heldRow(c, t); h != nil && !broken(readsInHandoff) {
			return f, h.gate, nil
		}
		s.heatOf(c).read(t)
		f.targets[i] = query.Target{View: c.view(), Ranges: t.Ranges, Key: coll.Key}
		f.targets[i].View.Moment = moment
	}
	return f, nil, nil
}

// answer makes the first reply, and leaves a cursor for the rest.
func (s *shard) answer(ctx context.Context, r *rpc.ReadRequest, cur *query.Cursor, f found) (reply *rpc.ReadReply, err error) {
	reply = &rpc.ReadReply{DataVersion: f.version, Gained: f.gained}
	if broken(dataVersionKept) {
		reply.DataVersion, reply.Gained = 0, 0
	}
	if r.Query.Mode == rpc.Count {
		reply.N, err = cur.Count(ctx)
		reply.Stats = cur.Stats()
		return reply, err
	}
	var done bool
	reply.Docs, done, err = cur.Next(ctx, r.Batch)
	reply.Stats = cur.Stats()
	if err == nil && !done {
		reply.Cursor, err = s.keep(cur, f)
	}
	return reply, err
}

// lookedAway is missing for all targets of a read.
func (s *shard) lookedAway(ctx context.Context, f found, err error) error {
	seen := make([]*manifest.Chunk, len(f.targets))
	for i := range f.targets {
		seen[i] = f.targets[i].View.Chunk
	}
	return s.missing(ctx, err, seen...)
}
