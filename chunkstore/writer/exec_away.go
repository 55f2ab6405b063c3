package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A document that goes to a chunk of another shard goes by one commit of the root:
//
//	     this shard                              the other
//	latch, evaluate
//	flush the row, if the WAL alone has it
//	prepare ---------------------------------> latch, look, flush, hold the row
//	upload one segment: the deletion, the
//	     document, an entry for retries each
//	     (two, when the shards are in two
//	     locations)
//	hold the row
//	commit: both chunks, by version, both
//	     epochs, the token                       absorb: the document is there
//	decide ----------------------------------> load the root, if it did not yet
//
// Until the commit nothing happened; with it everything did. Whoever dies, is taken over, or
// has its chunk moved or cut in between makes a precondition fail, and the operation begins
// again or its successor does. While the outcome is unknown the same edit is sent again,
// until it is known or the claim ends; the latches stay with it, also when the request's
// time is over, so that whoever sends the operation again waits for the outcome.
//
// # No circle of waiters
//
// Two documents that change places make two shards wait for each other's latches, since the
// order of hashes holds inside one shard only. Therefore the other shard waits for its latch
// only for awayPatience. Then this one lets its own latches go, sleeps for a random time, and
// takes them again: one of the two finds the way free.

const (
	awayPatience = 200 * time.Millisecond // for the other's latch, and a flush there
	awayAttempts = 8                      // before the map is asked for again
	awayBackoff  = 10 * time.Millisecond
)

// crossing is a document on its way to another shard.
type crossing struct {
	token        [16]byte
	at           manifest.LocationID // where the other shard is
	owner        rpc.Owner           // of the other shard
	to           rpc.Header
	source, dest *part
	chunks       []manifest.BatchChunk // source first, if it changes, then dest
	entries      []*retry              // for the source
	key          []byte                // of the source's row
	// done is closed when the outcome is known, or the claim ended: err. The version is that
	// of the root that has the commit.
	done    chan struct{}
	err     error
	version manifest.Version
	// left are latches that the request had when its time was over. Owned by: the mutex.
	left []latch
}

// away moves the document of an operation to another shard.
func (x *exec) away(ctx context.Context, m *mutation, many *piece, res *rpc.WriteResult, from change, to []byte, doc bson.Raw, g *grip) (outcome, error) {
	// What this operation did so far must not be lost when its progress stays.
	if err := x.s.stored(ctx, x.last); err != nil {
		return settled, err
	}
	if from.op != wal.RetryOnly {
		if err := x.flushedOut(ctx, m.op, from.path); err != nil {
			return settled, err
		}
	}
	c, d, err := x.both(ctx, m.op, to)
	if err != nil {
		return settled, err
	}
	st := x.s.state
	if from.path == nil {
		from.path = x.placeOf(m.op, c)
	}
	x.s.mu.Unlock()
	if d != nil {
		return restarted, nil // it came here
	}
	y := st.ChunkOf(x.r.Collection, to[4:])
	k, after := x.crossing(m, many, res, c, y, st.LocationOf(y.Shard), from, to, doc)
	x.elsewhere = k.at != x.s.location
	taken, err := x.prepareAway(ctx, k, st)
	if taken {
		return settled, duplicateKey(x.coll, doc)
	}
	if err == nil {
		err = x.carry(ctx, k, c, g)
	}
	switch {
	case err == nil:
		if many != nil {
			many.progress, many.entry = after, k.entries[0]
		}
		x.records++
		x.wrote = true
		return settled, nil
	case errors.Is(err, errkind.UnknownOutcome):
		return settled, err
	case errors.Is(err, errkind.Conflict), errors.Is(err, errkind.StaleVersion), errors.Is(err, errkind.Fenced), errors.Is(err, errBusy):
		return restarted, x.backOff(ctx, g)
	}
	return settled, err
}

// errBusy: the other shard may have the row prepared or not; it finds out by itself.
var errBusy = errors.New("the other shard is busy, or its answer was lost")

// backOff lets the latches go for a while, and loads the root: the map may have changed.
func (x *exec) backOff(ctx context.Context, g *grip) error {
	if x.backedOff++; x.backedOff%awayAttempts == 0 {
		return errStale
	}
	want := slices.Clone(g.held)
	g.drop()
	h := x.s.w.asked
	if err := h.Sleep(ctx, awayBackoff+h.Jitter(awayBackoff<<min(x.backedOff, 5))); err != nil {
		return err
	}
	err := x.s.w.turns.take(ctx, x.s.w.turns.join(), func() error {
		_, _, err := x.s.w.root.Load(ctx)
		return err
	})
	if err != nil {
		return err
	}
	g.held, err = x.s.acquireAll(ctx, want)
	return err
}

