package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Guard is a Dialer whose calls end when their shard has gone to another holder. A process
// that was stopped, or cut off, keeps its connections open and never answers: who waited for
// it until the deadline would miss that a successor has long been serving.
//
//	call to the old holder ----------------------------- X   (unknown, or unreachable)
//	   the root, once a second while a call is slow: same, same, another epoch
type Guard struct {
	dial rpc.Dialer
	root *manifest.Root
	host host.Host
	log  *slog.Logger

	mu    sync.Mutex
	calls map[*guarded]bool
	said  map[string]bool // addresses whose refusal of our secret was logged
}

// slowAfter is how long a call waits before the root is read for its sake, and guardEvery
// the time between two looks.
const (
	slowAfter  = 2 * time.Second
	guardEvery = time.Second
)

// NewGuard makes a Guard around a Dialer; Run must run for it to do anything.
func NewGuard(d rpc.Dialer, root *manifest.Root, h host.Host, log *slog.Logger) *Guard {
	return &Guard{dial: d, root: root, host: h, log: log, calls: make(map[*guarded]bool), said: make(map[string]bool)}
}

// guarded is one call under way.
type guarded struct {
	shard  manifest.ShardID
	holder string
	since  time.Duration
	cancel context.CancelCauseFunc
}

// Run looks after the calls until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	for g.host.Sleep(ctx, guardEvery) == nil {
		slow := g.slow()
		if len(slow) == 0 {
			continue
		}
		wait, cancel := g.host.WithTimeout(ctx, slowAfter)
		st, _, err := g.root.Load(wait)
		cancel()
		if err != nil {
			continue // who waits loses nothing
		}
		for _, c := range slow {
			if x := st.Shard(c.shard); x == nil || x.Holder != c.holder {
				g.log.Info("a call is given up: its shard has another holder", "shard", c.shard)
				c.cancel(fmt.Errorf("shard %s went to another holder: %w", c.shard, errkind.Fenced))
			}
		}
	}
	return nil
}

func (g *Guard) slow() (list []*guarded) {
	now := g.host.Mono()
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.calls {
		if now >= c.since+slowAfter {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *guarded) int { return int(a.since - b.since) })
	return list
}

// Dial implements rpc.Dialer.
func (g *Guard) Dial(shard manifest.ShardID, holder, address string) (rpc.Owner, error) {
	o, err := g.dial.Dial(shard, holder, address)
	if err != nil {
		return nil, err
	}
	return &guardedOwner{g: g, o: o, shard: shard, holder: holder, address: address}, nil
}

// guardedOwner is an owner whose calls can be given up.
type guardedOwner struct {
	g     *Guard
	o     rpc.Owner
	shard manifest.ShardID

	holder, address string
}

func (o *guardedOwner) Read(ctx context.Context, r *rpc.ReadRequest) (*rpc.ReadReply, error) {
	return guard(ctx, o, o.o.Read, r)
}

func (o *guardedOwner) Cursor(ctx context.Context, r *rpc.CursorRequest) (*rpc.ReadReply, error) {
	return guard(ctx, o, o.o.Cursor, r)
}

func (o *guardedOwner) Write(ctx context.Context, r *rpc.WriteRequest) (*rpc.WriteReply, error) {
	return guard(ctx, o, o.o.Write, r)
}

func (o *guardedOwner) Prepare(ctx context.Context, r *rpc.PrepareRequest) (*rpc.PrepareReply, error) {
	return guard(ctx, o, o.o.Prepare, r)
}

func (o *guardedOwner) Decide(ctx context.Context, r *rpc.DecideRequest) (*rpc.DecideReply, error) {
	return guard(ctx, o, o.o.Decide, r)
}

func (o *guardedOwner) Promise(ctx context.Context, r *rpc.PromiseRequest) (*rpc.PromiseReply, error) {
	return guard(ctx, o, o.o.Promise, r)
}

func (o *guardedOwner) Move(ctx context.Context, r *rpc.MoveRequest) (*rpc.MoveReply, error) {
	return guard(ctx, o, o.o.Move, r)
}

func (o *guardedOwner) Loads(ctx context.Context, r *rpc.LoadsRequest) (*rpc.LoadsReply, error) {
	return guard(ctx, o, o.o.Loads, r)
}

func (o *guardedOwner) Flush(ctx context.Context, r *rpc.FlushRequest) (*rpc.FlushReply, error) {
	return guard(ctx, o, o.o.Flush, r)
}

func guard[Q, R any](ctx context.Context, o *guardedOwner, call func(context.Context, *Q) (*R, error), q *Q) (*R, error) {
	own, cancel := context.WithCancelCause(ctx)
	c := &guarded{shard: o.shard, holder: o.holder, since: o.g.host.Mono(), cancel: cancel}
	o.g.mu.Lock()
	o.g.calls[c] = true
	o.g.mu.Unlock()
	reply, err := call(own, q)
	o.g.mu.Lock()
	delete(o.g.calls, c)
	say := errors.Is(err, rpc.Stranger) && !o.g.said[o.address] && len(o.g.said) < peersMax
	if say {
		o.g.said[o.address] = true
	}
	o.g.mu.Unlock()
	cancel(nil)
	if say {
		o.g.log.Warn("a writer does not talk to us", "address", o.address, "cause", err)
	}
	return reply, err
}
