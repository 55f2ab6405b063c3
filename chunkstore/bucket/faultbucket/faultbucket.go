// Package faultbucket is a bucket that fails on purpose: every way in which a real store,
// or the network before it, has been seen to fail, decided request by request by a Plan.
//
//	Before      an error, and nothing happened
//	After       it happened, and the answer was lost
//	Late        an error now, and it happens after a delay
//	Twice       it happens, and once more after a delay
//	Throttle    refused
//	DiskFull    a Put is refused for want of space
//	Slow        it happens after a delay, which the caller waits for
//	Stuck       nothing happens, and no answer comes before the context ends
//	StuckAfter  it happens, and no answer comes before the context ends
//	StaleList   a List lacks keys just written, and shows some just deleted
//	Truncate    a Get returns less than it should
//	Rot         a Get returns a flipped bit
//	OldTag      a Get returns the tag of the version before
//
// A delayed effect keeps its condition: a late create finds the key taken, or free again. It
// runs in a goroutine that sleeps on the handed-in clock; Wait waits for all of them. Close
// cancels those that have not begun, which is one more thing that may happen to a request.
//
// Errors of lost writes are UnknownOutcome, as a driver must answer; all injected errors
// match ErrInjected as well, so that a test can tell them from real ones.
package faultbucket

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// ErrInjected is in the chain of every error that a plan caused.
var ErrInjected = errors.New("injected fault")

// Call is one request, as a Plan sees it.
type Call struct {
	N         int // 1 for the bucket's first request
	Verb      layer.Verb
	Key       string // of a List: the prefix
	Condition bucket.Condition
	Size      int // of a Put's body, bytes
}

// write reports whether the call has an effect that can be late or doubled.
func (c Call) write() bool { return c.Verb == layer.Put || c.Verb == layer.Delete }

// Kind is a way to fail; the package doc lists them.
type Kind uint8

// The kinds. A kind that does not apply to a verb (Rot of a Put) does nothing.
const (
	None Kind = iota
	Before
	After
	Late
	Twice
	Throttle
	DiskFull
	Slow
	Stuck
	StuckAfter
	StaleList
	Truncate
	Rot
	OldTag
	numKinds
)

// String is the kind's name in lower case.
func (k Kind) String() string {
	if k >= numKinds {
		return "invalid"
	}
	return [numKinds]string{"none", "before", "after", "late", "twice", "throttle", "diskfull", "slow",
		"stuck", "stuckafter", "stalelist", "truncate", "rot", "oldtag"}[k]
}

// Fault is what a Plan does to one call.
type Fault struct {
	Kind  Kind
	Delay time.Duration // Late, Twice, Slow
	// Pick chooses the bit that rots, the length that is left, the keys a list lacks.
	Pick uint64
}

// Plan decides about one call. It is called under a lock, one call at a time, in the order
// of the requests: it must not block, and may keep state.
type Plan func(Call) Fault

// Bucket is a bucket with faults.
type Bucket struct {
	b    bucket.Bucket
	host host.Host

	ctx    context.Context // ends the delayed effects at Close
	cancel context.CancelFunc
	late   sync.WaitGroup

	mu       sync.Mutex // guards what follows; never held across a request or a wait
	plan     Plan
	n        int
	injected [numKinds]int
	history  history
}

var _ bucket.Bucket = (*Bucket)(nil)

// New puts faults in front of b. A nil plan has none.
func New(b bucket.Bucket, h host.Host, plan Plan) *Bucket {
	f := &Bucket{b: b, host: h, history: newHistory()}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.SetPlan(plan)
	return f
}

// SetPlan changes the plan for the calls that follow; nil heals the store. Delayed effects
// stay under way, and N goes on counting.
func (b *Bucket) SetPlan(plan Plan) {
	if plan == nil {
		plan = func(Call) Fault { return Fault{} }
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plan = plan
}

// Calls is the number of requests so far.
func (b *Bucket) Calls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// Injected is how many faults of a kind the plan has asked for so far.
func (b *Bucket) Injected(k Kind) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.injected[k]
}

// Wait returns when no delayed effect is under way.
func (b *Bucket) Wait() { b.late.Wait() }

// Close cancels the delayed effects that have not begun, waits for the others, and closes
// the bucket behind.
func (b *Bucket) Close() error {
	b.cancel()
	b.late.Wait()
	return b.b.Close()
}

// String implements bucket.Bucket.
func (b *Bucket) String() string { return b.b.String() }

func (b *Bucket) next(c Call) Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	c.N = b.n
	f := b.plan(c)
	b.injected[f.Kind]++
	return f
}

// do runs one request under the plan's fault, as far as it is the same for all verbs. The
// caller spoils the answer of what is returned with the fault.
func do[T any](ctx context.Context, b *Bucket, c Call, run func(context.Context) (T, error)) (T, Fault, error) {
	var none T
	f := b.next(c)
	switch f.Kind {
	case Before:
		return none, f, c.lost(nil)
	case Throttle:
		return none, f, c.refused("slow down")
	case DiskFull:
		if c.Verb == layer.Put {
			return none, f, c.refused("no space left on the device")
		}
	case Stuck:
		return none, f, c.lost(b.silence(ctx))
	case Slow:
		if err := b.host.Sleep(ctx, f.Delay); err != nil {
			return none, f, c.lost(err)
		}
	case Late:
		if c.write() {
			b.later(f.Delay, func(ctx context.Context) { _, _ = run(ctx) })
		}
		return none, f, c.lost(nil)
	}
	out, err := run(ctx)
	switch f.Kind {
	case After:
		return none, f, c.lost(nil)
	case StuckAfter:
		return none, f, c.lost(b.silence(ctx))
	case Twice:
		if c.write() {
			b.later(f.Delay, func(ctx context.Context) { _, _ = run(ctx) })
		}
	}
	return out, f, err
}

// silence returns when the caller's patience ends, or at Close, and why.
func (b *Bucket) silence(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-b.ctx.Done():
	}
	return context.Cause(ctx)
}

// later starts a delayed effect.
func (b *Bucket) later(delay time.Duration, effect func(context.Context)) {
	b.late.Go(func() {
		if b.host.Sleep(b.ctx, delay) == nil {
			effect(b.ctx)
		}
	})
}

// lost is the error of a request whose answer never came.
func (c Call) lost(cause error) error {
	err := fmt.Errorf("%s %s: %w", c.Verb, c.Key, ErrInjected)
	if c.write() {
		err = fmt.Errorf("%s %s: %w: %w", c.Verb, c.Key, errkind.UnknownOutcome, ErrInjected)
	}
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

func (c Call) refused(why string) error {
	return fmt.Errorf("%s %s: %s: %w: %w", c.Verb, c.Key, why, errkind.Throttled, ErrInjected)
}
