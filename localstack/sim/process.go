package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/compactor"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/command"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// slot is a place for a process: when one dies, the next takes the place under a new name.
type slot struct {
	name string
	mu   sync.Mutex
	born int
	now  *process
}

// current is the slot's process, dead or alive.
func (s *slot) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// put makes p the slot's process.
func (s *slot) put(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = p
}

// nextName is the name of the slot's next process: "w1.3" is the third in the slot w1.
func (s *slot) nextName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.born++
	return fmt.Sprintf("%s.%d", s.name, s.born)
}

// process is one simulated process: a writer or a router, with its own idea of the root.
type process struct {
	node     *Node
	root     *manifest.Root
	store    bucket.Bucket
	places   *places.Places
	writer   *writer.Writer    // nil in a router
	commands *command.Commands // nil in a writer
	done     sync.WaitGroup
}

// newProcess makes what every role has.
func (w *World) newProcess(s *slot) (*process, *reader.Store) {
	name := s.nextName()
	offset, drift := w.skew(name)
	p := &process{node: NewNode(w.ctx, w.bus, name, w.cfg.Seed, offset, drift)}
	p.store = w.store.For(p.node)
	p.places = placesWith(p.store, p.node.HostOf("root"), &manifest.RootOptions{HistoryEvery: w.cfg.Copies})
	p.root = p.places.Root()
	cache := segment.NewCache(1 << 20)
	if w.cfg.Moving > 0 || w.cfg.Mix.Dated > 0 {
		// Scans of many segments at once would wait for one another's fetches, and go on
		// together, in an order that the seed does not decide.
		cache = nil
	}
	return p, reader.NewStore(p.places.Open, cache)
}

// startWriter starts a writer that holds shards as it is told.
func (w *World) startWriter(s *slot) *process {
	p, store := w.newProcess(s)
	p.writer = writer.New(writer.Config{
		Root: p.root, Bucket: p.store, Open: p.places.Open, Store: store, Host: p.node.Host(), Holder: p.node.name, Dial: w.net.From(p.node), Log: w.log(p.node),
		Settings: writer.Settings{
			Lease: w.cfg.Lease, Drift: w.cfg.DriftMax + 0.001, MemtableBytes: w.cfg.Memtable, SegmentBytes: int(w.cfg.Memtable),
			IdleFlush: w.cfg.IdleFlush, MovePreflush: 1 << 10, WALObjects: 200,
		},
	})
	w.net.Listen(p.node.name, p.node, p.writer)
	p.run(func(ctx context.Context) { _ = p.writer.Run(ctx) })
	p.run(func(ctx context.Context) { _ = p.writer.Keep(ctx) })
	w.keepUp(p)
	s.put(p)
	return p
}

// keepUp has a writer cut and merge its chunks. It reads through a cache of its own: who waits
// with others for one request goes on at the same moment as they do, in any order.
func (w *World) keepUp(p *process) {
	if w.cfg.Upkeep == 0 {
		return
	}
	dial := rpc.NewLocal(w.net.From(p.node))
	dial.Add(p.node.name, p.writer)
	store := reader.NewStore(p.places.Open, segment.NewCache(1<<20))
	u := compactor.New(compactor.Config{
		Root: p.root, Store: store, Host: p.node.HostOf("upkeep"), Dial: dial, Log: w.log(p.node),
		Mine:     func(h *manifest.Shard) bool { return h.Status != manifest.ShardFree && h.Holder == p.node.name },
		Settings: compactor.Settings{Every: w.cfg.Upkeep, Idle: w.cfg.Upkeep, MergeAfter: w.cfg.Upkeep},
	})
	p.run(func(ctx context.Context) {
		_ = u.Run(ctx)
		w.didAll("cut", u.Counts().Cuts)
		w.didAll("merge", u.Counts().Merges)
	})
}

// startRouter starts a router.
func (w *World) startRouter(s *slot) *process {
	p, store := w.newProcess(s)
	r := router.New(router.Config{
		Root: p.root, Dialer: w.net.From(p.node), Store: store, Prepare: p.places.Prepare, Host: p.node.Host(), Log: w.log(p.node),
		// One shard after another: the more time lies between the answers of a scatter, the
		// more can go wrong in it.
		Settings: router.Settings{Fanout: 1},
	})
	p.commands = command.New(r, &command.Options{Patience: w.cfg.Patience})
	s.put(p)
	return p
}

// run starts something that ends when the process does.
func (p *process) run(f func(context.Context)) {
	p.done.Add(1)
	go func() {
		defer p.done.Done()
		f(p.node.Context())
	}()
}

// do answers a MongoDB command.
func (p *process) do(ctx context.Context, cmd bson.Raw) bson.Raw { return p.commands.Do(ctx, cmd) }

// hold tries to take a shard once: its present holder may be alive, which the protocol must
// bear. Claims that are made at one moment go out one after another, in an order that the
// shards' names give.
func (p *process) hold(id manifest.ShardID) {
	p.run(func(ctx context.Context) {
		if p.node.Host().Sleep(ctx, time.Duration(hashString(string(id))%1000)*time.Microsecond) == nil {
			_ = p.writer.Hold(ctx, id)
		}
	})
}

// crash kills the process: it takes no further step.
func (p *process) crash() {
	p.node.crash()
	if p.writer != nil {
		p.run(func(context.Context) { p.writer.Abandon() })
	}
}
