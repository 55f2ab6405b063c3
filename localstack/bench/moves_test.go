package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A flush is one commit and at most one segment for each chunk; small chunks share one.
func TestRequestsOfAFlush(t *testing.T) {
	inBubble(t, localstack.Options{Shards: 1, Lease: quiet.Lease, CollectEvery: quiet.CollectEvery}, func(x *bill) {
		x.sharded(100, 200, 300)
		x.insert(0, 50)
		x.costs("flush of one chunk", "put root=1 put seg=1", func() { flush(x.t, x.stack) })
		x.insert(50, 350)
		x.costs("flush of four small chunks", "put root=1 put seg=1", func() { flush(x.t, x.stack) })
		x.costs("flush of nothing", "", func() { flush(x.t, x.stack) })
	})
}

// Splits and merges are a change of the root, and nothing else.
func TestRequestsOfSplitAndMerge(t *testing.T) {
	inBubble(t, quiet, func(x *bill) {
		x.sharded(1000)
		x.insert(0, 100)
		flush(x.t, x.stack)
		whole := x.chunks()[0]
		x.costs("split", "put root=1", func() {
			x.commit(manifest.Split{Chunk: whole.At(), Points: []manifest.Bound{x.bound(whole.Collection, 50)}})
		})
		halves := x.chunks()
		x.costs("merge", "put root=1", func() { x.commit(manifest.Merge{Left: halves[0].At(), Right: halves[1].At()}) })
	})
}

func (x *bill) commit(c manifest.Change) {
	x.t.Helper()
	_, err := x.stack.Root.Commit(context.Background(), manifest.Edit{Op: [16]byte{byte(x.stack.Root.State().Version())}, Changes: []manifest.Change{c}})
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *bill) bound(c manifest.CollectionID, k int) manifest.Bound {
	x.t.Helper()
	doc, err := bson.Marshal(bson.D{{Key: "k", Value: k}})
	if err != nil {
		x.t.Fatal(err)
	}
	key, full, err := x.stack.Root.State().Collection(c).Key.Bound(doc)
	if err != nil {
		x.t.Fatal(err)
	}
	return manifest.Bound{Key: key, BSON: full}
}

// A planned move flushes what the chunk has and commits; no byte of a segment is copied, and
// the new owner reads nothing before somebody asks.
func TestRequestsOfAPlannedMove(t *testing.T) {
	inBubble(t, quiet, func(x *bill) {
		x.sharded(100)
		x.insert(0, 50)
		x.costs("move of a chunk with unflushed rows", "put root=1 put seg=1", func() { x.move(x.chunks()[0], "shard03") })
		x.costs("move of a chunk without", "put root=1", func() { x.move(x.chunks()[0], "shard01") })
		x.costs("read after it", "get seg=1", func() { x.find(7) })
		x.costs("write after it", "put wal=1", func() { x.insert(60, 1) })
	})
}

func (x *bill) move(c *manifest.Chunk, to manifest.ShardID) {
	x.t.Helper()
	_, err := x.stack.Writer.Move(context.Background(), &rpc.MoveRequest{
		Header: rpc.Header{Shard: c.Shard, Collection: c.Collection}, Chunks: []manifest.ChunkAt{c.At()}, To: to,
	})
	if err != nil {
		x.t.Fatal(err)
	}
}

// A stop leaves one segment and one commit; the next start has nothing to replay.
func TestRequestsOfAStopAndAStart(t *testing.T) {
	one := localstack.Options{Shards: 1, Lease: quiet.Lease, CollectEvery: quiet.CollectEvery}
	inBubble(t, one, func(x *bill) {
		x.sharded()
		x.insert(0, 50)
		x.costs("stop", "put root=1 put seg=1", x.close)
		x.costs("start", "get root=2 put root=1", x.reopen)
	})
}

// A takeover claims by one commit, looks for the end of the log side by side, seals it there,
// and reads what is above the floor; the last object once more, to see that it is no seal.
func TestRequestsOfATakeover(t *testing.T) {
	for objects, want := range map[int]string{
		0:  "get root=2 head wal=8 put root=1 put wal=1",
		1:  "get root=2 get wal=2 head wal=8 put root=1 put wal=1",
		20: "get root=2 get wal=21 head wal=17 put root=1 put wal=1",
	} {
		t.Run(fmt.Sprintf("%d objects", objects), func(t *testing.T) {
			inBubble(t, localstack.Options{Shards: 1, Lease: time.Second, CollectEvery: quiet.CollectEvery}, func(x *bill) {
				x.sharded()
				for i := range objects {
					x.insert(10*i, 10)
				}
				x.stack.Writer.Abandon() // kill -9
				x.close()
				x.costs("takeover", want, x.reopen)
				x.costs("what was acknowledged", "", func() {
					reply := x.do(bson.E{Key: "count", Value: "docs"})
					if n, _ := reply.Lookup("n").AsInt64OK(); n != int64(10*objects) {
						x.t.Errorf("%d documents, want %d", n, 10*objects)
					}
				})
			})
		})
	}
}

// An idle process looks at the root once in a lease, for all its shards together.
func TestRequestsOfIdleShards(t *testing.T) {
	inBubble(t, localstack.Options{Lease: time.Second, CollectEvery: quiet.CollectEvery}, func(x *bill) {
		x.sharded(100, 200)
		x.insert(0, 300)
		flush(x.t, x.stack)
		time.Sleep(time.Minute + time.Second/2) // drained, and between two looks
		const leases = 100
		got := x.spent(func() { time.Sleep(leases * time.Second) })
		if n := got.Of(layer.Get, layer.Root).Requests; n > leases {
			x.t.Errorf("%d GETs of the root in %d leases", n, leases)
		}
		if s := got.String(); s != fmt.Sprintf("get root=%d", got.Of(layer.Get, layer.Root).Requests) {
			x.t.Errorf("an idle process does more than look at the root: %s", s)
		}
	})
}
