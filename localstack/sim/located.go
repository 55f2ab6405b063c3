package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
)

// In every fourth seed with several shards the last of them has a bucket of its own. Of the
// simulated store it is what lies below a prefix: the same faults happen to it, and the same
// checks look at it.
const elsewhere = "eu/"

// locationURL is how the root names it.
const locationURL = "s3://eu"

// located draws whether there is one.
func (c *Config) located(r *rand.Rand) { c.Located = c.Shards > 1 && r.IntN(4) == 0 }

// within is the bucket below the prefix.
type within struct{ bucket.Bucket }

func (b within) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	return b.Bucket.Get(ctx, elsewhere+key, o)
}

func (b within) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	return b.Bucket.Head(ctx, elsewhere+key)
}

func (b within) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	return b.Bucket.Put(ctx, elsewhere+key, body, c)
}

func (b within) Delete(ctx context.Context, key string) error {
	return b.Bucket.Delete(ctx, elsewhere+key)
}

func (b within) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	if after != "" {
		after = elsewhere + after
	}
	page, more, err := b.Bucket.List(ctx, elsewhere+prefix, after, max)
	list := make([]bucket.Attrs, len(page))
	for i, a := range page {
		list[i] = a
		list[i].Key = keyOf(a.Key)
	}
	return list, more, err
}

// keyOf is the key of an object in the bucket that it is in.
func keyOf(key string) string { return strings.TrimPrefix(key, elsewhere) }

// at is where objects of a location are.
func at(b bucket.Bucket, id manifest.LocationID) bucket.Bucket {
	if id == 0 {
		return b
	}
	return within{b}
}

// placesOf are the places of a process, on its view of the store.
func placesOf(b bucket.Bucket, h host.Host) *places.Places {
	return places.New(b, func(context.Context, string) (bucket.Bucket, error) { return within{b}, nil }, h, nil)
}

// cellsOf is how a copy of a root reads pages that are elsewhere.
func cellsOf(b bucket.Bucket) manifest.Places {
	return func(manifest.Location) (manifest.Cell, error) { return bucket.NewCell(within{b}), nil }
}

// createLocated makes a bucket of its own for a shard, and adds the shard.
func (w *World) createLocated(p *places.Places, h host.Host, id manifest.ShardID) error {
	if err := p.Prepare(context.Background(), locationURL); err != nil {
		return fmt.Errorf("prepare %s: %w", locationURL, err)
	}
	_, err := p.Root().Commit(context.Background(), manifest.Edit{Op: h.ID16(), Changes: []manifest.Change{
		manifest.AddShards{IDs: []manifest.ShardID{id}, URL: locationURL},
	}})
	return err
}
