package diskcache

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Options tune a cache; zero fields mean the default beside them.
type Options struct {
	// BudgetBytes bounds what the files of this process's slot take on disk; 4 GiB.
	BudgetBytes int64
	// FS is the file system; OS().
	FS FS
	// Log gets one warning a minute, at most, when the disk fails; nil: silent.
	Log *slog.Logger
}

// Cached is a bucket whose immutable objects are kept on disk.
type Cached struct {
	bucket.Bucket
	host  host.Host
	fs    FS
	log   *slog.Logger
	dir   string // the slot
	lock  io.Closer
	store string // in every file
	index *index
	keep  writer
	count counters
	// warned is when the last warning was given, on the host's monotonic clock; 0: never.
	warned atomic.Int64
}

var _ bucket.Bucket = (*Cached)(nil)

// Open puts a cache in the directory before b, taking over what an earlier process left
// there. Errors: Invalid for options; those of making and listing the directory, or of taking
// a slot in it: without a cache, b still serves. Close closes b.
func Open(b bucket.Bucket, h host.Host, dir string, o *Options) (*Cached, error) {
	c := &Cached{Bucket: b, host: h, store: b.String(), fs: OS(), log: slog.New(slog.DiscardHandler)}
	budget := int64(4 << 30)
	if o != nil {
		if o.BudgetBytes < 0 {
			return nil, fmt.Errorf("disk cache of %d bytes: %w", o.BudgetBytes, errkind.Invalid)
		}
		if o.BudgetBytes > 0 {
			budget = o.BudgetBytes
		}
		if o.FS != nil {
			c.fs = o.FS
		}
		if o.Log != nil {
			c.log = o.Log
		}
	}
	c.index = newIndex(budget)
	var err error
	if c.dir, c.lock, err = takeSlot(c.fs, dir); err != nil {
		return nil, fmt.Errorf("disk cache in %s: %w", dir, err)
	}
	if err := c.adopt(); err != nil {
		c.lock.Close()
		return nil, fmt.Errorf("disk cache in %s: %w", c.dir, err)
	}
	c.keep.start(c)
	return c, nil
}

// Close writes what waits to be written, leaves the slot to the next process, and closes the
// bucket.
func (c *Cached) Close() error {
	c.keep.stop()
	return errors.Join(c.lock.Close(), c.Bucket.Close())
}

// immutable tells the keys whose objects never change.
func immutable(key string) bool {
	return strings.HasPrefix(key, "seg/") || strings.HasPrefix(key, "meta/page/")
}

func (c *Cached) address(key string) (a address) {
	sum := sha256.Sum256([]byte(c.store + "\x00" + key))
	copy(a[:], sum[:])
	return a
}

// Get implements bucket.Bucket.
func (c *Cached) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	if !immutable(key) || ctx.Err() != nil || o.Offset < 0 || o.Length < 0 {
		return c.Bucket.Get(ctx, key, o)
	}
	if o.Fresh {
		c.forget(key)
	}
	a, as := c.address(key), c.index.now()
	if obj, ok, err := c.getWhole(a, key, o); ok {
		return obj, err
	}
	if o.Length > 0 {
		if obj, ok, err := c.getCovered(ctx, a, as, key, o); ok {
			return obj, err
		}
	}
	c.count.misses.Add(1)
	obj, err := c.Bucket.Get(ctx, key, o)
	if err == nil {
		c.offer(a, as, o.Offset, o.Length, obj)
	}
	return obj, err
}

// getWhole answers from the file of the whole object; not ok when there is none.
func (c *Cached) getWhole(a address, key string, o bucket.GetOptions) (obj bucket.Object, ok bool, err error) {
	e := c.index.whole(a)
	if e == nil {
		return obj, false, nil
	}
	from, to, err := bucket.Slice(key, e.length, o.Offset, o.Length)
	if err != nil {
		return obj, true, err
	}
	obj.Body, obj.Attrs, ok = c.read(key, e, from, to)
	if !ok {
		return obj, false, nil
	}
	return c.hit(obj, o)
}

