package writer

import (
	"context"
	"fmt"
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

// Each scenario here is one in which the protocol loses or resurrects a write when one of
// its rules is missing.

// A chunk moves with its rows, flushed or not, and takes writes on both sides; the old owner
// answers nothing for it afterwards.
func TestMoveKeepsEveryWrite(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p, q := w.process("p").holds("a"), w.process("q").holds("b")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1, v: 1}", "{_id: 2, v: 1}")
		p.flushAll("a")
		c.update(1, "{$set: {v: 2}}")
		c.remove(2)
		old := w.client()
		old.sid, old.mapped = 2, w.state()
		check(t, c.move(1, "b"))
		c.insert("{_id: 3, v: 1}")
		_, err := old.send(t.Context(), old.op(updateOp(1, "{$set: {v: 9}}")))
		check(t, ignoreStaleResult(err))
		_, _, err = old.readOnce(t.Context(), rpc.Query{}, rpc.Lease)
		wantStale(t, err)
		c.want("{_id: 1, v: 2}", "{_id: 3, v: 1}")
		check(t, c.move(1, "a"))
		c.update(3, "{$set: {v: 4}}")
		c.want("{_id: 1, v: 2}", "{_id: 3, v: 4}")
		c.wantRows(1, 2)
		q.kill()
		p.kill()
		w.process("r").holds("a", "b")
		c.want("{_id: 1, v: 2}", "{_id: 3, v: 4}")
		wantKind(t, c.move(1, "a"), errkind.Invalid)
		wantKind(t, c.move(1, "c"), errkind.Conflict)
	})
}

func ignoreStaleResult(err error) error { return err }

// A document that was deleted on the other shard does not come back from the memory of the
// old owner, when it learns all at once that the chunk went and returned (H3), and not from
// its WAL at a takeover.
func TestDeletedElsewhereStaysDeleted(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p, q := w.process("p").holds("a"), w.process("q").holds("b")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1}", "{_id: 2}")
		p.flushAll("a")
		c.insert("{_id: 3}")
		// The move is committed by a hand from outside, so that p does not learn of it.
		at := w.chunk(1).At()
		promise := q.promise("b", at)
		_, parts, _ := p.shard("a").freeze([]*chunk{p.shard("a").chunks[at.ID]})
		check(t, p.shard("a").upload(t.Context(), parts))
		check(t, w.commit(manifest.Move{Chunk: at, From: "a", FromEpoch: 1, To: "b", ToEpoch: 1, Promise: promise, Added: parts[0].added}))
		c.remove(1)
		c.remove(3)
		q.flushAll("b")
		pos := p.Status().Shards[0].Position
		check(t, w.commit(manifest.Move{Chunk: w.chunk(1).At(), From: "b", FromEpoch: 1, To: "a", ToEpoch: 1, Promise: pos}))
		if _, _, err := p.root.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.want("{_id: 2}")
		p.kill()
		w.process("r").holds("a")
		c.want("{_id: 2}")
	})
}

// A flush whose chunk went away and returned meanwhile leaves it out, and its rows do not
// come back (H4).
func TestDelayedFlushSkipsAChunkThatReturned(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p, q := w.process("p").holds("a"), w.process("q").holds("b")
		w.collection("a,a", 10)
		c := w.client()
		c.insert("{_id: 1}", "{_id: 11}")
		p.fault.SetPlan(faultbucket.Rules(p.host, faultbucket.Rule{Prefix: "seg/", To: 1, Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Second}}))
		flushed := make(chan error, 1)
		go func() {
			_, err := p.Flush(context.Background(), &rpc.FlushRequest{Header: rpc.Header{Shard: "a"}})
			flushed <- err
		}()
		time.Sleep(100 * time.Millisecond)
		at := w.chunk(1).At()
		promise := q.promise("b", at)
		// What the chunk has is moved by hand: nothing, as if its row had been deleted.
		check(t, w.commit(manifest.Move{Chunk: at, From: "a", FromEpoch: 1, To: "b", ToEpoch: 1, Promise: promise, Added: manifest.Added{MaxSeq: 5}}))
		pos := p.Status().Shards[0].Position
		check(t, w.commit(manifest.Move{Chunk: w.chunk(1).At(), From: "b", FromEpoch: 1, To: "a", ToEpoch: 1, Promise: pos}))
		check(t, <-flushed)
		c.want("{_id: 11}")
		c.wantRows(1, 0)
		c.wantRows(11, 1)
		p.kill()
		w.process("r").holds("a")
		c.want("{_id: 11}")
	})
}

