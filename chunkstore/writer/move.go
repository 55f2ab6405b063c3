package writer

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Promise answers the destination's part of a planned move: the end of what this shard has
// in its WAL. Everything below it that concerns the chunk is of an earlier ownership, and
// the move makes it the chunk's floor, so that it never comes back. It is true only while
// the chunk is another's, and only for the version named: later ones may have been here in
// between.
func (w *Writer) Promise(ctx context.Context, r *rpc.PromiseRequest) (*rpc.PromiseReply, error) {
	ctx, cancel := w.deadline(ctx, &r.Header)
	defer cancel()
	s, err := w.enter(ctx, &r.Header)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return nil, s.endErr
	}
	if c := s.state.ChunkAt(r.Chunk); c == nil || c.Shard == s.id {
		return nil, fmt.Errorf("promise chunk %d version %d to shard %s: %w: not another's in root version %d",
			r.Chunk.ID, r.Chunk.Version, s.id, errkind.StaleVersion, s.state.Version())
	}
	return &rpc.PromiseReply{Epoch: s.epoch, Position: s.durable}, nil
}

// Move hands a chunk over to another shard. Errors: StaleVersion (the chunk is another by
// now), Conflict (nothing happened), UnknownOutcome, and those of the destination.
func (w *Writer) Move(ctx context.Context, r *rpc.MoveRequest) (*rpc.MoveReply, error) {
	ctx, cancel := w.deadline(ctx, &r.Header)
	defer cancel()
	s, err := w.enter(ctx, &r.Header)
	if err != nil {
		return nil, err
	}
	if r.To == s.id {
		return nil, fmt.Errorf("move chunk %d to shard %s: %w: it is there; name another shard", r.Chunk.ID, r.To, errkind.Invalid)
	}
	var reply rpc.MoveReply
	err = s.do(ctx, func(ctx context.Context) (err error) {
		reply.Version, err = s.move(ctx, r.Chunk, r.To)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("move chunk %d from shard %s to %s: %w", r.Chunk.ID, s.id, r.To, err)
	}
	return &reply, nil
}

// move is the janitor's job:
//
//	promise     the destination's, for this chunk and version
//	flush       what is much, while the chunk serves
//	hold        reads and writes of the chunk wait from here
//	drain       what was appended is durable
//	upload      the rest of its rows, and its retry entries
//	commit      rows, owner, version, floor: one change of the root
//
// Before the commit nothing happened; after it the chunk is the other's. Until the outcome
// is known the chunk stays held: if the commit was applied, the destination may have
// acknowledged a write already that we do not know.
func (s *shard) move(ctx context.Context, at manifest.ChunkAt, to manifest.ShardID) (manifest.Version, error) {
	c, err := s.moveable(at)
	if err != nil {
		return 0, err
	}
	promise, err := s.promise(ctx, at, to)
	if err != nil {
		return 0, err
	}
	if s.chunkBytes(c) > s.w.set.MovePreflush {
		if err := s.flushChunk(ctx, c); err != nil {
			return 0, err
		}
	}
	defer s.unhold(c, s.hold(c))
	if err := s.drained(ctx); err != nil {
		return 0, err
	}
	return s.giveAway(ctx, c, at, to, promise)
}

// moveable finds the chunk of a move.
func (s *shard) moveable(at manifest.ChunkAt) (*chunk, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return nil, s.endErr
	}
	c := s.target(at.Collection, &rpc.Target{ID: at.ID, Version: at.Version})
	if c == nil {
		return nil, fmt.Errorf("version %d: %w: it is another chunk in root version %d", at.Version, errkind.StaleVersion, s.state.Version())
	}
	return c, nil
}

// promise asks the destination.
func (s *shard) promise(ctx context.Context, at manifest.ChunkAt, to manifest.ShardID) (rpc.PromiseReply, error) {
	s.mu.Lock()
	st := s.state
	s.mu.Unlock()
	dst := st.Shard(to)
	if dst == nil || dst.Status == manifest.ShardFree {
		return rpc.PromiseReply{}, fmt.Errorf("destination shard %s: %w: nobody holds it", to, errkind.Conflict)
	}
	if s.w.dial == nil {
		return rpc.PromiseReply{}, fmt.Errorf("destination shard %s: %w: this process dials nobody", to, errkind.Invalid)
	}
	owner, err := s.w.dial.Dial(to, dst.Holder, dst.Address)
	if err != nil {
		return rpc.PromiseReply{}, err
	}
	r, err := owner.Promise(ctx, &rpc.PromiseRequest{
		Header: rpc.Header{Shard: to, Collection: at.Collection, RootVersion: st.Version(), Deadline: s.w.set.Patience},
		Chunk:  at,
	})
	if err != nil {
		return rpc.PromiseReply{}, fmt.Errorf("promise of shard %s: %w", to, err)
	}
	return mutatePromise(*r, at.ID, to), nil
}

// giveAway flushes the rest of a held chunk and commits its new owner.
func (s *shard) giveAway(ctx context.Context, c *chunk, at manifest.ChunkAt, to manifest.ShardID, promise rpc.PromiseReply) (manifest.Version, error) {
	pos, parts, _ := s.freeze(c)
	defer s.thaw(pos, parts)
	if err := s.upload(ctx, parts); err != nil {
		return 0, err
	}
	s.mu.Lock()
	added := manifest.Added{MaxSeq: c.seq}
	s.mu.Unlock()
	for _, p := range parts {
		added = p.added
	}
	err := s.commitEdit(ctx, false, manifest.Move{
		Chunk: at, From: s.id, FromEpoch: s.commitEpoch(), To: to, ToEpoch: promise.Epoch, Promise: promise.Position, Added: added,
	})
	if err != nil {
		return 0, err
	}
	s.count(func(c *Counts) { c.Moves++ })
	return s.version(), nil
}

// chunkBytes is what a move would have to flush.
func (s *shard) chunkBytes(c *chunk) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.mem.bytes
}

// hold stops reads and writes of a chunk; those that come wait.
func (s *shard) hold(c *chunk) *gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := newGate()
	c.held = g
	return g
}

// unhold ends a hold, once the outcome is known: requests go on, and find the chunk here
// or gone. When the shard ended they have their answer already.
func (s *shard) unhold(c *chunk, g *gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.held = nil
	close(g.opened)
}
