package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// exec carries out one write request: its operations one after another, each appended to
// the open batch, and one wait at the end for the last batch that an answer rests on.
type exec struct {
	s    *shard
	r    *rpc.WriteRequest
	coll *manifest.Collection
	// whole: the shard key is the whole row key.
	whole bool
	// required: the collection takes no document that lacks a field of the shard key.
	required bool
	uniques  []unique      // rules beyond the row key's
	expires  int64         // of the retry entries of this request, unix seconds
	until    time.Duration // its deadline, Mono; 0: none
	bytes    int64         // of its operations, about
	results  []rpc.WriteResult
	// last is the newest batch that a result rests on: one that has a record of this
	// request, or one whose pending row or retry entry an operation saw.
	last *batch
	// wrote: a record of this request is in a batch. unproved: a result rests on what was
	// read alone, a duplicate, say, or no match: that has to be proved like a read.
	wrote, unproved bool
	records         int     // appended so far
	keys            []byte  // scratch: row paths of a run of inserts
	slab            []retry // entries to be
	latched         []latch // of the present operation's id
	backedOff       int     // how often operations let another shard's go first
	elsewhere       bool    // the present operation would have its document in another location
}

// errStale ends an operation whose chunk is another by now.
var errStale = errors.New("the chunk is not as the request names it")

// Write applies operations. Errors are about the request: StaleVersion, Fenced, Throttled,
// Invalid and Corrupt mean that nothing was done; after UnknownOutcome any part of it may
// have been.
func (w *Writer) Write(ctx context.Context, r *rpc.WriteRequest) (*rpc.WriteReply, error) {
	ctx, cancel := w.deadline(ctx, &r.Header)
	defer cancel()
	for i := range r.Ops {
		if t := r.Ops[i].Target; t < 0 || t >= len(r.Targets) {
			return nil, fmt.Errorf("write to shard %s: %w: operation %d is for target %d of %d", r.Shard, errkind.Invalid, i, t, len(r.Targets))
		}
	}
	s, err := w.enter(ctx, &r.Header)
	if err != nil {
		return nil, early(ctx, err)
	}
	s.mu.Lock()
	if err := s.endErr; err != nil {
		s.mu.Unlock()
		return nil, err
	}
	coll := s.state.Collection(r.Collection)
	s.mu.Unlock()
	if coll == nil {
		return nil, fmt.Errorf("write to shard %s: %w: no collection %d", s.id, errkind.StaleVersion, r.Collection)
	}
	x := &exec{
		s: s, r: r, coll: coll, whole: coll.Key.HasID(), required: coll.RequiresShardKey(), uniques: uniquesOf(coll),
		expires: w.host.Wall().Add(w.set.RetryFor).Unix(), results: make([]rpc.WriteResult, 0, len(r.Ops)),
	}
	if r.Deadline > 0 {
		x.until = w.host.Mono() + r.Deadline
	}
	for i := range r.Ops {
		x.bytes += int64(len(r.Ops[i].Doc) + len(r.Ops[i].Filter) + len(r.Ops[i].Update.Value))
	}
	return x.run(ctx)
}

func (x *exec) run(ctx context.Context) (*rpc.WriteReply, error) {
	for len(x.results) < len(x.r.Ops) {
		err := x.admit(ctx)
		if err == nil {
			err = x.next(ctx)
		}
		if err != nil {
			x.s.wake() // nobody waits for what was begun, but it goes on
			return nil, x.failed(ctx, err)
		}
		if x.r.Ordered && x.stopped() {
			break
		}
	}
	if x.r.Early && !x.unproved && x.r.After == (manifest.Position{}) {
		return &rpc.WriteReply{Results: x.results, Until: x.s.until(x.last)}, nil
	}
	if err := x.s.reached(ctx, x.r.After); err != nil {
		return nil, err
	}
	if err := x.durable(ctx); err != nil {
		return nil, err
	}
	if err := x.prove(ctx); err != nil {
		return nil, x.failed(ctx, err)
	}
	return &rpc.WriteReply{Results: x.results}, nil
}

// until is where the log ends once b is stored, and has it stored; zero when there is nothing
// to wait for.
func (s *shard) until(b *batch) manifest.Position {
	if b == nil {
		return manifest.Position{}
	}
	s.wake()
	return manifest.Position{Epoch: s.epoch, Next: b.number}
}

