package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/compactor/gc"
	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/compactor/rewrite"
	"github.com/granarydb/granary/localstack/history"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// sweepAgain is the time between a collector's two sweeps.
const sweepAgain = 2 * time.Second

// World is one simulated cluster in one bubble.
type World struct {
	cfg       Config
	ctx       context.Context
	stop      context.CancelFunc
	bus       *Bus
	chaos     *Node // who crashes, pauses and moves
	rng       *rand.Rand
	store     *Store
	inner     bucket.Bucket
	shards    []manifest.ShardID
	net       *Net
	writers   []*slot
	routers   []*slot
	balancers []*slot
	history   history.History
	moving    moving
	dated     dated
	checker   rootChecker
	logs      *slog.Logger
	aside     sync.WaitGroup // what chaos asks of processes, and collectors

	mu      sync.Mutex
	calm    bool
	events  map[string]int // what chaos did
	failure error
}

// newWorld makes the cluster's first root and starts its processes; call it inside the
// bubble.
func newWorld(cfg Config, logs *slog.Logger) (*World, error) {
	cfg.Located = min(cfg.Located, cfg.Shards-1) // the first is in the cluster's own bucket
	w := &World{cfg: cfg, bus: NewBus(cfg.Seed), rng: rand.New(rand.NewPCG(cfg.Seed, 99)), inner: membucket.New(), events: map[string]int{}, logs: logs, checker: rootChecker{pins: kept{}}}
	w.bus.keepLog, w.bus.stop = cfg.KeepLog, cfg.Stop
	w.ctx, w.stop = context.WithCancel(context.Background())
	storeNode := NewNode(w.ctx, w.bus, "store", cfg.Seed, 0, 0)
	w.chaos = NewNode(w.ctx, w.bus, "chaos", cfg.Seed, 0, 0)
	w.store = NewStore(w.bus, storeNode, w.inner, cfg.Store)
	w.net = NewNet(w.bus, cfg.Net)
	for i := range cfg.Shards {
		w.shards = append(w.shards, manifest.ShardID(fmt.Sprintf("shard%02d", i+1)))
	}
	if err := w.create(); err != nil {
		return nil, err
	}
	w.moving.expect(cfg.Moving)
	w.store.onRoot = w.rootWritten
	w.store.onWAL = w.walWritten
	w.store.onPut = w.stays
	w.store.onDelete = w.deleted
	for i := range cfg.Writers {
		w.writers = append(w.writers, &slot{name: fmt.Sprintf("w%d", i)})
	}
	for i := range 2 * (cfg.Clients + 1) { // two for each client, and for the reader at the end
		w.routers = append(w.routers, &slot{name: fmt.Sprintf("r%d", i)})
	}
	for i := range cfg.Placement.Balancers {
		w.balancers = append(w.balancers, &slot{name: fmt.Sprintf("b%d", i)})
	}
	return w, nil
}

// log is where one process logs; silent unless the run is looked at.
func (w *World) log(n *Node) *slog.Logger {
	if w.logs == nil {
		return slog.New(slog.DiscardHandler)
	}
	return w.logs.With("node", n.name, "t", fmt.Sprint(w.bus.Elapsed()))
}

// skew is how much a process's clocks err.
func (w *World) skew(name string) (offset time.Duration, drift float64) {
	r := rand.New(rand.NewPCG(w.cfg.Seed, hashString("skew "+name)))
	if w.cfg.SkewMax > 0 {
		offset = time.Duration(r.Int64N(int64(2*w.cfg.SkewMax))) - w.cfg.SkewMax
	}
	return offset, (2*r.Float64() - 1) * w.cfg.DriftMax
}

// fail notes the first thing that went wrong and ends the busy time.
func (w *World) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		w.failure = fmt.Errorf(format, args...)
	}
	w.calm = true
}

func (w *World) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure
}

func (w *World) quiet() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.calm }

func (w *World) did(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events[what]++
}

func (w *World) didAll(what string, n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > 0 {
		w.events[what] += int(n)
	}
}

// rootWritten checks every new root before anyone sees it; it runs inside a step.
func (w *World) rootWritten(body []byte) {
	if err := w.checker.next(w.inner, body); err != nil {
		w.fail("root: %w", err)
	}
}

// walWritten may pause a writer right after one of its log objects landed.
func (w *World) walWritten(n *Node) {
	if w.cfg.Chaos.Aimed == 0 || w.quiet() || w.bus.IntN(1000) >= w.cfg.Chaos.Aimed {
		return
	}
	w.did("aimed pause")
	w.pause(n, time.Duration(w.bus.rng.Int64N(int64(w.cfg.Chaos.PauseMax))))
}

// pause stops a process for a while, as SIGSTOP and SIGCONT do.
func (w *World) pause(n *Node, d time.Duration) {
	n.pause(true)
	go func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			n.pause(false)
		case <-w.ctx.Done():
		}
	}()
}

