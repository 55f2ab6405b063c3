package localstack

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/compactor/gc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"golang.org/x/sync/errgroup"
)

// Base is what every role stands on: the process's view of the root, readers of segments
// with their cache, a name, and a group for what runs in the background.
type Base struct {
	// Root is the process's view of the cluster.
	Root *manifest.Root
	// Cache is the process's block cache, for its figures.
	Cache *segment.Cache

	bucket   bucket.Bucket
	location func(manifest.LocationID) (bucket.Bucket, error)
	store    *reader.Store
	holder   string // the random name of this process
	options  Options
	host     host.Host
	log      *slog.Logger

	background context.Context
	stop       context.CancelFunc
	roles      errgroup.Group
	pulse      atomic.Int64 // Mono of the last root that was read for it; 0: never
	collected  atomic.Int64
}

// newBase opens the root, making a cluster in an empty store.
func newBase(ctx context.Context, b bucket.Bucket, h host.Host, o Options) (*Base, error) {
	o = o.withDefaults()
	root := manifest.NewRoot(bucket.NewCell(b), h, nil)
	if err := ensureCluster(ctx, b, root, h, o); err != nil {
		return nil, err
	}
	location := func(id manifest.LocationID) (bucket.Bucket, error) {
		if id != 0 {
			return nil, fmt.Errorf("location %d: %w: this version knows the cluster's own bucket only", id, errkind.Invalid)
		}
		return b, nil
	}
	cache := segment.NewCache(o.CacheBytes)
	name := h.ID16()
	s := &Base{
		Root: root, Cache: cache, bucket: b, location: location, store: reader.NewStore(location, cache),
		holder: hex.EncodeToString(name[:]), options: o, host: h, log: o.Log,
	}
	s.background, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.run(s.watch)
	return s, nil
}

// run starts something that ends with the process.
func (s *Base) run(role func(context.Context) error) {
	s.roles.Go(func() error { return role(s.background) })
}

// end stops what runs in the background, and returns when nothing does.
func (s *Base) end() error {
	s.stop()
	return s.roles.Wait()
}

// pulseEvery is the time between two looks at the root by which a process knows that it can
// reach the store.
const pulseEvery = 3 * time.Second

// watch reads the root now and then.
func (s *Base) watch(ctx context.Context) error {
	for {
		sent := s.host.Mono()
		wait, cancel := s.host.WithTimeout(ctx, pulseEvery)
		_, _, err := s.Root.Load(wait)
		cancel()
		if err == nil {
			s.pulse.Store(max(int64(sent), 1))
		}
		if s.host.Sleep(ctx, s.host.Jitter(pulseEvery)) != nil {
			return nil
		}
	}
}

// SinceStore is how long ago the store last answered a look at the root: three seconds at most,
// and what the look took, while it can be reached. It never asks the store.
func (s *Base) SinceStore() time.Duration { return s.host.Mono() - time.Duration(s.pulse.Load()) }

// Collected counts the objects that this process's sweeps deleted.
func (s *Base) Collected() int64 { return s.collected.Load() }

// collect sweeps while turn says that it is this process's turn. A sweep that fails is the
// next one's work; two at a time do no harm.
func (s *Base) collect(turn func() bool) func(context.Context) error {
	sweeper := &gc.Sweeper{Root: s.Root, Bucket: s.bucket, Open: s.location, Host: s.host}
	return func(ctx context.Context) error {
		for s.host.Sleep(ctx, s.options.CollectEvery) == nil {
			if !turn() {
				continue
			}
			r, err := sweeper.Sweep(ctx, false)
			s.collected.Add(int64(r.Deleted))
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				s.log.Warn("sweep failed, the next one goes on", "cause", err)
			case r.Deleted > 0:
				s.log.Debug("swept", "deleted", r.Deleted, "left", r.Left)
			}
		}
		return nil
	}
}