// reached waits until the log ends at pos or behind it. Errors: UnknownOutcome when this
// shard does not know, or did not in time.
func (s *shard) reached(ctx context.Context, pos manifest.Position) error {
	if pos == (manifest.Position{}) {
		return nil
	}
	s.mu.Lock()
	var b *batch
	known := pos.Epoch == s.epoch && !s.durable.Less(pos)
	for _, pending := range []*batch{s.flight, s.open} {
		if pending != nil && pos.Epoch == s.epoch && pending.number == pos.Next {
			b, known = pending, true
		}
	}
	s.mu.Unlock()
	if !known {
		return fmt.Errorf("write to shard %s epoch %d: %w: asked for position %v of its log", s.id, s.epoch, errkind.UnknownOutcome, pos)
	}
	return s.stored(ctx, b)
}

// durable waits for the batch that the results rest on.
func (x *exec) durable(ctx context.Context) error {
	if x.last == nil || !x.unproved {
		return x.s.stored(ctx, x.last)
	}
	// It goes on to ask the root, perhaps, as others do that wait for this batch.
	return x.s.w.turns.take(ctx, x.s.w.turns.join(), func() error { return x.s.stored(ctx, x.last) })
}

// prove makes sure that this process was the owner when it read what the results rest on.
// A record that was stored proves it for its own operation: nothing is stored behind a
// successor's seal. A result without a record could be of a process that lost the shard.
func (x *exec) prove(ctx context.Context) error {
	if !x.unproved {
		return nil
	}
	p := proof{level: rpc.Lease}
	for {
		x.s.mu.Lock()
		err, ok := x.s.endErr, x.s.holds(&p)
		x.s.mu.Unlock()
		if err != nil || ok {
			return err
		}
		if err := x.s.verify(ctx, &p); err != nil {
			return err
		}
	}
}

// next carries out the next operation, or the next run of inserts.
func (x *exec) next(ctx context.Context) error {
	op := &x.r.Ops[len(x.results)]
	var res rpc.WriteResult
	var err error
	before := x.records
	switch op.Kind {
	case rpc.Insert:
		return x.inserts(ctx)
	case rpc.Update, rpc.Delete:
		res, err = x.change(ctx, op)
	case rpc.Intent:
		res, err = x.intent(ctx, op)
	case rpc.Refuse:
		res, err = x.refuse(ctx, op)
	default:
		err = fmt.Errorf("write to shard %s: %w: operation of kind %d", x.s.id, errkind.Invalid, op.Kind)
	}
	if err = x.result(&res, err); err != nil {
		return err
	}
	x.results = append(x.results, res)
	x.unproved = x.unproved || x.records == before && !res.Stale
	return nil
}

// result turns what ended an operation into its result; what ended the request stays an
// error.
func (x *exec) result(res *rpc.WriteResult, err error) error {
	var m *mongoerr.Error
	var w waits
	switch {
	case err == nil:
	case errors.Is(err, errStale):
		*res = rpc.WriteResult{Stale: true, N: res.N, Modified: res.Modified}
	case errors.As(err, &w):
		*res = rpc.WriteResult{Stale: true, Waits: w.shard, N: res.N, Modified: res.Modified}
	case errors.As(err, &m):
		res.Err = m
	case errors.Is(err, errkind.Corrupt):
		x.s.w.log.Error("write met corrupt data", "shard", x.s.id, "cause", err)
		res.Err = mongoerr.New(mongoerr.DataCorruptionDetected, "%v", err)
	default:
		return err
	}
	return nil
}

// stopped reports whether the last result ends an ordered request.
func (x *exec) stopped() bool {
	r := &x.results[len(x.results)-1]
	return r.Err != nil || r.Stale
}

// failed is the request's error after err ended it. When some of it is in a batch, nobody
// may be told that nothing was done.
func (x *exec) failed(ctx context.Context, err error) error {
	if x.wrote && errors.Is(err, errkind.UnknownOutcome) {
		return err
	}
	if x.wrote {
		return fmt.Errorf("write to shard %s: %w: some operations were begun, then: %v", x.s.id, errkind.UnknownOutcome, err)
	}
	return early(ctx, err)
}

