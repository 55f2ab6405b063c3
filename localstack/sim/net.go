package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Net carries calls between processes. A call is sent by a step of the caller, taken by a
// step of the callee, answered by a step of the callee and heard by a step of the caller;
// it can be lost on the way there, on the way back, or with either process.
type Net struct {
	bus    *Bus
	faults NetFaults

	mu     sync.Mutex
	peers  map[string]peer // by holder name
	nextID int
	flying sync.WaitGroup
}

// NetFaults are the chances per call in 1/1000, and the latency range of one direction.
type NetFaults struct {
	LostThere, LostBack    int
	LatencyMin, LatencyMax time.Duration
	Off                    bool
}

type peer struct {
	node  *Node
	owner rpc.Owner
}

// NewNet makes an empty network.
func NewNet(b *Bus, f NetFaults) *Net {
	return &Net{bus: b, faults: f, peers: map[string]peer{}}
}

// Listen makes a process's owner reachable under its holder name.
func (n *Net) Listen(holder string, node *Node, o rpc.Owner) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peers[holder] = peer{node, o}
}

// From is the network as one process sees it.
func (n *Net) From(node *Node) rpc.Dialer { return dialer{n, node} }

type dialer struct {
	net  *Net
	from *Node
}

func (d dialer) Dial(_ manifest.ShardID, holder, _ string) (rpc.Owner, error) {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	p, ok := d.net.peers[holder]
	if !ok {
		return nil, fmt.Errorf("dial holder %q: %w", holder, rpc.Unreachable)
	}
	return remote{d.net, d.from, p}, nil
}

type callFate struct {
	lostThere, lostBack bool
	there, back         time.Duration
}

func (n *Net) draw() callFate {
	f := n.faults
	lat := func() time.Duration {
		if f.LatencyMax <= f.LatencyMin {
			return f.LatencyMin
		}
		return f.LatencyMin + time.Duration(n.bus.rng.Int64N(int64(f.LatencyMax-f.LatencyMin)))
	}
	c := callFate{there: lat(), back: lat()}
	if !f.Off {
		c.lostThere = n.bus.rng.IntN(1000) < f.LostThere
		c.lostBack = n.bus.rng.IntN(1000) < f.LostBack
	}
	return c
}

// errLost is how a broken connection looks to the caller: it cannot tell whether the
// request arrived.
func errLost(verb string) error {
	return fmt.Errorf("%s: connection reset: %w", verb, errkind.UnknownOutcome)
}

// call runs handle at the callee. A callee that is dead before it takes the request refuses
// the connection; one that dies later leaves the outcome unknown.
func call[T any](ctx context.Context, n *Net, from, to *Node, verb string, handle func(context.Context) (T, error)) (T, error) {
	type answer struct {
		val T
		err error
	}
	var zero T
	var f callFate
	var id int
	err := from.bus.Step(from, "call "+verb+" "+to.name, func() {
		f = n.draw()
		n.nextID++
		id = n.nextID
	})
	if err != nil {
		return zero, err
	}
	done := make(chan answer, 1)
	n.flying.Add(1)
	go func() {
		defer n.flying.Done()
		time.Sleep(f.there)
		if f.lostThere {
			time.Sleep(f.back)
			done <- answer{err: errLost(verb)}
			return
		}
		if err := n.bus.Step(to, fmt.Sprintf("take %s #%d", verb, id), func() {}); err != nil {
			done <- answer{err: fmt.Errorf("%s: connection refused: %w", verb, rpc.Unreachable)}
			return
		}
		hctx, cancel := context.WithCancelCause(to.ctx)
		stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
		if ctx.Err() != nil {
			cancel(context.Cause(ctx)) // before the request begins, not at some moment of it
		}
		var a answer
		a.val, a.err = handle(hctx)
		stop()
		cancel(nil)
		if err := n.bus.Step(to, fmt.Sprintf("answer %s #%d", verb, id), func() {}); err != nil {
			done <- answer{err: errLost(verb)}
			return
		}
		time.Sleep(f.back)
		if f.lostBack {
			a = answer{err: errLost(verb)}
		}
		done <- a
	}()
	a, why := awaited(ctx, from, done)
	if why != nil {
		a.err = errors.Join(errLost(verb), why)
	}
	if err := from.bus.Step(from, fmt.Sprintf("hear %s #%d", verb, id), func() {}); err != nil {
		return zero, err
	}
	return a.val, a.err
}

// remote is the Owner at the other end of the network.
type remote struct {
	net  *Net
	from *Node
	to   peer
}

func (r remote) Read(ctx context.Context, q *rpc.ReadRequest) (*rpc.ReadReply, error) {
	return call(ctx, r.net, r.from, r.to.node, "read "+string(q.Shard), func(ctx context.Context) (*rpc.ReadReply, error) {
		return r.to.owner.Read(ctx, q)
	})
}

func (r remote) Cursor(ctx context.Context, q *rpc.CursorRequest) (*rpc.ReadReply, error) {
	return call(ctx, r.net, r.from, r.to.node, "cursor "+string(q.Shard), func(ctx context.Context) (*rpc.ReadReply, error) {
		return r.to.owner.Cursor(ctx, q)
	})
}

func (r remote) Write(ctx context.Context, q *rpc.WriteRequest) (*rpc.WriteReply, error) {
	return call(ctx, r.net, r.from, r.to.node, "write "+string(q.Shard), func(ctx context.Context) (*rpc.WriteReply, error) {
		return r.to.owner.Write(ctx, q)
	})
}

func (r remote) Promise(ctx context.Context, q *rpc.PromiseRequest) (*rpc.PromiseReply, error) {
	return call(ctx, r.net, r.from, r.to.node, "promise "+string(q.Shard), func(ctx context.Context) (*rpc.PromiseReply, error) {
		return r.to.owner.Promise(ctx, q)
	})
}

func (r remote) Prepare(ctx context.Context, q *rpc.PrepareRequest) (*rpc.PrepareReply, error) {
	return call(ctx, r.net, r.from, r.to.node, "prepare "+string(q.Shard), func(ctx context.Context) (*rpc.PrepareReply, error) {
		return r.to.owner.Prepare(ctx, q)
	})
}

func (r remote) Decide(ctx context.Context, q *rpc.DecideRequest) (*rpc.DecideReply, error) {
	return call(ctx, r.net, r.from, r.to.node, "decide "+string(q.Shard), func(ctx context.Context) (*rpc.DecideReply, error) {
		return r.to.owner.Decide(ctx, q)
	})
}

func (r remote) Move(ctx context.Context, q *rpc.MoveRequest) (*rpc.MoveReply, error) {
	return call(ctx, r.net, r.from, r.to.node, "move "+string(q.Shard), func(ctx context.Context) (*rpc.MoveReply, error) {
		return r.to.owner.Move(ctx, q)
	})
}

func (r remote) Loads(ctx context.Context, q *rpc.LoadsRequest) (*rpc.LoadsReply, error) {
	return call(ctx, r.net, r.from, r.to.node, "loads "+string(q.Shard), func(ctx context.Context) (*rpc.LoadsReply, error) {
		return r.to.owner.Loads(ctx, q)
	})
}

func (r remote) Flush(ctx context.Context, q *rpc.FlushRequest) (*rpc.FlushReply, error) {
	return call(ctx, r.net, r.from, r.to.node, "flush "+string(q.Shard), func(ctx context.Context) (*rpc.FlushReply, error) {
		return r.to.owner.Flush(ctx, q)
	})
}
