package writer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Hold claims a shard, whoever holds it now, takes over what its WAL has, and serves it. It
// returns when the shard serves:
//
//	claim    commit the next epoch; the old one becomes an open epoch
//	seal     end the WAL of every open epoch: nothing can be appended there any more
//	replay   read what is above the floors
//	wait     until the lease of the holder before has run out; not when the shard was free
//	serve
//
// A claimant may die anywhere; the next repeats it all, and finds one more open epoch. For
// the same reason a takeover, once begun, goes on when ctx ends: another Hold joins it,
// where another claim would only make it longer.
//
// Errors: Invalid (no such shard), Conflict (somebody else claimed it, or this process is
// claiming it), Fenced (somebody else claimed it afterwards, or the takeover failed),
// UnknownOutcome (the claim may stand in the root), the cause of ctx, those of the bucket.
func (w *Writer) Hold(ctx context.Context, id manifest.ShardID) error { return w.hold(ctx, id, nil) }

// HoldAt is Hold of a shard that is still in the epoch in which the caller saw it: whoever
// acts on what it saw takes nothing from somebody who was faster. A claim of this process
// that stands already is joined. Errors: as Hold; Conflict when the shard has another epoch.
func (w *Writer) HoldAt(ctx context.Context, id manifest.ShardID, seen manifest.Epoch) error {
	return w.hold(ctx, id, &seen)
}

func (w *Writer) hold(ctx context.Context, id manifest.ShardID, seen *manifest.Epoch) error {
	s, err := w.reserve(id)
	if err != nil {
		return err
	}
	if s == nil {
		s, err = w.claim(ctx, id, seen)
		w.unreserve(id)
		w.turns.yield(ctx) // whether it serves yet, as a free shard does at once
	}
	if err != nil {
		return fmt.Errorf("claim shard %s: %w", id, err)
	}
	if err := s.serves(ctx); err != nil {
		return fmt.Errorf("take over shard %s: %w", id, err)
	}
	return nil
}

// reserve makes this call the one that claims the shard in this process; or it returns the
// claim that there is.
func (w *Writer) reserve(id manifest.ShardID) (*shard, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch s := w.shards[id]; {
	case w.closed:
		return nil, fmt.Errorf("claim shard %s: %w: this writer is closed", id, errkind.Conflict)
	case w.claiming[id]:
		return nil, fmt.Errorf("claim shard %s: %w: this process is claiming it", id, errkind.Conflict)
	case s != nil && !s.over():
		return s, nil
	}
	w.claiming[id] = true
	return nil, nil
}

// over reports whether the claim has ended.
func (s *shard) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

func (w *Writer) unreserve(id manifest.ShardID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.claiming, id)
}

// claim commits the next epoch, and begins the takeover.
func (w *Writer) claim(ctx context.Context, id manifest.ShardID, seen *manifest.Epoch) (*shard, error) {
	if old := w.shard(id); old != nil {
		<-old.idle // its goroutines are on their way out
	}
	st, _, err := w.root.Load(ctx)
	if err != nil {
		return nil, err
	}
	before := st.Shard(id)
	if before == nil {
		return nil, fmt.Errorf("%w: no such shard in root version %d", errkind.Invalid, st.Version())
	}
	if seen != nil && before.Epoch != *seen {
		return nil, fmt.Errorf("%w: it is at epoch %d, and was seen at %d", errkind.Conflict, before.Epoch, *seen)
	}
	b, err := w.bucket(before.Location)
	if err != nil {
		return nil, err
	}
	sent := w.host.Mono()
	_, err = w.root.Commit(ctx, manifest.Edit{
		Op: w.claimant(id).ID16(), Millis: w.host.Wall().UnixMilli(),
		Changes: []manifest.Change{manifest.Claim{
			Shard: id, Epoch: before.Epoch, Holder: w.holder, Address: w.address, LeaseMillis: leaseMillis(w.set.Lease),
		}},
	})
	if err != nil {
		return nil, err
	}
	own, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	s := newShard(w, before, b, st.ClusterID(), stop)
	s.lease.prove(sent) // at some moment after this one, the root had our epoch
	if !w.register(s) {
		stop(nil)
		return nil, fmt.Errorf("%w: this writer was closed", errkind.Conflict)
	}
	s.absorb(w.root.State())
	go s.live(own, before)
	return s, nil
}

// live is the life of a claim: the takeover, then the work of serving, until it ends.
func (s *shard) live(ctx context.Context, before *manifest.Shard) {
	defer close(s.idle)
	defer s.stop(nil)
	if err := s.takeOver(ctx, before); err != nil {
		s.w.log.Warn("takeover failed", "shard", s.id, "epoch", s.epoch, "cause", err)
		s.w.alarm.Hear(err)
		s.end(fmt.Errorf("shard %s epoch %d: %w: its takeover failed: %v", s.id, s.epoch, errkind.Fenced, err))
		return
	}
	s.w.log.Info("shard held", "shard", s.id, "epoch", s.epoch)
	var both sync.WaitGroup
	both.Go(func() { s.commitLoop(ctx, wal.NewLog(s.walBucket(), s.writing, s.cluster, s.id, s.epoch, 0)) })
	both.Go(func() { s.workLoop(ctx) })
	both.Wait()
	s.aside.Wait()
}

// claimant is the host as the claims of one shard see it.
func (w *Writer) claimant(id manifest.ShardID) host.Host {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.claimants[id]
	if !ok {
		h = w.actor("%s claims", id)
		w.claimants[id] = h
	}
	return h
}

// leaseMillis is what the root tells of our lease, rounded up. As long as an epoch of a
// former holder is open the root keeps his when it is longer.
func leaseMillis(d time.Duration) uint32 {
	return uint32((d + time.Millisecond - 1) / time.Millisecond)
}

