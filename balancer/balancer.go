package balancer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/host"
)

// Config is what a Balancer is made of; Root, Dial, Host and Holder are required.
type Config struct {
	Root *manifest.Root
	Dial rpc.Dialer
	Host host.Host
	// Holder is the random name of the process, and Address where it answers, for people.
	Holder, Address string
	// Every is the time between two looks while nothing changes; 10 s. What people do to the
	// settings, and shards that come and go, are looked at when the process sees them.
	Every time.Duration
	Log   *slog.Logger // nil: silent
}

const (
	everyDefault = 10 * time.Second
	// soonest is the time between two looks, and between two requests: each is a commit.
	soonest = 500 * time.Millisecond
	// idleMax is how old the root may be that an idle balancer looks at.
	idleMax = time.Minute
	// patienceLooks is for how many looks another balancer's record must not have changed
	// while there is work, before this one takes over.
	patienceLooks = 2
)

// Balancer is one of any number; see the package's documentation. Run may be called once.
type Balancer struct {
	c Config

	mu   sync.Mutex
	wake context.CancelFunc // ends the rest between two looks; nil: none
	due  bool               // somebody woke it while it did not rest
	seen string             // what of the root it was woken for last

	// The rest is Run's, or Once's.
	idle  int           // looks that found nothing
	looks int           // all of them
	rival []byte        // the record of another balancer, seen with work to do
	since time.Duration // when it was seen first
	calm  time.Duration // rates say nothing before
	next  time.Duration // no request before
}

// New makes a Balancer that does nothing yet.
func New(c Config) *Balancer {
	if c.Every <= 0 {
		c.Every = everyDefault
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Balancer{c: c}
}

// Run balances until ctx ends, and returns when nothing is left running.
func (b *Balancer) Run(ctx context.Context) error {
	defer b.c.Root.AddObserver(b.notice)()
	for ctx.Err() == nil {
		moved, err := b.look(ctx)
		if err != nil && ctx.Err() == nil {
			b.c.Log.Warn("chunks were not balanced, the next round tries again", "cause", err)
		}
		if err := b.c.Host.Sleep(ctx, soonest); err != nil {
			return nil
		}
		if !moved {
			b.rest(ctx, b.c.Host.Jitter(b.c.Every))
		}
	}
	return nil
}

// RunNow ends the rest between two looks.
func (b *Balancer) RunNow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = true
	if b.wake != nil {
		b.wake()
	}
}

// rest waits until there is something to look at.
func (b *Balancer) rest(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.mu.Lock()
	due := b.due
	b.due, b.wake = false, cancel
	b.mu.Unlock()
	if !due {
		_ = b.c.Host.Sleep(ctx, d)
	}
	b.mu.Lock()
	b.due, b.wake = false, nil
	b.mu.Unlock()
}

// notice sees every root of the process: whoever starts the balancer, drains a shard, adds a
// writer or cuts chunks need not wait for the next look.
func (b *Balancer) notice(st *manifest.State) {
	now := outline(st)
	b.mu.Lock()
	same := now == b.seen
	b.seen = now
	b.mu.Unlock()
	if !same {
		b.RunNow()
	}
}

// outline is what of a root changes the plan, but for sizes and owners of chunks.
func outline(st *manifest.State) string {
	var text []byte
	for _, h := range st.Shards() {
		text = fmt.Appendf(text, "%s %d %v\n", h.ID, h.Status, h.Zones)
	}
	for _, r := range st.Records(manifest.RecordBalancer) {
		if r.ID != balancing.RoundID {
			text = fmt.Appendf(text, "%s %x\n", r.ID, r.Body)
		}
	}
	for _, c := range st.Collections() {
		text = fmt.Appendf(text, "%d %d %t %x %d\n", c.ID, st.NumChunks(c.ID), c.NoBalance, c.Options, len(c.Zones))
	}
	return string(text)
}

// look plans, and carries the plan out when it is this balancer's turn. moved: there may be
// more to do at once.
func (b *Balancer) look(ctx context.Context) (moved bool, err error) {
	st, err := b.state(ctx)
	if err != nil {
		return false, err
	}
	last, seen := balancing.LastRound(st)
	mine := seen == nil || last.Holder == b.c.Holder || last.Holder == ""
	plan := policy.Make(b.input(ctx, st, mine))
	follow := balancing.Follow(st)
	b.looks++
	if len(plan.Actions) == 0 && len(follow) == 0 && !last.InRound {
		b.idle++
		b.rival = nil
		return false, nil
	}
	b.idle = 0
	if !mine && !b.patient(seen) {
		return false, nil
	}
	r := round{b: b, last: last, seen: seen}
	return r.run(ctx, plan.Actions, follow)
}

// patient reports whether another balancer had its time.
func (b *Balancer) patient(seen []byte) bool {
	now := b.c.Host.Mono()
	if string(seen) != string(b.rival) {
		b.rival, b.since = seen, now
		return false
	}
	return now-b.since >= patienceLooks*b.c.Every
}

// state is a root to plan on: what the process knows when that is not old, else a new look.
// The longer nothing was to do, the older it may be.
func (b *Balancer) state(ctx context.Context) (*manifest.State, error) {
	old := min(b.c.Every<<min(b.idle, 10), max(idleMax, b.c.Every))
	if st := b.c.Root.State(); st != nil && b.c.Host.Mono()-b.c.Root.Answered() < old {
		return st, nil
	}
	return b.load(ctx)
}

// loadWait bounds one look at the root.
const loadWait = 10 * time.Second

func (b *Balancer) load(ctx context.Context) (*manifest.State, error) {
	ctx, cancel := b.c.Host.WithTimeout(ctx, loadWait)
	defer cancel()
	st, _, err := b.c.Root.Load(ctx)
	return st, err
}

// input gathers what a plan is made of.
func (b *Balancer) input(ctx context.Context, st *manifest.State, active bool) policy.Input {
	last, _ := balancing.LastRound(st)
	in := policy.Input{State: st, Settings: balancing.Of(st), NowMillis: b.c.Host.Wall().UnixMilli(), Failures: last.Failures}
	in.Calm = b.c.Host.Mono() < b.calm
	if !in.Settings.Stopped && (active || b.looks%standbyLooks == 0) {
		in.Loads = b.loads(ctx, st)
	}
	return in
}

// Plan is what would be done now. Errors: those of the root.
func (b *Balancer) Plan(ctx context.Context) (policy.Plan, error) {
	st, err := b.load(ctx)
	if err != nil {
		return policy.Plan{}, err
	}
	return policy.Make(b.input(ctx, st, true)), nil
}

// errFailed: a round moved nothing of what it wanted to.
var errFailed = errors.New("no chunk was moved")

// Once balances until there is nothing left to do that can be done now, whoever else is at
// work, and leaves the next round to anybody. It returns how many chunks went. Errors: those
// of the root and, when a whole round fails, of its moves.
func (b *Balancer) Once(ctx context.Context) (chunks int, err error) {
	for {
		st, err := b.load(ctx)
		if err != nil {
			return chunks, err
		}
		plan, follow := policy.Make(b.input(ctx, st, true)), balancing.Follow(st)
		if len(plan.Actions) == 0 && len(follow) == 0 {
			return chunks, nil
		}
		r := round{b: b, once: true}
		r.last, r.seen = balancing.LastRound(st)
		_, err = r.run(ctx, plan.Actions, follow)
		chunks += r.moved
		if err == nil && r.moved == 0 && len(plan.Actions) > 0 {
			err = errors.Join(errFailed, r.err)
		}
		if err != nil {
			return chunks, err
		}
	}
}
