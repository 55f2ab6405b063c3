package writer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Run does what nobody asks for: it flushes when memory or a WAL has grown, drains shards
// that nobody writes to, reads the root now and then, closes forgotten cursors, and
// aborts what others began and left. It
// returns when ctx ends, with nothing left running; shards stay held until Release or Close.
func (w *Writer) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { w.pollRoot(ctx) })
	tick := min(max(w.set.IdleFlush/4, 10*time.Millisecond), time.Second)
	marks := make(map[string]time.Duration)
	for {
		waited, cancel := w.host.WithTimeout(ctx, tick)
		select {
		case <-w.memory.high:
		case <-waited.Done():
		}
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		w.closeIdleCursors()
		w.trimRetries()
		w.takeBackMarks(ctx, marks)
		w.settleOld(ctx)
		if err := w.flushDue(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("flush failed", "cause", err)
			w.alarm.Hear(err)
			_ = w.running.Sleep(ctx, w.running.Jitter(tick)) // a bucket that fails is not asked again at once
		}
	}
}

// pollRoot keeps the process from living on a root that is long gone.
func (w *Writer) pollRoot(ctx context.Context) {
	for w.host.Sleep(ctx, w.set.RootPoll) == nil {
		if len(w.held()) == 0 {
			continue
		}
		_, sent, err := w.root.Load(ctx)
		if err != nil {
			w.log.Warn("root not read", "cause", err)
			w.alarm.Hear(err)
			continue
		}
		for _, s := range w.held() {
			s.renew(sent)
		}
	}
}

// renew counts the lease from a root GET that was sent at t and showed our epoch: it did, or
// the shard has ended.
func (s *shard) renew(t time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr == nil && !broken(flushAnyEpoch) {
		s.lease.prove(t)
	}
}

// flushDue flushes the shards that should be, together, so that their commits share one
// change of the root.
func (w *Writer) flushDue(ctx context.Context) error {
	var jobs []*job
	var failed []error
	due := w.due()
	for _, l := range due {
		j, err := l.s.flushSoon(!l.hurry)
		if err != nil {
			j = nil
		}
		jobs = append(jobs, j)
		w.turns.yield(ctx) // one janitor begins after another
	}
	for i, j := range jobs {
		if j == nil {
			continue
		}
		err := due[i].s.finished(ctx, j)
		// A conflict: a chunk was cut meanwhile that had to come along. The next flush takes it.
		if err != nil && !errors.Is(err, errkind.Fenced) && !errors.Is(err, errkind.StaleVersion) && !errors.Is(err, errkind.Conflict) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// load is what a shard has to flush.
type load struct {
	s     *shard
	bytes int64
	must  bool // for its own sake: its WAL is long, or it is idle
	hurry bool // not to be held back for the sake of the root
}

// due are the shards to flush now: those that must be, and when memory is short the
// largest, until half of the limit will be free.
func (w *Writer) due() []load {
	used := w.memory.used.Load()
	var loads []load
	for _, s := range w.held() {
		loads = append(loads, s.load())
	}
	slices.SortStableFunc(loads, func(a, b load) int { return cmp.Compare(b.bytes, a.bytes) })
	excess := used - w.memory.limit/2
	return slices.DeleteFunc(loads, func(l load) bool {
		take := l.must || excess > 0 && l.bytes > 0
		if take {
			excess -= l.bytes
		}
		return !take
	})
}

// hurryBelow: a shard that has to be flushed again so soon writes faster than background
// commits come, and its store is fast, so that one commit more is no burden.
const hurryBelow = time.Second

func (s *shard) load() load {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil || s.phase != Serving {
		return load{s: s}
	}
	now := s.w.host.Mono()
	idle := s.rootFloor.Less(s.durable) && now >= s.touched+s.w.set.IdleFlush
	return load{
		s: s, bytes: s.bytes, must: s.longish() || idle,
		hurry: s.w.memory.used.Load() >= s.w.memory.limit || s.longish() && now < s.flushed+hurryBelow,
	}
}

// longish reports whether the WAL is so long that a flush should begin. Requires: the mutex.
func (s *shard) longish() bool {
	return len(s.log.objects) >= s.w.set.WALObjects/2 || s.log.bytes >= s.w.set.WALBytes/2
}

// Release gives a shard back: free, its WAL drained. Errors: Invalid (not held), Conflict or
// Throttled (it serves on), UnknownOutcome (it is not served, and left to a takeover),
// Fenced (it was taken).
func (w *Writer) Release(ctx context.Context, id manifest.ShardID) error {
	s := w.shard(id)
	if s == nil {
		return fmt.Errorf("release shard %s: %w: this process does not hold it", id, errkind.Invalid)
	}
	err := s.serves(ctx)
	if err == nil {
		err = s.do(ctx, s.free)
	}
	if errors.Is(s.endedErr(), errRemoved) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("release shard %s: %w", id, err)
	}
	<-s.idle
	w.log.Info("shard freed", "shard", id, "epoch", s.epoch)
	return nil
}

// Close releases every shard and ends the Writer: what SIGTERM asks for. A shard that cannot
// be freed before ctx ends is left to a takeover; nothing acknowledged is lost by that.
func (w *Writer) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	held := w.held()
	errs := make([]error, len(held))
	var all sync.WaitGroup
	for i, s := range held {
		if s.endedErr() == nil {
			all.Go(func() { errs[i] = w.Release(ctx, s.id) })
			w.turns.yield(ctx)
		}
	}
	all.Wait()
	w.Abandon()
	return errors.Join(errs...)
}

// Abandon ends the Writer at once, as a crash does: nothing more is written, and its shards
// stay held until somebody takes them over. It returns when nothing is left running.
func (w *Writer) Abandon() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.forget()
	for _, s := range w.held() {
		s.end(fmt.Errorf("shard %s epoch %d: %w: its process stopped", s.id, s.epoch, errkind.Fenced))
	}
	for _, s := range w.held() {
		<-s.idle
	}
}