// A promise is for one version of a chunk, while it is another's (H5).
func TestPromiseIsBoundToTheVersion(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a", "b")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1}")
		at := w.chunk(1).At()
		ask := func(s manifest.ShardID) (*rpc.PromiseReply, error) {
			return p.Promise(t.Context(), &rpc.PromiseRequest{Header: rpc.Header{Shard: s, RootVersion: w.state().Version()}, Chunks: []manifest.ChunkAt{at}})
		}
		r, err := ask("b")
		check(t, err)
		diff(t, *r, rpc.PromiseReply{Epoch: 1, Position: manifest.Position{Epoch: 1}})
		_, err = ask("a")
		wantStale(t, err)
		check(t, c.move(1, "b"))
		_, err = ask("a")
		wantStale(t, err)
		at = w.chunk(1).At()
		r, err = ask("a")
		check(t, err)
		diff(t, r.Position, manifest.Position{Epoch: 1, Next: 1})
	})
}

// While the commit of a move is on its way, neither reads nor writes of the chunk are
// answered, though the lease is valid: the destination may have taken a write already (H6).
// Those of other chunks are.
func TestNothingIsAnsweredDuringTheOwnHandoff(t *testing.T) {
	t.Parallel()
	for _, lost := range []faultbucket.Kind{faultbucket.After, faultbucket.Before} {
		inWorld(t, func(t *testing.T, w *world) {
			p, q := w.process("p", longLease).holds("a"), w.process("q", longLease).holds("b")
			w.collection("a,a", 10)
			c := w.client()
			c.insert("{_id: 1, v: 1}", "{_id: 11, v: 1}")
			old := w.client()
			old.mapped, old.at, old.sid = w.state(), p, 2
			var heard atomic.Bool
			p.fault.SetPlan(func(call faultbucket.Call) faultbucket.Fault {
				if heard.Load() || call.Key != manifest.RootKey {
					return faultbucket.Fault{}
				}
				if call.Verb == layer.Put {
					return faultbucket.Fault{Kind: lost}
				}
				return faultbucket.Fault{Kind: faultbucket.Before}
			})
			moved := make(chan error, 1)
			go func() { moved <- c.move(1, "b") }()
			time.Sleep(100 * time.Millisecond)
			short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, _, err := old.readOnce(short, rpc.Query{}, rpc.Lease)
			wantKind(t, err, errkind.Throttled)
			_, err = old.send(short, old.op(updateOp(1, "{$set: {v: 5}}")))
			wantKind(t, err, errkind.Throttled)
			_, err = old.send(t.Context(), old.op(updateOp(11, "{$set: {v: 5}}")))
			check(t, err)
			if lost == faultbucket.After {
				diff(t, w.chunk(1).Shard, manifest.ShardID("b"))
				c.update(1, "{$set: {v: 2}}") // at the destination
			}
			heard.Store(true)
			check(t, <-moved)
			_ = q
			c.update(1, "{$inc: {v: 1}}")
			want := map[faultbucket.Kind]string{faultbucket.After: "{_id: 1, v: 3}", faultbucket.Before: "{_id: 1, v: 2}"}[lost]
			c.want(want, "{_id: 11, v: 5}")
		})
	}
}

func longLease(s *Settings) { s.Lease = time.Hour }

// The same for the commit that frees a shard (H7).
func TestNothingIsAnsweredWhileTheShardIsFreed(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", longLease).holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1, v: 1}")
		p.flushAll("a")
		old := w.client()
		old.mapped, old.at, old.sid = w.state(), p, 2
		var heard atomic.Bool
		p.fault.SetPlan(func(call faultbucket.Call) faultbucket.Fault {
			if heard.Load() || call.Key != manifest.RootKey {
				return faultbucket.Fault{}
			}
			return faultbucket.Fault{Kind: faultbucket.After}
		})
		freed := make(chan error, 1)
		go func() { freed <- p.Release(context.Background(), "a") }()
		time.Sleep(100 * time.Millisecond)
		diff(t, w.state().Shard("a").Status, manifest.ShardFree)
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, _, err := old.readOnce(short, rpc.Query{}, rpc.Lease)
		wantKind(t, err, errkind.Throttled)
		heard.Store(true)
		check(t, <-freed)
		_, _, err = old.readOnce(t.Context(), rpc.Query{}, rpc.Lease)
		wantStale(t, err)
	})
}

