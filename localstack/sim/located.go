package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/audit"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
)

// In every fourth seed with several shards the last of them, or the last two of three, have buckets
// of their own. Of the simulated store each is what lies below a prefix: the same faults happen to
// it, and the same checks look at it.
var elsewhere = [...]string{"eu/", "us/"}

// residents is the zone of the shards that have buckets of their own: what belongs to it may go
// from one of those buckets to the other, and never be in the cluster's own.
const residents = "resident"

// located draws how many there are.
func (c *Config) located(r *rand.Rand) {
	if c.Shards > 1 && r.IntN(4) == 0 {
		c.Located = 1 + r.IntN(c.Shards-1)
		c.Copies = oneOf(r, 0, 2*time.Second, 10*time.Second)
	}
}

// locationURL is how the root names the bucket below a prefix.
func locationURL(prefix string) string { return "s3://" + strings.TrimSuffix(prefix, "/") }

// within is the bucket below the prefix.
type within struct {
	bucket.Bucket
	prefix string
}

func (b within) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	return b.Bucket.Get(ctx, b.prefix+key, o)
}

func (b within) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	return b.Bucket.Head(ctx, b.prefix+key)
}

func (b within) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	return b.Bucket.Put(ctx, b.prefix+key, body, c)
}

func (b within) Delete(ctx context.Context, key string) error {
	return b.Bucket.Delete(ctx, b.prefix+key)
}

func (b within) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	if after != "" {
		after = b.prefix + after
	}
	page, more, err := b.Bucket.List(ctx, b.prefix+prefix, after, max)
	list := make([]bucket.Attrs, len(page))
	for i, a := range page {
		list[i] = a
		list[i].Key = keyOf(a.Key)
	}
	return list, more, err
}

// keyOf is the key of an object in the bucket that it is in.
func keyOf(key string) string {
	_, key = placeOf(key)
	return key
}

// placeOf is the location of an object of the simulated store, and its key there.
func placeOf(key string) (manifest.LocationID, string) {
	for i, prefix := range elsewhere {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			return manifest.LocationID(i + 1), rest
		}
	}
	return 0, key
}

// at is where objects of a location are: they were made in this order.
func at(b bucket.Bucket, id manifest.LocationID) bucket.Bucket {
	if id == 0 {
		return b
	}
	return within{b, elsewhere[id-1]}
}

// opened is the bucket of a URL.
func opened(b bucket.Bucket, url string) (bucket.Bucket, error) {
	for _, prefix := range elsewhere {
		if url == locationURL(prefix) {
			return within{b, prefix}, nil
		}
	}
	return nil, fmt.Errorf("open %s: %w: there is no such bucket", url, errkind.NotFound)
}

// placesOf are the places of a process, on its view of the store.
func placesOf(b bucket.Bucket, h host.Host) *places.Places { return placesWith(b, h, nil) }

func placesWith(b bucket.Bucket, h host.Host, o *manifest.RootOptions) *places.Places {
	return places.New(b, func(_ context.Context, url string) (bucket.Bucket, error) { return opened(b, url) }, h, o)
}

// cellsOf is how a copy of a root reads pages that are elsewhere.
func cellsOf(b bucket.Bucket) manifest.Places {
	return func(l manifest.Location) (manifest.Cell, error) {
		there, err := opened(b, l.URL)
		return bucket.NewCell(there), err
	}
}

// createLocated makes buckets of their own for shards, adds these, and the zone of what must stay
// there.
func (w *World) createLocated(p *places.Places, h host.Host, shards []manifest.ShardID) error {
	for i, id := range shards {
		url := locationURL(elsewhere[i])
		if err := p.Prepare(context.Background(), url); err != nil {
			return fmt.Errorf("prepare %s: %w", url, err)
		}
		_, err := p.Root().Commit(context.Background(), manifest.Edit{Op: h.ID16(), Changes: []manifest.Change{
			manifest.AddShards{IDs: []manifest.ShardID{id}, URL: url}, manifest.SetShardZones{ID: id, Zones: []string{residents}},
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// resident is the range that belongs to the zone: the first chunk that is made elsewhere.
func (w *World) resident(chunks []manifest.NewChunk) []manifest.ZoneRange {
	for _, c := range chunks {
		if slices.Contains(w.shards[len(w.shards)-w.cfg.Located:], c.Shard) {
			return []manifest.ZoneRange{{
				Zone: residents, Range: shardkey.Range{Min: c.Min.Key, Max: c.Max.Key}, MinBSON: c.Min.BSON, MaxBSON: c.Max.BSON,
			}}
		}
	}
	return nil
}

// stays judges an object that has just been written: nothing of the zone may be in a bucket that
// is no home of it, not even for a moment.
func (w *World) stays(key string, body []byte) {
	id, key := placeOf(key)
	if w.cfg.Located == 0 || w.checker.state == nil || audit.Allowed(w.checker.state, residents, id) {
		return
	}
	w.did("kept out")
	for _, b := range audit.Object(w.checker.state, at(w.inner, id), id, key, body).Breaches {
		if b.Zone == residents {
			w.fail("%s in location %d has a %s (key %s of %s, %d in all), which may not be there", key, id, b.What, b.Key, b.Namespace, b.Count)
		}
	}
}

// pageDeleted judges that of a page: neither the root, nor a pin, nor the newest copy of the root
// may refer to it.
func (w *World) pageDeleted(at manifest.LocationID, key string) {
	w.did("deleted page")
	used := w.checker.state.Pages()
	for _, st := range w.checker.pins {
		used = append(used, st.Pages()...)
	}
	for _, p := range append(used, w.newestCopy()...) {
		if p.Location == at && p.Key() == key {
			w.fail("%s in location %d is deleted, to which the root, a pin or the newest copy of the root refers", key, at)
		}
	}
}

// newestCopy are the pages of the newest copy of the root.
func (w *World) newestCopy() []manifest.PageRef {
	list, _, err := w.inner.List(context.Background(), manifest.HistoryPrefix, "", 0)
	if err != nil || len(list) == 0 {
		return nil
	}
	o, err := w.inner.Get(context.Background(), list[len(list)-1].Key, bucket.GetOptions{})
	if err != nil {
		return nil
	}
	image, err := manifest.DecodeRoot(o.Body)
	if err != nil {
		w.fail("copy of the root %s: %w", list[len(list)-1].Key, err)
		return nil
	}
	return image.Missing(nil)
}
