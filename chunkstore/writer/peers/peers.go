// Package peers is a writer process among others: which shards it takes, which it gives
// away, and how it notices that another one is gone.
//
// # How processes know one another
//
//	root: shard01 held by A at a:7017, shard02 held by B at b:7017
//
//	  C (holds nothing) --ping--> A   "I am C at c:7017"
//	                    <-------      "I am A; I also know B; my root is version 12"
//
// The root names everybody who holds something. Whoever holds nothing pings them, and is
// known from then on; what one knows it tells in its answers. There is no list of members
// that could be wrong: whoever is not heard of for a while is forgotten.
//
// # Who takes what
//
// Each process makes the same small plan (plan.go) a few times a second: a shard that is
// free, or whose holder is gone, goes to the process that was started for it (--shards), or
// to the one with the fewest. The next in line waits a while, so that there is no race for
// it. A process that joins is given shards until nobody has two more than another.
//
// A holder is gone when the machine says that nobody listens at its address, twice; when
// another process answers there; or when it gave no answer three times (and then longer, when
// it took a shard from here without being heard: it is alive, and cut off from here only). All of it is only
// economy: what makes a takeover safe is the epoch, the seal and the wait in package writer,
// also when the holder is alive and was only not reached.
//
// # When it goes wrong
//
// Nothing here is kept. A process that starts again has a new name and knows nobody; its
// former shards are taken by whoever notices, itself included.
//
// The package may change with any release.
package peers

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/alarm"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
)

// Times of the watch.
const (
	// every is the time between two rounds, jittered; a round in which somebody did not
	// answer is followed by the next one after soon.
	every = 500 * time.Millisecond
	soon  = 150 * time.Millisecond
	// pingWait bounds one ping.
	pingWait = time.Second
	// rootEvery bounds how old the root may be that a round looks at; it is read earlier
	// when a peer knows a newer one.
	rootEvery = 2 * time.Second
	// rootWait bounds one read of it.
	rootWait = 5 * time.Second
	// liveFor is how long an answer or a call counts, and forgetAfter when a process that
	// holds nothing is not asked any more.
	liveFor     = 3 * time.Second
	forgetAfter = 15 * time.Second
	// patience is one step in the line for a shard.
	patience = time.Second
	// settleAfter is how long nobody may have come or gone before shards are evened out.
	settleAfter = 3 * time.Second
	// handWait bounds the claim of a shard that was given.
	handWait = 10 * time.Second
	// pingsAtOnce bounds the pings under way, peersMax the processes that are known.
	pingsAtOnce = 32
	peersMax    = 1000
)

// Config is what a Member is made of; all but Log and Named are required.
type Config struct {
	Root   *manifest.Root
	Writer *writer.Writer
	Dial   rpc.PeerDialer
	Host   host.Host
	Log    *slog.Logger // nil: silent
	// Holder and Address are those of Writer.
	Holder, Address string
	// Alarm has heard what this process found to be Corrupt; nil: nobody listened.
	Alarm *alarm.Bell
	// Any: take any shard. Named: the shards that this process is for.
	Any   bool
	Named []manifest.ShardID
	// Merged is how many bytes of segments this process has merged; nil: none.
	Merged func() int64
}

// Member is a writer process among others: an rpc.Peer. Safe for concurrent use.
type Member struct {
	c Config

	mu      sync.Mutex // never held across a call
	leaving bool
	peers   map[string]*peer                   // by holder
	orphans map[manifest.ShardID]time.Duration // since when a shard has no holder
	busy    map[manifest.ShardID]bool          // takes and gives under way
	served  map[manifest.ShardID]bool          // by this process, as long as the root names it
	live    string                             // who was live in the last round
	changed time.Duration                      // when that changed
	hint    manifest.Version                   // the newest root version that a peer knows
	loaded  time.Duration                      // when the root was read for a round
	rootOut bool                               // it could not be read
	work    sync.WaitGroup
}

// Invariant: routers and other writers ask it.
var _ rpc.Peer = (*Member)(nil)

// New makes a Member. It does nothing before Run.
func New(c Config) *Member {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Member{
		c: c, peers: make(map[string]*peer), orphans: make(map[manifest.ShardID]time.Duration),
		busy: make(map[manifest.ShardID]bool), served: make(map[manifest.ShardID]bool), loaded: -rootEvery, changed: c.Host.Mono(),
	}
}

