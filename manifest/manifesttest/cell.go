package manifesttest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Fault is what happens to one request of a MemCell.
type Fault struct {
	Kind FaultKind
	// After, for Late: how many requests later the swap arrives. 0: only by Deliver.
	After int
}

// FaultKind is a way to fail.
type FaultKind uint8

const (
	// NoFault: the request is served.
	NoFault FaultKind = iota
	// LostBefore: the request never arrives. The answer is UnknownOutcome.
	LostBefore
	// LostAfter: the request takes effect, its answer is lost. The answer is UnknownOutcome.
	LostAfter
	// Late: a swap takes effect, if its condition then holds, some requests later. The
	// answer is UnknownOutcome at once.
	Late
	// Throttle: refused before any effect, with Throttled.
	Throttle
	// Stale: a load answers with the version before the present one.
	Stale
	// Hang: no answer before the context ends, and no effect.
	Hang
)

// Request is one call as it arrived.
type Request struct {
	N    int    // counts all requests of the cell, from 0
	Verb string // "load" or "swap"
	Key  string
	Size int // of the body, for swaps
}

// MemCell is a manifest.Cell in memory with faults. The zero value is an empty cell without
// faults. Safe for concurrent use.
type MemCell struct {
	// Fault, when not nil, decides what happens to each request. It is called with the
	// cell locked and must not use it.
	Fault func(Request) Fault

	mu       sync.Mutex
	objects  map[string]object
	tags     int
	requests []Request
	late     []lateSwap
}

// object is the present version of an object and the one before it; a version without a tag
// is none.
type object struct{ now, was version }

type version struct {
	body []byte
	tag  string
}

type lateSwap struct {
	due  int
	key  string
	body []byte
	from string
}

var _ manifest.Cell = (*MemCell)(nil)

// arrive counts a request, lets late swaps come in that are due, and asks for the fault.
func (c *MemCell) arrive(verb, key string, size int) Fault {
	q := Request{N: len(c.requests), Verb: verb, Key: key, Size: size}
	c.requests = append(c.requests, q)
	c.deliver(func(l lateSwap) bool { return l.due > 0 && l.due <= q.N })
	if c.Fault == nil {
		return Fault{}
	}
	return c.Fault(q)
}

func (c *MemCell) deliver(due func(lateSwap) bool) {
	waiting := c.late
	c.late = nil
	for _, l := range waiting {
		if due(l) {
			_, _ = c.swap(l.key, l.body, l.from)
		} else {
			c.late = append(c.late, l)
		}
	}
}

// Deliver lets all late swaps come in.
func (c *MemCell) Deliver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deliver(func(lateSwap) bool { return true })
}

// Load implements manifest.Cell.
func (c *MemCell) Load(ctx context.Context, key, known string) ([]byte, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	c.mu.Lock()
	fault := c.arrive("load", key, 0)
	o := c.objects[key]
	c.mu.Unlock()
	v := o.now
	switch fault.Kind {
	case Throttle:
		return nil, "", fmt.Errorf("load %s: %w", key, errkind.Throttled)
	case LostBefore, LostAfter, Late:
		return nil, "", fmt.Errorf("load %s: %w", key, errkind.UnknownOutcome)
	case Hang:
		<-ctx.Done()
		return nil, "", ctx.Err()
	case Stale:
		if o.was.tag != "" {
			v = o.was
		}
	}
	if v.tag == "" {
		return nil, "", fmt.Errorf("load %s: %w", key, errkind.NotFound)
	}
	if known != "" && v.tag == known {
		return nil, "", fmt.Errorf("load %s: %w", key, errkind.NotModified)
	}
	return bytes.Clone(v.body), v.tag, nil
}

// Swap implements manifest.Cell.
func (c *MemCell) Swap(ctx context.Context, key string, body []byte, from string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("swap %s: %w", key, errkind.UnknownOutcome)
	}
	c.mu.Lock()
	fault := c.arrive("swap", key, len(body))
	tag, err := "", fmt.Errorf("swap %s: %w", key, errkind.UnknownOutcome)
	switch fault.Kind {
	case NoFault, Stale:
		tag, err = c.swap(key, body, from)
	case LostAfter:
		_, _ = c.swap(key, body, from)
	case Late:
		l := lateSwap{key: key, body: bytes.Clone(body), from: from}
		if fault.After > 0 {
			l.due = len(c.requests) - 1 + fault.After
		}
		c.late = append(c.late, l)
	case Throttle:
		err = fmt.Errorf("swap %s: %w", key, errkind.Throttled)
	}
	c.mu.Unlock()
	if fault.Kind == Hang {
		<-ctx.Done()
	}
	return tag, err
}

func (c *MemCell) swap(key string, body []byte, from string) (string, error) {
	if present := c.objects[key].now.tag; present != from {
		return "", fmt.Errorf("swap %s: %w: tag is %q, expected %q", key, errkind.Conflict, present, from)
	}
	return c.write(key, body), nil
}

func (c *MemCell) write(key string, body []byte) (tag string) {
	c.tags++
	tag = "t" + strconv.Itoa(c.tags)
	if c.objects == nil {
		c.objects = map[string]object{}
	}
	c.objects[key] = object{now: version{bytes.Clone(body), tag}, was: c.objects[key].now}
	return tag
}

// Object is the body under a key; nil when there is none.
func (c *MemCell) Object(key string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.objects[key].now; v.tag != "" {
		return append([]byte{}, v.body...)
	}
	return nil
}

// Put writes an object without a condition or a fault; a nil body removes it.
func (c *MemCell) Put(key string, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if body == nil {
		delete(c.objects, key)
		return
	}
	c.write(key, body)
}

// Keys are the keys that begin with prefix, ascending.
func (c *MemCell) Keys(prefix string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var keys []string
	for k := range c.objects {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// Requests are all requests so far; with a verb and a key prefix, those that match.
func (c *MemCell) Requests(verb, prefix string) []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []Request
	for _, q := range c.requests {
		if (verb == "" || q.Verb == verb) && strings.HasPrefix(q.Key, prefix) {
			found = append(found, q)
		}
	}
	return found
}
