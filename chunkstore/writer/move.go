package writer

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Promise answers the destination's part of a planned move: the end of what this shard has
// in its WAL. Everything below it that concerns the chunks is of an earlier ownership, and
// the move makes it their floor, so that it never comes back. It is true only while the
// chunks are another's, and only for the versions named: later ones may have been here in
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
	for i := range r.Chunks {
		if c := s.state.ChunkAt(r.Chunks[i]); c == nil || c.Shard == s.id {
			return nil, fmt.Errorf("promise chunk %d version %d to shard %s: %w: not another's in root version %d",
				r.Chunks[i].ID, r.Chunks[i].Version, s.id, errkind.StaleVersion, s.state.Version())
		}
	}
	return &rpc.PromiseReply{Epoch: s.epoch, Position: s.durable}, nil
}

// Move hands chunks over to another shard, all or none. Errors: StaleVersion (one of them is
// another by now), Conflict (nothing happened), Invalid, UnknownOutcome, and those of the
// destination.
func (w *Writer) Move(ctx context.Context, r *rpc.MoveRequest) (*rpc.MoveReply, error) {
	ctx, cancel := w.deadline(ctx, &r.Header)
	defer cancel()
	s, err := w.enter(ctx, &r.Header)
	if err != nil {
		return nil, err
	}
	verb := "move " + named(r.Chunks)
	if err := moveRequest(r, s.id); err != nil {
		return nil, fmt.Errorf("%s to shard %s: %w", verb, r.To, err)
	}
	var reply rpc.MoveReply
	err = s.relocating(ctx, r.Chunks, r.To, func(k *relocation) error {
		return s.do(ctx, func(ctx context.Context) (err error) {
			reply.Version, err = s.move(ctx, r.Chunks, r.To, k)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("%s from shard %s to %s: %w", verb, s.id, r.To, err)
	}
	return &reply, nil
}

// named is how errors speak of chunks.
func named(list []manifest.ChunkAt) string {
	if len(list) == 1 {
		return fmt.Sprintf("chunk %d", list[0].ID)
	}
	return fmt.Sprintf("%d chunks", len(list))
}

// moveRequest refuses what could never be done. Errors: Invalid.
func moveRequest(r *rpc.MoveRequest, from manifest.ShardID) error {
	if n := len(r.Chunks); n == 0 || n > rpc.MovesMax {
		return fmt.Errorf("%w: name 1 to %d chunks", errkind.Invalid, rpc.MovesMax)
	}
	if r.To == from {
		return fmt.Errorf("%w: that is where they are; name another shard", errkind.Invalid)
	}
	seen := make(map[manifest.ChunkID]bool, len(r.Chunks))
	for i := range r.Chunks {
		if id := r.Chunks[i].ID; seen[id] {
			return fmt.Errorf("%w: chunk %d is named twice", errkind.Invalid, id)
		}
		seen[r.Chunks[i].ID] = true
	}
	return nil
}

// move is the janitor's job:
//
//	promise     the destination's, for these chunks and versions
//	flush       what is much, while the chunks serve
//	hold        reads and writes of the chunks wait from here
//	drain       what was appended is durable
//	upload      the rest of their rows, and their retry entries, in one segment
//	commit      rows, owner, version, floor of each: one change of the root
//
// Chunks without any of that cost the commit alone, however many they are. Before the commit
// nothing happened; after it they are the other's. Until the outcome is known they stay held:
// if the commit was applied, the destination may have acknowledged a write already that we do
// not know.
func (s *shard) move(ctx context.Context, list []manifest.ChunkAt, to manifest.ShardID, k *relocation) (manifest.Version, error) {
	chunks, err := s.moveable(list)
	if err != nil {
		return 0, err
	}
	promise, err := s.promise(ctx, list, to)
	if err != nil {
		return 0, err
	}
	if k == nil && s.chunkBytes(chunks) > s.w.set.MovePreflush {
		if err := s.flushChunks(ctx, chunks); err != nil {
			return 0, err
		}
	}
	defer s.unhold(chunks, s.hold(chunks))
	if err := s.drained(ctx); err != nil {
		return 0, err
	}
	if k != nil {
		if err := k.catchUp(ctx, chunks); err != nil {
			return 0, err
		}
	}
	return s.giveAway(ctx, chunks, list, to, promise, k)
}

// moveable finds the chunks of a move.
func (s *shard) moveable(list []manifest.ChunkAt) ([]*chunk, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return nil, s.endErr
	}
	chunks := make([]*chunk, len(list))
	for i, at := range list {
		chunks[i] = s.target(at.Collection, &rpc.Target{ID: at.ID, Version: at.Version, Min: at.Min})
		if chunks[i] == nil {
			return nil, fmt.Errorf("chunk %d version %d: %w: it is another chunk in root version %d", at.ID, at.Version, errkind.StaleVersion, s.state.Version())
		}
	}
	return chunks, nil
}

// promise asks the destination.
func (s *shard) promise(ctx context.Context, list []manifest.ChunkAt, to manifest.ShardID) (rpc.PromiseReply, error) {
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
		Header: rpc.Header{Shard: to, Collection: list[0].Collection, RootVersion: st.Version(), Deadline: s.w.set.Patience},
		Chunks: list,
	})
	if err != nil {
		return rpc.PromiseReply{}, fmt.Errorf("promise of shard %s: %w", to, err)
	}
	return mutatePromise(*r, list[0].ID, to), nil
}