// Run watches, takes and gives until ctx ends; it returns with nothing left running. The
// shards stay held: Leave gives them away.
func (m *Member) Run(ctx context.Context) error {
	defer m.work.Wait()
	for {
		pause := every
		if !m.round(ctx) {
			pause = soon
		}
		if m.c.Host.Sleep(ctx, m.c.Host.Jitter(pause)) != nil {
			return nil
		}
	}
}

// round looks once, and does what the plan says; false when somebody did not answer.
func (m *Member) round(ctx context.Context) bool {
	m.readRoot(ctx)
	st := m.c.Root.State()
	if st == nil {
		return true
	}
	quiet := m.pingAll(ctx, st)
	take, give := plan(m.look(st))
	for _, s := range take {
		m.start(ctx, s.id, func() { m.take(ctx, s) })
	}
	if give != nil {
		m.start(ctx, give.shard, func() { m.give(ctx, *give) })
	}
	return quiet
}

// start does something with a shard, unless something is being done with it.
func (m *Member) start(ctx context.Context, id manifest.ShardID, do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[id] || ctx.Err() != nil {
		return
	}
	m.busy[id] = true
	m.work.Go(func() {
		do()
		m.mu.Lock()
		delete(m.busy, id)
		m.mu.Unlock()
	})
}

// readRoot reads the root when the one at hand is old, or a peer knows a newer one.
func (m *Member) readRoot(ctx context.Context) {
	now := m.c.Host.Mono()
	m.mu.Lock()
	st := m.c.Root.State()
	fresh := st != nil && m.hint <= st.Version() && now < m.loaded+rootEvery
	m.mu.Unlock()
	if fresh {
		return
	}
	wait, cancel := m.c.Host.WithTimeout(ctx, rootWait)
	st, _, err := m.c.Root.Load(wait)
	cancel()
	if ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	was := m.rootOut
	m.rootOut = err != nil
	if err == nil {
		m.loaded, m.hint = now, min(m.hint, st.Version())
	}
	m.mu.Unlock()
	switch {
	case err != nil && !was:
		m.c.Log.Warn("root not read, the next tries follow", "cause", err)
	case err == nil && was:
		m.c.Log.Info("root read again")
	}
}

// look makes the view of this moment.
func (m *Member) look(st *manifest.State) view {
	serving := make(map[manifest.ShardID]bool)
	for _, s := range m.c.Writer.Status().Shards {
		serving[s.ID] = s.Phase != writer.Ended
	}
	now := m.c.Host.Mono()
	m.mu.Lock()
	defer m.mu.Unlock()
	v := view{self: candidate{holder: m.c.Holder, any: m.c.Any, named: m.c.Named}}
	held := make(map[string]int)
	for _, x := range st.Shards() {
		if x.Status != manifest.ShardFree {
			held[x.Holder]++
		}
		v.shards = append(v.shards, m.see(x, serving[x.ID], now))
	}
	v.self.held = held[m.c.Holder]
	var live []string
	for holder, p := range m.peers {
		if p.liveAt(now) && !p.process.Leaving {
			live = append(live, holder)
			v.others = append(v.others, candidate{holder: holder, any: p.process.Any, named: p.process.Named, held: held[holder]})
		}
	}
	slices.SortFunc(v.others, func(a, b candidate) int { return strings.Compare(a.holder, b.holder) })
	slices.Sort(live)
	if all := strings.Join(live, " "); all != m.live {
		m.live, m.changed = all, now
	}
	v.settled = now >= m.changed+settleAfter
	return v
}

// see makes a shard of the root one of the view. Requires: the mutex.
func (m *Member) see(x *manifest.Shard, serving bool, now time.Duration) seen {
	s := seen{id: x.ID, epoch: x.Epoch, free: x.Status == manifest.ShardFree}
	switch {
	case !s.free && x.Holder == m.c.Holder:
		m.served[x.ID] = m.served[x.ID] || serving
	default:
		if m.served[x.ID] && !s.free {
			m.know(rpc.Process{Holder: x.Holder, Address: x.Address}, now).contest(now)
		}
		delete(m.served, x.ID)
	}
	if !s.free && x.Holder == m.c.Holder {
		s.mine, s.lost = serving, !serving
	} else if p := m.peers[x.Holder]; !s.free && p != nil {
		s.gone = p.goneAt(now)
	}
	if !s.orphan() {
		delete(m.orphans, x.ID)
		return s
	}
	since, ok := m.orphans[x.ID]
	if !ok {
		since = now
		m.orphans[x.ID] = now
	}
	s.waited = int((now - since) / patience)
	return s
}
