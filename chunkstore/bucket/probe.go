package bucket

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// The size of a probe: rounds of racers, and how long all of it may take.
const (
	probeRacers  = 20
	probeRounds  = 8
	probeTimeout = time.Minute
)

// Property is something that the protocol rests on and a store may lack.
type Property struct{ Name, Cost string }

// The properties that Probe looks at. Name says what the store must do, Cost what would
// happen on one that does not.
var (
	CreateOnce      = Property{"refuse a create (If-None-Match: *) of a key that exists", "two writers could both win, and one would overwrite what the other acknowledged"}
	SwapStale       = Property{"refuse a swap (If-Match) with a stale tag", "two writers could both win, and an older root would replace a newer one"}
	SwapMissing     = Property{"refuse a swap (If-Match) of a key that does not exist", "a deleted object could come back"}
	SwapPresent     = Property{"accept a swap (If-Match) with the present tag", "no commit would ever succeed"}
	ReadAfterWrite  = Property{"show a write to the next read", "acknowledged writes would seem lost, and decisions would rest on old state"}
	ReadAfterDelete = Property{"answer not found for a key that does not exist", "a missing object would pass for an empty one"}
	ListAfterWrite  = Property{"list a key right after it was written, in byte order, page by page", "garbage collection and checks would not see objects that exist"}
	RangeReads      = Property{"return exactly the range that was asked for", "segments would be read wrongly"}
	WholeReads      = Property{"return one whole version of an object, also while it is overwritten", "what is read would be no version that anyone wrote"}
	AtomicCreate    = Property{"let one of several concurrent creates win", "two writers could both win, and acknowledged writes would be lost"}
	AtomicSwap      = Property{"let one of several concurrent swaps win", "two writers could both win, and a commit would be lost"}
)

// Unsafe is Probe's verdict on a store; it matches errkind.Invalid.
type Unsafe struct {
	Store    string // its URL
	Property Property
	Seen     string // what happened instead
}

// Error is one sentence: the store, the property, what was seen, what it would cost.
func (e *Unsafe) Error() string {
	return fmt.Sprintf("store %s is unsafe: it must %s, but %s; with it %s", e.Store, e.Property.Name, e.Seen, e.Property.Cost)
}

// Unwrap makes the verdict match errkind.Invalid.
func (e *Unsafe) Unwrap() error { return errkind.Invalid }

// Probe tries the properties of package doc on a store, races included, under
// meta/probe/<random>/, and removes what it wrote. `granary init` and `granary doctor` call
// it before they trust a store that a user named. It takes about 500
// requests, most of them at once.
//
// Errors: *Unsafe when the store lacks a property; anything else means that the store could
// not be probed (unreachable, no rights, full), which says nothing about its properties.
func Probe(ctx context.Context, b Bucket, h host.Host) error {
	ctx, cancel := h.WithTimeout(ctx, probeTimeout)
	defer cancel()
	id := h.ID16()
	p := &probe{b: b, prefix: "meta/probe/" + hex.EncodeToString(id[:]) + "/"}
	defer p.clean(ctx, h)
	for _, step := range []func(context.Context) error{
		p.createOnce, p.swap, p.swapMissing, p.ranges, p.list, p.readAfterWrite, p.wholeReads, p.raceCreate, p.raceSwap,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

type probe struct {
	b      Bucket
	prefix string
	mu     sync.Mutex
	keys   []string // all that may exist
}

func (p *probe) key(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = append(p.keys, p.prefix+name)
	return p.prefix + name
}

// clean deletes everything, also when ctx has ended. What it cannot delete is harmless: no
// name of it is used again.
func (p *probe) clean(ctx context.Context, h host.Host) {
	ctx, cancel := h.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_ = p.each(len(p.keys), func(i int) error { return p.b.Delete(ctx, p.keys[i]) })
}

// each runs f(0..n-1) at once, waits for all, and returns their first error by index.
func (p *probe) each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *probe) lacks(prop Property, format string, args ...any) error {
	return &Unsafe{Store: p.b.String(), Property: prop, Seen: fmt.Sprintf(format, args...)}
}

func (p *probe) failed(what string, err error) error {
	return fmt.Errorf("probe store %s: %s: %w", p.b, what, err)
}

// refused is nil when err is a clean refusal, a verdict when the write passed, and err
// itself when it is neither.
func (p *probe) refused(prop Property, err error) error {
	switch {
	case err == nil:
		return p.lacks(prop, "it accepted one")
	case errors.Is(err, errkind.Conflict), errors.Is(err, errkind.NotFound):
		return nil
	}
	return p.failed("expected a refusal", err)
}

// shows is nil when a Get returns exactly body and, unless it is "", tag.
func (p *probe) shows(ctx context.Context, key string, body []byte, tag Tag) error {
	o, err := p.b.Get(ctx, key, GetOptions{})
	switch {
	case errors.Is(err, errkind.NotFound):
		return p.lacks(ReadAfterWrite, "a read after a write that succeeded found nothing")
	case err != nil:
		return p.failed("read", err)
	case !bytes.Equal(o.Body, body):
		return p.lacks(ReadAfterWrite, "a read returned %.40q after %.40q was written", o.Body, body)
	case tag != "" && o.Tag != tag:
		return p.lacks(ReadAfterWrite, "a read returned the tag %s after a write returned %s", o.Tag, tag)
	}
	return nil
}
