package writer

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// flushAttempts bounds how often a chunk is flushed for the sake of one row.
const flushAttempts = 4

// Prepare holds a row to which the owner of another shard will move a document, by a commit
// of the root. The row must not be there, and nothing of it may be in the WAL alone, where
// it would hide what the commit brings. Errors: StaleVersion, Fenced, Throttled (also when
// the row stays latched until the deadline: who holds it may wait for the caller).
func (w *Writer) Prepare(ctx context.Context, r *rpc.PrepareRequest) (*rpc.PrepareReply, error) {
	ctx, cancel := w.deadline(ctx, &r.Header)
	defer cancel()
	s, err := w.enter(ctx, &r.Header)
	if err != nil {
		return nil, early(ctx, err)
	}
	reply, err := s.prepare(ctx, r)
	var m *mongoerr.Error
	if errors.As(err, &m) {
		return nil, m
	}
	if errors.Is(err, errStale) {
		err = fmt.Errorf("%w: chunk %d is not here in version %d", errkind.StaleVersion, r.Chunk.ID, r.Chunk.Version)
	}
	if err != nil {
		return nil, early(ctx, fmt.Errorf("prepare a row of shard %s: %w", s.id, err))
	}
	return reply, nil
}

func (s *shard) prepare(ctx context.Context, r *rpc.PrepareRequest) (*rpc.PrepareReply, error) {
	x, err := s.outsider(r)
	if err != nil {
		return nil, err
	}
	path := appendPath(nil, r.Collection, r.Key)
	l, err := x.rowLatch(path)
	if err != nil {
		return nil, err
	}
	if reply := s.preparedBefore(r.Token); reply != nil {
		return reply, nil
	}
	if err := s.acquire(ctx, l); err != nil {
		return nil, err
	}
	if reply := s.preparedBefore(r.Token); reply != nil {
		s.release(l)
		return reply, nil
	}
	reply, err := x.prepareRow(ctx, r, path, l)
	if err != nil || reply.Exists {
		s.release(l)
	}
	return reply, err
}

// outsider looks at rows as a write does, for another shard's.
func (s *shard) outsider(r *rpc.PrepareRequest) (*exec, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return nil, s.endErr
	}
	coll := s.state.Collection(r.Collection)
	if coll == nil {
		return nil, errStale
	}
	q := &rpc.WriteRequest{Header: r.Header, Targets: []rpc.Target{{ID: r.Chunk.ID, Version: r.Chunk.Version, Min: r.Chunk.Min}}}
	return &exec{s: s, r: q, coll: coll, whole: coll.Key.HasID(), uniques: uniquesOf(coll)}, nil
}

func (s *shard) preparedBefore(token [16]byte) *rpc.PrepareReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.holdOf(token); h != nil {
		return &rpc.PrepareReply{Epoch: s.epoch, Seq: h.seq}
	}
	return nil
}

// prepareRow holds a row whose latch the caller has, and leaves it to the hold; or the row
// exists, and then it surely does.
func (x *exec) prepareRow(ctx context.Context, r *rpc.PrepareRequest, path []byte, l latch) (*rpc.PrepareReply, error) {
	op := &rpc.WriteOp{}
	doc, err := x.present(ctx, op, path)
	if err != nil {
		return nil, err
	}
	if doc != nil {
		if err := x.s.stored(ctx, x.last); err != nil {
			return nil, err
		}
		x.unproved = true
		return &rpc.PrepareReply{Exists: true}, x.prove(ctx)
	}
	if r.Doc != nil {
		if err := x.unbroken(ctx, path, r.Doc); err != nil {
			return nil, err
		}
	}
	if err := x.flushedOut(ctx, op, path); err != nil {
		return nil, err
	}
	c, err := x.enter(ctx, op)
	if err != nil {
		return nil, err
	}
	defer x.s.mu.Unlock()
	if unflushed, _ := x.s.unflushedRow(c, path); unflushed != nil || !c.info.Range.Contains(r.Key) {
		return nil, errStale
	}
	h := &hold{token: r.Token, from: r.From, at: r.Chunk, key: path[4:], latch: l}
	if r.Op != (rpc.OpID{}) {
		stored := segment.RetryEntry{Collection: r.Collection, Key: h.key, Op: segment.OpID(r.Op), Reply: r.Reply, ExpiresAt: r.Expires}
		if h.entry, err = recall(stored, nil); err != nil {
			return nil, err
		}
	}
	x.s.addHold(c, h)
	return &rpc.PrepareReply{Epoch: x.s.epoch, Seq: h.seq}, nil
}