// crossing puts together what the commit changes. after is the progress of a write of many
// when it is done.
func (x *exec) crossing(m *mutation, many *piece, res *rpc.WriteResult, c *chunk, y *manifest.Chunk, at manifest.LocationID, from change, to []byte, doc bson.Raw) (k *crossing, after progress) {
	k = &crossing{token: x.s.w.asked.ID16(), at: at, key: from.path[4:], done: make(chan struct{})}
	k.source, k.dest = &part{chunk: c, info: c.info}, &part{info: y}
	if from.op != wal.RetryOnly {
		k.source.rows = new(memtable)
		k.source.rows.put(&row{path: from.path, at: &stamp{}, existed: true})
	}
	k.dest.rows = new(memtable)
	k.dest.rows.put(&row{path: to, doc: doc, at: &stamp{}})
	var here, there *retry
	if many != nil {
		after = many.progress
		after.passed(res, k.key)
		here = x.entry(m.op, after.keyIn(c), after.reply())
		here.from = after.done.Min
		there = x.arrival(m.op, to[4:])
	} else if here = x.answer(m.op, res); here != nil {
		here.Key, here.from = k.key, k.key
		there = x.entry(m.op, to[4:], here.Reply)
		if at != x.s.location {
			here.Reply, there.Reply = parted(m.op, res)
		}
	}
	if here != nil {
		k.entries = []*retry{here}
		k.source.retries, k.dest.retries = []segment.RetryEntry{here.stored()}, []segment.RetryEntry{there.stored()}
	}
	return k, after
}

// prepareAway has the other shard hold the row. taken: it exists.
func (x *exec) prepareAway(ctx context.Context, k *crossing, st *manifest.State) (taken bool, err error) {
	y := k.dest.info
	if k.owner, err = x.s.owner(st, y.Shard); err != nil {
		return false, err
	}
	k.to = rpc.Header{Shard: y.Shard, Collection: y.Collection, RootVersion: st.Version(), Deadline: awayPatience}
	q := &rpc.PrepareRequest{
		Header: k.to, Chunk: y.At(), Key: k.dest.key(), Token: k.token, From: manifest.OwnerAt{Shard: x.s.id, Epoch: x.s.epoch},
	}
	if len(x.uniques) > 0 {
		k.dest.rows.each(func(r *row) { q.Doc = r.doc })
	}
	if e := k.dest.retries; len(e) > 0 {
		q.Op, q.Reply, q.Expires = rpc.OpID(e[0].Op), e[0].Reply, e[0].ExpiresAt
	}
	var reply *rpc.PrepareReply
	err = x.s.w.turns.take(ctx, x.s.w.turns.join(), func() (err error) {
		ctx, cancel := x.s.w.host.WithTimeout(ctx, 2*awayPatience)
		defer cancel()
		reply, err = k.owner.Prepare(ctx, q)
		return err
	})
	switch {
	case err == nil && reply.Exists:
		return true, nil
	case err == nil:
		k.chunks = []manifest.BatchChunk{{At: y.At(), Shard: y.Shard, Epoch: reply.Epoch, Seq: reply.Seq}}
		return false, nil
	case errors.Is(err, errkind.StaleVersion), errors.Is(err, errkind.Fenced):
		return false, fmt.Errorf("%w: %w", errkind.StaleVersion, err)
	case errors.Is(err, rpc.Unreachable):
		return false, waits{y.Shard}
	case errors.As(err, new(*mongoerr.Error)):
		return false, err // a unique index
	}
	if !errors.Is(err, errkind.Throttled) {
		k.err = err
		x.s.tell(ctx, k) // it may be prepared
	}
	return false, fmt.Errorf("%w: %w", errBusy, err)
}

// parted are the replies that an operation leaves at a row and, in another location, at the
// row to which its document went. Neither tells of the document as it is at the other: what
// the document was is left here, what it became there. Who sends the operation again gets the
// rest of its answer.
func parted(op *rpc.WriteOp, res *rpc.WriteResult) (here, there []byte) {
	before, after := *res, *res
	before.UpsertedID = bson.RawValue{}
	if op.Return == rpc.ReturnAfter {
		before.Value = nil
	} else {
		after.Value = nil
	}
	return answerReply(&before), answerReply(&after)
}

// key is the row of a part that has one.
func (p *part) key() (key []byte) {
	p.rows.each(func(r *row) { key = r.key() })
	return key
}

// carry commits a prepared crossing, and waits for the outcome, or for the end of ctx; then
// the latches stay with it. Errors: Conflict (nothing happened), UnknownOutcome, those of the
// bucket (nothing happened).
func (x *exec) carry(ctx context.Context, k *crossing, c *chunk, g *grip) error {
	s := x.s
	s.mu.Lock()
	if err := s.endErr; err != nil {
		s.mu.Unlock()
		return err
	}
	s.aside.Add(1)
	s.mu.Unlock()
	own, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		defer s.aside.Done()
		defer stop(nil)
		s.cross(own, stop, k, c)
	}()
	err := s.w.turns.take(ctx, s.w.turns.join(), func() error { return s.first(ctx, k.done) })
	if err == nil {
		return x.crossed(k.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-k.done:
		return x.crossed(k.err)
	default:
	}
	k.left = slices.Concat(g.held, x.latched)
	g.held, x.latched = nil, nil
	return x.crossed(fmt.Errorf("move a document from shard %s: %w: %w", s.id, errkind.UnknownOutcome, err))
}

