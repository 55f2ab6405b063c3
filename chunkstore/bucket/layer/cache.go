package layer

import (
	"bytes"
	"container/list"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// cacheShare is the part of the budget that one entry may take: a larger one would push out
// everything else.
const cacheShare = 4

// entryOverhead is what an entry costs beside its bytes.
const entryOverhead = 256

// Cached is a bucket that keeps what it read of immutable objects: those under seg/ and
// meta/page/, whose names are never used for other bytes. Everything else passes through.
//
// It keeps whole objects and exact ranges, the least recently used go first. A Get whose
// object is there whole is answered from it, whatever its range. An object that someone
// else deleted may be answered for a while: its bytes are still the right ones.
//
// The order of use alone decides, with no background work and no sampling, so that the same
// requests give the same hits.
type Cached struct {
	bucket.Bucket
	budget int64

	mu    sync.Mutex // never held across a request
	used  list.List  // of *cacheEntry, the most recently used in front
	keys  map[string][]*list.Element
	stats CacheStats
}

// CacheStats says how a cache does.
type CacheStats struct {
	Hits, Misses int64 // Gets of cacheable keys
	Entries      int64
	Bytes        int64 // charged: bodies and a fixed overhead
}

type cacheEntry struct {
	offset, length int64         // as asked for; 0, 0 is the whole object
	obj            bucket.Object // never changed
}

func (e *cacheEntry) whole() bool { return e.offset == 0 && e.length == 0 }

func (e *cacheEntry) cost() int64 { return int64(len(e.obj.Body)+len(e.obj.Key)) + entryOverhead }

// Cache keeps up to budget bytes of b's immutable objects.
func Cache(b bucket.Bucket, budget int64) *Cached {
	return &Cached{Bucket: b, budget: budget, keys: map[string][]*list.Element{}}
}

// Stats reads the counters.
func (c *Cached) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

func cacheable(key string) bool {
	class := ClassOf(key)
	return class == Segment || class == Page
}

// Get implements bucket.Bucket.
func (c *Cached) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	if !cacheable(key) || ctx.Err() != nil {
		return c.Bucket.Get(ctx, key, o)
	}
	if o.Fresh {
		c.forget(key)
	}
	if e := c.find(key, o.Offset, o.Length); e != nil {
		return e.answer(o)
	}
	obj, err := c.Bucket.Get(ctx, key, o)
	if err == nil {
		c.keep(key, o.Offset, o.Length, obj)
	}
	return obj, err
}

// answer makes the reply of a hit.
func (e *cacheEntry) answer(o bucket.GetOptions) (bucket.Object, error) {
	obj := e.obj
	if o.IfNoneMatch == obj.Tag {
		return bucket.Object{}, fmt.Errorf("get %s: %w", obj.Key, errkind.NotModified)
	}
	if e.whole() {
		from, to, err := bucket.Slice(obj.Key, obj.Size, o.Offset, o.Length)
		if err != nil {
			return bucket.Object{}, err
		}
		obj.Body = obj.Body[from:to]
	}
	obj.Body = bytes.Clone(obj.Body)
	return obj, nil
}

// find returns the entry of the exact range or of the whole object, or nil.
func (c *Cached) find(key string, offset, length int64) *cacheEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, el := range c.keys[key] {
		if e := el.Value.(*cacheEntry); e.whole() || e.offset == offset && e.length == length {
			c.used.MoveToFront(el)
			c.stats.Hits++
			return e
		}
	}
	c.stats.Misses++
	return nil
}

func (c *Cached) keep(key string, offset, length int64, obj bucket.Object) {
	if int64(len(obj.Body)) == obj.Size {
		offset, length = 0, 0
	}
	e := &cacheEntry{offset: offset, length: length, obj: obj}
	if e.cost() > c.budget/cacheShare || obj.Tag == "" {
		return
	}
	e.obj.Body = bytes.Clone(obj.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, el := range c.keys[key] {
		if old := el.Value.(*cacheEntry); old.offset == offset && old.length == length {
			return // another Get was faster
		}
	}
	c.keys[key] = append(c.keys[key], c.used.PushFront(e))
	c.stats.Entries++
	c.stats.Bytes += e.cost()
	for c.stats.Bytes > c.budget {
		c.drop(c.used.Back())
	}
}

// drop forgets one entry. Requires: mu.
func (c *Cached) drop(el *list.Element) {
	e := c.used.Remove(el).(*cacheEntry)
	c.stats.Entries--
	c.stats.Bytes -= e.cost()
	key := e.obj.Key
	c.keys[key] = slices.DeleteFunc(c.keys[key], func(x *list.Element) bool { return x == el })
	if len(c.keys[key]) == 0 {
		delete(c.keys, key)
	}
}

// forget drops what is kept of a key: its object is about to change, or to go.
func (c *Cached) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, el := range slices.Clone(c.keys[key]) {
		c.drop(el)
	}
}

// Put implements bucket.Bucket.
func (c *Cached) Put(ctx context.Context, key string, body []byte, cond bucket.Condition) (bucket.Tag, error) {
	defer c.forget(key)
	return c.Bucket.Put(ctx, key, body, cond)
}

// Delete implements bucket.Bucket.
func (c *Cached) Delete(ctx context.Context, key string) error {
	defer c.forget(key)
	return c.Bucket.Delete(ctx, key)
}