// unbroken makes sure that the document breaks no unique index here. Errors: DuplicateKey,
// which is true when it is told; errStale, those of a read.
func (x *exec) unbroken(ctx context.Context, path []byte, doc bson.Raw) error {
	broken := x.keepsUnique(ctx, path, doc, nil)
	if broken == nil || errors.Is(broken, errStale) {
		return broken
	}
	if err := x.s.stored(ctx, x.last); err != nil {
		return err
	}
	if err := x.prove(ctx); err != nil {
		return err
	}
	return broken
}

// addHold begins a hold, with the next seq of its chunk. Requires: the mutex.
func (s *shard) addHold(c *chunk, h *hold) {
	c.seq++
	h.seq, h.gate, h.since = c.seq, newGate(), s.w.host.Mono()
	s.heldRows = append(s.heldRows, h)
}

// flushedOut returns when no version of a latched row is only in memory and in the WAL.
// Errors: errStale when its chunk is another by then.
func (x *exec) flushedOut(ctx context.Context, op *rpc.WriteOp, path []byte) error {
	for range flushAttempts {
		c, err := x.enter(ctx, op)
		if err != nil {
			return err
		}
		r, b := x.s.unflushedRow(c, path)
		x.s.mu.Unlock()
		if r == nil {
			return nil
		}
		if err := x.s.stored(ctx, b); err != nil {
			return err
		}
		err = x.s.w.turns.take(ctx, x.s.w.turns.join(), func() error {
			return x.s.do(ctx, func(ctx context.Context) error { return x.s.flushChunks(ctx, []*chunk{c}) })
		})
		if err != nil && !errors.Is(err, errkind.Conflict) {
			return err
		}
	}
	return fmt.Errorf("%w: the chunk keeps changing", errkind.Throttled)
}

// Decide tells the shard what became of a row that it prepared. Errors: those of reading the
// root, after which the shard finds out by itself.
func (w *Writer) Decide(ctx context.Context, r *rpc.DecideRequest) (*rpc.DecideReply, error) {
	ctx, cancel := w.deadline(ctx, &r.Header)
	defer cancel()
	if _, err := w.enter(ctx, &r.Header); err != nil {
		return nil, early(ctx, err)
	}
	if r.Aborted {
		w.shard(r.Shard).undoHold(r.Token)
	}
	return &rpc.DecideReply{}, nil
}

// undoHold ends a hold of which nothing will come.
func (s *shard) undoHold(token [16]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.holdOf(token); h != nil {
		s.endHold(h, false)
	}
}

// owner is how this shard reaches the holder of another. Errors: waits, when there is none.
func (s *shard) owner(st *manifest.State, id manifest.ShardID) (rpc.Owner, error) {
	to := st.Shard(id)
	switch {
	case s.w.dial == nil:
		return nil, fmt.Errorf("shard %s: %w: this process dials nobody", id, errkind.Invalid)
	case to == nil:
		return nil, errStale
	case to.Status == manifest.ShardFree:
		return nil, waits{id}
	}
	owner, err := s.w.dial.Dial(id, to.Holder, to.Address)
	if err != nil {
		return nil, waits{id}
	}
	return owner, nil
}

// waits ends an operation that needs a shard without a holder, or whose holder does not
// answer. Nothing was done.
type waits struct{ shard manifest.ShardID }

func (w waits) Error() string { return fmt.Sprintf("shard %s has no holder that answers", w.shard) }
