package writer

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// A document goes to another shard's chunk by one commit of the root. Sent again, by the old
// row or to the new one, also after takeovers and flushes, the update answers what it did.
func TestKeyChangeBetweenShardsIsOneCommit(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", longLease, quiet).holds("a")
		q := w.process("q", longLease, quiet).holds("b")
		w.keyed("{k: 1}", "a,b", 100)
		c := w.client()
		c.insert("{_id: 1, k: 5}", "{_id: 2, k: 6}", "{_id: 3, k: 107}")
		lastP, lastQ := p.metered.Snapshot(), q.metered.Snapshot()
		cost := func(wantP, wantQ string) {
			t.Helper()
			nowP, nowQ := p.metered.Snapshot(), q.metered.Snapshot()
			diff(t, nowP.Sub(lastP).String(), wantP)
			diff(t, nowQ.Sub(lastQ).String(), wantQ)
			lastP, lastQ = nowP, nowQ
		}
		diff(t, c.do(w.rekeyOp("{_id: 1, k: 5}", "{$set: {k: 105}}")), rpc.WriteResult{N: 1, Modified: 1})
		time.Sleep(time.Second)
		cost("put root=2 put seg=2", "get root=2") // the row was in the log alone: a flush
		c.want("{_id: 2, k: 6}", "{_id: 1, k: 105}", "{_id: 3, k: 107}")
		lastP, lastQ = p.metered.Snapshot(), q.metered.Snapshot()
		op := c.op(w.rekeyOp("{_id: 2, k: 6}", "{$set: {k: 106}}"))
		diff(t, c.do(op), rpc.WriteResult{N: 1, Modified: 1})
		time.Sleep(time.Second)
		cost("put root=1 put seg=1", "get root=1")
		again := func() {
			t.Helper()
			diff(t, c.do(op), rpc.WriteResult{N: 1, Modified: 1})
			there := op
			there.Key, there.Filter = w.rowKey("{_id: 2, k: 106}"), doc("{_id: 2}")
			diff(t, c.do(there), rpc.WriteResult{N: 1, Modified: 1})
			c.want("{_id: 1, k: 105}", "{_id: 2, k: 106}", "{_id: 3, k: 107}")
		}
		again()
		c.wantRows(doc("{k: 0, _id: 0}"), 0)
		p.kill()
		q.kill()
		w.process("r").holds("a", "b")
		again()
		w.proc("r").flushAll("a", "b")
		c.wantRows(doc("{k: 0, _id: 0}"), 0)
		c.wantRows(doc("{k: 105, _id: 0}"), 3)
		if v := w.state().CollectionByName("db", "c").DataVersion; v != 2 {
			t.Errorf("data version %d, want 2", v)
		}
	})
}