// The lease is counted from the first send of a batch, also when that send was lost and a
// later one was answered (H10).
func TestLeaseCountsFromTheFirstSend(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", func(s *Settings) { s.Lease = 10 * time.Second }).holds("a")
		w.collection("a")
		c := w.client()
		time.Sleep(20 * time.Second)
		p.fault.SetPlan(faultbucket.Rules(p.host, faultbucket.Rule{Prefix: "wal/", To: 1, Fault: faultbucket.Fault{Kind: faultbucket.StuckAfter}}))
		start := time.Now()
		c.insert("{_id: 1}")
		took := time.Since(start)
		if took < time.Second {
			t.Fatalf("the insert took %v: the first send was not lost", took)
		}
		if left := p.Status().Shards[0].LeaseLeft; left > 10*time.Second-took+time.Millisecond {
			t.Errorf("%v of the lease are left %v after the first send", left, took)
		}
	})
}

// An append that was stored though its answer was lost is acknowledged once, and counts
// once.
func TestLostAnswerOfAnAppendIsResolved(t *testing.T) {
	t.Parallel()
	for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Twice, faultbucket.Late, faultbucket.StuckAfter, faultbucket.Throttle} {
		inWorld(t, func(t *testing.T, w *world) {
			p := w.process("p").holds("a")
			w.collection("a")
			c := w.client()
			c.insert("{_id: 1, v: 0}")
			p.fault.SetPlan(faultbucket.Rules(p.host, faultbucket.Rule{Prefix: "wal/", Fault: faultbucket.Fault{Kind: kind, Delay: time.Second}, To: 2}))
			for range 3 {
				c.update(1, "{$inc: {v: 1}}")
			}
			c.want("{_id: 1, v: 3}")
			p.kill()
			w.process("q").holds("a")
			c.want("{_id: 1, v: 3}")
		})
	}
}

// A shard that was freed and claimed again replays nothing that its direct commits came
// after (H13): the floor is the end of the WAL.
func TestFreedShardReplaysNothing(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1}", "{_id: 2}")
		check(t, p.Close(t.Context()))
		chunk := w.chunk(1)
		diff(t, chunk.OwnFloor, manifest.Position{})
		// A direct commit deletes 1, and a compaction drops the tombstone: only 2 is left.
		w.directDelete(t, chunk, 1)
		q := w.process("q").holds("a")
		c.want("{_id: 2}")
		c.insert("{_id: 1, v: 2}")
		q.kill()
		w.process("r").holds("a")
		c.want("{_id: 1, v: 2}", "{_id: 2}")
	})
}

// A retry finds what was done, wherever the record of it is: pending, in memory, in the WAL,
// in a segment, on another shard, whether the row still exists or not (H14).
func TestRetryIsFoundWhereverItIs(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p, q := w.process("p").holds("a"), w.process("q").holds("b")
		w.collection("a")
		c := w.client()
		ins := c.op(insertOp("{_id: 1, v: 1}"))
		fam := updateOp(1, "{$inc: {v: 1}}")
		fam.Return = rpc.ReturnAfter
		c.sid = 2
		fam = c.op(fam)
		c.sid = 3
		del := c.op(deleteOp(1))
		c.sid = 4
		none := c.op(updateOp(1, "{$inc: {v: 1}}"))
		first := []rpc.WriteResult{c.do(ins), c.do(fam), c.do(del), c.do(none)}
		diff(t, first[3].N, int64(0))
		again := func(when string) {
			t.Helper()
			for i, op := range []rpc.WriteOp{ins, fam, del, none} {
				if got := c.do(op); fmt.Sprint(got) != fmt.Sprint(first[i]) {
					t.Errorf("%s: operation %d answers %+v, at first %+v", when, i, got, first[i])
				}
			}
			if docs := c.all(); len(docs) != 0 {
				t.Errorf("%s: documents %v", when, docs)
			}
		}
		again("in memory")
		p.flushAll("a")
		again("flushed")
		check(t, c.move(1, "b"))
		again("moved")
		q.kill()
		w.process("q2").holds("b")
		again("moved, taken over")
		check(t, c.move(1, "a"))
		again("moved back")
		p.kill()
		p = w.process("p2").holds("a")
		again("moved back, taken over")
		check(t, p.Close(t.Context()))
		w.process("p3").holds("a")
		again("freed, claimed")
		time.Sleep(31 * time.Minute)
		c.sid = 9
		c.insert("{_id: 7}")
		diff(t, c.do(ins), rpc.WriteResult{N: 1}) // forgotten: done again
	})
}

