package writer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// rowKey is the row key of a document of db.c.
func (w *world) rowKey(d string) []byte {
	w.t.Helper()
	k, err := w.state().CollectionByName("db", "c").Key.AppendKey(nil, doc(d))
	check(w.t, err)
	return k
}

// rekeyOp is an update of the row of a document.
func (w *world) rekeyOp(of, update string) rpc.WriteOp {
	return rpc.WriteOp{Kind: rpc.Update, Key: w.rowKey(of), Filter: doc(of), Update: value(update)}
}

// keyRange is all rows of the shard-key value of a document.
func (w *world) keyRange(of string) shardkey.Range {
	w.t.Helper()
	prefix, err := w.state().CollectionByName("db", "c").Key.AppendShardKey(nil, doc(of))
	check(w.t, err)
	return shardkey.Range{Min: prefix, Max: shardkey.PrefixEnd(prefix)}
}

// A document goes from one chunk of a shard to another in one WAL object: before a flush and
// after it, in a takeover, and after either chunk was flushed alone. Sent again, by the old
// row or to the new chunk, the update answers what it did.
func TestKeyChangeBetweenChunksOfAShardIsOneObject(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", longLease, quiet).holds("a", "b")
		w.keyed("{k: 1}", "a,a,b", 100, 200)
		c := w.client()
		c.insert("{_id: 1, k: 5}", "{_id: 2, k: 6}", "{_id: 3, k: 107}")
		last := p.metered.Snapshot()
		diff(t, c.do(w.rekeyOp("{_id: 1, k: 5}", "{$set: {k: 105}}")), rpc.WriteResult{N: 1, Modified: 1})
		diff(t, p.metered.Snapshot().Sub(last).String(), "put root=1 put wal=1") // the first data version
		last = p.metered.Snapshot()
		op := c.op(w.rekeyOp("{_id: 2, k: 6}", "{$set: {k: 106}}"))
		diff(t, c.do(op), rpc.WriteResult{N: 1, Modified: 1})
		diff(t, p.metered.Snapshot().Sub(last).String(), "put wal=1")
		if v := w.state().CollectionByName("db", "c").DataVersion; v != 1 {
			t.Errorf("data version %d, want 1", v)
		}
		again := func() {
			t.Helper()
			diff(t, c.do(op), rpc.WriteResult{N: 1, Modified: 1})
			there := op
			there.Key, there.Filter = w.rowKey("{_id: 2, k: 106}"), doc("{_id: 2}")
			diff(t, c.do(there), rpc.WriteResult{N: 1, Modified: 1})
			c.want("{_id: 1, k: 105}", "{_id: 2, k: 106}", "{_id: 3, k: 107}")
		}
		again()
		if res := c.do(w.rekeyOp("{_id: 3, k: 107}", "{$set: {k: 106, _id: 3}}")); res.Err != nil {
			t.Fatal(res.Err)
		}
		c.do(w.rekeyOp("{_id: 3, k: 106}", "{$set: {k: 107}}"))
		check(t, c.move(doc("{_id: 1, k: 5}"), "b")) // flushes the one chunk alone
		again()
		p.kill()
		w.process("q").holds("a", "b")
		again()
		w.procs["q"].flushAll("a", "b")
		c.wantRows(doc("{k: 0, _id: 0}"), 0)
		c.wantRows(doc("{k: 105, _id: 0}"), 3)
		w.procs["q"].kill()
		w.process("r").holds("a", "b")
		again()
	})
}

// Of two documents that go to the same row one arrives; the other's outcome stays that it
// did not, also when the row is free later.
func TestKeyChangeToATakenRowIsADuplicate(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a")
		w.keyed("{k: 1, _id: 1}", "a,a", 100)
		c := w.client()
		c.insert("{_id: 1, k: 5}", "{_id: 1, k: 105}")
		op := c.op(w.rekeyOp("{_id: 1, k: 5}", "{$set: {k: 105}}"))
		for range 2 {
			if res := c.do(op); res.Err == nil || res.Err.Code != mongoerr.DuplicateKey {
				t.Fatalf("result %+v", res)
			}
			c.do(rpc.WriteOp{Kind: rpc.Delete, Key: w.rowKey("{_id: 1, k: 105}"), Filter: doc("{_id: 1}")})
		}
		c.want("{_id: 1, k: 5}")
	})
}

