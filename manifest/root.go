package manifest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Root is one process's view of meta/root: the newest state it has seen, and the only way
// by which it changes it. Safe for concurrent use; it needs no Close, because no goroutine
// of it lives longer than the calls that wait for it.
type Root struct {
	cell Cell
	host host.Host
	o    RootOptions

	// seen is the newest state that any answer of the cell has shown. It never goes back.
	seen atomic.Pointer[snapshot]
	// answered is the host's Mono just before the last GET that was answered was sent.
	answered atomic.Int64
	// publishing is a lock (capacity 1) around a change of seen and the calls of the
	// observers: a channel, because observers may wait.
	publishing chan struct{}

	// mu guards what follows. It is held for a few instructions, never across a call of
	// the cell, the clock or an observer.
	mu         sync.Mutex
	observers  []*observer
	flying     *flight // the GET under way
	boarding   *flight // the next one, which calls can still join
	queue      []*request
	committing bool   // the committer runs
	wake       func() // ends the committer's wait for the background budget; nil: no wait
	round      *round // the requests that the committer is at
	background time.Duration
	paced      bool // background is set

	turns turns // the committer's own

	stats counters
}

// HistoryEveryDefault is the time between two copies of the root that the processes of a cluster
// leave. One that commits and leaves none looks, to GC, as if nobody did.
const HistoryEveryDefault = time.Minute

// RootOptions are the settings of a Root; nil and zero fields mean the defaults.
type RootOptions struct {
	// Observe, when not nil, is an observer from the start (see AddObserver).
	Observe func(*State)
	// BackgroundEvery is the least time between two commits that only background Edits
	// asked for. Default 0: no pacing.
	BackgroundEvery time.Duration
	// HistoryEvery makes commits leave a copy under meta/history, at most one in this time
	// by the committers' wall clocks, and sooner when collections or shards are added, altered or
	// removed. Default 0: none.
	HistoryEvery time.Duration
	// Attempts bounds how often one commit is sent or looked for when the store gives no
	// clear answer, before it fails with UnknownOutcome (or Throttled, if nothing was
	// sent). Default 60, which is about four minutes.
	Attempts int
	// Places opens other locations than the cluster's own bucket; nil: this process can read
	// and change no root that has chunks there.
	Places Places
	// PageBudget is how many encoded bytes of pages ride in the root before some become
	// objects. Default 64 KiB.
	PageBudget int
}

const (
	attemptsDefault   = 60
	pageBudgetDefault = 64 << 10
	// groupMax bounds the Edits that go out in one PUT.
	groupMax = 256
	// racesMax bounds how often a round is overtaken by commits of others.
	racesMax = 1000
	// staleMax bounds how often a root older than the one already seen is read again.
	staleMax = 20
	pauseMin = 20 * time.Millisecond
	pauseMax = 5 * time.Second
)

// snapshot is a state and the tag under which the cell has it.
type snapshot struct {
	state *State
	tag   string
}

type observer struct{ call func(*State) }

// NewRoot makes a view that has seen nothing yet.
func NewRoot(cell Cell, h host.Host, o *RootOptions) *Root {
	r := &Root{cell: cell, host: h, publishing: make(chan struct{}, 1)}
	if o != nil {
		r.o = *o
	}
	if r.o.Attempts <= 0 {
		r.o.Attempts = attemptsDefault
	}
	if r.o.PageBudget <= 0 {
		r.o.PageBudget = pageBudgetDefault
	}
	if r.o.Observe != nil {
		r.AddObserver(r.o.Observe)
	}
	return r
}

// State is the newest state seen; nil before the first Load or Commit.
func (r *Root) State() *State {
	if seen := r.seen.Load(); seen != nil {
		return seen.state
	}
	return nil
}

// Answered is the host's Mono just before the last GET of the root was sent that was answered;
// 0: none was.
func (r *Root) Answered() time.Duration { return time.Duration(r.answered.Load()) }

// AddObserver has f called with every state that is newer than the ones before, in the
// order of versions, before any Load, AtLeast or Commit returns it or State shows it.
// Versions may be left out. Commits and loads wait for f: it must be short, and must not
// call Load, AtLeast or Commit of this Root. A call that has begun may still run when
// remove returns.
func (r *Root) AddObserver(f func(*State)) (remove func()) {
	x := &observer{f}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observers = append(slices.Clip(r.observers), x)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.observers = slices.DeleteFunc(slices.Clone(r.observers), func(y *observer) bool { return x == y })
	}
}

// publish makes s, read or committed under tag, the newest state if it is newer than what
// was seen, and returns the newest. Errors: Corrupt when s cannot be of the same register:
// another cluster, or another body of the same version.
func (r *Root) publish(s *State, tag string) (*snapshot, error) {
	r.publishing <- struct{}{}
	defer func() { <-r.publishing }()
	seen := r.seen.Load()
	if seen != nil {
		was := seen.state
		switch {
		case was.cluster != s.cluster:
			return nil, fmt.Errorf("read root: %w: cluster id is %x, was %x", errkind.Corrupt, s.cluster, was.cluster)
		case was.version == s.version && was.nonce != s.nonce:
			return nil, fmt.Errorf("read root: %w: version %d has nonce %x, had %x", errkind.Corrupt, s.version, s.nonce, was.nonce)
		case was.version > s.version:
			return seen, nil
		case was.version == s.version:
			s = was // the same state, perhaps under a tag that is now right
		}
	}
	if seen == nil || seen.state != s {
		r.mu.Lock()
		observers := r.observers
		r.mu.Unlock()
		for _, x := range observers {
			x.call(s)
		}
	}
	now := &snapshot{state: s, tag: tag}
	r.seen.Store(now)
	return now, nil
}