// Whoever dies, and whatever answer is lost, before the other shard prepared, before the
// commit and after it: the document is in one place, and the update happens once.
func TestKeyChangeSurvivesWhoeverDies(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"prepare", "prepared", "decide", "decided", "segment", "commit"} {
		for _, who := range []string{"source", "destination", "nobody"} {
			t.Run(at+" "+who, func(t *testing.T) {
				t.Parallel()
				inWorld(t, func(t *testing.T, w *world) {
					p := w.process("p", quiet).holds("a")
					q := w.process("q", quiet).holds("b")
					w.keyed("{k: 1}", "a,b", 100)
					c := w.client()
					c.insert("{_id: 1, k: 5}", "{_id: 2, k: 150}")
					p.flushAll("a")
					var gone atomic.Bool
					var killed sync.WaitGroup
					strike := func() error {
						if gone.Swap(true) {
							return nil
						}
						switch who {
						case "source":
							killed.Go(p.kill)
						case "destination":
							killed.Go(q.kill)
						}
						return fmt.Errorf("struck: %w", errkind.UnknownOutcome)
					}
					w.setNet(func(verb, _ string) error {
						if verb == at {
							return strike()
						}
						return nil
					})
					p.fault.SetPlan(func(r faultbucket.Call) faultbucket.Fault {
						hit := at == "segment" && strings.HasPrefix(r.Key, "seg/") || at == "commit" && r.Key == manifest.RootKey
						if r.Verb == layer.Put && hit && strike() != nil {
							return faultbucket.Fault{Kind: faultbucket.After}
						}
						return faultbucket.Fault{}
					})
					op := c.op(w.rekeyOp("{_id: 1, k: 5}", "{$set: {k: 105}}"))
					if reply, err := c.send(t.Context(), op); err == nil && !reply.Results[0].Stale {
						diff(t, reply.Results[0], rpc.WriteResult{N: 1, Modified: 1})
					}
					time.Sleep(time.Second)
					killed.Wait()
					if !gone.Load() {
						t.Error("nothing was struck")
					}
					w.setNet(nil)
					p.fault.SetPlan(nil)
					switch who {
					case "source":
						w.process("r", quiet).holds("a")
					case "destination":
						w.process("r", quiet).holds("b")
					}
					diff(t, c.do(op), rpc.WriteResult{N: 1, Modified: 1})
					c.want("{_id: 1, k: 105}", "{_id: 2, k: 150}")
					c.insert("{_id: 1, k: 5}")
					diff(t, c.do(op), rpc.WriteResult{N: 1, Modified: 1})
					c.want("{_id: 1, k: 5}", "{_id: 1, k: 105}", "{_id: 2, k: 150}")
				})
			})
		}
	}
}

// A row that was prepared by somebody who then fell silent is not read; the owner sees to it
// that the commit will not come, and goes on.
func TestARowIsHeldUntilItIsDecided(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		q := w.process("q", quiet, func(s *Settings) { s.HoldMax = 3 * time.Second }).holds("a", "b")
		w.keyed("{k: 1}", "a,b", 100)
		c := w.client()
		c.insert("{_id: 2, k: 150}")
		chunk := w.chunk(doc("{_id: 1, k: 105}"))
		r := &rpc.PrepareRequest{
			Header: rpc.Header{Shard: "b", Collection: chunk.Collection, RootVersion: w.state().Version(), Deadline: time.Second},
			Chunk:  chunk.At(), Key: w.rowKey("{_id: 1, k: 105}"), Token: [16]byte{1}, From: manifest.OwnerAt{Shard: "a", Epoch: 1},
		}
		first, err := q.Prepare(t.Context(), r)
		check(t, err)
		again, err := q.Prepare(t.Context(), r)
		check(t, err)
		diff(t, again, first)
		other := *r
		other.Token[0] = 2
		_, err = q.Prepare(t.Context(), &other)
		wantKind(t, err, errkind.Throttled) // it would wait for the first
		began := time.Now()
		c.want("{_id: 2, k: 150}")
		if took := time.Since(began); took < 2*time.Second || took > 6*time.Second {
			t.Errorf("the read took %v", took)
		}
		tok, ok := w.state().Token(batchApp, tokenName(r.Token))
		if !ok || tok.Committed {
			t.Fatalf("token %+v", tok)
		}
		// The one who prepared it wakes up: nothing of his can happen.
		err = w.commit(manifest.Batch{
			Token:  manifest.Token{App: batchApp, Batch: tokenName(r.Token), Committed: true},
			Chunks: []manifest.BatchChunk{{At: chunk.At(), Shard: "b", Epoch: first.Epoch, Seq: first.Seq}},
		})
		wantKind(t, err, errkind.Conflict)
		c.insert("{_id: 1, k: 105}")
		c.want("{_id: 1, k: 105}", "{_id: 2, k: 150}")
		reply, err := q.Prepare(t.Context(), &other)
		check(t, err)
		diff(t, *reply, rpc.PrepareReply{Exists: true})
	})
}

