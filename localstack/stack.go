// Package localstack puts the roles together: all of them in one process (Open), which is
// what granary local is and what tests stand on, or one of them in a process of its own
// among others on the same store (OpenWriter, OpenRouter).
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
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/peers"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
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
	// RequestBytes bounds the memory that requests under way need: messages, answers, sorts;
	// and what a writer remembers of them and builds segments in.
	// 128 MiB. Pot is where it is taken from, when somebody else takes from it too; without
	// one the process makes its own.
	RequestBytes int64
	Pot          *admission.Pot
	// Lag measures the load of the processor, for the Gate; nil: nobody does.
	Lag func() time.Duration
	// OpenLocation opens the buckets of shards with a location of their own; nil: this process
	// can hold and read no such shard.
	OpenLocation places.Opener
	// Wait is for how long a store that cannot be reached is waited for at the start; 0: not
	// at all.
	Wait time.Duration
	// CollectEvery is the time between two sweeps of the log and of dropped segments; 30 s.
	CollectEvery time.Duration
	// HistoryEvery is the time between two copies of the root that commits leave, to repair from;
	// 1 min. Negative: they leave none.
	HistoryEvery time.Duration
	// UpkeepEvery is the shortest time between two looks at the sizes, loads and segments of
	// chunks; 1 s. Negative: chunks are neither cut nor merged by this process, nor segments.
	UpkeepEvery time.Duration
	// CompactBytes and CompactRequests are what merging segments may ask of the store in a
	// second; 0: what the cluster's setting says.
	CompactBytes, CompactRequests int64
	// NoBalancer leaves chunks where they are: the process does not move them by itself.
	// BalanceEvery is the time between two looks at them; 10 s.
	NoBalancer   bool
	BalanceEvery time.Duration
	// Zone is where a router is (router.Settings).
	Zone string
	// Address is where clients will connect, and Program the program's version: both are
	// only shown.
	Address, Program string
	// PeerAddress is where routers and the command line reach the shards of a Stack, whose owner
	// serves its Writer there, and Net how it reaches others; "" and nil: nobody does.
	PeerAddress string
	Net         Network
	Log         *slog.Logger // nil: silent
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
	if o.RequestBytes == 0 {
		o.RequestBytes = 128 << 20
	}
	if o.Pot == nil {
		o.Pot = admission.NewPot(o.RequestBytes)
	}
	if o.CollectEvery == 0 {
		o.CollectEvery = 30 * time.Second
	}
	if o.HistoryEvery == 0 {
		o.HistoryEvery = manifest.HistoryEveryDefault
	}
	if o.UpkeepEvery == 0 {
		o.UpkeepEvery = time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Stack is a running cluster of one process.
type Stack struct {
	*Base
	Writer *writer.Writer
	Router *router.Router
	// Commands answers MongoDB commands; a wire server or an in-process client calls it.
	Commands *command.Commands
	// Member tells others what the process holds. It takes no part in dealing shards out.
	Member *peers.Member

	// stopKeeping ends the taking back of lost shards, which Close must not race with.
	stopKeeping context.CancelFunc
}

// Open starts every role on a store, making a cluster in it if there is none, and returns
// when all shards are served or ctx ends. A new store is probed first, and refused when it
// is not safe.
func Open(ctx context.Context, b bucket.Bucket, h host.Host, o Options) (*Stack, error) {
	parts, err := newBase(ctx, b, h, o)
	if err != nil {
		return nil, err
	}
	o = parts.options
	dialer := rpc.NewLocal(o.Net)
	w := writer.New(writer.Config{
		Root: parts.Root, Bucket: b, Open: parts.places.Open, Store: parts.store, Host: h, Holder: parts.holder, Address: o.PeerAddress, Log: o.Log, Dial: dialer, Alarm: parts.Alarm,
		Settings: writer.Settings{Lease: o.Lease, MemtableBytes: o.MemtableBytes, Sorts: parts.sorts, Retries: parts.retries, Segments: parts.segments},
	})
	dialer.Add(parts.holder, w)
	s := &Stack{Base: parts, Writer: w}
	s.Member = peers.New(peers.Config{
		Root: s.Root, Writer: w, Dial: o.Net, Host: h, Log: o.Log, Alarm: s.Alarm, Holder: s.holder, Address: o.PeerAddress, Merged: s.merged,
	})
	s.Router = router.New(router.Config{
		Root: s.Root, Dialer: dialer, Store: s.store, Bucket: b, Claimer: claimer{w}, Host: h, Log: o.Log,
		Answers: parts.answers, Sorts: parts.sorts, Prepare: parts.places.Prepare,
	})
	s.Commands = command.New(s.Router, s.answering(w))
	s.run(w.Run)
	s.run(s.Commands.Run)
	s.run(func(ctx context.Context) error { return s.Router.KeepHistory(ctx, func() bool { return true }) })
	s.run(s.collect(func() bool { return true }))
	s.keepUp(dialer)
	if err := s.holdAll(ctx); err != nil {
		_ = s.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	keeping, stopKeeping := context.WithCancel(s.background)
	s.stopKeeping = stopKeeping
	s.balance(dialer, o.PeerAddress)
	s.roles.Go(func() error { return w.Keep(keeping) })
	return s, nil
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

// Close stops the roles: reads and writes end, everything is flushed, and the shards are
// free afterwards, so that the next start needs no takeover. When ctx ends first, shards
// stay held and a takeover recovers them: slower, never wrong.
func (s *Stack) Close(ctx context.Context) error {
	if s.stopKeeping != nil {
		s.stopKeeping()
	}
	err := s.Writer.Close(ctx)
	return errors.Join(err, s.end())
}

// claimer lets the router ask the process's own writer to hold a shard.
type claimer struct{ w *writer.Writer }

func (c claimer) Claim(ctx context.Context, shard manifest.ShardID) error {
	return c.w.Hold(ctx, shard)
}