// giveAway flushes the rest of held chunks and commits their new owner.
func (s *shard) giveAway(ctx context.Context, chunks []*chunk, list []manifest.ChunkAt, to manifest.ShardID, promise rpc.PromiseReply, k *relocation) (version manifest.Version, err error) {
	pos, parts, _ := s.freeze(chunks)
	defer s.thaw(pos, parts)
	moving := make(map[*chunk]bool, len(chunks))
	for _, c := range chunks {
		moving[c] = true
	}
	var leaving, along []*part // along: tied to what moves
	for _, p := range parts {
		if moving[p.chunk] {
			leaving = append(leaving, p)
		} else {
			along = append(along, p)
		}
	}
	at := s.location
	if k != nil {
		at = k.at
		for _, p := range leaving {
			if p.retries, err = s.partingRetries(p.retries, p.info); err != nil {
				return 0, err
			}
		}
	}
	if err := s.uploadAs(ctx, s.working, at, leaving); err != nil {
		return 0, err
	}
	added := make(map[*chunk]manifest.Added, len(leaving))
	for _, p := range leaving {
		added[p.chunk] = p.added
	}
	changes := make([]manifest.Change, len(chunks), len(chunks)+2)
	if len(along) > 0 {
		stays := s.location
		if broken(partElsewhere) {
			stays = at
		}
		if err := s.uploadAs(ctx, s.working, stays, along); err != nil {
			return 0, err
		}
		changes = append(changes, manifest.Flush{Shard: s.id, Epoch: s.commitEpoch(), Snapshot: pos, Chunks: flushed(along)})
	}
	for i, c := range chunks {
		rows, ok := added[c]
		if !ok || broken(moveUnflushed) {
			rows = manifest.Added{MaxSeq: s.lastSeq(c)}
		}
		m := manifest.Move{
			Chunk: list[i], From: s.id, FromEpoch: s.commitEpoch(), To: to, ToEpoch: promise.Epoch, Promise: promise.Position, Added: rows,
		}
		if k != nil {
			m.Copied = k.copied[c.info.ID]
		}
		changes[i] = m
	}
	if k != nil {
		k.done = true
		changes = append(changes, k.end())
	}
	if err := s.commitEdit(ctx, false, changes...); err != nil {
		return 0, err
	}
	s.count(func(c *Counts) { c.Moves += int64(len(chunks)) })
	return s.version(), nil
}

func (s *shard) lastSeq(c *chunk) manifest.Seq {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.seq
}

// chunkBytes is what a move would have to flush.
func (s *shard) chunkBytes(chunks []*chunk) (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chunks {
		n += c.mem.bytes
	}
	return n
}

// hold stops reads and writes of chunks; those that come wait.
func (s *shard) hold(chunks []*chunk) *gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := newGate()
	for _, c := range chunks {
		c.held = g
	}
	return g
}

// unhold ends a hold, once the outcome is known: requests go on, and find the chunks here
// or gone. When the shard ended they have their answer already.
func (s *shard) unhold(chunks []*chunk, g *gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chunks {
		c.held = nil
	}
	close(g.opened)
}
