package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack/history"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"golang.org/x/sync/errgroup"
)

// view is the test's own way into a cluster: its store, its root, and its writers by RPC.
type view struct {
	t      testing.TB
	bucket bucket.Bucket
	root   *manifest.Root
	dialer *rpc.HTTPDialer
}

func newView(t testing.TB, store string) *view {
	t.Helper()
	h := host.System()
	b, err := open.URL(context.Background(), store, h)
	if err != nil {
		t.Fatal(err)
	}
	v := &view{t: t, bucket: b, root: manifest.NewRoot(bucket.NewCell(b), h, nil), dialer: rpc.NewHTTPDialer(os.Getenv("GRANARY_SECRET"), h, nil)}
	t.Cleanup(func() {
		v.dialer.Close()
		_ = b.Close()
	})
	v.state()
	return v
}

// state is the root of now, or an older one while the store does not answer.
func (v *view) state() *manifest.State {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, _, err := v.root.Load(ctx); err != nil && v.root.State() == nil {
		v.t.Fatal(err) // not later than in newView
	}
	return v.root.State()
}

// move asks the owner of a random chunk of a collection to hand it to another shard.
func (v *view) move(database, name string) error {
	state := v.state()
	var chunks []*manifest.Chunk
	for c := range state.Chunks(state.CollectionByName(database, name).ID) {
		chunks = append(chunks, c)
	}
	c, to := chunks[rand.IntN(len(chunks))], state.Shards()[rand.IntN(len(state.Shards()))].ID
	from := state.Shard(c.Shard)
	if to == c.Shard || from.Address == "" || state.Shard(to).Address == "" {
		return fmt.Errorf("chunk %d from %s to %s: nobody to ask", c.ID, c.Shard, to)
	}
	owner, err := v.dialer.Dial(c.Shard, from.Holder, from.Address)
	if err != nil {
		return err
	}
	_, err = owner.Move(context.Background(), &rpc.MoveRequest{
		Header: rpc.Header{Shard: c.Shard, Collection: c.Collection, RootVersion: state.Version(), Deadline: 10 * time.Second}, Chunks: []manifest.ChunkAt{c.At()}, To: to,
	})
	return err
}

// mover moves chunks all the time.
type mover struct {
	stopped chan struct{}
	done    sync.WaitGroup
	mu      sync.Mutex
	moved   int
	refused map[string]int
}

// startMover moves chunks of a collection, a pause between two moves, until it is stopped.
func startMover(v *view, database, name string, pause time.Duration) *mover {
	m := &mover{stopped: make(chan struct{}), refused: map[string]int{}}
	m.done.Go(func() {
		for {
			select {
			case <-m.stopped:
				return
			case <-time.After(pause):
			}
			err := v.move(database, name)
			m.mu.Lock()
			if err == nil {
				m.moved++
			} else if at := strings.LastIndex(err.Error(), ": "); at > 0 {
				m.refused[err.Error()[at+2:]]++
			}
			m.mu.Unlock()
		}
	})
	return m
}

func (m *mover) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moved
}

func (m *mover) stop() {
	close(m.stopped)
	m.done.Wait()
}

// logCopy reads every object of the log before the collector deletes it, for the ids of the
// writes in it.
type logCopy struct {
	v       *view
	stopped chan struct{}
	done    sync.WaitGroup

	mu     sync.Mutex
	last   map[manifest.ShardID]string // the last key that a look found
	before map[manifest.ShardID]string // and the look before it
	seen   map[string]bool             // keys
	logged map[string]manifest.Seq     // history.WriteID
	seals  int
	failed error
}

// copyEvery is far below the time between two sweeps of a collector.
const copyEvery = 250 * time.Millisecond

func startCopy(v *view) *logCopy {
	c := &logCopy{v: v, stopped: make(chan struct{}), last: map[manifest.ShardID]string{}, before: map[manifest.ShardID]string{}, seen: map[string]bool{}, logged: map[string]manifest.Seq{}}
	c.done.Go(func() {
		for {
			select {
			case <-c.stopped:
				return
			case <-time.After(copyEvery):
				c.poll(false)
			}
		}
	})
	return c
}

// takeovers are the epochs that ended with a seal.
func (c *logCopy) takeovers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seals
}

// poll reads what is new. What a shard's log gets is in the order of its keys, but for the
// seals of a takeover that died: all looks at everything once more.
func (c *logCopy) poll(all bool) {
	var shards sync.WaitGroup
	for _, s := range c.v.root.State().Shards() {
		shards.Go(func() {
			if err := c.shard(s.ID, all); err != nil {
				c.mu.Lock()
				c.failed = err
				c.mu.Unlock()
			}
		})
	}
	shards.Wait()
}

// shard reads a shard's objects, some at a time. It lists those once more that the last look
// found: a listing may lack an object that came while it was made, and have a later one.
func (c *logCopy) shard(id manifest.ShardID, all bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c.mu.Lock()
	after, start := c.before[id], c.last[id]
	c.mu.Unlock()
	if all {
		after = ""
	}
	last := start
	for more := true; more; {
		page, left, err := c.v.bucket.List(ctx, "wal/"+string(id)+"/", after, 0)
		if err != nil {
			return err
		}
		for part := range slices.Chunk(page, 16) {
			var reads errgroup.Group
			for _, o := range part {
				reads.Go(func() error { return c.object(ctx, o.Key) })
			}
			if err := reads.Wait(); err != nil {
				return err
			}
			after = part[len(part)-1].Key
			last = max(last, after)
		}
		more = left
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before[id], c.last[id] = start, last
	return nil
}

func (c *logCopy) object(ctx context.Context, key string) error {
	c.mu.Lock()
	seen := c.seen[key]
	c.mu.Unlock()
	if seen {
		return nil
	}
	o, err := c.v.bucket.Get(ctx, key, bucket.GetOptions{})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	seal, err := history.Logged(o.Body, c.logged)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	c.seen[key] = true
	if seal {
		c.seals++
	}
	return nil
}

// stop reads what is left, and requires that no object came and went between two looks: an
// epoch's are numbered without a gap, and the last of each is never deleted.
func (c *logCopy) stop() {
	c.v.t.Helper()
	close(c.stopped)
	c.done.Wait()
	c.failed = nil
	c.v.state()
	c.poll(true)
	if c.failed != nil {
		c.v.t.Fatalf("copy of the log: %v", c.failed)
	}
	for _, key := range slices.Sorted(maps.Keys(c.seen)) {
		shard, epoch, index, err := manifest.ParseWALKey(key)
		if err != nil {
			c.v.t.Fatal(err)
		}
		if before := manifest.WALKey(shard, epoch, index-1); index > 0 && !c.seen[before] {
			c.v.t.Fatalf("%s was deleted before it was copied: the collector was faster", before)
		}
	}
}
