package layer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// RetryOptions bound Retry; zero fields mean the default beside them.
type RetryOptions struct {
	Attempts int           // 4: how often a request is sent at most
	WaitMin  time.Duration // 50 ms: before the second attempt; doubles from there
	WaitMax  time.Duration // 2 s
}

// Retry sends Get, Head, List, Delete and unconditional Puts again while they fail in a way
// that may pass, with growing waits and jitter. A Put with a condition is sent once: a
// second attempt would meet the first one's effect and answer Conflict for a write that
// happened; only its caller knows how to tell.
//
// An unconditional Put may be applied after the retry that replaced it. Who cares which of
// two bodies stays needs a condition anyway.
func Retry(b bucket.Bucket, h host.Host, o *RetryOptions) bucket.Bucket {
	r := &retry{b: b, host: h, o: RetryOptions{Attempts: 4, WaitMin: 50 * time.Millisecond, WaitMax: 2 * time.Second}}
	if o != nil {
		if o.Attempts > 0 {
			r.o.Attempts = o.Attempts
		}
		if o.WaitMin > 0 {
			r.o.WaitMin = o.WaitMin
		}
		if o.WaitMax > 0 {
			r.o.WaitMax = o.WaitMax
		}
	}
	return r
}

type retry struct {
	b    bucket.Bucket
	host host.Host
	o    RetryOptions
}

// again runs f until it succeeds, its error is final, ctx ends or the attempts are used up.
func again[T any](ctx context.Context, r *retry, f func() (T, error)) (T, error) {
	wait := r.o.WaitMin
	for attempt := 1; ; attempt++ {
		out, err := f()
		if err == nil || final(err) || ctx.Err() != nil {
			return out, err
		}
		if attempt == r.o.Attempts {
			return out, fmt.Errorf("%w (%d attempts)", err, attempt)
		}
		if r.host.Sleep(ctx, r.host.Jitter(wait)) != nil {
			return out, err
		}
		wait = min(2*wait, r.o.WaitMax)
	}
}

// final errors answer the question that was asked.
func final(err error) bool {
	for _, kind := range []error{errkind.NotFound, errkind.NotModified, errkind.Conflict, errkind.Invalid, errkind.Corrupt} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

func (r *retry) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	return again(ctx, r, func() (bucket.Object, error) { return r.b.Get(ctx, key, o) })
}

func (r *retry) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	return again(ctx, r, func() (bucket.Attrs, error) { return r.b.Head(ctx, key) })
}

func (r *retry) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	if c != (bucket.Condition{}) {
		return r.b.Put(ctx, key, body, c)
	}
	return again(ctx, r, func() (bucket.Tag, error) { return r.b.Put(ctx, key, body, c) })
}

func (r *retry) Delete(ctx context.Context, key string) error {
	_, err := again(ctx, r, func() (struct{}, error) { return struct{}{}, r.b.Delete(ctx, key) })
	return err
}

func (r *retry) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	type page struct {
		attrs []bucket.Attrs
		more  bool
	}
	p, err := again(ctx, r, func() (p page, err error) {
		p.attrs, p.more, err = r.b.List(ctx, prefix, after, max)
		return p, err
	})
	return p.attrs, p.more, err
}

func (r *retry) String() string { return r.b.String() }

func (r *retry) Close() error { return r.b.Close() }
