package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"
)

// Bus serialises every contact of the simulated processes with their world: a request
// applied by the store, a response seen, a message taken, a timer that fired. Each contact
// is a step: the goroutine hands it over and blocks; the scheduler waits until every other
// goroutine of the bubble is durably blocked, draws one waiting step from the seed, runs
// it, and begins again. Virtual time passes only when no step waits.
//
// What happens between two steps is a function of the step that was run, so the whole run
// is a function of the seed, whatever the Go scheduler does.
type Bus struct {
	rng   *rand.Rand
	start time.Time
	wake  chan struct{}
	stop  *atomic.Bool // ends the run early; nil: never

	mu      sync.Mutex
	waiting []*step
	steps   uint64
	trace   uint64 // running FNV-1a over every step's time, node and label
	log     []string
	keepLog bool
	over    bool // the run has ended: no more steps
}

type step struct {
	node  *Node
	label string
	run   func()
	done  chan struct{}
}

// NewBus makes the bus of one run. Call it inside the bubble.
func NewBus(seed uint64) *Bus {
	return &Bus{
		rng:   rand.New(rand.NewPCG(seed, 0x6772616e617279)),
		start: time.Now(),
		wake:  make(chan struct{}, 1),
		trace: 14695981039346656037,
	}
}

// Elapsed is the virtual time since the run began.
func (b *Bus) Elapsed() time.Duration { return time.Since(b.start) }

// Step hands one contact of a node to the scheduler and returns after it ran. A crashed
// node takes no further step: run is not called, and Step returns errCrashed.
func (b *Bus) Step(n *Node, label string, run func()) error {
	s := &step{node: n, label: label, run: run, done: make(chan struct{})}
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return errCrashed
	}
	b.waiting = append(b.waiting, s)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	<-s.done
	if n.crashed() {
		return errCrashed
	}
	return nil
}

// Run schedules steps until ctx ends. It is the only goroutine that runs steps.
func (b *Bus) Run(ctx context.Context) {
	for {
		synctest.Wait()
		if b.bury() {
			continue
		}
		s := b.pick()
		if s == nil {
			select {
			case <-b.wake:
			case <-ctx.Done():
				b.releaseAll()
				return
			}
			continue
		}
		b.note(s)
		if b.stop != nil && b.stop.Load() {
			close(s.done)
			b.releaseAll()
			return
		}
		s.run()
		close(s.done)
		if ctx.Err() != nil {
			b.releaseAll()
			return
		}
	}
}

// bury lets the steps of crashed nodes go, without running them, and reports whether there
// were any. They are no part of the run: what goes on in a dead process, until all of it has
// ended, nobody else can see, and it has an order of its own.
func (b *Bus) bury() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := len(b.waiting)
	b.waiting = slices.DeleteFunc(b.waiting, func(s *step) bool {
		if s.node.crashed() {
			close(s.done)
			return true
		}
		return false
	})
	return len(b.waiting) < before
}

// pick removes one runnable step. Steps are put in an order that does not depend on their
// arrival first; steps of a paused node wait.
func (b *Bus) pick() *step {
	b.mu.Lock()
	defer b.mu.Unlock()
	runnable := make([]*step, 0, len(b.waiting))
	for _, s := range b.waiting {
		if !s.node.paused() {
			runnable = append(runnable, s)
		}
	}
	if len(runnable) == 0 {
		return nil
	}
	sort.SliceStable(runnable, func(i, j int) bool {
		a, c := runnable[i], runnable[j]
		if a.node.name != c.node.name {
			return a.node.name < c.node.name
		}
		return a.label < c.label
	})
	s := runnable[b.rng.IntN(len(runnable))]
	for i, w := range b.waiting {
		if w == s {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			break
		}
	}
	return s
}

// releaseAll lets every waiting step go without running it, at the end of a run.
func (b *Bus) releaseAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.waiting {
		s.node.crash()
		close(s.done)
	}
	b.waiting, b.over = nil, true
}

func (b *Bus) note(s *step) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps++
	line := fmt.Sprintf("%d %s %s", b.Elapsed(), s.node.name, s.label)
	h := fnv.New64a()
	_, _ = h.Write([]byte(line))
	b.trace = (b.trace ^ h.Sum64()) * 1099511628211
	if b.keepLog {
		b.log = append(b.log, line)
	}
}

// Trace is the number of steps so far and a hash over all of them: two runs of one seed
// must agree in both.
func (b *Bus) Trace() (steps, hash uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.steps, b.trace
}

// Log is the list of steps, when it was kept.
func (b *Bus) Log() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log
}

// IntN draws from the seed, inside a step or before the run starts.
func (b *Bus) IntN(n int) int { return b.rng.IntN(n) }