// early is the error of a request that did nothing: what was only a lack of time, or a
// bucket that did not answer a read, is Throttled.
func early(ctx context.Context, err error) error {
	for _, kind := range []error{errkind.Throttled, errkind.Fenced, errkind.StaleVersion, errkind.Invalid, errkind.Corrupt} {
		if errors.Is(err, kind) {
			return err
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: nothing done within the deadline (%v)", errkind.Throttled, err)
	}
	return fmt.Errorf("%w: nothing done: %v", errkind.Throttled, err)
}

// depend makes the answer wait for a batch. Requires: the mutex, or a batch that is known.
func (x *exec) depend(b *batch) {
	if b != nil && (x.last == nil || b.number > x.last.number) {
		x.last = b
	}
}

// writable finds the target's chunk when operations may use it now. A gate: wait for it.
// Errors: errStale, why the shard ended. Requires: the mutex.
func (x *exec) writable(t int) (*chunk, *gate, error) {
	s := x.s
	switch {
	case s.endErr != nil:
		return nil, nil, s.endErr
	case s.unserved != nil:
		return nil, s.unserved, nil
	}
	c := s.target(x.r.Collection, &x.r.Targets[t])
	if c == nil || s.reshaping[x.r.Collection] || !sameRules(s.state.Collection(x.r.Collection), x.coll) {
		return nil, nil, errStale
	}
	return c, c.gate(), nil
}

// enter waits until the chunk of op may be used and, for a retryable one, until its retry
// entries are in memory. On success it returns with the mutex held.
func (x *exec) enter(ctx context.Context, op *rpc.WriteOp) (*chunk, error) {
	for {
		x.s.mu.Lock()
		c, g, err := x.writable(op.Target)
		if err == nil && g == nil && (op.Op == rpc.OpID{} || c.retries.loaded) {
			return c, nil
		}
		place := 0
		if g != nil {
			place = x.s.w.turns.join()
		}
		x.s.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case g != nil:
			err = x.s.await(ctx, g, place)
		default:
			err = x.s.loadRetries(ctx, c)
		}
		if err != nil {
			return nil, err
		}
	}
}

