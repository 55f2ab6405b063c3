package peers

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a cluster in a bubble of virtual time: real writers on one bucket in memory, and
// a network of addresses.
type world struct {
	t    *testing.T
	mem  *membucket.Bucket
	mu   sync.Mutex
	at   map[string]*proc // who listens at an address
	born int
}

// proc is one writer process.
type proc struct {
	*Member
	in      *world
	w       *writer.Writer
	root    *manifest.Root
	address string
	stop    context.CancelFunc
	done    sync.WaitGroup
	rude    bool // answers nobody's ping, as one with another secret
	stuck   bool // answers and asks no other process
	stopped bool // does not look at the root either
}

// stoppable is the way of a process to the root: nothing gets there while it is stopped.
type stoppable struct {
	manifest.Cell
	p *proc
}

func (c stoppable) wait(ctx context.Context) error {
	for {
		c.p.in.mu.Lock()
		stopped := c.p.stopped
		c.p.in.mu.Unlock()
		if !stopped {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (c stoppable) Load(ctx context.Context, key, known string) ([]byte, string, error) {
	if err := c.wait(ctx); err != nil {
		return nil, "", err
	}
	return c.Cell.Load(ctx, key, known)
}

func (c stoppable) Swap(ctx context.Context, key string, body []byte, from string) (string, error) {
	if err := c.wait(ctx); err != nil {
		return "", err
	}
	return c.Cell.Swap(ctx, key, body, from)
}

func inWorld(t *testing.T, shards int, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, mem: membucket.New(), at: make(map[string]*proc)}
		var ids []manifest.ShardID
		for i := range shards {
			ids = append(ids, manifest.ShardID(fmt.Sprintf("shard%02d", i+1)))
		}
		if _, err := manifest.Create(t.Context(), bucket.NewCell(w.mem), host.System(), manifest.InitOptions{Shards: ids}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			for _, p := range w.at {
				p.kill(w)
			}
		}()
		f(t, w)
	})
}

// peerAt is the way from a process, or from none, to another; every call looks who listens
// now.
type peerAt struct {
	w       *world
	from    *proc
	address string
}

func (w *world) DialPeer(address string) (rpc.Peer, error) { return peerAt{w, nil, address}, nil }

// DialPeer is how a process dials.
func (p *proc) DialPeer(address string) (rpc.Peer, error) {
	if address == "" {
		return nil, rpc.Unreachable
	}
	return peerAt{p.in, p, address}, nil
}

// reach finds the process, or fails as a machine or a silent network does.
func (p peerAt) reach(ctx context.Context) (*proc, error) {
	p.w.mu.Lock()
	x := p.w.at[p.address]
	stuck := x != nil && x.stuck || p.from != nil && p.from.stuck
	p.w.mu.Unlock()
	switch {
	case x == nil:
		return nil, fmt.Errorf("%w: %w", rpc.Unreachable, syscall.ECONNREFUSED)
	case stuck:
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", rpc.Unreachable, context.Cause(ctx))
	}
	return x, nil
}

func (p peerAt) Ping(ctx context.Context, r *rpc.PingRequest) (*rpc.PingReply, error) {
	x, err := p.reach(ctx)
	if err != nil {
		return nil, err
	}
	if x.rude {
		return nil, fmt.Errorf("401 Unauthorized: %w", rpc.Stranger)
	}
	return x.Ping(ctx, r)
}

func (p peerAt) Claim(ctx context.Context, r *rpc.ClaimRequest) (*rpc.ClaimReply, error) {
	x, err := p.reach(ctx)
	if err != nil {
		return nil, err
	}
	return x.Claim(ctx, r)
}

const lease = 5 * time.Second

// start runs a writer process at an address: for any shard, or for those named.
func (w *world) start(address string, named ...manifest.ShardID) *proc {
	w.born++
	holder := fmt.Sprintf("%s#%d", address, w.born)
	h := host.System()
	p := &proc{in: w, address: address}
	root := manifest.NewRoot(stoppable{bucket.NewCell(w.mem), p}, h, nil)
	p.root = root
	store := reader.NewStore(func(manifest.LocationID) (bucket.Bucket, error) { return w.mem, nil }, segment.NewCache(1<<20))
	p.w = writer.New(writer.Config{Root: root, Bucket: w.mem, Store: store, Host: h, Holder: holder, Address: address, Settings: writer.Settings{Lease: lease}})
	p.Member = New(Config{Root: root, Writer: p.w, Dial: p, Host: h, Holder: holder, Address: address, Any: len(named) == 0, Named: named})
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	w.mu.Lock()
	w.at[address] = p
	w.mu.Unlock()
	p.done.Go(func() { _ = p.w.Run(ctx) })
	p.done.Go(func() { _ = p.Run(ctx) })
	return p
}

// kill is kill -9.
func (p *proc) kill(w *world) {
	w.mu.Lock()
	if w.at[p.address] == p {
		delete(w.at, p.address)
	}
	w.mu.Unlock()
	p.stop()
	p.w.Abandon()
	p.done.Wait()
}

// quit is SIGTERM.
func (p *proc) quit(w *world) {
	p.stop()
	p.done.Wait()
	p.Leave(context.Background())
	if err := p.w.Close(context.Background()); err != nil {
		w.t.Error(err)
	}
	w.mu.Lock()
	delete(w.at, p.address)
	w.mu.Unlock()
}

// state is the root as it is.
func (w *world) state() *manifest.State {
	w.t.Helper()
	st, _, err := manifest.NewRoot(bucket.NewCell(w.mem), host.System(), nil).Load(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

// holders is which address holds each shard; "-" for a free one.
func (w *world) holders() string {
	out := ""
	for _, s := range w.state().Shards() {
		if s.Status == manifest.ShardFree {
			out += "- "
		} else {
			out += s.Address + " "
		}
	}
	return out
}

// held counts the shards of an address.
func (w *world) held(address string) (n int) {
	for _, s := range w.state().Shards() {
		if s.Status != manifest.ShardFree && s.Address == address {
			n++
		}
	}
	return n
}

// served reports whether every shard is served by the process that the root names.
func (w *world) served() bool {
	for _, s := range w.state().Shards() {
		w.mu.Lock()
		p := w.at[s.Address]
		w.mu.Unlock()
		if p == nil || s.Status == manifest.ShardFree || s.Holder != p.c.Holder {
			return false
		}
		ok := false
		for _, x := range p.w.Status().Shards {
			ok = ok || x.ID == s.ID && x.Phase == writer.Serving && x.Epoch == s.Epoch
		}
		if !ok {
			return false
		}
	}
	return true
}

// until waits for something, and returns how long it took.
func (w *world) until(what string, limit time.Duration, ok func() bool) time.Duration {
	w.t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > limit {
			w.t.Fatalf("not within %v: %s; holders: %s", limit, what, w.holders())
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

func (w *world) eachHolds(n int, addresses ...string) func() bool {
	return func() bool {
		for _, a := range addresses {
			if w.held(a) != n {
				return false
			}
		}
		return w.served()
	}
}