// A document came from another shard, and the shard that has it was not told. A write that
// searches finds it nevertheless: it waits, as reads do, until the shard knows.
func TestASearchWaitsForWhatMayHaveCome(t *testing.T) {
	t.Parallel()
	for _, many := range []bool{true, false} {
		inWorld(t, func(t *testing.T, w *world) {
			w.process("p", longLease, quiet).holds("a")
			w.process("q", longLease, quiet, func(s *Settings) { s.HoldMax = 4 * time.Second }).holds("b")
			w.keyed("{k: 1}", "a,b", 100)
			c, before := w.client(), w.state()
			c.insert("{_id: 1, k: 5}", "{_id: 2, k: 150}")
			w.setNet(func(verb, _ string) error {
				if verb == "decide" {
					return fmt.Errorf("lost: %w", errkind.UnknownOutcome)
				}
				return nil
			})
			diff(t, c.do(w.rekeyOp("{_id: 1, k: 5}", "{$set: {k: 105}}")), rpc.WriteResult{N: 1, Modified: 1})
			op := c.op(rpc.WriteOp{Kind: rpc.Update, Filter: doc("{_id: {$gt: 0}}"), Update: value("{$inc: {n: 1}}"), Multi: many})
			c.mapped = before
			reply, err := c.sendRanges(t.Context(), w.chunk(doc("{k: 150, _id: 0}")), nil, op)
			check(t, err)
			c.mapped = nil
			first := 1
			if many {
				first = 2
			}
			diff(t, reply.Results[0], rpc.WriteResult{N: int64(first), Modified: int64(first)})
			if many {
				c.want("{_id: 1, k: 105, n: 1}", "{_id: 2, k: 150, n: 1}")
			} else {
				c.want("{_id: 1, k: 105, n: 1}", "{_id: 2, k: 150}")
			}
		})
	}
}

// Documents change places, each against the other, again and again: nobody waits for ever.
func TestOppositeKeyChangesDoNotBlock(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a")
		w.process("q").holds("b")
		w.keyed("{k: 1, _id: 1}", "a,b", 100)
		c := w.client()
		c.insert("{_id: 1, k: 5}", "{_id: 2, k: 150}")
		var all sync.WaitGroup
		for id, ks := range map[int][2]int{1: {5, 150}, 2: {150, 5}} {
			all.Go(func() {
				mine := w.client()
				mine.sid = byte(id + 10)
				for i := range 10 {
					from, to := ks[i%2], ks[1-i%2]
					res := mine.do(w.rekeyOp(fmt.Sprintf("{_id: %d, k: %d}", id, from), fmt.Sprintf("{$set: {k: %d}, $inc: {n: 1}}", to)))
					if res.Err != nil || res.N != 1 {
						t.Errorf("document %d, change %d: %+v", id, i, res)
						return
					}
				}
			})
		}
		all.Wait()
		c.want("{_id: 1, k: 5, n: 10}", "{_id: 2, k: 150, n: 10}")
	})
}