// read asks the cell for the root once, again only while the answer is older than what was
// seen before, and returns the newest state and when that GET was sent.
func (r *Root) read(ctx context.Context) (*snapshot, time.Duration, error) {
	var lost error // a page that was not there
	for attempt := 0; ; attempt++ {
		seen, known := r.seen.Load(), ""
		if seen != nil && lost == nil {
			known = seen.tag
		}
		sentAt := r.host.Mono()
		r.stats.loads.Add(1)
		object, tag, err := r.cell.Load(ctx, RootKey, known)
		if errors.Is(err, errkind.NotModified) && seen != nil {
			r.stats.notModified.Add(1)
			r.answered.Store(int64(sentAt))
			return seen, sentAt, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read root: %w", err)
		}
		now, err := r.absorb(ctx, object, tag, seen)
		switch {
		case now != nil:
			r.answered.Store(int64(sentAt))
			return now, sentAt, nil
		case errors.Is(err, errkind.NotFound) && lost == nil:
			// The root may have moved on and GC may have swept the page meanwhile: only
			// if a second look still refers to it, it is missing.
			lost = err
			continue
		case errors.Is(err, errkind.NotFound):
			return nil, 0, fmt.Errorf("read root: %w: %v", errkind.Corrupt, err)
		case err != nil:
			return nil, 0, fmt.Errorf("read root: %w", err)
		case attempt >= staleMax:
			return nil, 0, fmt.Errorf("read root: %w: the store still answers with a version older than %d: was the root put back?", errkind.Corrupt, seen.state.version)
		}
		r.stats.stale.Add(1)
		if err := r.host.Sleep(ctx, r.host.Jitter(pauseMin<<min(attempt, 6))); err != nil {
			return nil, 0, fmt.Errorf("read root: %w", err)
		}
	}
}

// absorb makes an answer the newest state. It returns nothing when the answer is older
// than seen.
func (r *Root) absorb(ctx context.Context, object []byte, tag string, seen *snapshot) (*snapshot, error) {
	m, err := DecodeRoot(object)
	if err != nil {
		return nil, err
	}
	var have *State
	if seen != nil {
		have = seen.state
		if m.Version() < have.version && m.s.cluster == have.cluster {
			return nil, nil
		}
	}
	s, pages, err := assemble(ctx, r.cell, r.o.Places, m, have)
	if err != nil {
		return nil, err
	}
	r.stats.pagesFetched.Add(int64(pages))
	return r.publish(s, tag)
}

// flight is one GET of the root that several calls wait for.
type flight struct {
	ctx    context.Context
	cancel context.CancelFunc
	wanted int // calls that wait; guarded by Root.mu
	done   chan struct{}
	state  *State
	sentAt time.Duration
	err    error
}

// Load asks the store for the newest state: one conditional GET, shared by calls, but never
// with a call that began after it was sent. sentAt is the host's Mono just before that GET
// was sent: the state was the newest at some moment after it. Errors: NotFound when there
// is no root; Corrupt and Invalid (of a newer format); what the cell said; the context's
// cause.
func (r *Root) Load(ctx context.Context) (s *State, sentAt time.Duration, err error) {
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	r.mu.Lock()
	f := r.boarding
	if f == nil {
		f = &flight{done: make(chan struct{})}
		f.ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
		r.boarding = f
		if r.flying == nil {
			r.depart()
		}
	}
	f.wanted++
	r.mu.Unlock()
	if await(ctx, f.done) || r.abandon(f) {
		return f.state, f.sentAt, f.err
	}
	return nil, 0, context.Cause(ctx)
}

// await waits for done, and reports whether it came before the end of ctx.
func await(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// depart starts the GET that is boarding. Requires: r.mu, and nothing flying.
func (r *Root) depart() {
	f := r.boarding
	r.flying, r.boarding = f, nil
	go func() {
		var now *snapshot
		if now, f.sentAt, f.err = r.read(f.ctx); now != nil {
			f.state = r.seen.Load().state
		}
		r.mu.Lock()
		r.flying = nil
		if r.boarding != nil {
			r.depart()
		}
		r.mu.Unlock()
		f.cancel()
		close(f.done)
	}()
}

// abandon takes a call off a flight that it no longer waits for. The last one ends the
// flight, and waits until it has ended; abandon reports whether there is a result after
// all.
func (r *Root) abandon(f *flight) bool {
	r.mu.Lock()
	f.wanted--
	last := f.wanted == 0
	if last && r.boarding == f {
		r.boarding = nil
		last = false // its GET never starts
		f.cancel()
	}
	r.mu.Unlock()
	if last {
		f.cancel()
		<-f.done
	}
	return last && f.err == nil
}

// AtLeast is a state of version v or later: the one seen, or one from a Load. Errors: as
// Load, and StaleVersion when the store does not have version v.
func (r *Root) AtLeast(ctx context.Context, v Version) (*State, error) {
	if s := r.State(); s != nil && s.version >= v {
		return s, nil
	}
	s, _, err := r.Load(ctx)
	if err != nil {
		return nil, err
	}
	if s.version < v {
		return nil, fmt.Errorf("read root: %w: it is at version %d, asked for %d", errkind.StaleVersion, s.version, v)
	}
	return s, nil
}
