// Package membucket is a bucket in memory: the store of `granary local --store mem:`, of the
// simulation and of most tests.
//
// It has every property that package bucket asks for, by holding one lock for the length of
// a map operation and never longer. A crash of the process loses everything; tests that
// crash "a process" keep the bucket outside of it.
//
// Tags count the writes of the bucket ("1", "2", ...), so that the same run gives the same
// tags. Times are not kept: ModifiedMillis is 0.
package membucket

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/tidwall/btree"
)

// PageMax is the most keys in one List page, as on S3.
const PageMax = 1000

// Bucket is a bucket in memory. The zero value is not ready: use New.
type Bucket struct {
	mu      sync.Mutex // held for a map operation only, never while waiting
	objects btree.Map[string, object]
	writes  uint64
}

type object struct {
	body []byte // never changed once stored
	tag  bucket.Tag
}

var _ bucket.Bucket = (*Bucket)(nil)

// New makes an empty bucket.
func New() *Bucket { return &Bucket{} }

// Get implements bucket.Bucket.
func (b *Bucket) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	obj, err := b.find(ctx, "get", key)
	if err != nil {
		return bucket.Object{}, err
	}
	if o.IfNoneMatch != "" && o.IfNoneMatch == obj.tag {
		return bucket.Object{}, fmt.Errorf("get %s: %w", key, errkind.NotModified)
	}
	from, to, err := bucket.Slice(key, int64(len(obj.body)), o.Offset, o.Length)
	if err != nil {
		return bucket.Object{}, err
	}
	return bucket.Object{Body: bytes.Clone(obj.body[from:to]), Attrs: obj.attrs(key)}, nil
}

// Head implements bucket.Bucket.
func (b *Bucket) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	obj, err := b.find(ctx, "head", key)
	if err != nil {
		return bucket.Attrs{}, err
	}
	return obj.attrs(key), nil
}

// Put implements bucket.Bucket. It never answers UnknownOutcome.
func (b *Bucket) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	if err := bucket.CheckKey(key); err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("put %s: %w: %w", key, errkind.Throttled, context.Cause(ctx))
	}
	fresh := append(make([]byte, 0, len(body)), body...)
	b.mu.Lock()
	defer b.mu.Unlock()
	old, exists := b.objects.Get(key)
	if c.Absent() && exists || c.Match() != "" && c.Match() != old.tag {
		return "", fmt.Errorf("put %s: %w", key, errkind.Conflict)
	}
	b.writes++
	obj := object{body: fresh, tag: bucket.Tag(strconv.FormatUint(b.writes, 10))}
	b.objects.Set(key, obj)
	return obj.tag, nil
}

// Delete implements bucket.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := bucket.CheckKey(key); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("delete %s: %w: %w", key, errkind.Throttled, context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.objects.Delete(key)
	return nil
}

// List implements bucket.Bucket.
func (b *Bucket) List(ctx context.Context, prefix, after string, max int) (page []bucket.Attrs, more bool, err error) {
	if ctx.Err() != nil {
		return nil, false, fmt.Errorf("list %s: %w", prefix, context.Cause(ctx))
	}
	if max <= 0 || max > PageMax {
		max = PageMax
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	start := prefix
	if after >= prefix {
		start = after + "\x00" // the next key in byte order
	}
	b.objects.Ascend(start, func(key string, obj object) bool {
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		if len(page) == max {
			more = true
			return false
		}
		page = append(page, obj.attrs(key))
		return true
	})
	return page, more, nil
}

// String implements bucket.Bucket.
func (b *Bucket) String() string { return "mem:" }

// Close implements bucket.Bucket. The objects stay.
func (b *Bucket) Close() error { return nil }

func (b *Bucket) find(ctx context.Context, verb, key string) (object, error) {
	if err := bucket.CheckKey(key); err != nil {
		return object{}, err
	}
	if ctx.Err() != nil {
		return object{}, fmt.Errorf("%s %s: %w", verb, key, context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	obj, ok := b.objects.Get(key)
	if !ok {
		return object{}, fmt.Errorf("%s %s: %w", verb, key, errkind.NotFound)
	}
	return obj, nil
}

func (o object) attrs(key string) bucket.Attrs {
	return bucket.Attrs{Key: key, Size: int64(len(o.body)), Tag: o.tag}
}