// crossed notes what an outcome means for the request.
func (x *exec) crossed(err error) error {
	x.wrote = x.wrote || errors.Is(err, errkind.UnknownOutcome)
	return err
}

// cross uploads and commits; it goes on until the outcome is known or the claim ends.
func (s *shard) cross(ctx context.Context, stop context.CancelCauseFunc, k *crossing, c *chunk) {
	over := make(chan struct{})
	var watched sync.WaitGroup
	watched.Go(func() {
		select {
		case <-s.ended:
			stop(s.endedErr())
		case <-over:
		}
	})
	k.err = s.commitCrossing(ctx, k, c)
	close(over)
	watched.Wait()
	s.mu.Lock()
	close(k.done)
	for _, l := range k.left {
		s.latches.release(l)
	}
	s.mu.Unlock()
	if errors.Is(k.err, errkind.UnknownOutcome) {
		return // whoever has the row prepared learns it from a root
	}
	s.tell(ctx, k)
}

// tell says to the other shard what came of a crossing.
func (s *shard) tell(ctx context.Context, k *crossing) {
	q := &rpc.DecideRequest{Header: k.to, Token: k.token, Aborted: k.err != nil}
	if k.err == nil {
		q.RootVersion = k.version
	}
	ctx, cancel := s.w.host.WithTimeout(ctx, awayPatience)
	defer cancel()
	if _, err := k.owner.Decide(ctx, q); err != nil {
		s.w.log.Debug("another shard was not told", "shard", k.to.Shard, "cause", err)
	}
}

func (s *shard) commitCrossing(ctx context.Context, k *crossing, c *chunk) error {
	parts := []*part{k.source, k.dest}
	slices.SortFunc(parts, func(a, b *part) int { return slices.Compare(a.info.Range.Min, b.info.Range.Min) })
	both := k.source.rows != nil || len(k.source.retries) > 0
	if !both {
		parts = []*part{k.dest}
	}
	rule := s.ruleOf(k.dest.info.Collection)
	k.source.rule, k.dest.rule = rule, rule
	k.dest.added.Unsure = rule != nil // an expired document may be in the place
	if both && k.at != s.location {
		if err := s.uploadAs(ctx, s.w.asked, s.location, []*part{k.source}); err != nil {
			return err
		}
		parts = []*part{k.dest}
	}
	if err := s.uploadAs(ctx, s.w.asked, k.at, parts); err != nil {
		return err
	}
	h := &hold{token: k.token, from: manifest.OwnerAt{Shard: s.id, Epoch: s.epoch}, at: k.source.info.At(), key: k.key}
	if err := s.holdSource(c, h); err != nil {
		return err
	}
	k.chunks[0].Added = k.dest.added
	if both {
		k.chunks = append(k.chunks, manifest.BatchChunk{At: h.at, Shard: s.id, Epoch: s.commitEpoch(), Seq: h.seq, Added: k.source.added})
	}
	sent := s.w.host.Mono()
	wall := s.w.host.Wall()
	version, err := s.commitBatch(ctx, k, wall)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		k.version = version
		s.lease.prove(sent)
		for _, e := range k.entries {
			s.learn(c.info.Collection, e)
		}
	}
	if !errors.Is(err, errkind.UnknownOutcome) {
		s.endHold(h, err == nil)
	}
	return err
}

// commitBatch commits the two chunks' parts, and forgets tokens whose time is over.
func (s *shard) commitBatch(ctx context.Context, k *crossing, wall time.Time) (manifest.Version, error) {
	token := manifest.Token{App: batchApp, Batch: tokenName(k.token), Committed: true, ExpiresAt: wall.Add(committedFor).Unix()}
	if broken(keyChangeInTwo) {
		if err := s.commitDeparture(ctx, k, token); err != nil {
			return 0, err
		}
	}
	err := s.commitAs(ctx, s.w.asked, false, manifest.Batch{Token: token, Chunks: k.chunks}, manifest.ExpireTokens{Now: wall.Unix()})
	return s.version(), err
}

// holdSource holds the row that the document leaves.
func (s *shard) holdSource(c *chunk, h *hold) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.endErr != nil:
		return s.endErr
	case c.gone:
		return fmt.Errorf("chunk %d: %w: it was moved or cut", c.info.ID, errkind.Conflict)
	}
	s.addHold(c, h)
	return nil
}
