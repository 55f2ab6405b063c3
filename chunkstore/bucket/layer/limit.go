package layer

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// Limit lets at most n requests be under way at once; others wait for their turn, first
// come first served, until their context ends. A Put or Delete that never got its turn is
// Throttled: nothing was sent. It panics when n < 1, which would let nothing through.
func Limit(b bucket.Bucket, n int) bucket.Bucket {
	if n < 1 {
		panic(fmt.Sprintf("layer.Limit: n = %d", n))
	}
	return &limit{b: b, slots: make(chan struct{}, n)}
}

type limit struct {
	b     bucket.Bucket
	slots chan struct{}
}

// enter waits for a slot. When the slot and the end of ctx come together the end wins, so
// that the answer does not depend on which of the two select saw.
func (l *limit) enter(ctx context.Context, verb, key string) error {
	if ctx.Err() == nil {
		select {
		case l.slots <- struct{}{}:
			if ctx.Err() == nil {
				return nil
			}
			<-l.slots
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("%s %s: waiting for one of %d requests: %w", verb, key, cap(l.slots), context.Cause(ctx))
}

func (l *limit) leave() { <-l.slots }

func (l *limit) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	if err := l.enter(ctx, "get", key); err != nil {
		return bucket.Object{}, err
	}
	defer l.leave()
	return l.b.Get(ctx, key, o)
}

func (l *limit) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	if err := l.enter(ctx, "head", key); err != nil {
		return bucket.Attrs{}, err
	}
	defer l.leave()
	return l.b.Head(ctx, key)
}

func (l *limit) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	if err := l.enter(ctx, "put", key); err != nil {
		return "", fmt.Errorf("%w: %w", errkind.Throttled, err)
	}
	defer l.leave()
	return l.b.Put(ctx, key, body, c)
}

func (l *limit) Delete(ctx context.Context, key string) error {
	if err := l.enter(ctx, "delete", key); err != nil {
		return fmt.Errorf("%w: %w", errkind.Throttled, err)
	}
	defer l.leave()
	return l.b.Delete(ctx, key)
}

func (l *limit) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	if err := l.enter(ctx, "list", prefix); err != nil {
		return nil, false, err
	}
	defer l.leave()
	return l.b.List(ctx, prefix, after, max)
}

func (l *limit) String() string { return l.b.String() }

func (l *limit) Close() error { return l.b.Close() }
