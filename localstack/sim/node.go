package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/granarydb/granary/manifest/host"
)

// errCrashed is what every contact with the world returns in a process that was killed.
var errCrashed = errors.New("sim: process was killed")

// Node is one simulated process: its clock errs by an offset and a drift, its randomness
// comes from the seed, and it can be killed or stopped between any two steps.
type Node struct {
	name   string
	bus    *Bus
	offset time.Duration // of the wall clock
	drift  float64       // of both clocks: 0.01 runs 1 % fast
	ctx    context.Context
	kill   context.CancelCauseFunc

	mu      sync.Mutex
	seed    uint64
	rngs    map[string]*rand.Rand
	dead    bool
	stopped bool
}

// NewNode starts a process.
func NewNode(ctx context.Context, b *Bus, name string, seed uint64, offset time.Duration, drift float64) *Node {
	ctx, kill := context.WithCancelCause(ctx)
	return &Node{
		name: name, bus: b, offset: offset, drift: drift, ctx: ctx, kill: kill,
		seed: seed, rngs: map[string]*rand.Rand{},
	}
}

// Host is what the process's code gets handed in.
func (n *Node) Host() host.Host { return n.HostOf("main") }

// HostOf is the host as one part of the process gets it, with randomness of its own: two
// parts that drew from one stream at the same moment would get each other's numbers.
func (n *Node) HostOf(part string) host.Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	rng := n.rngs[part]
	if rng == nil {
		rng = rand.New(rand.NewPCG(n.seed, hashString(n.name+" "+part)))
		n.rngs[part] = rng
	}
	return host.Host{Clock: nodeClock{n}, Rand: nodeRand{n, rng}}
}

// Context ends when the process is killed.
func (n *Node) Context() context.Context { return n.ctx }

func (n *Node) crash() {
	n.mu.Lock()
	n.dead = true
	n.mu.Unlock()
	n.kill(errCrashed)
}

func (n *Node) pause(on bool) {
	n.mu.Lock()
	n.stopped = on
	n.mu.Unlock()
	if !on {
		select {
		case n.bus.wake <- struct{}{}:
		default:
		}
	}
}

func (n *Node) crashed() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.dead }
func (n *Node) paused() bool  { n.mu.Lock(); defer n.mu.Unlock(); return n.stopped }

func hashString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// nodeClock is the process's own idea of time. A sleep is over by the virtual clock first,
// then by a step, so that two timers of one instant end in an order drawn from the seed.
type nodeClock struct{ n *Node }

func (c nodeClock) Wall() time.Time { return time.Now().Add(c.n.offset) }

func (c nodeClock) Mono() time.Duration {
	return time.Duration(float64(c.n.bus.Elapsed()) * (1 + c.n.drift))
}

func (c nodeClock) real(d time.Duration) time.Duration {
	return time.Duration(float64(d) / (1 + c.n.drift))
}

func (c nodeClock) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(c.real(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.n.ctx.Done():
		return errCrashed
	}
	return c.n.bus.Step(c.n, "timer", func() {})
}

func (c nodeClock) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.real(d))
}

type nodeRand struct {
	n   *Node
	rng *rand.Rand
}

func (r nodeRand) Uint64() uint64 {
	r.n.mu.Lock()
	defer r.n.mu.Unlock()
	return r.rng.Uint64()
}

// awaited waits for an answer; why says what ended first, the process or ctx. Of what happens
// at the same moment it takes the same every time: a select would not.
func awaited[T any](ctx context.Context, n *Node, answer <-chan T) (a T, why error) {
	select {
	case a = <-answer:
		return a, nil
	case <-ctx.Done():
	case <-n.ctx.Done():
	}
	select {
	case a = <-answer:
		return a, nil
	default:
	}
	if n.ctx.Err() != nil {
		return a, errCrashed // which its next step says too
	}
	return a, context.Cause(ctx)
}