func (c *Cached) hit(obj bucket.Object, o bucket.GetOptions) (bucket.Object, bool, error) {
	c.count.hits.Add(1)
	if o.IfNoneMatch != "" && o.IfNoneMatch == obj.Tag {
		return bucket.Object{}, true, fmt.Errorf("get %s: %w", obj.Key, errkind.NotModified)
	}
	c.count.hitBytes.Add(int64(len(obj.Body)))
	return obj, true, nil
}

// getCovered answers from files that cover the range, or its ends, and fetches what is
// between. It is not ok when there is nothing, or when what is there does not fit together.
func (c *Cached) getCovered(ctx context.Context, a address, as int64, key string, o bucket.GetOptions) (obj bucket.Object, ok bool, err error) {
	from, to := o.Offset, o.Offset+o.Length
	if to < from {
		return obj, false, nil
	}
	cov := c.index.find(a, from, to)
	if cov.from == from && cov.to == to {
		return obj, false, nil
	}
	var body []byte
	at := from
	join := func(list []*extent) bool {
		for _, e := range list {
			if e.end() <= at {
				continue
			}
			end := min(e.end(), to)
			part, attrs, ok := c.read(key, e, at, end)
			if !ok || obj.Tag != "" && attrs.Tag != obj.Tag {
				return false
			}
			if body == nil {
				body = part
			} else {
				body = append(body, part...)
			}
			obj.Attrs, at = attrs, end
		}
		return true
	}
	if !join(cov.head) {
		return obj, false, nil
	}
	if len(cov.head) > 0 { // the range may pass the end
		to = min(to, obj.Size)
	}
	if n := min(cov.to, to) - at; n > 0 {
		gap, err := c.Bucket.Get(ctx, key, bucket.GetOptions{Offset: at, Length: n, IfNoneMatch: o.IfNoneMatch})
		if err != nil {
			return bucket.Object{}, true, err
		}
		c.count.partial.Add(1)
		if obj.Tag != "" && gap.Tag != obj.Tag || int64(len(gap.Body)) != n {
			return bucket.Object{}, false, nil
		}
		c.offer(a, as, at, n, gap)
		body = append(slices.Grow(body, int(to-at)), gap.Body...)
		obj.Attrs, at = gap.Attrs, at+n
	}
	if !join(cov.tail) {
		return bucket.Object{}, false, nil
	}
	obj.Body = body
	return c.hit(obj, o)
}

// read reads [from, to) of an object out of a file. A file that is not what it should be is
// removed.
func (c *Cached) read(key string, e *extent, from, to int64) ([]byte, bucket.Attrs, bool) {
	path := c.path(e)
	f, err := c.fs.Open(path)
	if err == nil {
		var body []byte
		var attrs bucket.Attrs
		body, attrs, err = names{c.store, key}.readRange(f, e, from, to)
		f.Close()
		if err == nil {
			return body, attrs, true
		}
	}
	known := c.index.remove(e)
	switch {
	case errors.Is(err, fs.ErrNotExist): // deleted by someone, or evicted meanwhile
		c.count.vanished.Add(1)
	case errors.Is(err, errkind.Corrupt):
		c.count.corrupt.Add(1)
		c.warn("damaged file of the disk cache removed", err)
	default:
		c.count.readErrors.Add(1)
		c.warn("disk cache cannot be read", err)
	}
	if known && !errors.Is(err, fs.ErrNotExist) {
		_ = c.fs.Remove(path)
	}
	return nil, bucket.Attrs{}, false
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

// forget drops what is kept of an object that is about to go.
func (c *Cached) forget(key string) {
	if !immutable(key) {
		return
	}
	for _, e := range c.index.forget(c.address(key)) {
		_ = c.fs.Remove(c.path(e))
	}
}

// warnEvery is the least time between two warnings.
const warnEvery = int64(60e9)

func (c *Cached) warn(what string, err error) {
	now := int64(c.host.Mono()) + 1
	last := c.warned.Load()
	if (last == 0 || now-last >= warnEvery) && c.warned.CompareAndSwap(last, now) {
		c.log.Warn(what, "dir", c.dir, "cause", err)
	}
}
