// Package localstack runs every role in one process: what granary local is, and what tests
// stand on.
//
//	mongosh, drivers
//	      |  wire protocol
//	  router -----------> free shards: straight from the bucket
//	      |  in-process calls (the same requests that go over HTTP between processes)
//	  writer: shard01 shard02 shard03
//	      |
//	  bucket: root, log, segments
//
// Nothing is kept in the process that is not in the bucket: Open on a store that a killed
// process left behind claims its shards, seals its log, replays what was acknowledged, waits
// until the dead process's lease is surely over, and serves.
package localstack

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/compactor/gc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/command"
	"golang.org/x/sync/errgroup"
)

// Options tune a Stack. Zero fields mean the defaults.
type Options struct {
	// Shards is how many shards a new cluster begins with; 3. It means nothing to one that
	// exists.
	Shards int
	// Lease is how long the process may answer reads without asking the bucket, and what a
	// successor waits after a crash; DefaultLease.
	Lease time.Duration
	// MemtableBytes bounds unflushed rows of all shards; 64 MiB. CacheBytes bounds decoded
	// segment blocks; 64 MiB.
	MemtableBytes, CacheBytes int64
	// CollectEvery is the time between two sweeps of the log and of dropped segments; 30 s.
	CollectEvery time.Duration
	// Address is where clients will connect, and Program the program's version: both are
	// only shown.
	Address, Program string
	Log              *slog.Logger // nil: silent
}

// DefaultLease is short: the store is near, and a start after a crash waits for it.
const DefaultLease = time.Second

func (o Options) withDefaults() Options {
	if o.Shards == 0 {
		o.Shards = 3
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.MemtableBytes == 0 {
		o.MemtableBytes = 64 << 20
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 64 << 20
	}
	if o.CollectEvery == 0 {
		o.CollectEvery = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// ShardNames are the names that a new cluster of n shards gives them: shard01, shard02, ...
// Errors: Invalid.
func ShardNames(n int) ([]manifest.ShardID, error) {
	if n < 1 || n > 99 {
		return nil, fmt.Errorf("--shards %d: %w: 1 to 99", n, errkind.Invalid)
	}
	names := make([]manifest.ShardID, n)
	for i := range names {
		names[i] = manifest.ShardID(fmt.Sprintf("shard%02d", i+1))
	}
	return names, nil
}

// Stack is a running cluster of one process.
type Stack struct {
	Root   *manifest.Root
	Writer *writer.Writer
	Router *router.Router
	// Commands answers MongoDB commands; a wire server or an in-process client calls it.
	Commands *command.Commands
	// Cache is the process's block cache, for its figures.
	Cache *segment.Cache

	options Options
	host    host.Host
	sweeper *gc.Sweeper
	stop    context.CancelFunc
	// stopKeeping ends the taking back of lost shards, which Close must not race with.
	stopKeeping context.CancelFunc
	roles       errgroup.Group
}

// Open starts every role on a store, making a cluster in it if there is none, and returns
// when all shards are served or ctx ends. A new store is probed first, and refused when it
// is not safe.
func Open(ctx context.Context, b bucket.Bucket, h host.Host, o Options) (*Stack, error) {
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
	store := reader.NewStore(location, cache)
	name := h.ID16()
	holder := hex.EncodeToString(name[:])
	dialer := rpc.NewLocal(nil)
	w := writer.New(writer.Config{
		Root: root, Bucket: b, Store: store, Host: h, Holder: holder, Log: o.Log, Dial: dialer,
		Settings: writer.Settings{Lease: o.Lease, MemtableBytes: o.MemtableBytes},
	})
	dialer.Add(holder, w)
	s := &Stack{
		Root: root, Writer: w, Cache: cache, options: o, host: h,
		sweeper: &gc.Sweeper{Root: root, Bucket: b, Open: location, Host: h},
	}
	s.Router = router.New(router.Config{Root: root, Dialer: dialer, Store: store, Claimer: claimer{w}, Host: h, Log: o.Log})
	s.Commands = command.New(s.Router, &command.Options{Address: o.Address, Program: o.Program, Log: o.Log})
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.roles.Go(func() error { return w.Run(background) })
	s.roles.Go(func() error { return s.Commands.Run(background) })
	s.roles.Go(func() error { return s.collect(background) })
	if err := s.holdAll(ctx); err != nil {
		_ = s.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	keeping, stopKeeping := context.WithCancel(background)
	s.stopKeeping = stopKeeping
	s.roles.Go(func() error { return w.Keep(keeping) })
	return s, nil
}

// ensureCluster loads the root, or probes the store and makes the first one.
func ensureCluster(ctx context.Context, b bucket.Bucket, root *manifest.Root, h host.Host, o Options) error {
	_, _, err := root.Load(ctx)
	if !errors.Is(err, errkind.NotFound) {
		return err
	}
	shards, err := ShardNames(o.Shards)
	if err != nil {
		return err
	}
	if err := bucket.Probe(ctx, b, h); err != nil {
		return err
	}
	_, err = manifest.Create(ctx, bucket.NewCell(b), h, manifest.InitOptions{Shards: shards})
	if err != nil && !errors.Is(err, errkind.Conflict) { // another process was faster: fine
		return err
	}
	_, _, err = root.Load(ctx)
	return err
}

// holdAll claims every shard of the cluster, side by side: their waits overlap.
func (s *Stack) holdAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, shard := range s.Root.State().Shards() {
		g.Go(func() error {
			if err := s.Writer.Hold(ctx, shard.ID); err != nil {
				return fmt.Errorf("hold shard %s: %w", shard.ID, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// collect sweeps until ctx ends. A sweep that fails is the next one's work.
func (s *Stack) collect(ctx context.Context) error {
	for s.host.Sleep(ctx, s.options.CollectEvery) == nil {
		r, err := s.sweeper.Sweep(ctx, false)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.options.Log.Warn("sweep failed, the next one goes on", "cause", err)
		case r.Deleted > 0:
			s.options.Log.Debug("swept", "deleted", r.Deleted, "left", r.Left)
		}
	}
	return nil
}

// Close stops the roles: reads and writes end, everything is flushed, and the shards are
// free afterwards, so that the next start needs no takeover. When ctx ends first, shards
// stay held and a takeover recovers them: slower, never wrong.
func (s *Stack) Close(ctx context.Context) error {
	if s.stopKeeping != nil {
		s.stopKeeping()
	}
	err := s.Writer.Close(ctx)
	s.stop()
	return errors.Join(err, s.roles.Wait())
}

// claimer lets the router ask the process's own writer to hold a shard.
type claimer struct{ w *writer.Writer }

func (c claimer) Claim(ctx context.Context, shard manifest.ShardID) error {
	return c.w.Hold(ctx, shard)
}
