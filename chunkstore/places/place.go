package places

import (
	"context"
	"fmt"
	"sync"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// place is the bucket of a location. The first request opens it and looks at its mark; those
// that come meanwhile wait. What failed is tried again by the next.
type place struct {
	manifest.Location
	p *Places

	opening chan struct{} // has room for the one who opens it
	mu      sync.Mutex
	b       bucket.Bucket // nil: not open yet
}

var _ bucket.Bucket = (*place)(nil)

func (x *place) opened() bucket.Bucket {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b
}

// bucket is the open bucket. Errors: those of Prepare.
func (x *place) bucket(ctx context.Context) (bucket.Bucket, error) {
	if b := x.opened(); b != nil {
		return b, nil
	}
	select {
	case x.opening <- struct{}{}:
		defer func() { <-x.opening }()
	case <-ctx.Done():
		return nil, fmt.Errorf("location %d, %s: %w: somebody else is opening it: %w", x.ID, x.URL, errkind.Throttled, context.Cause(ctx))
	}
	if b := x.opened(); b != nil {
		return b, nil
	}
	b, err := x.check(ctx)
	if err != nil {
		return nil, fmt.Errorf("location %d, %s: %w", x.ID, x.URL, err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.b = b
	return b, nil
}

func (x *place) check(ctx context.Context) (bucket.Bucket, error) {
	if x.p.open == nil {
		return nil, errAlone
	}
	b, err := x.p.open(ctx, x.URL)
	if err != nil {
		return nil, err
	}
	if err := marked(ctx, b, mark(x.Cluster)); err != nil {
		_ = b.Close()
		return nil, err
	}
	return b, nil
}

// Get implements bucket.Bucket.
func (x *place) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	b, err := x.bucket(ctx)
	if err != nil {
		return bucket.Object{}, err
	}
	return b.Get(ctx, key, o)
}

// Head implements bucket.Bucket.
func (x *place) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	b, err := x.bucket(ctx)
	if err != nil {
		return bucket.Attrs{}, err
	}
	return b.Head(ctx, key)
}

// Put implements bucket.Bucket. Of one that the location was not open for, nothing was sent.
func (x *place) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	b, err := x.bucket(ctx)
	if err != nil {
		return "", unsent(err)
	}
	return b.Put(ctx, key, body, c)
}

// Delete implements bucket.Bucket.
func (x *place) Delete(ctx context.Context, key string) error {
	b, err := x.bucket(ctx)
	if err != nil {
		return err
	}
	return b.Delete(ctx, key)
}

// List implements bucket.Bucket.
func (x *place) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	b, err := x.bucket(ctx)
	if err != nil {
		return nil, false, err
	}
	return b.List(ctx, prefix, after, max)
}

// unsent is the kind of a write that never was: Throttled, whatever else the error is.
func unsent(err error) error { return fmt.Errorf("%w: nothing was sent: %w", errkind.Throttled, err) }

// String is the location's URL.
func (x *place) String() string { return x.URL }

// Close closes the bucket, if it was opened.
func (x *place) Close() error {
	if b := x.opened(); b != nil {
		return b.Close()
	}
	return nil
}