// takeOver brings a claimed shard to serving.
func (s *shard) takeOver(ctx context.Context, before *manifest.Shard) error {
	s.begin(Sealing)
	seals, last, err := s.sealAll(ctx)
	if err != nil {
		return err
	}
	s.begin(Replaying)
	for _, x := range seals {
		if err := s.replay(ctx, x); err != nil {
			return fmt.Errorf("replay epoch %d: %w", x.epoch, err)
		}
	}
	s.begin(Waiting)
	if before.Status != manifest.ShardFree && !broken(noLeaseWait) {
		length := time.Duration(before.LeaseMillis) * time.Millisecond
		until := last + successorWait(length, s.w.set.Drift)
		if wait := until - s.w.host.Mono(); wait > 0 {
			if err := s.w.host.Sleep(ctx, wait); err != nil {
				return err
			}
		}
	}
	s.begin(Serving)
	return s.endedErr()
}

// begin enters a phase of the takeover; the last one lets requests in.
func (s *shard) begin(p Phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return
	}
	s.phase, s.touched = p, s.w.host.Mono()
	if p == Serving {
		close(s.unserved.opened)
		s.unserved = nil
	}
}

// sealed is the WAL of one older epoch: objects from, ..., end-1, then the seal.
type sealed struct {
	epoch     manifest.Epoch
	from, end uint64
	seen      time.Duration // when the seal was known to be there
	err       error
}

// sealsAtOnce bounds the epochs that are sealed side by side. Usually there is one; there
// are many after many takeovers that failed, and then the next must not take ever longer.
const sealsAtOnce = 16

// sealAll ends the WAL of every open epoch, also of those in which nothing was written: a
// PUT of theirs may still be on its way. last is when the last seal was seen.
func (s *shard) sealAll(ctx context.Context) (seals []sealed, last time.Duration, err error) {
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return nil, 0, s.endErr
	}
	open, floor := s.state.Shard(s.id).OpenEpochs, s.rootFloor
	s.mu.Unlock()
	seals = make([]sealed, len(open))
	slots := make(chan struct{}, sealsAtOnce)
	var all sync.WaitGroup
	for i, e := range open {
		x := &seals[i]
		x.epoch = e
		if floor.Epoch == e {
			x.from = floor.Next
		}
		slots <- struct{}{}
		all.Go(func() {
			x.end, x.seen, x.err = s.seal(ctx, e, x.from)
			<-slots
		})
	}
	all.Wait()
	for _, x := range seals {
		if x.err != nil {
			return nil, 0, fmt.Errorf("seal epoch %d: %w", x.epoch, x.err)
		}
		last = max(last, x.seen)
	}
	return seals, last, nil
}

// replay reads the WAL of one sealed epoch. A read that failed is tried again, from the
// object where it stopped, as long as the claim stands: giving up would cost another epoch,
// and a longer takeover.
func (s *shard) replay(ctx context.Context, x sealed) error {
	for attempt := 0; ; attempt++ {
		err := wal.Replay(ctx, s.bucket, s.cluster, s.id, x.epoch, x.from, x.end, func(pos manifest.Position, r wal.Record) error {
			if pos.Next-1 > x.from {
				x.from, attempt = pos.Next-1, 0
			}
			return s.replayed(pos, r)
		})
		if err == nil {
			return nil
		}
		if err := retryLater(ctx, s.working, min(attempt, attemptsMax-2), err); err != nil {
			return err
		}
	}
}

// replayed takes one record of the WAL into memory, if its chunk is the shard's and its
// place is above the chunk's floor: what is below is in segments, or is of an ownership
// that ended.
func (s *shard) replayed(pos manifest.Position, r wal.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return s.endErr
	}
	s.log.replayed(pos, len(r.Key)+len(r.Doc))
	if c := s.owned(r.Collection, r.Key); c != nil && r.Op != wal.RetryOnly && s.replays(c, pos) {
		n := &row{path: s.paths.copy(appendPath(nil, r.Collection, r.Key)), seq: r.Seq, at: s.log.stamp, existed: r.Op != wal.Insert}
		if r.Op != wal.Delete {
			n.doc = s.docs.copy(r.Doc)
		}
		c.mem.put(n)
		s.stir(c, pos)
		c.tied = pos // the log does not tell which records are halves of one change
		s.heatOf(c)
		c.seq = max(c.seq, r.Seq)
		s.grow(n.bytes())
	}
	if r.Retry != nil {
		return s.replayedRetry(r)
	}
	return nil
}

func (s *shard) replays(c *chunk, pos manifest.Position) bool {
	return s.floor(c).Less(pos) || broken(floorIgnored)
}

// replayedRetry remembers a retry entry of the WAL. A part of a write of many documents is
// remembered by every chunk that it touches.
func (s *shard) replayedRetry(r wal.Record) error {
	e, err := recall(*r.Retry, s.log.stamp)
	if err != nil {
		return err
	}
	if kindClass(e) != 1 {
		if c := s.owned(r.Collection, e.Key); c != nil && s.replays(c, e.at.pos) {
			s.stir(c, e.at.pos)
			c.retries.learn(e)
		}
		return nil
	}
	s.eachTouched(r.Collection, e, func(c *chunk) {
		if s.replays(c, e.at.pos) {
			s.stir(c, e.at.pos)
			c.inheritProgress(e)
		}
	})
	return nil
}

// replayed counts a record of the object at pos, and stamps it.
func (t *tally) replayed(pos manifest.Position, bytes int) {
	if n := len(t.objects); n == 0 || t.objects[n-1].pos != pos {
		t.add(pos, 0)
		t.stamp = &stamp{pos}
	}
	t.objects[len(t.objects)-1].bytes += int64(bytes)
	t.bytes += int64(bytes)
}
