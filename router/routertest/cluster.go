// Package routertest is a cluster in memory for tests of what stands on a router: a real
// root and real writers, each with its own view of the root, over one bucket in memory, and
// messages that a test can lose on the way there or back.
package routertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
)

// Fate is what becomes of a message.
type Fate int

const (
	// Deliver: it arrives, and so does the reply.
	Deliver Fate = iota
	// LoseRequest: the owner never gets it.
	LoseRequest
	// LoseReply: the owner does it, and nobody hears of it.
	LoseReply
)

// Message is one request to an owner.
type Message struct {
	Verb  string // "read", "cursor", "write", "flush"
	Shard manifest.ShardID
	// Write is the request of the verb "write".
	Write *rpc.WriteRequest
}

// Cluster is a running cluster.
type Cluster struct {
	Bucket *membucket.Bucket
	Host   host.Host
	// Root is the test's own view of the root.
	Root *manifest.Root
	// Router is a router that knows all writers.
	Router *router.Router

	tb   testing.TB
	plan faultbucket.Plan
	mu   sync.Mutex
	fate func(Message) Fate
	sent map[string]int
	// Of each writer process, by holder name.
	writers map[string]*process
}

type process struct {
	*writer.Writer
	stop context.CancelFunc
	done chan struct{}
}

// Options tune a Cluster.
type Options struct {
	Shards int // 3
	// Held is how many of the shards have a writer of their own; -1: none.
	Held int // all
	// Settings are the router's.
	Settings router.Settings
	// Plan says what happens to the requests of writers to the bucket; nil: nothing.
	Plan faultbucket.Plan
}

// New starts a cluster; it ends with the test. It may run inside a synctest bubble.
func New(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	if o.Shards == 0 {
		o.Shards = 3
	}
	if o.Held == 0 {
		o.Held = o.Shards
	}
	c := &Cluster{
		Bucket: membucket.New(), Host: host.System(), tb: tb, plan: o.Plan,
		sent: make(map[string]int), writers: make(map[string]*process),
	}
	ctx := context.Background()
	var ids []manifest.ShardID
	for i := range o.Shards {
		ids = append(ids, manifest.ShardID(fmt.Sprintf("shard%02d", i+1)))
	}
	if _, err := manifest.Create(ctx, bucket.NewCell(c.Bucket), c.Host, manifest.InitOptions{Shards: ids}); err != nil {
		tb.Fatal(err)
	}
	c.Root = c.newRoot()
	c.Router = c.NewRouter(o.Settings)
	for _, id := range ids[:max(o.Held, 0)] {
		if err := c.Claim(ctx, id); err != nil {
			tb.Fatal(err)
		}
	}
	return c
}

func (c *Cluster) newRoot() *manifest.Root {
	root := manifest.NewRoot(bucket.NewCell(c.Bucket), c.Host, nil)
	if _, _, err := root.Load(context.Background()); err != nil {
		c.tb.Fatal(err)
	}
	return root
}

func (c *Cluster) faulty() bucket.Bucket {
	if c.plan == nil {
		return c.Bucket
	}
	return faultbucket.New(c.Bucket, c.Host, c.plan)
}

func (c *Cluster) newStore() *reader.Store {
	open := func(manifest.LocationID) (bucket.Bucket, error) { return c.Bucket, nil }
	return reader.NewStore(open, segment.NewCache(8<<20))
}

// NewRouter makes one more router, with its own view of the root.
func (c *Cluster) NewRouter(s router.Settings) *router.Router {
	return router.New(router.Config{Root: c.newRoot(), Dialer: c, Store: c.newStore(), Bucket: c.Bucket, Claimer: c, Host: c.Host, Settings: s})
}

// Claim starts a writer that holds the shard; it makes a Cluster a router.Claimer.
func (c *Cluster) Claim(ctx context.Context, shard manifest.ShardID) error {
	id := c.Host.ID16()
	name := fmt.Sprintf("%s-%x", shard, id[:3])
	w := writer.New(writer.Config{
		Root: c.newRoot(), Bucket: c.faulty(), Store: c.newStore(), Host: c.Host, Holder: name, Dial: c,
		Settings: writer.Settings{Lease: 200 * time.Millisecond},
	})
	background, stop := context.WithCancel(context.Background())
	p := &process{Writer: w, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = w.Run(background)
	}()
	c.mu.Lock()
	c.writers[name] = p
	c.mu.Unlock()
	c.tb.Cleanup(func() { c.close(name) })
	return w.Hold(ctx, shard)
}

func (c *Cluster) close(name string) {
	c.mu.Lock()
	p := c.writers[name]
	delete(c.writers, name)
	c.mu.Unlock()
	if p != nil {
		c.end(p)
	}
}

func (c *Cluster) end(p *process) {
	ctx, cancel := c.Host.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = p.Close(ctx)
	p.stop()
	<-p.done
}

// Stop ends the writer of a shard as SIGTERM would: everything is flushed, the shard free.
func (c *Cluster) Stop(shard manifest.ShardID) {
	c.tb.Helper()
	c.close(c.load().Shard(shard).Holder)
}

// Unplug makes the writer of a shard unreachable, for good; it goes on without clients.
func (c *Cluster) Unplug(shard manifest.ShardID) {
	c.tb.Helper()
	holder := c.load().Shard(shard).Holder
	c.mu.Lock()
	p := c.writers[holder]
	delete(c.writers, holder)
	c.mu.Unlock()
	c.tb.Cleanup(func() { c.end(p) })
}

