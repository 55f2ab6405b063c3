package segment

import (
	"context"
	"errors"
	"sync"
)

// Cache keeps decoded blocks and tails of the whole process within a byte budget, and lets
// concurrent loads of the same one share a single fetch. Safe for concurrent use. A nil
// *Cache keeps nothing and shares nothing.
//
// It is our own because the same seed must give the same run in simulation: which blocks
// are cached decides which requests go out. The usual caches hash with a random seed, drop
// some of the reads they should count, and evict on background goroutines.
//
// Eviction is S3-FIFO: what is new waits in a short queue, and moves on to the main one if
// it was asked for again before its turn came, or comes back soon after it left (its ghost,
// the key alone, is still known). So a long scan passes through a tenth of the budget, a
// working set that fits stays whole, and one that moves takes over. In the main queue an
// entry that was hit gets another round.
type Cache struct {
	budget int64
	// mu is never held across a fetch.
	mu sync.Mutex
	// entries are those of the three queues; a ghost has no value.
	entries             map[cacheKey]*cached
	loads               map[cacheKey]*load
	fresh, main, ghosts queue
}

const (
	// freshShare is the part of the budget that entries not yet asked for twice may take
	// from others: a tenth.
	freshShare = 10
	// entryShare bounds one entry: a larger one than this part of the budget is not kept.
	entryShare = 4
	// entryOverhead is what an entry takes beside its value.
	entryOverhead = 160
)

// tailBlock is the number that stands for a segment's tail.
const tailBlock = -1

type cacheKey struct {
	segment name
	block   int32
}

// value is a *block or a *tail, or what a load returns that keeps less than it loaded (kept).
type value interface{ sizeBytes() int64 }

type cached struct {
	key   cacheKey
	value value // nil: a ghost
	size  int64
	hit   bool    // since it came into its queue
	newer *cached // in its queue
}

type load struct {
	done  chan struct{} // closed when value and err are set
	value value
	err   error
}

// NewCache makes a cache that keeps up to bytes; with 0 it only shares concurrent loads.
func NewCache(bytes int64) *Cache {
	return &Cache{budget: bytes, entries: map[cacheKey]*cached{}, loads: map[cacheKey]*load{}}
}

// Used is how many bytes the cache holds.
func (c *Cache) Used() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh.bytes + c.main.bytes
}

// lookup returns the value if it is cached, and counts the hit.
func (c *Cache) lookup(k cacheKey) (value, bool) {
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lookupLocked(k)
}

func (c *Cache) lookupLocked(k cacheKey) (value, bool) {
	e := c.entries[k]
	if e == nil || e.value == nil {
		return nil, false
	}
	e.hit = true
	return e.value, true
}

// has reports whether the value is cached, without counting a hit.
func (c *Cache) has(k cacheKey) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[k]
	return e != nil && e.value != nil
}

// get returns the value, from the cache or through fetch. Of concurrent calls for one key
// a single one fetches, under its own ctx; should that end early, another takes its place.
func (c *Cache) get(ctx context.Context, k cacheKey, fetch func() (value, error)) (value, error) {
	if c == nil {
		return fetch()
	}
	for {
		v, l, mine := c.join(k)
		switch {
		case v != nil:
			return v, nil
		case mine:
			return c.run(k, l, fetch)
		}
		if !l.wait(ctx) {
			return nil, context.Cause(ctx)
		}
		if l.err == nil || !ended(l.err) {
			return l.value, l.err
		}
	}
}

// wait returns true when the load is done, false when ctx ended first. A load that is done
// counts, even if ctx has ended as well: the outcome does not depend on select's choice.
func (l *load) wait(ctx context.Context) bool {
	select {
	case <-l.done:
		return true
	case <-ctx.Done():
	}
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// ended reports whether the error is that of the context of whoever fetched.
func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errAbandoned)
}

// errAbandoned is what waiters see of a fetch that panicked.
var errAbandoned = errors.New("fetch abandoned")

// join returns the cached value, or the load in flight, which is the caller's to run when
// mine.
func (c *Cache) join(k cacheKey) (v value, l *load, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.lookupLocked(k); ok {
		return v, nil, false
	}
	if l, ok := c.loads[k]; ok {
		return nil, l, false
	}
	l = &load{done: make(chan struct{}), err: errAbandoned}
	c.loads[k] = l
	return nil, l, true
}

func (c *Cache) run(k cacheKey, l *load, fetch func() (value, error)) (value, error) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.loads, k)
		if l.err == nil {
			c.addLocked(k, kept(l.value))
		}
		close(l.done)
	}()
	l.value, l.err = fetch()
	return l.value, l.err
}

// kept is what stays in the cache of what was loaded.
func kept(v value) value {
	if more, ok := v.(interface{ kept() value }); ok {
		return more.kept()
	}
	return v
}

// add puts a value in, unless it is there.
func (c *Cache) add(k cacheKey, v value) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(k, v)
}

func (c *Cache) addLocked(k cacheKey, v value) {
	size := v.sizeBytes() + entryOverhead
	old := c.entries[k]
	if old != nil && old.value != nil || size > c.budget/entryShare {
		return
	}
	e := &cached{key: k, value: v, size: size}
	c.entries[k] = e
	if old != nil {
		c.main.push(e) // the ghost stays in its queue until its turn
	} else {
		c.fresh.push(e)
	}
	for c.fresh.bytes+c.main.bytes > c.budget {
		if c.fresh.bytes > c.budget/freshShare || c.main.bytes == 0 {
			c.evictFresh()
		} else {
			c.evictMain()
		}
	}
	for c.ghosts.bytes > c.budget {
		if g := c.ghosts.pop(); c.entries[g.key] == g {
			delete(c.entries, g.key)
		}
	}
}

func (c *Cache) evictFresh() {
	e := c.fresh.pop()
	if e.hit {
		e.hit = false
		c.main.push(e)
		return
	}
	e.value = nil
	c.ghosts.push(e)
}

func (c *Cache) evictMain() {
	e := c.main.pop()
	if e.hit {
		e.hit = false
		c.main.push(e)
		return
	}
	delete(c.entries, e.key)
}

// queue is a FIFO of entries.
type queue struct {
	oldest, newest *cached
	bytes          int64
}

func (q *queue) push(e *cached) {
	if e.newer = nil; q.newest != nil {
		q.newest.newer = e
	} else {
		q.oldest = e
	}
	q.newest = e
	q.bytes += e.size
}

// pop takes the oldest out. Requires: the queue is not empty.
func (q *queue) pop() *cached {
	e := q.oldest
	if q.oldest = e.newer; q.oldest == nil {
		q.newest = nil
	}
	q.bytes -= e.size
	return e
}