// A write of many that moves what it matches, in its chunk, ahead into the next chunk and
// back, changes every document once, also when it is sent again after each takeover.
func TestManyMovedDocumentsAreChangedOnce(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p1").holds("a")
		w.keyed("{k: 1}", "a,a", 100)
		c := w.client()
		const n = 30
		var want []string
		for i := range n {
			c.insert(fmt.Sprintf("{_id: %d, k: %d}", i, i*7))
			want = append(want, fmt.Sprintf(`{"_id":%d,"k":%d,"n":1}`, i, i*7+50))
		}
		op := c.op(rpc.WriteOp{Kind: rpc.Update, Filter: doc("{}"), Update: value("{$inc: {k: 50, n: 1}}"), Multi: true})
		sum := func() (n, modified int64) {
			st := w.state()
			for chunk := range st.Chunks(st.CollectionByName("db", "c").ID) {
				var res rpc.WriteResult
				for range 100 {
					reply, err := c.sendRanges(t.Context(), chunk, nil, op)
					if err == nil && !reply.Results[0].Stale {
						res = reply.Results[0]
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
				if res.Err != nil {
					t.Fatal(res.Err)
				}
				n, modified = n+res.N, modified+res.Modified
			}
			return n, modified
		}
		for i := range 4 {
			got, modified := sum()
			if got != n || modified != n {
				t.Fatalf("try %d: %d matched, %d modified, want %d", i, got, modified, n)
			}
			diff(t, c.all(), want)
			switch i {
			case 0:
				p.flushAll("a")
			case 1:
				p.kill()
				p = w.process("p2").holds("a")
			case 2:
				w.split(t, doc("{_id: 0, k: 20}"), 20)
				p.kill()
				p = w.process("p3").holds("a")
			}
		}
	})
}

// An upsert whose document belongs into another chunk than its filter makes one document,
// and remembers that.
func TestUpsertIntoAnotherChunk(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a")
		w.keyed("{k: 1}", "a,a", 100)
		c := w.client()
		op := c.op(rpc.WriteOp{Kind: rpc.Update, Filter: doc("{k: 5, _id: 1}"), Update: value("{$set: {k: 105}}"), Upsert: true})
		op.Key = w.rowKey("{_id: 1, k: 5}")
		for range 2 {
			res := c.do(op)
			if res.Err != nil || res.N != 1 || res.UpsertedID.AsInt64() != 1 {
				t.Fatalf("result %+v", res)
			}
			c.want("{_id: 1, k: 105}")
		}
	})
}

// A reply says with which root version the shard last got a chunk from another, once the
// collection has a data version.
func TestReplySaysWhenAChunkCame(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a", "b")
		w.keyed("{k: 1}", "a,b", 100)
		c := w.client()
		c.insert("{_id: 1, k: 5}")
		gained := func(of string, shard manifest.ShardID) manifest.Version {
			t.Helper()
			chunk := w.chunk(doc(of))
			reply, err := p.Read(t.Context(), &rpc.ReadRequest{
				Header:  rpc.Header{Shard: shard, Collection: chunk.Collection, RootVersion: w.state().Version()},
				Targets: []rpc.Target{{ID: chunk.ID, Version: chunk.Version}},
			})
			check(t, err)
			return reply.Gained
		}
		if v := gained("{_id: 1, k: 5}", "a"); v != 0 {
			t.Errorf("gained %d without a data version", v)
		}
		check(t, w.commit(manifest.RaiseDataVersion{Collection: w.chunk(doc("{_id: 1, k: 5}")).Collection}))
		before := gained("{_id: 1, k: 5}", "a")
		w.split(t, doc("{_id: 1, k: 5}"), 50)
		diff(t, gained("{_id: 1, k: 5}", "a"), before)
		check(t, c.move(doc("{_id: 1, k: 5}"), "b"))
		moved := w.state().Version()
		diff(t, gained("{_id: 1, k: 5}", "b"), moved)
		diff(t, gained("{_id: 1, k: 60}", "a"), before)
	})
}

// The outcome is known at both rows of a change inside one chunk, however the chunk is cut
// afterwards, in memory, in the log and in segments.
func TestOutcomeOfAKeyChangeIsKnownAtBothRows(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"cut", "flush, cut", "cut, takeover", "takeover, cut"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(t *testing.T, w *world) {
				p := w.process("p").holds("a")
				w.keyed("{k: 1}", "a")
				c := w.client()
				c.insert("{_id: 1, k: 5}")
				op := c.op(w.rekeyOp("{_id: 1, k: 5}", "{$set: {k: 8}, $inc: {n: 1}}"))
				c.do(op)
				for _, step := range strings.Split(how, ", ") {
					switch step {
					case "flush":
						p.flushAll("a")
					case "cut":
						check(t, w.commit(manifest.Split{Chunk: w.chunk(doc("{_id: 1, k: 5}")).At(), Points: []manifest.Bound{
							{Key: w.keyRange("{k: 7}").Min, BSON: doc("{k: 7}")},
						}}))
					case "takeover":
						p.kill()
						w.process("q").holds("a")
					}
				}
				diff(t, c.do(op), rpc.WriteResult{N: 1, Modified: 1})
				there := op
				there.Key, there.Filter = w.rowKey("{_id: 1, k: 8}"), doc("{_id: 1}")
				diff(t, c.do(there), rpc.WriteResult{N: 1, Modified: 1})
				c.want("{_id: 1, k: 8, n: 1}")
			})
		})
	}
}