func (c *Cluster) load() *manifest.State {
	c.tb.Helper()
	s, _, err := c.Root.Load(context.Background())
	if err != nil {
		c.tb.Fatal(err)
	}
	return s
}

// State is the newest root.
func (c *Cluster) State() *manifest.State {
	c.tb.Helper()
	return c.load()
}

// Check reads every row of every segment, and fails the test when something is wrong.
func (c *Cluster) Check() {
	c.tb.Helper()
	all := fsck.Checker{Root: c.Root, Bucket: c.Bucket, Open: func(manifest.LocationID) (bucket.Bucket, error) { return c.Bucket, nil }, Deep: true}
	if r, err := all.Run(context.Background()); err != nil || len(r.Problems) > 0 {
		c.tb.Errorf("fsck: %+v, %v", r, err)
	}
}

// Commit changes the root behind everybody's back.
func (c *Cluster) Commit(changes ...manifest.Change) {
	c.tb.Helper()
	if _, err := c.Root.Commit(context.Background(), manifest.Edit{Op: c.Host.ID16(), Changes: changes}); err != nil {
		c.tb.Fatal(err)
	}
}

// Move gives the chunk that holds a key to another shard.
func (c *Cluster) Move(coll *manifest.Collection, key []byte, to manifest.ShardID) {
	c.tb.Helper()
	s := c.load()
	chunk := s.ChunkOf(coll.ID, key)
	h := s.Shard(chunk.Shard)
	c.mu.Lock()
	p := c.writers[h.Holder]
	c.mu.Unlock()
	_, err := p.Move(context.Background(), &rpc.MoveRequest{
		Header: rpc.Header{Shard: h.ID, Collection: coll.ID, RootVersion: s.Version()}, Chunks: []manifest.ChunkAt{chunk.At()}, To: to,
	})
	if err != nil {
		c.tb.Fatal(err)
	}
}

// Fate has every message to an owner decided by f; nil: all are delivered.
func (c *Cluster) Fate(f func(Message) Fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fate = f
}

// Sent counts the messages of a verb since the last Reset.
func (c *Cluster) Sent(verb string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent[verb]
}

// Reset begins to count anew.
func (c *Cluster) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.sent)
}

// Dial finds a writer; it makes a Cluster an rpc.Dialer.
func (c *Cluster) Dial(_ manifest.ShardID, holder, _ string) (rpc.Owner, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.writers[holder]
	if p == nil {
		return nil, fmt.Errorf("dial %s: %w", holder, rpc.Unreachable)
	}
	return &link{c: c, Writer: p.Writer}, nil
}

// link is the way to one writer.
type link struct {
	c *Cluster
	*writer.Writer
}

func (l *link) decide(m Message) Fate {
	l.c.mu.Lock()
	l.c.sent[m.Verb]++
	f := l.c.fate
	l.c.mu.Unlock()
	if f == nil {
		return Deliver
	}
	return f(m)
}

// pass carries a request; lost is the error of one whose reply does not come.
func pass[Reply any](fate Fate, lost error, call func() (Reply, error)) (Reply, error) {
	var none Reply
	if fate == LoseRequest {
		return none, fmt.Errorf("request lost: %w", lost)
	}
	reply, err := call()
	if fate == LoseReply {
		return none, fmt.Errorf("reply lost: %w", lost)
	}
	return reply, err
}

// Read carries a read.
func (l *link) Read(ctx context.Context, r *rpc.ReadRequest) (*rpc.ReadReply, error) {
	return pass(l.decide(Message{Verb: "read", Shard: r.Shard}), rpc.Unreachable, func() (*rpc.ReadReply, error) { return l.Writer.Read(ctx, r) })
}

// Cursor carries a request for more.
func (l *link) Cursor(ctx context.Context, r *rpc.CursorRequest) (*rpc.ReadReply, error) {
	verb := "cursor"
	if r.Close {
		verb = "close"
	}
	return pass(l.decide(Message{Verb: verb, Shard: r.Shard}), rpc.Unreachable, func() (*rpc.ReadReply, error) { return l.Writer.Cursor(ctx, r) })
}

// Write carries a write.
func (l *link) Write(ctx context.Context, r *rpc.WriteRequest) (*rpc.WriteReply, error) {
	return pass(l.decide(Message{Verb: "write", Shard: r.Shard, Write: r}), errkind.UnknownOutcome, func() (*rpc.WriteReply, error) { return l.Writer.Write(ctx, r) })
}

// Flush carries a flush.
func (l *link) Flush(ctx context.Context, r *rpc.FlushRequest) (*rpc.FlushReply, error) {
	return pass(l.decide(Message{Verb: "flush", Shard: r.Shard}), errkind.UnknownOutcome, func() (*rpc.FlushReply, error) { return l.Writer.Flush(ctx, r) })
}

// Move carries a request to hand chunks over.
func (l *link) Move(ctx context.Context, r *rpc.MoveRequest) (*rpc.MoveReply, error) {
	return pass(l.decide(Message{Verb: "move", Shard: r.Shard}), errkind.UnknownOutcome, func() (*rpc.MoveReply, error) { return l.Writer.Move(ctx, r) })
}
