package reader

import (
	"context"
	"sync/atomic"
)

// Counter counts the bucket requests made on behalf of one context: what a query cost. A
// request that serves several waiting reads counts for the one that sent it. Safe for
// concurrent use; the zero Counter is ready.
type Counter struct{ requests, bytes atomic.Int64 }

// Requests is how many requests were sent.
func (c *Counter) Requests() int64 { return c.requests.Load() }

// Bytes is how many bytes were received.
func (c *Counter) Bytes() int64 { return c.bytes.Load() }

type counterKey struct{}

// WithCounter makes what is read under the context count in c.
func WithCounter(ctx context.Context, c *Counter) context.Context {
	return context.WithValue(ctx, counterKey{}, c)
}

func counterOf(ctx context.Context) *Counter {
	if c, ok := ctx.Value(counterKey{}).(*Counter); ok {
		return c
	}
	return new(Counter)
}
