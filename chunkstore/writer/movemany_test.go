package writer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// cutAt makes the collection with n bounds at the even numbers from 2, all on one shard.
func (w *world) cutAt(shard string, n int) {
	w.t.Helper()
	points := make([]any, n)
	for i := range points {
		points[i] = 2 * (i + 1)
	}
	w.collection(strings.TrimSuffix(strings.Repeat(shard+",", n+1), ","), points...)
}

// moveAll moves the chunks of shard from for which choose says so, by its number in key order.
func (w *world) moveAll(p *proc, from, to manifest.ShardID, choose func(i int) bool) error {
	st := w.state()
	var list []manifest.ChunkAt
	i := 0
	for c := range st.AllChunks() {
		if c.Shard == from && choose(i) {
			list = append(list, c.At())
		}
		i++
	}
	_, err := p.Move(w.t.Context(), &rpc.MoveRequest{Header: rpc.Header{Shard: from, RootVersion: st.Version()}, Chunks: list, To: to})
	return err
}

// on counts the chunks of each shard.
func (w *world) on() map[manifest.ShardID]int {
	n := make(map[manifest.ShardID]int)
	for c := range w.state().AllChunks() {
		n[c.Shard]++
	}
	return n
}

// 1441 empty chunks are spread over three shards, in turn, by two commits: the root and the
// pages that it does not hold itself, and no segment.
func TestManyEmptyChunksMoveInOneCommit(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", longLease, quiet).holds("a", "b", "c")
		w.cutAt("a", 1440)
		_, _, err := p.root.Load(t.Context())
		check(t, err)
		for k, to := range []manifest.ShardID{"b", "c"} {
			before := p.metered.Snapshot()
			check(t, w.moveAll(p, "a", to, func(i int) bool { return i%3 == k+1 }))
			cost := p.metered.Snapshot().Sub(before).String()
			if !strings.Contains(cost, "put root=1") || strings.Contains(cost, "seg") || strings.Contains(cost, "wal") {
				t.Errorf("a third of the chunks to %s cost %q", to, cost)
			}
		}
		diff(t, w.on(), map[manifest.ShardID]int{"a": 481, "b": 480, "c": 480})
		diff(t, p.shard("a").counts.Moves, int64(960))
		c := w.client()
		for id := range 12 {
			c.insert(fmt.Sprintf("{_id: %d}", 100+id))
		}
	})
}

// Chunks with unflushed rows and retry ids that move together share one segment, and
// afterwards each has its own rows, its own retries, and a floor at the destination.
func TestChunksThatMoveTogetherShareASegment(t *testing.T) {
	t.Parallel()
	for name, large := range map[string]func(*Settings){"at once": quiet, "flushed before": func(s *Settings) { quiet(s); s.MovePreflush = 1 }} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				p, q := w.process("p", longLease, large).holds("a"), w.process("q", longLease, quiet).holds("b")
				w.cutAt("a", 7)
				c := w.client()
				var docs []string
				var last []rpc.WriteOp
				for id := range 16 {
					docs = append(docs, fmt.Sprintf("{_id: %d}", id))
					last = append(last, c.op(insertOp(docs[id])))
					c.do(last[id])
				}
				before := p.metered.Snapshot()
				check(t, w.moveAll(p, "a", "b", func(i int) bool { return i != 3 }))
				want := "put root=1 put seg=1"
				if name == "flushed before" {
					want = "put root=2 put seg=1"
				}
				diff(t, p.metered.Snapshot().Sub(before).String(), want)
				diff(t, w.on(), map[manifest.ShardID]int{"a": 1, "b": 7})
				c.want(docs...)
				for _, op := range last { // each is known as done, wherever it is now
					diff(t, c.do(op).N, int64(1))
				}
				c.remove(4)
				p.kill()
				q.kill()
				w.process("r").holds("a", "b")
				c.want(slices.Delete(docs, 4, 5)...)
			})
		})
	}
}

// Chunks move all or none, and what can never be is refused by name.
func TestChunksMoveAllOrNone(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", quiet).holds("a", "b")
		w.cutAt("a", 3)
		_, _, err := p.root.Load(t.Context())
		check(t, err)
		var list []manifest.ChunkAt
		for c := range w.state().AllChunks() {
			list = append(list, c.At())
		}
		move := func(to manifest.ShardID, list ...manifest.ChunkAt) error {
			_, err := p.Move(t.Context(), &rpc.MoveRequest{Header: rpc.Header{Shard: "a"}, Chunks: list, To: to})
			return err
		}
		other := list[2]
		other.Version++
		wantStale(t, move("b", list[0], other))
		wantKind(t, move("b"), errkind.Invalid)
		wantKind(t, move("b", list[0], list[1], list[0]), errkind.Invalid)
		wantKind(t, move("b", make([]manifest.ChunkAt, rpc.MovesMax+1)...), errkind.Invalid)
		wantKind(t, move("a", list...), errkind.Invalid)
		wantKind(t, move("c", list...), errkind.Conflict) // nobody holds it
		diff(t, w.on(), map[manifest.ShardID]int{"a": 4})
		// Cut while the commit is on its way: it finds another chunk, and moves none.
		cut := false
		p.fault.SetPlan(func(call faultbucket.Call) faultbucket.Fault {
			if call.Key == manifest.RootKey && call.Verb == layer.Put && !cut {
				cut = true
				w.split(t, 5, 5)
			}
			return faultbucket.Fault{}
		})
		wantKind(t, move("b", list...), errkind.Conflict)
		diff(t, w.on(), map[manifest.ShardID]int{"a": 5})
		c := w.client()
		c.insert("{_id: 1}", "{_id: 5}") // nothing stays held
		c.want("{_id: 1}", "{_id: 5}")
	})
}
