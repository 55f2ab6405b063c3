package localstack

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/peers"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/command"
)

// Network is how a process reaches others.
type Network interface {
	rpc.Dialer
	rpc.PeerDialer
}

// WriterRole is what a writer process is told.
type WriterRole struct {
	// Address is where others reach it.
	Address string
	// Any: it takes any shard. Named are the shards that it is for.
	Any   bool
	Named []manifest.ShardID
}

// Writer is a process that holds shards, among others. An RPC server answers for
// Writer.Writer and Writer.Member.
type Writer struct {
	*Base
	Writer *writer.Writer
	Member *peers.Member

	watching chan struct{} // closed when Member.Run has returned
	unwatch  context.CancelFunc
}

// OpenWriter starts a writer process on a store, making a cluster in it if there is none. It
// returns before it holds anything. Errors: Invalid, when it is for shards that do not
// exist; those of the store.
func OpenWriter(ctx context.Context, b bucket.Bucket, h host.Host, net Network, role WriterRole, o Options) (*Writer, error) {
	s, err := newBase(ctx, b, h, o)
	if err != nil {
		return nil, err
	}
	if err := s.exist(role.Named); err != nil {
		return nil, errors.Join(err, s.end())
	}
	dialer := rpc.NewLocal(net)
	w := &Writer{Base: s, watching: make(chan struct{})}
	w.Writer = writer.New(writer.Config{
		Root: s.Root, Bucket: b, Open: s.places.Open, Store: s.store, Host: h, Holder: s.holder, Address: role.Address, Log: s.log, Dial: dialer, Alarm: s.Alarm,
		Settings: writer.Settings{Lease: s.options.Lease, MemtableBytes: s.options.MemtableBytes, Sorts: s.sorts, Retries: s.retries, Segments: s.segments},
	})
	dialer.Add(s.holder, w.Writer)
	w.Member = peers.New(peers.Config{
		Root: s.Root, Writer: w.Writer, Dial: net, Host: h, Log: s.log, Alarm: s.Alarm,
		Holder: s.holder, Address: role.Address, Any: role.Any, Named: role.Named, Merged: s.merged,
	})
	s.run(w.Writer.Run)
	s.run(s.collect(w.first))
	historian := router.New(router.Config{Root: s.Root, Dialer: dialer, Store: s.store, Bucket: b, Host: h, Log: s.log})
	s.run(func(ctx context.Context) error { return historian.KeepHistory(ctx, w.first) })
	s.keepUp(dialer)
	s.balance(dialer, role.Address)
	watch, unwatch := context.WithCancel(s.background)
	w.unwatch = unwatch
	s.roles.Go(func() error {
		defer close(w.watching)
		return w.Member.Run(watch)
	})
	return w, nil
}

// exist refuses shards that the cluster does not have.
func (s *Base) exist(named []manifest.ShardID) error {
	var all []manifest.ShardID
	for _, x := range s.Root.State().Shards() {
		all = append(all, x.ID)
	}
	for _, id := range named {
		if !slices.Contains(all, id) {
			return fmt.Errorf("--shards %s: %w: the cluster has %v", id, errkind.Invalid, all)
		}
	}
	return nil
}

// first reports whether this process holds the first of the shards that are held: it sweeps
// for all of them.
func (w *Writer) first() bool {
	for _, x := range w.Root.State().Shards() {
		if x.Status != manifest.ShardFree {
			return x.Holder == w.holder
		}
	}
	return false
}

// Close gives the shards to other processes, frees those that nobody takes, and stops. When
// ctx ends first, shards stay held and a takeover recovers them: slower, never wrong.
func (w *Writer) Close(ctx context.Context) error {
	w.unwatch()
	<-w.watching
	w.Member.Leave(ctx)
	err := w.Writer.Close(ctx)
	return errors.Join(err, w.end())
}

// Router is a process that serves drivers and holds nothing.
type Router struct {
	*Base
	Router   *router.Router
	Commands *command.Commands
}

// OpenRouter starts a router process on a store, making a cluster in it if there is none.
func OpenRouter(ctx context.Context, b bucket.Bucket, h host.Host, net Network, o Options) (*Router, error) {
	s, err := newBase(ctx, b, h, o)
	if err != nil {
		return nil, err
	}
	guard := peers.NewGuard(net, s.Root, h, s.log)
	r := &Router{Base: s}
	r.Router = router.New(router.Config{
		Root: s.Root, Dialer: guard, Store: s.store, Bucket: b, Claimer: peers.NewFinder(s.Root, net, h, s.log), Host: h, Log: s.log,
		Answers: s.answers, Sorts: s.sorts, Prepare: s.places.Prepare, Settings: router.Settings{Zone: o.Zone},
	})
	r.Commands = command.New(r.Router, s.answering(nil))
	s.run(guard.Run)
	s.run(r.Commands.Run)
	return r, nil
}

// Close stops the background work. Requires: no command runs any more.
func (r *Router) Close(context.Context) error { return r.end() }

// Balancer is a process that moves chunks, and nothing else.
type Balancer struct{ *Base }

// OpenBalancer starts a balancer process on a store that has a cluster. When told to
// (Options.NoBalancer) it does nothing by itself: its Balancer can be asked.
func OpenBalancer(ctx context.Context, b bucket.Bucket, h host.Host, net Network, o Options) (*Balancer, error) {
	s, err := newBase(ctx, b, h, o)
	if err != nil {
		return nil, err
	}
	guard := peers.NewGuard(net, s.Root, h, s.log)
	s.run(guard.Run)
	s.balance(guard, "")
	return &Balancer{s}, nil
}

// Close stops it; moves under way are their owners'.
func (b *Balancer) Close(context.Context) error { return b.end() }

// Compactor is a process that merges the segments of all shards, and takes out what has
// expired. It deletes nothing.
type Compactor struct{ *Base }

// OpenCompactor starts a compactor process on a store, making a cluster in it if there is none.
func OpenCompactor(ctx context.Context, b bucket.Bucket, h host.Host, o Options) (*Compactor, error) {
	s, err := newBase(ctx, b, h, o)
	if err != nil {
		return nil, err
	}
	s.compact(nil)
	s.run(func(ctx context.Context) error {
		for h.Sleep(ctx, expireEvery) == nil {
			s.expire(ctx)
		}
		return nil
	})
	return &Compactor{s}, nil
}

// Close stops it. What is merged is committed, and its job ends.
func (c *Compactor) Close(context.Context) error { return c.end() }