// every does something at random times, in the mean every d, until the busy time is over.
func (w *World) every(all *sync.WaitGroup, what string, d time.Duration, do func()) {
	if d == 0 {
		return
	}
	// Its own node: the order of chaos is drawn like everything else.
	node := NewNode(w.ctx, w.bus, "chaos "+what, w.cfg.Seed, 0, 0)
	h := node.Host()
	all.Add(1)
	go func() {
		defer all.Done()
		for {
			wait := time.Duration(h.Uint64() % uint64(2*d))
			if h.Sleep(node.Context(), wait) != nil || w.quiet() {
				return
			}
			if w.bus.Step(node, what, do) != nil {
				return
			}
			w.did(what)
		}
	}()
}

// startChaos begins everything that may happen to the cluster. Each event is one step.
func (w *World) startChaos(all *sync.WaitGroup) {
	c := w.cfg.Chaos
	w.every(all, "crash", c.Crash, func() { w.restart(w.anyWriter(), true) })
	w.every(all, "term", c.Term, w.terminate)
	w.every(all, "router crash", c.RouterCrash, func() {
		s := w.routers[w.rng.IntN(len(w.routers))]
		s.current().crash()
		w.startRouter(s)
	})
	w.every(all, "pause", c.Pause, w.pauseSomeone)
	w.every(all, "takeover", c.Takeover, func() { w.anyWriter().current().hold(w.anyShard()) })
	w.every(all, "move", c.Move, w.moveSomething)
	w.every(all, "flush", c.Flush, w.flushSomething)
	w.every(all, "collect", c.Collect, w.collect)
	w.every(all, "compact", c.Compact, w.compact)
	w.every(all, "expire", c.Expire, w.expire)
	w.every(all, "pin", c.Pin, func() { w.pin(all) })
	// Somebody must hold every shard in the end: an orphaned one is taken by anyone.
	w.every(all, "adopt", 2*time.Second, w.adopt)
	w.startPlacement(all)
	w.startGrowing(all)
}

// slots are the places of all processes that last.
func (w *World) slots() []*slot { return slices.Concat(w.writers, w.routers, w.balancers) }

// look is the root as it is, for somebody who is not in a step.
func (w *World) look(n *Node) (st *manifest.State) {
	_ = w.bus.Step(n, "look", func() { st = w.checker.state })
	return st
}

func (w *World) anyWriter() *slot { return w.writers[w.rng.IntN(len(w.writers))] }

func (w *World) anyShard() manifest.ShardID {
	all := w.checker.state.Shards()
	return all[w.rng.IntN(len(all))].ID
}

// restart replaces a slot's process; hard kills the old one first.
func (w *World) restart(s *slot, hard bool) {
	old := s.current()
	if hard {
		old.crash()
	}
	w.startWriter(s)
}

// terminate is SIGTERM: the old process frees its shards while the new one starts.
func (w *World) terminate() {
	s := w.anyWriter()
	old := s.current()
	w.restart(s, false)
	old.run(func(ctx context.Context) {
		ctx, cancel := old.node.Host().WithTimeout(ctx, 25*time.Second)
		defer cancel()
		_ = old.writer.Close(ctx)
		old.node.crash()
	})
}

func (w *World) pauseSomeone() {
	all := append(append([]*slot{}, w.writers...), w.routers...)
	n := all[w.rng.IntN(len(all))].current().node
	w.pause(n, time.Duration(w.rng.Int64N(int64(w.cfg.Chaos.PauseMax))))
}

// adopt lets a live writer take a shard whose holder is gone. A holder that lives takes back
// what it lost, and free shards are taken, by the writers themselves.
func (w *World) adopt() {
	w.checkFences()
	for _, s := range w.checker.state.Shards() {
		if s.Status != manifest.ShardFree && w.alive(s.Holder) == nil {
			w.anyWriter().current().hold(s.ID)
		}
	}
}

// checkFences requires that nobody thinks to be fenced whom nobody fenced: a seal comes after
// a claim, and a claim is in the root.
func (w *World) checkFences() {
	for _, s := range w.writers {
		p := s.current()
		for _, sh := range p.writer.Status().Shards {
			now := w.checker.state.Shard(sh.ID)
			if now != nil && sh.Phase == writer.Ended && strings.Contains(sh.Reason, "append wal") && strings.Contains(sh.Reason, "fenced") && now.Epoch == sh.Epoch {
				w.fail("%s gave up shard %s epoch %d, which is current: %s", p.node.name, sh.ID, sh.Epoch, sh.Reason)
			}
		}
	}
}

// alive is the living process of a holder's name, or nil.
func (w *World) alive(holder string) *process {
	for _, s := range w.writers {
		if p := s.current(); p.node.name == holder && !p.node.crashed() {
			return p
		}
	}
	return nil
}