// loadRetries brings what the chunk's segments know of retries into memory; those that
// need it at the same time share one read.
func (s *shard) loadRetries(ctx context.Context, c *chunk) error {
	s.mu.Lock()
	if g := c.retries.loading; g != nil {
		place := s.w.turns.join()
		s.mu.Unlock()
		return s.await(ctx, g, place)
	}
	g := newGate()
	c.retries.loading = g
	v := c.view()
	s.mu.Unlock()
	var stored []segment.RetryEntry
	err := s.w.turns.read(ctx, func() (err error) {
		stored, err = s.w.store.Retries(ctx, v, s.w.expiredBy())
		return err
	})
	if err != nil {
		err = s.missing(ctx, err, v.Chunk)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.retries.loading = nil
	close(g.opened)
	if errors.Is(err, errOtherRefs) {
		return nil // the caller comes again
	}
	if err != nil {
		return err
	}
	for _, e := range stored {
		if known, err := recall(e, nil); err != nil {
			return fmt.Errorf("retry entries of chunk %d: %w", c.info.ID, err)
		} else if kindClass(known) == 1 {
			c.inheritProgress(known)
		} else {
			c.retries.learn(known)
		}
	}
	c.retries.loaded, c.retries.again = !c.retries.again, false
	if !c.gone {
		s.weigh(c)
	}
	return nil
}

// put appends the changes of one operation together. make gets the chunk and returns them;
// it is called with the mutex held, again after every wait, and must leave no trace. None:
// nothing to append.
func (x *exec) put(ctx context.Context, op *rpc.WriteOp, make func(*chunk) ([]change, error)) error {
	for {
		c, err := x.enter(ctx, op)
		if err != nil {
			return err
		}
		changes, err := make(c)
		if err != nil || len(changes) == 0 {
			x.s.mu.Unlock()
			return err
		}
		if x.s.room(changes...) {
			for i := range changes {
				if p := changes[i].piece; p != nil {
					changes[i].retry = x.mark(op, c, p)
				}
				x.add(c, changes[i])
			}
			x.s.mu.Unlock()
			return nil
		}
		if err := x.s.waitForRoom(ctx); err != nil {
			return err
		}
	}
}

// add appends one change. Requires: the mutex, room.
func (x *exec) add(c *chunk, ch change) {
	x.s.append(c, ch)
	x.depend(x.s.open)
	x.wrote = true
	x.records++
}

// waitForRoom waits until the open batch is taken. Requires: the mutex, which it gives back.
func (s *shard) waitForRoom(ctx context.Context) error {
	if s.full == nil {
		s.full = newGate()
	}
	g := s.full
	place := s.w.turns.join()
	s.mu.Unlock()
	s.wake()
	return s.inLine(ctx, g, place, 0, 0, 0)
}

// entry makes the retry entry of op, to be durable with its last record; nil when op is not
// retryable. Without a key it gets that of the record.
func (x *exec) entry(op *rpc.WriteOp, key, reply []byte) *retry {
	if op.Op == (rpc.OpID{}) {
		return nil
	}
	if len(x.slab) == 0 {
		x.slab = make([]retry, min(len(x.r.Ops)-len(x.results), 64)+1)
	}
	e := &x.slab[0]
	x.slab = x.slab[1:]
	e.RetryEntry = segment.RetryEntry{
		Collection: x.r.Collection, Key: key, Op: segment.OpID(op.Op), Reply: reply, ExpiresAt: x.expires,
	}
	return e
}

// recorded is the result of an operation that was carried out before. Requires: the mutex.
func (x *exec) recorded(op *rpc.WriteOp, e *retry) (rpc.WriteResult, error) {
	x.depend(e.in)
	x.s.counts.Retries++
	switch kindOf(&e.RetryEntry) {
	case inserted:
		return rpc.WriteResult{N: 1}, nil
	case refused:
		return rpc.WriteResult{}, nil
	case duplicated:
		if op.Kind == rpc.Refuse {
			return rpc.WriteResult{}, nil
		}
		return rpc.WriteResult{Err: duplicateKey(x.coll, op.Doc)}, nil
	case errored:
		return parseErrored(e.Reply)
	}
	return parseAnswer(e.Reply)
}

// before finds what became of op earlier: its result, or that it is too old to know. nil:
// it is new. Requires: the mutex.
func (c *chunk) before(op rpc.OpID) (*retry, error) {
	if op == (rpc.OpID{}) {
		return nil, nil
	}
	if e := c.retries.result(op); e != nil {
		return e, nil
	}
	return nil, c.tooOld(op)
}

func (c *chunk) tooOld(op rpc.OpID) error {
	if !c.retries.tooOld(op) {
		return nil
	}
	return mongoerr.New(mongoerr.TransactionTooOld, "Retryable write with txnNumber %d is prohibited on session: a newer retryable write "+
		"has been started on this session, and what became of this one is not known any more", op.Txn)
}

// rowLatch is the latch of a row: that of its shard-key value. Errors: Invalid, for a key
// that is none.
func (x *exec) rowLatch(path []byte) (latch, error) {
	if !x.whole {
		prefix, err := x.coll.Key.Prefix(path[4:])
		if err != nil {
			return latch{}, fmt.Errorf("write to shard %s: %w: %v", x.s.id, errkind.Invalid, err)
		}
		path = path[:4+len(prefix)]
	}
	return latch{hash: xxhash.Sum64(path)}, nil
}

// rangeLatch is the latch of an operation on all rows of one shard-key value; false when
// its target is more than that.
func (x *exec) rangeLatch(op *rpc.WriteOp) (latch, bool) {
	ranges := x.r.Targets[op.Target].Ranges
	if len(ranges) != 1 || len(ranges[0].Min) == 0 {
		return latch{}, false
	}
	r := ranges[0]
	probe := r.Min
	if !x.whole {
		probe = shardkey.AppendValue(bytes.Clone(r.Min), bson.RawValue{Type: bson.TypeNull}, false) // its row of _id null
	}
	if prefix, err := x.coll.Key.Prefix(probe); err != nil || string(prefix) != string(r.Min) || string(shardkey.PrefixEnd(r.Min)) != string(r.Max) {
		return latch{}, false
	}
	return latch{hash: xxhash.Sum64(appendPath(nil, x.r.Collection, r.Min))}, true
}