// Retries that were only in the WAL are replayed.
func TestRetryIsReplayed(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		op := c.op(insertOp("{_id: 1, v: 1}"))
		c.do(op)
		c.sid = 2
		c.remove(1)
		p.kill()
		w.process("q").holds("a")
		diff(t, c.do(op), rpc.WriteResult{N: 1})
		c.want()
	})
}

// A write of many documents that was interrupted, by a move, by a crash, goes on where it
// stopped: every match is changed once, and the answer has the totals.
func TestInterruptedManyGoesOn(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"move", "crash", "flush and crash", "split", "split and crash", "crash, flush, split while nobody holds the shard"} {
		inWorld(t, func(t *testing.T, w *world) {
			small := func(s *Settings) { s.BatchRecords = 10 }
			p, q := w.process("p", small).holds("a"), w.process("q", small).holds("b")
			w.collection("a")
			c := w.client()
			for i := range 100 {
				c.insert(fmt.Sprintf("{_id: %d, v: 0}", i))
			}
			many := c.op(rpc.WriteOp{Kind: rpc.Update, Filter: doc("{}"), Update: value("{$inc: {v: 1}}"), Multi: true})
			slow := faultbucket.Rule{Prefix: "wal/", Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: 100 * time.Millisecond}}
			p.fault.SetPlan(faultbucket.Rules(p.host, slow))
			answer := make(chan *rpc.WriteReply, 1)
			go func() {
				reply, _ := c.sendTo(context.Background(), 0, many)
				answer <- reply
			}()
			time.Sleep(350 * time.Millisecond)
			switch how {
			case "move":
				check(t, c.move(0, "b"))
				reply := <-answer
				if !reply.Results[0].Stale {
					t.Errorf("result %+v", reply.Results[0])
				}
			case "flush and crash":
				p.flushAll("a")
				fallthrough
			case "crash":
				p.kill()
				<-answer
				w.process("r").holds("a")
			case "crash, flush, split while nobody holds the shard":
				p.kill()
				<-answer
				r := w.process("r").holds("a")
				r.flushAll("a")
				r.kill()
				w.split(t, 0, 3, 15, 70) // only segments know of the update now
				w.process("s").holds("a")
			case "split", "split and crash":
				w.split(t, 0, 15, 70)
				_, _, err := p.root.Load(t.Context())
				check(t, err)
				<-answer
				if how != "split" {
					p.kill()
					w.process("r").holds("a")
				}
			}
			total := int64(0)
			st := w.state()
			for chunk := range st.Chunks(w.chunk(0).Collection) {
				for range 2 {
					reply, err := c.sendRanges(t.Context(), chunk, nil, many)
					check(t, err)
					total += reply.Results[0].N
				}
			}
			diff(t, total, int64(200)) // each part was asked twice
			for i, d := range c.all() {
				if want := fmt.Sprintf(`{"_id":%d,"v":1}`, i); d != want {
					t.Errorf("%s: got %s, want %s", how, d, want)
				}
			}
			_ = q
		})
	}
}

// Splits and merges by others leave every row and every retry id with its owner.
func TestSplitAndMergeKeepRowsAndRetries(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		var ops []rpc.WriteOp
		for i := range 40 {
			c.sid = byte(i + 1)
			op := c.op(insertOp(fmt.Sprintf("{_id: %d}", i)))
			ops = append(ops, op)
			c.do(op)
			switch i {
			case 9:
				p.flushAll("a")
			case 19:
				w.split(t, 0, 10, 20)
			case 29:
				_, _, err := p.root.Load(t.Context())
				check(t, err)
				p.flushAll("a")
				left, right := w.chunk(0).At(), w.chunk(10).At()
				check(t, w.commit(manifest.Merge{Left: left, Right: right}))
			}
		}
		check2 := func() {
			t.Helper()
			diff(t, len(c.all()), 40)
			for _, op := range ops {
				diff(t, c.do(op), rpc.WriteResult{N: 1})
			}
			diff(t, len(c.all()), 40)
		}
		check2()
		p.flushAll("a")
		check2()
		p.kill()
		w.process("q").holds("a")
		check2()
	})
}