// moveSomething asks an owner to hand a chunk to another shard, or all that it has.
func (w *World) moveSomething() {
	state := w.checker.state
	if w.cfg.Shards < 2 {
		return
	}
	var chunks []*manifest.Chunk
	for c := range state.AllChunks() {
		chunks = append(chunks, c)
	}
	c, to := chunks[w.rng.IntN(len(chunks))], w.anyShard()
	if to == c.Shard {
		return
	}
	list := []manifest.ChunkAt{c.At()}
	if w.rng.IntN(4) == 0 {
		for _, other := range chunks {
			if other != c && other.Shard == c.Shard {
				list = append(list, other.At())
			}
		}
	}
	holder := state.Shard(c.Shard).Holder
	if w.rng.IntN(3) == 0 {
		holder = w.anyWriter().current().node.name // who may have held it once, and not know better
	}
	w.toHolder(c.Shard, holder, func(ctx context.Context, o rpc.Owner) {
		_, _ = o.Move(ctx, &rpc.MoveRequest{Header: rpc.Header{Shard: c.Shard, Collection: c.Collection, RootVersion: state.Version(), Deadline: 10 * time.Second}, Chunks: list, To: to})
	})
}

func (w *World) flushSomething() {
	id := w.anyShard()
	w.toHolder(id, w.checker.state.Shard(id).Holder, func(ctx context.Context, o rpc.Owner) {
		_, _ = o.Flush(ctx, &rpc.FlushRequest{Header: rpc.Header{Shard: id, Deadline: 10 * time.Second}})
	})
}

// toHolder calls a process that holds a shard, or did, from a process of its own.
func (w *World) toHolder(id manifest.ShardID, holder string, do func(context.Context, rpc.Owner)) {
	o, err := w.net.From(w.chaos).Dial(id, holder, "")
	if err != nil {
		return
	}
	w.aside.Go(func() { do(w.chaos.Context(), o) })
}

// collect starts a collector, in a process of its own. It sweeps twice: the second time it
// knows what it did the first time.
func (w *World) collect() {
	w.did("collector")
	node := NewNode(w.ctx, w.bus, fmt.Sprintf("gc.%d", w.events["collector"]), w.cfg.Seed, 0, 0)
	store := withoutPins(w.store.For(node))
	p := placesOf(store, node.Host())
	s := &gc.Sweeper{
		Root: p.Root(), Bucket: store, Open: p.Open,
		Host: node.Host(), Courtesy: time.Second,
	}
	w.pauseCollector(node)
	w.aside.Go(func() {
		for range 2 {
			_, _ = s.Sweep(node.Context(), false)
			_, _ = s.Orphans(node.Context(), false)
			collectMore(node.Context(), s)
			_ = s.Host.Sleep(node.Context(), sweepAgain)
		}
	})
}

// compactFor bounds the life of a compactor, and compactSilent is how long one lets the jobs of
// others be: less than it takes a slow one.
const (
	compactFor    = 12 * time.Second
	compactSilent = 3 * time.Second
)

// compact starts a compactor, in a process of its own, and kills it some time later. It merges
// whatever there is to merge, into segments of a few rows.
func (w *World) compact() {
	w.did("compactor")
	node := NewNode(w.ctx, w.bus, fmt.Sprintf("compact.%d", w.events["compactor"]), w.cfg.Seed, 0, 0)
	store := w.store.For(node)
	p := placesOf(store, node.Host())
	r := rewrite.New(rewrite.Config{
		Root: p.Root(), Host: node.Host(), Holder: node.name, Log: w.log(node), Open: p.Open,
		Settings: rewrite.Settings{
			Merge: plan.MergeSettings{Fan: 2, Refs: 3, Garbage: 0.1, Unused: 1},
			// Requests that go side by side would wait for their turns in no order that a seed gives.
			RequestsPerSecond: 1 << 40, BytesPerSecond: 1 << 50,
			SegmentBytes: 600, Every: 300 * time.Millisecond, Idle: 2 * time.Second, SilentFor: compactSilent,
		},
	})
	life := time.Duration(w.rng.Int64N(int64(compactFor)))
	w.aside.Go(func() {
		_ = node.Host().Sleep(node.Context(), life)
		node.crash()
	})
	w.aside.Go(func() { w.compactOn(node, r) })
}

// compactOn looks at the root, and merges, until the node is gone.
func (w *World) compactOn(node *Node, r *rewrite.Rewriter) {
	for node.Host().Sleep(node.Context(), 300*time.Millisecond) == nil {
		if _, _, err := r.Root.Load(node.Context()); err != nil {
			continue
		}
		_, err := r.Pass(node.Context())
		if errors.Is(err, errkind.Corrupt) {
			w.fail("compactor: %w", err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := r.Counts()
	w.events["merge"] += int(n.Merges)
	w.events["lost merge"] += int(n.Lost)
	w.events["expelled job"] += int(n.Expelled)
}

// calmDown ends faults, wakes everyone, and waits until every shard is served again.
func (w *World) calmDown() {
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	_ = w.bus.Step(w.chaos, "calm", func() {
		w.store.fault.Off, w.net.faults.Off = true, true
		w.store.fault.LatencyMax, w.net.faults.LatencyMax = w.store.fault.LatencyMin, w.net.faults.LatencyMin
	})
	for _, s := range w.slots() {
		s.current().node.pause(false)
	}
}

// logged decodes every log object that was ever written, for the ids of the writes in it.
func (w *World) logged() (map[string]manifest.Seq, error) {
	ids := map[string]manifest.Seq{}
	for key, body := range w.store.WAL() {
		if _, err := history.Logged(body, ids); err != nil && !strings.Contains(key, "probe") {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return ids, nil
}
