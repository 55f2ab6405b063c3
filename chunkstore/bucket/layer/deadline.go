package layer

import (
	"context"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/host"
)

// perMiB is what a request gets on top of its base for each MiB that it is known to move.
const perMiB = time.Second

// Deadline ends every request after base, plus one second for each MiB of a Put's body or
// of the range of a Get, so that a store which accepts requests and never answers holds no
// one for ever. A Put that ends so is UnknownOutcome, as the driver says.
func Deadline(b bucket.Bucket, h host.Host, base time.Duration) bucket.Bucket {
	return &deadline{b: b, host: h, base: base}
}

type deadline struct {
	b    bucket.Bucket
	host host.Host
	base time.Duration
}

func (d *deadline) limit(ctx context.Context, bytes int64) (context.Context, context.CancelFunc) {
	return d.host.WithTimeout(ctx, d.base+perMiB*time.Duration(bytes>>20))
}

func (d *deadline) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	ctx, cancel := d.limit(ctx, min(max(o.Length, 0), 1<<32)) // a length is the caller's word
	defer cancel()
	return d.b.Get(ctx, key, o)
}

func (d *deadline) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	ctx, cancel := d.limit(ctx, 0)
	defer cancel()
	return d.b.Head(ctx, key)
}

func (d *deadline) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	ctx, cancel := d.limit(ctx, int64(len(body)))
	defer cancel()
	return d.b.Put(ctx, key, body, c)
}

func (d *deadline) Delete(ctx context.Context, key string) error {
	ctx, cancel := d.limit(ctx, 0)
	defer cancel()
	return d.b.Delete(ctx, key)
}

func (d *deadline) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	ctx, cancel := d.limit(ctx, 0)
	defer cancel()
	return d.b.List(ctx, prefix, after, max)
}

func (d *deadline) String() string { return d.b.String() }

func (d *deadline) Close() error { return d.b.Close() }