// Of two documents that go to one row of another shard one arrives; a document that is
// there refuses both, wherever its row is.
func TestKeyChangesToOneRowOfAnotherShard(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a", "c")
		q := w.process("q").holds("b")
		w.keyed("{k: 1, _id: 1}", "a,b,c", 100, 200)
		c := w.client()
		c.insert("{_id: 1, k: 5}", "{_id: 1, k: 250}", "{_id: 9, k: 150}")
		results := make([]rpc.WriteResult, 2)
		var all sync.WaitGroup
		for i, k := range []int{5, 250} {
			all.Go(func() {
				mine := w.client()
				mine.sid = byte(i + 10)
				results[i] = mine.do(w.rekeyOp(fmt.Sprintf("{_id: 1, k: %d}", k), "{$set: {k: 150}}"))
			})
		}
		all.Wait()
		won := slices.IndexFunc(results, func(r rpc.WriteResult) bool { return r.Err == nil })
		if won < 0 || results[1-won].Err == nil || results[1-won].Err.Code != mongoerr.DuplicateKey {
			t.Fatalf("results %+v", results)
		}
		diff(t, len(c.all()), 3)
		for range 2 {
			res := c.do(w.rekeyOp(fmt.Sprintf("{_id: 1, k: %d}", []int{250, 5}[won]), "{$set: {k: 150}}"))
			if res.Err == nil || res.Err.Code != mongoerr.DuplicateKey {
				t.Fatalf("result %+v", res)
			}
			q.flushAll("b")
		}
		// It was there, and its deletion is only in the log of the other shard.
		c.do(rpc.WriteOp{Kind: rpc.Delete, Key: w.rowKey("{_id: 1, k: 150}"), Filter: doc("{_id: 1}")})
		diff(t, c.do(w.rekeyOp(fmt.Sprintf("{_id: 1, k: %d}", []int{250, 5}[won]), "{$set: {k: 150}}")), rpc.WriteResult{N: 1, Modified: 1})
		q.kill()
		w.process("r").holds("b")
		c.want("{_id: 1, k: 150}", "{_id: 9, k: 150}")
	})
}

// A write of many takes its documents to another shard, each once; what it did before that
// in its own log is not lost when it is sent again to a successor.
func TestManyGoToAnotherShardOnce(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.process("q").holds("b")
		w.keyed("{k: 1}", "a,b", 100)
		c := w.client()
		var want []string
		for i := range 20 {
			c.insert(fmt.Sprintf("{_id: %d, k: %d}", i, i*8))
			want = append(want, fmt.Sprintf(`{"_id":%d,"k":%d,"n":1}`, i, i*8+50))
		}
		op := c.op(rpc.WriteOp{Kind: rpc.Update, Filter: doc("{}"), Update: value("{$inc: {k: 50, n: 1}}"), Multi: true})
		var commits atomic.Int32
		p.fault.SetPlan(func(r faultbucket.Call) faultbucket.Fault {
			if r.Verb == layer.Put && r.Key == manifest.RootKey {
				if commits.Add(1) == 4 { // after a flush and two documents
					go p.kill()
				}
			}
			return faultbucket.Fault{}
		})
		var n int64
		for _, of := range []string{"{k: 0, _id: 0}", "{k: 150, _id: 0}"} {
			for {
				reply, err := c.sendRanges(t.Context(), w.chunk(doc(of)), nil, op)
				if err == nil && !reply.Results[0].Stale {
					n += reply.Results[0].N
					break
				}
				if w.proc("p") == nil && w.proc("p2") == nil {
					w.process("p2").holds("a")
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		if w.proc("p2") == nil || n != 20 {
			t.Errorf("%d matched, want 20, after a takeover", n)
		}
		diff(t, c.all(), want)
	})
}

// Without a holder of the other shard nothing is done, and the answer names it.
func TestKeyChangeWaitsForAHolder(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a")
		w.keyed("{k: 1}", "a,b", 100)
		c := w.client()
		c.insert("{_id: 1, k: 5}")
		op := c.op(w.rekeyOp("{_id: 1, k: 5}", "{$set: {k: 105}}"))
		reply, err := c.send(t.Context(), op)
		check(t, err)
		diff(t, reply.Results, []rpc.WriteResult{{Stale: true, Waits: "b"}})
		q := w.process("q").holds("b")
		w.setNet(func(verb, _ string) error {
			if verb == "prepare" {
				return rpc.Unreachable
			}
			return nil
		})
		reply, err = c.send(t.Context(), op)
		check(t, err)
		diff(t, reply.Results, []rpc.WriteResult{{Stale: true, Waits: "b"}})
		w.setNet(nil)
		check(t, q.Release(t.Context(), "b"))
		q.holds("b")
		diff(t, c.do(op), rpc.WriteResult{N: 1, Modified: 1})
	})
}
