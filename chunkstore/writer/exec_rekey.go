package writer

import (
	"bytes"
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// An update that changes a field of the shard key takes its document from one row to
// another, which may be in another chunk. exec_away.go is about a chunk of another shard.
// When this shard has both chunks, the deletion of the one row and the insertion of the other are records of one batch, under the latches of
// both, and so of one WAL object: it is stored, or it is not.
//
// # What readers see
//
// A read takes the views of all its chunks under one hold of the mutex, and a stored batch
// becomes visible under one hold of it: whoever asks this shard for both chunks sees both
// rows change, or neither. What the two chunks do afterwards, each for itself, changes
// nothing about that: a flush, a split and a move take rows that are visible already, and
// leave them visible. Readers of the root alone see both halves or neither, too: ties.go.
//
// Whoever asks for the two chunks at two moments could see the document twice, or not at
// all. Two numbers in the reply prevent that. The collection's data version is 0 until the
// first change of this kind is about to happen anywhere (shifts): who saw 0 everywhere saw
// none. And the reply says with which root version the shard last got a chunk of the
// collection from another (shard.gained). A scatter in which no shard got one since it was
// planned sees no such change by half. For take one, made by the shard S in its WAL while it
// had both chunks, X planned at A and Y at B. S is not both, so one of the two, say Y, was
// not where it was planned. Y was read there, hence before it left: a chunk that returns has
// another version. So Y was read without the change, and X after it; then X was at A all the
// time, and S is A, which got Y since the plan and before X was read.
//
// A change within one chunk C needs neither number, though C may be cut before it or joined after
// it. Take a scatter in whose plan the two rows are in chunks X and Y, both read as planned. If C
// was cut, S made the change before it knew of the cut; every owner of X or Y that answered knows
// the plan's root, and S, or whoever got the chunk from S later, answered after the change, in
// both. If C is what became of X and Y, S had both when it joined them. One that was planned
// elsewhere was read there, before it left; one that was planned at S was read before S knew of
// the join, or it would have been another chunk; and two that were planned at S were one request.
// So both were read before the change.
//
// # Once
//
// The outcome is recorded in both chunks, since what is sent again goes by the old row or
// by the new one. A write of many documents records its progress at the old row and at the
// new one that it brought the document there: it may come to that row later, and passes it.

// rekey carries out a change that stores doc in another row than the operation's own, to
// which from happens: a deletion, or nothing (an upsert).
func (x *exec) rekey(ctx context.Context, m *mutation, many *piece, from change, to []byte, doc bson.Raw, res *rpc.WriteResult, g *grip) (out outcome, err error) {
	defer func() {
		if err != nil {
			*res = rpc.WriteResult{} // nothing was done
		}
	}()
	if many != nil && m.op.Op == (rpc.OpID{}) {
		return settled, mongoerr.New(mongoerr.InvalidOptions, "a multi-update that changes the shard key needs an operation id")
	}
	h, err := x.rowLatch(to)
	if err != nil {
		return settled, err
	}
	if !g.has(h) {
		if again, err := g.take(ctx, h); err != nil || again {
			return restarted, err
		}
	}
	c, d, err := x.both(ctx, m.op, to)
	if err != nil {
		return settled, err
	}
	x.s.mu.Unlock()
	if d == nil {
		return x.away(ctx, m, many, res, from, to, doc, g)
	}
	taken, over, gone, err := x.rowIn(ctx, d, to)
	switch {
	case err != nil:
		return settled, err
	case gone:
		return restarted, nil
	case taken != nil:
		return settled, duplicateKey(x.coll, doc)
	}
	if err := x.keepsUnique(ctx, to, doc, nil); err != nil {
		return settled, err
	}
	if c != d {
		if err := x.shifts(ctx); err != nil {
			return settled, err
		}
	}
	return x.finishRekey(ctx, m, many, res, from, change{path: to, op: insertOver(over), doc: doc}, d)
}

// both finds the chunks of the operation and of another row, d: nil when that is another
// shard's. It waits until both may be used, and returns with the mutex held. Errors: as
// enter.
func (x *exec) both(ctx context.Context, op *rpc.WriteOp, path []byte) (c, d *chunk, err error) {
	for {
		c, err := x.enter(ctx, op)
		if err != nil {
			return nil, nil, err
		}
		if c.info.Range.Contains(path[4:]) {
			return c, c, nil
		}
		d := x.s.owned(x.r.Collection, path[4:])
		if d == nil || d.gate() == nil {
			return c, d, nil
		}
		g, place := d.gate(), x.s.w.turns.join()
		x.s.mu.Unlock()
		if err := x.s.await(ctx, g, place); err != nil {
			return nil, nil, err
		}
	}
}

// shifts makes sure that readers know that documents of the collection go from chunk to
// chunk. It costs a commit, once in the life of the collection.
func (x *exec) shifts(ctx context.Context) error {
	for {
		x.s.mu.Lock()
		coll, err := x.s.state.Collection(x.r.Collection), x.s.endErr
		x.s.mu.Unlock()
		switch {
		case err != nil:
			return err
		case coll == nil:
			return errStale
		case coll.DataVersion > 0:
			return nil
		}
		err = x.s.w.turns.take(ctx, x.s.w.turns.join(), func() error {
			_, err := x.s.w.root.Commit(ctx, manifest.Edit{
				Op: x.s.w.asked.ID16(), Millis: x.s.w.host.Wall().UnixMilli(),
				Changes: []manifest.Change{manifest.RaiseDataVersion{Collection: coll.ID}},
			})
			return err
		})
		if err != nil {
			return err
		}
	}
}

// finishRekey appends what happens to both rows, if the chunk of the second is still d, in
// which it was seen to be missing.
func (x *exec) finishRekey(ctx context.Context, m *mutation, many *piece, res *rpc.WriteResult, from, to change, d *chunk) (outcome, error) {
	if many != nil {
		to.retry = x.arrival(m.op, to.path[4:])
	} else if from.retry = x.answer(m.op, res); from.retry != nil {
		to.retry = x.entry(m.op, nil, from.retry.Reply)
	}
	for {
		c, now, err := x.both(ctx, m.op, to.path)
		if err != nil {
			return settled, err
		}
		if now != d {
			x.s.mu.Unlock()
			return restarted, nil
		}
		if from.path == nil {
			from.path = x.placeOf(m.op, c)
		}
		if x.s.room(from, to) {
			if many != nil {
				many.passed(res, from.path[4:])
				from.retry = x.mark(m.op, c, many)
			}
			if from.op != wal.RetryOnly || from.retry != nil {
				x.add(c, from)
			}
			x.add(d, to)
			x.s.tie(c, d, x.s.pending())
			x.s.mu.Unlock()
			return settled, nil
		}
		if err := x.s.waitForRoom(ctx); err != nil {
			return settled, err
		}
	}
}

// answer makes the entry of an operation on one document; nil when it is not retryable.
func (x *exec) answer(op *rpc.WriteOp, res *rpc.WriteResult) *retry {
	e := x.entry(op, nil, nil)
	if e == nil {
		return nil
	}
	e.Reply = answerReply(res)
	if len(e.Reply) > segment.MaxDocBytes {
		res.Value = nil // beyond the format: a retry gets the counts
		e.Reply = answerReply(res)
	}
	return e
}

// arrival makes the entry that says that a write of many documents brought a row here.
func (x *exec) arrival(op *rpc.WriteOp, key []byte) *retry {
	e := x.entry(op, bytes.Clone(key), arrivedReply)
	e.from = e.Key
	return e
}

// arrived reports whether the operation itself brought the row here. Errors: as enter.
func (x *exec) arrived(ctx context.Context, op *rpc.WriteOp, key []byte) (bool, error) {
	if op.Op == (rpc.OpID{}) {
		return false, nil
	}
	c, err := x.enter(ctx, op)
	if err != nil {
		return false, err
	}
	defer x.s.mu.Unlock()
	e := c.retries.arrival(op.Op, key)
	if e == nil {
		return false, nil
	}
	x.depend(e.in)
	return true, nil
}