// An intent stands once recorded; a higher attempt stands above it. What was refused is
// never applied, and what was applied cannot be refused.
func TestIntentAndRefusal(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1, v: 1}", "{_id: 2, v: 1}")
		op := rpc.OpID{Session: [32]byte{7}, Txn: 1}
		intent := func(attempt int32, d string) string {
			o := op
			o.Attempt = attempt
			res := c.do(rpc.WriteOp{Kind: rpc.Intent, Op: o, Key: idKey(5), Doc: doc(d)})
			return show(res.Value)
		}
		diff(t, intent(0, "{t: 1}"), `{"t":1}`)
		diff(t, intent(0, "{t: 2}"), `{"t":1}`)
		p.flushAll("a")
		p.kill()
		p = w.process("q").holds("a")
		diff(t, intent(0, "{t: 2}"), `{"t":1}`)
		diff(t, intent(1, "{t: 3}"), `{"t":3}`)
		diff(t, intent(0, "{t: 4}"), `{"t":3}`)

		up := updateOp(1, "{$inc: {v: 1}}")
		up.Op = op
		refuse := rpc.WriteOp{Kind: rpc.Refuse, Op: op, Key: idKey(1)}
		diff(t, c.do(refuse), rpc.WriteResult{})
		p.flushAll("a")
		diff(t, c.do(up), rpc.WriteResult{})
		up.Op.Attempt, refuse.Op.Attempt = 1, 1
		diff(t, c.do(up), rpc.WriteResult{N: 1, Modified: 1})
		diff(t, c.do(refuse), rpc.WriteResult{N: 1, Modified: 1})
		ins := insertOp("{_id: 9}")
		ins.Op = rpc.OpID{Session: [32]byte{8}, Txn: 1}
		diff(t, c.do(rpc.WriteOp{Kind: rpc.Refuse, Op: ins.Op, Key: idKey(9)}), rpc.WriteResult{})
		diff(t, c.do(ins), rpc.WriteResult{})
		c.want("{_id: 1, v: 2}", "{_id: 2, v: 1}")
	})
}

// A failure is as final as a success: the earlier of two attempts comes late, when it could
// succeed, but whoever sent both has been told that they failed.
func TestALateAttemptFailsAsTheLaterOneDid(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1, v: 1}", `{_id: 2, v: "text"}`, "{_id: 3, v: 1}")
		p.flushAll("a")
		c.insert("{_id: 4, v: 1}")
		flushed, pending := c.op(insertOp("{_id: 1, v: 2}")), c.op(insertOp("{_id: 4, v: 2}"))
		inc := c.op(updateOp(2, "{$inc: {v: 1}}"))
		all := updateOp(0, "{$inc: {v: 1}}")
		all.Multi, all.Filter, all.Key = true, doc("{}"), nil
		many := c.op(all)
		attempts := []rpc.WriteOp{flushed, pending, inc, many}
		codes := []mongoerr.Code{mongoerr.DuplicateKey, mongoerr.DuplicateKey, mongoerr.TypeMismatch, mongoerr.TypeMismatch}
		var told []rpc.WriteResult
		for i, op := range attempts {
			res := c.do(op)
			if res.Err == nil || res.Err.Code != codes[i] {
				t.Fatalf("attempt %d: %+v", i, res)
			}
			told = append(told, res)
		}
		c.remove(1)
		c.remove(4)
		c.do(c.op(updateOp(2, "{$set: {v: 5}}")))
		late := func() {
			t.Helper()
			for i, op := range attempts {
				diff(t, c.do(op), told[i])
			}
			c.want("{_id: 2, v: 5}", "{_id: 3, v: 1}")
		}
		late()
		p.flushAll("a")
		late()
		p.kill()
		w.process("q").holds("a")
		late()
		refuse := rpc.WriteOp{Kind: rpc.Refuse, Op: inc.Op, Key: idKey(2)}
		diff(t, c.do(refuse), told[2])
		refuse = rpc.WriteOp{Kind: rpc.Refuse, Op: flushed.Op, Key: idKey(1)}
		diff(t, c.do(refuse), rpc.WriteResult{})
	})
}

// What a session dropped because it went on is refused, not done again.
func TestForgottenTransactionIsTooOld(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		old := c.op(insertOp("{_id: 0}"))
		c.do(old)
		c.remove(0)
		var ops []rpc.WriteOp
		for n := range 3 {
			c.txn++
			ops = ops[:0]
			for i := range supersededMax {
				op := insertOp(fmt.Sprintf("{_id: %d}", 1+n*supersededMax+i))
				op.Op = rpc.OpID{Session: [32]byte{1}, Txn: c.txn, Stmt: int32(i)}
				ops = append(ops, op)
			}
			_, err := c.send(t.Context(), ops...)
			check(t, err)
		}
		res := c.do(old)
		if res.Err == nil || res.Err.Code != mongoerr.TransactionTooOld {
			t.Fatalf("result %+v", res)
		}
		diff(t, c.do(ops[5]), rpc.WriteResult{N: 1})
	})
}
