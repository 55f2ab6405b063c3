package buckettest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// BadStore is a store that lacks one property.
type BadStore struct {
	Name     string
	Property bucket.Property // what Probe must name
	Open     func(h host.Host) bucket.Bucket
}

// BadStores are fakes of stores that were seen in the wild: each must be refused.
func BadStores() []BadStore {
	bad := func(name string, p bucket.Property, spoil func(*spoiled)) BadStore {
		return BadStore{name, p, func(h host.Host) bucket.Bucket {
			b := &spoiled{Bucket: membucket.New(), host: h, old: map[string]bucket.Object{}, writing: make(chan struct{}, 1)}
			spoil(b)
			return b
		}}
	}
	return []BadStore{
		bad("ignores If-None-Match", bucket.CreateOnce, func(b *spoiled) {
			b.put = func(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
				if c.Absent() {
					c = bucket.Condition{}
				}
				return b.Bucket.Put(ctx, key, body, c)
			}
		}),
		bad("ignores If-Match", bucket.SwapStale, func(b *spoiled) {
			b.put = func(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
				if c.Match() != "" {
					c = bucket.Condition{}
				}
				return b.Bucket.Put(ctx, key, body, c)
			}
		}),
		bad("ignores If-Match when there is no object", bucket.SwapMissing, func(b *spoiled) {
			b.put = func(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
				if _, err := b.Bucket.Head(ctx, key); err != nil && c.Match() != "" {
					c = bucket.Condition{}
				}
				return b.Bucket.Put(ctx, key, body, c)
			}
		}),
		bad("refuses every If-Match", bucket.SwapPresent, func(b *spoiled) {
			b.put = func(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
				if c.Match() != "" {
					return "", errkind.Conflict
				}
				return b.Bucket.Put(ctx, key, body, c)
			}
		}),
		bad("looks, then creates", bucket.AtomicCreate, func(b *spoiled) { b.put = b.createAfterLook }),
		bad("looks, then swaps", bucket.AtomicSwap, func(b *spoiled) { b.put = b.swapAfterLook }),
		bad("reads from a replica that lags", bucket.ReadAfterWrite, func(b *spoiled) {
			b.put = b.putLagging
			b.get = b.getLagging
		}),
		bad("returns an empty object for a missing one", bucket.ReadAfterDelete, func(b *spoiled) {
			b.get = func(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
				obj, err := b.Bucket.Get(ctx, key, o)
				if err != nil {
					return bucket.Object{Attrs: bucket.Attrs{Key: key, Tag: "none"}}, nil
				}
				return obj, nil
			}
		}),
		bad("ignores ranges", bucket.RangeReads, func(b *spoiled) {
			b.get = func(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
				return b.Bucket.Get(ctx, key, bucket.GetOptions{IfNoneMatch: o.IfNoneMatch})
			}
		}),
		bad("overwrites in place", bucket.WholeReads, func(b *spoiled) { b.put = b.putInPlace }),
		bad("lists from an index that lags", bucket.ListAfterWrite, func(b *spoiled) {
			b.list = func(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
				page, more, err := b.Bucket.List(ctx, prefix, after, max)
				if len(page) > 0 && !more {
					page = page[:len(page)-1]
				}
				return page, more, err
			}
		}),
	}
}

// spoiled is a good bucket with some verbs replaced.
type spoiled struct {
	bucket.Bucket
	host host.Host
	put  func(context.Context, string, []byte, bucket.Condition) (bucket.Tag, error)
	get  func(context.Context, string, bucket.GetOptions) (bucket.Object, error)
	list func(context.Context, string, string, int) ([]bucket.Attrs, bool, error)

	writing chan struct{} // a lock that is held while a write sleeps

	mu  sync.Mutex
	old map[string]bucket.Object // what a lagging replica still has
}

func (b *spoiled) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	if b.put != nil {
		return b.put(ctx, key, body, c)
	}
	return b.Bucket.Put(ctx, key, body, c)
}

func (b *spoiled) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	if b.get != nil {
		return b.get(ctx, key, o)
	}
	return b.Bucket.Get(ctx, key, o)
}

func (b *spoiled) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	if b.list != nil {
		return b.list(ctx, prefix, after, max)
	}
	return b.Bucket.List(ctx, prefix, after, max)
}

func (b *spoiled) createAfterLook(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	if !c.Absent() {
		return b.Bucket.Put(ctx, key, body, c)
	}
	_, err := b.Bucket.Head(ctx, key)
	_ = b.host.Sleep(ctx, time.Millisecond)
	if err == nil {
		return "", errkind.Conflict
	}
	return b.Bucket.Put(ctx, key, body, bucket.Condition{})
}

func (b *spoiled) swapAfterLook(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	if c.Match() == "" {
		return b.Bucket.Put(ctx, key, body, c)
	}
	a, err := b.Bucket.Head(ctx, key)
	_ = b.host.Sleep(ctx, time.Millisecond)
	if err != nil || a.Tag != c.Match() {
		return "", errkind.Conflict
	}
	return b.Bucket.Put(ctx, key, body, bucket.Condition{})
}

// putLagging keeps what an overwrite replaces, for one read.
func (b *spoiled) putLagging(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	before, err := b.Bucket.Get(ctx, key, bucket.GetOptions{})
	tag, putErr := b.Bucket.Put(ctx, key, body, c)
	if err == nil && putErr == nil {
		b.mu.Lock()
		b.old[key] = before
		b.mu.Unlock()
	}
	return tag, putErr
}

// putInPlace shows what is half written, and is right in everything else.
func (b *spoiled) putInPlace(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	b.writing <- struct{}{}
	defer func() { <-b.writing }()
	before, err := b.Bucket.Get(ctx, key, bucket.GetOptions{})
	if err != nil || c.Absent() || c.Match() != before.Tag || len(before.Body) != len(body) {
		return b.Bucket.Put(ctx, key, body, c)
	}
	half := len(body) / 2
	_, _ = b.Bucket.Put(ctx, key, slices.Concat(body[:half], before.Body[half:]), bucket.Condition{})
	_ = b.host.Sleep(ctx, time.Millisecond)
	return b.Bucket.Put(ctx, key, body, bucket.Condition{})
}

func (b *spoiled) getLagging(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	b.mu.Lock()
	old, ok := b.old[key]
	delete(b.old, key)
	b.mu.Unlock()
	if ok {
		return old, nil
	}
	return b.Bucket.Get(ctx, key, o)
}
