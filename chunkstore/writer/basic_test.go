package writer

import (
	"fmt"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestInsertedDocumentsAreFound(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a", "b")
		w.collection("a,b", 10)
		c := w.client()
		c.insert("{_id: 1, v: 1}", "{_id: 12, v: 2}", "{_id: 3, v: 3}")
		c.want("{_id: 1, v: 1}", "{_id: 3, v: 3}", "{_id: 12, v: 2}")
	})
}

// A duplicate is refused with MongoDB's words, wherever the row is: pending, in a memtable,
// in a segment.
func TestDuplicateIsRefusedWhereverTheRowIs(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		reply, err := c.send(t.Context(), insertOp("{_id: 1}"), insertOp("{_id: 1, again: 1}"), insertOp("{_id: 2}"))
		check(t, err)
		if len(reply.Results) != 2 || reply.Results[0].N != 1 {
			t.Fatalf("ordered results: %+v", reply.Results)
		}
		const text = "E11000 duplicate key error collection: db.c index: _id_ dup key: { _id: 1 }"
		dup := func(res rpc.WriteResult) {
			t.Helper()
			if res.Err == nil || res.Err.Code != mongoerr.DuplicateKey || res.Err.Message != text {
				t.Fatalf("result %+v", res)
			}
			diff(t, show(bson.Raw(res.Err.Info)), `{"keyPattern":{"_id":1},"keyValue":{"_id":1}}`)
		}
		dup(reply.Results[1])
		dup(c.do(insertOp("{_id: 1}")))
		p.flushAll("a")
		dup(c.do(insertOp("{_id: 1}")))
		c.remove(1)
		c.insert("{_id: 1, v: 2}")
		c.want("{_id: 1, v: 2}")
		p.flushAll("a")
		c.wantRows(1, 1)
	})
}

// With a compound row key the rule that is broken is that of shard key and _id together.
func TestDuplicateNamesTheWholeRowKey(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a")
		w.keyed("{k: 1}", "a")
		c := w.client()
		c.insert(`{_id: 1, k: "x"}`, `{_id: 1, k: "y"}`)
		res := c.do(insertOp(`{_id: 1, k: "x"}`))
		const text = `E11000 duplicate key error collection: db.c index: k_1__id_1 dup key: { k: "x", _id: 1 }`
		if res.Err == nil || res.Err.Message != text {
			t.Fatalf("result %+v", res.Err)
		}
		if res := c.do(insertOp(`{_id: 1, k: [1]}`)); res.Err == nil || res.Err.Code != mongoerr.ShardKeyNotFound {
			t.Fatalf("array as a key: %+v", res)
		}
	})
}

func TestUpdatesAndDeletesOfOneRow(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1, v: 1}", "{_id: 2, v: 1}")
		p.flushAll("a")
		got := func(res rpc.WriteResult) string {
			s := fmt.Sprintf("n %d modified %d", res.N, res.Modified)
			if res.Value != nil {
				s += " " + show(res.Value)
			}
			if res.UpsertedID.Type != 0 {
				s += " upserted " + res.UpsertedID.String()
			}
			if res.Err != nil {
				s += " " + res.Err.Error()
			}
			return s
		}
		set := updateOp(1, "{$set: {v: 2}}")
		diff(t, got(c.do(set)), "n 1 modified 1")
		set.Op = rpc.OpID{}
		diff(t, got(c.do(set)), "n 1 modified 0")
		set.Filter = doc("{_id: 1, v: 7}")
		diff(t, got(c.do(set)), "n 0 modified 0")
		diff(t, got(c.update(5, "{$set: {v: 2}}")), "n 0 modified 0")
		fam := updateOp(1, "{$inc: {v: 1}}")
		fam.Return = rpc.ReturnAfter
		diff(t, got(c.do(fam)), `n 1 modified 1 {"_id":1,"v":3}`)
		fam.Return, fam.Projection = rpc.ReturnBefore, doc("{_id: 0}")
		diff(t, got(c.do(fam)), `n 1 modified 1 {"v":3}`)
		diff(t, got(c.update(1, `{$inc: {v: "x"}}`)), "n 0 modified 0 TypeMismatch: Cannot increment with non-numeric argument: {v: \"x\"}")
		up := updateOp(9, "{$set: {v: 9}}")
		up.Upsert = true
		diff(t, got(c.do(up)), `n 1 modified 0 upserted {"$numberInt":"9"}`)
		diff(t, got(c.do(up)), "n 1 modified 0")
		del := deleteOp(2)
		del.Return = rpc.ReturnBefore
		diff(t, got(c.do(del)), `n 1 modified 0 {"_id":2,"v":1}`)
		diff(t, got(c.remove(2)), "n 0 modified 0")
		c.want("{_id: 1, v: 4}", "{_id: 9, v: 9}")
		p.flushAll("a")
		c.wantRows(1, 2)
		c.want("{_id: 1, v: 4}", "{_id: 9, v: 9}")
	})
}

// The first match is the first by the sort, or in key order, among the rows as operations
// see them.
func TestFirstMatchIsChanged(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1, v: 5}", "{_id: 2, v: 3}")
		p.flushAll("a")
		c.insert("{_id: 3, v: 3}", "{_id: 4, v: 9}")
		any := rpc.WriteOp{Kind: rpc.Update, Filter: doc("{v: 3}"), Update: value("{$set: {v: 0}}"), Return: rpc.ReturnAfter}
		run := func(o rpc.WriteOp) string {
			t.Helper()
			o = c.op(o)
			reply, err := c.sendTo(t.Context(), 1, o)
			check(t, err)
			res := reply.Results[0]
			if res.Err != nil {
				return res.Err.Error()
			}
			if res.Value == nil {
				return fmt.Sprint(res.N)
			}
			return show(res.Value)
		}
		diff(t, run(any), `{"_id":2,"v":0}`)
		diff(t, run(any), `{"_id":3,"v":0}`)
		diff(t, run(any), "0")
		last := rpc.WriteOp{Kind: rpc.Delete, Filter: doc("{}"), Sort: doc("{v: -1}"), Return: rpc.ReturnBefore}
		diff(t, run(last), `{"_id":4,"v":9}`)
		up := rpc.WriteOp{Kind: rpc.Update, Filter: doc("{_id: 7, v: 1}"), Update: value("{$set: {w: 1}}"), Upsert: true, Return: rpc.ReturnAfter}
		diff(t, run(up), `{"_id":7,"v":1,"w":1}`)
		c.want("{_id: 1, v: 5}", "{_id: 2, v: 0}", "{_id: 3, v: 0}", "{_id: 7, v: 1, w: 1}")
		dup := up
		dup.Filter = doc("{_id: 7, v: 2}")
		if got := run(dup); got != "DuplicateKey: E11000 duplicate key error collection: db.c index: _id_ dup key: { _id: 7 }" {
			t.Error(got)
		}
	})
}

// A write of many documents changes each match once and answers totals.
func TestManyAreChanged(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		for i := range 200 {
			c.insert(fmt.Sprintf("{_id: %d, v: %d}", i, i%2))
			if i == 100 {
				p.flushAll("a")
			}
		}
		many := c.op(rpc.WriteOp{Kind: rpc.Update, Filter: doc("{v: 1}"), Update: value("{$inc: {n: 1}}"), Multi: true})
		for range 2 { // the second is a retry
			reply, err := c.sendTo(t.Context(), 0, many)
			check(t, err)
			diff(t, reply.Results, []rpc.WriteResult{{N: 100, Modified: 100}})
		}
		del := c.op(rpc.WriteOp{Kind: rpc.Delete, Filter: doc("{v: 0}"), Multi: true})
		reply, err := c.sendTo(t.Context(), 0, del)
		check(t, err)
		diff(t, reply.Results, []rpc.WriteResult{{N: 100}})
		for i, d := range c.all() {
			diff(t, d, fmt.Sprintf(`{"_id":%d,"v":1,"n":1}`, 2*i+1))
		}
		p.flushAll("a")
		c.wantRows(0, 100)
	})
}

// An update that changes the key of its row moves the document inside the chunk in one batch.
func TestKeyChangeMovesTheDocumentInsideItsChunk(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a", "b")
		w.keyed("{k: 1}", "a,b", 100)
		c := w.client()
		c.insert("{_id: 1, k: 5}", "{_id: 2, k: 6}", "{_id: 1, k: 8}")
		st := w.state()
		key := func(d string) []byte {
			k, err := st.CollectionByName("db", "c").Key.AppendKey(nil, doc(d))
			check(t, err)
			return k
		}
		change := func(from, update string) rpc.WriteResult {
			return c.do(rpc.WriteOp{Kind: rpc.Update, Key: key(from), Filter: doc(from), Update: value(update)})
		}
		diff(t, change("{_id: 1, k: 5}", "{$set: {k: 7}}"), rpc.WriteResult{N: 1, Modified: 1})
		if res := change("{_id: 1, k: 7}", "{$set: {k: 8}}"); res.Err == nil || res.Err.Code != mongoerr.DuplicateKey {
			t.Fatalf("result %+v", res)
		}
		many := c.op(rpc.WriteOp{Kind: rpc.Update, Filter: doc("{_id: 2, k: 6}"), Update: value("{$set: {k: 9}}"), Multi: true})
		reply, err := c.send(t.Context(), many)
		check(t, err)
		diff(t, reply.Results, []rpc.WriteResult{{N: 1, Modified: 1}})
		many.Op = rpc.OpID{}
		reply, err = c.send(t.Context(), many)
		check(t, err)
		diff(t, reply.Results, []rpc.WriteResult{{}})
		c.want("{_id: 1, k: 7}", "{_id: 1, k: 8}", "{_id: 2, k: 9}")
		p.flushAll("a")
		c.wantRows(doc("{_id: 1, k: 7}"), 3)
	})
}

// Two upserts of one shard-key value, whose _id nobody names, make one document.
func TestUpsertsOfOneKeyMakeOneDocument(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a")
		w.keyed("{k: 1}", "a")
		prefix := shardkey.AppendValue(nil, raw(bson.D{{Key: "k", Value: 5}}).Lookup("k"), false)
		r := shardkey.Range{Min: prefix, Max: shardkey.PrefixEnd(prefix)}
		done := make(chan rpc.WriteResult)
		for i := range 8 {
			go func() {
				c := w.client()
				c.sid = byte(i + 1)
				op := c.op(rpc.WriteOp{Kind: rpc.Update, Filter: doc("{k: 5}"), Update: value("{$inc: {n: 1}}"), Upsert: true})
				reply, err := c.sendRange(t.Context(), r, op)
				if err != nil {
					t.Error(err)
					close(done)
					return
				}
				done <- reply.Results[0]
			}()
		}
		upserted := 0
		for range 8 {
			res := <-done
			if res.UpsertedID.Type != 0 {
				upserted++
			}
			diff(t, res.N, int64(1))
		}
		diff(t, upserted, 1)
		docs := w.client().all()
		if len(docs) != 1 {
			t.Fatalf("documents %v", docs)
		}
	})
}

// Unordered operations go on after one that failed; ordered ones stop.
func TestOrderedStopsAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a")
		coll := w.collection("a")
		st := w.state()
		chunk := w.chunk(0)
		r := &rpc.WriteRequest{
			Header:  rpc.Header{Shard: "a", Collection: coll, RootVersion: st.Version()},
			Targets: []rpc.Target{{ID: chunk.ID, Version: chunk.Version}, {ID: chunk.ID, Version: chunk.Version + 1}},
			Ops:     []rpc.WriteOp{insertOp("{_id: 1}"), insertOp("{_id: 1}"), insertOp("{_id: 2}"), insertOp("{_id: 3}"), insertOp("{_id: 4}")},
		}
		r.Ops[3].Target = 1
		p := w.procs["p"]
		reply, err := p.Write(t.Context(), r)
		check(t, err)
		var got []string
		for _, res := range reply.Results {
			got = append(got, fmt.Sprint(res.N, res.Err != nil, res.Stale))
		}
		diff(t, got, []string{"1 false false", "0 true false", "1 false false", "0 false true", "1 false false"})
		r.Ordered = true
		for i := range r.Ops {
			r.Ops[i].Doc = doc(fmt.Sprintf("{_id: %d}", 10+i))
		}
		reply, err = p.Write(t.Context(), r)
		check(t, err)
		diff(t, len(reply.Results), 4)
		w.client().want("{_id: 1}", "{_id: 2}", "{_id: 4}", "{_id: 10}", "{_id: 11}", "{_id: 12}")
	})
}

// Reads return documents by their query, in batches, and a cursor keeps its moment.
func TestCursorKeepsItsMoment(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p", func(s *Settings) { s.Cursors = 2 }).holds("a")
		coll := w.collection("a")
		c := w.client()
		for i := range 10 {
			c.insert(fmt.Sprintf("{_id: %d}", i))
			if i == 4 {
				p.flushAll("a")
			}
		}
		chunk := w.chunk(0)
		req := &rpc.ReadRequest{
			Header:  rpc.Header{Shard: "a", Collection: coll, RootVersion: w.state().Version()},
			Targets: []rpc.Target{{ID: chunk.ID, Version: chunk.Version}},
			Query:   rpc.Query{KeyOrder: 1}, Batch: rpc.Batch{Docs: 3},
		}
		reply, err := p.Read(t.Context(), req)
		check(t, err)
		c.remove(5)
		c.insert("{_id: 99}")
		p.flushAll("a")
		n := len(reply.Docs)
		next := &rpc.CursorRequest{Header: req.Header, Cursor: reply.Cursor, Batch: rpc.Batch{Docs: 3}}
		for reply.Cursor != 0 {
			reply, err = p.Cursor(t.Context(), next)
			check(t, err)
			n += len(reply.Docs)
		}
		diff(t, n, 10)
		_, err = p.Cursor(t.Context(), next)
		wantCode(t, err, mongoerr.CursorNotFound)

		first, err := p.Read(t.Context(), req)
		check(t, err)
		_, err = p.Read(t.Context(), req)
		check(t, err)
		if _, err = p.Read(t.Context(), req); err == nil {
			t.Error("a third cursor was opened")
		}
		_, err = p.Cursor(t.Context(), &rpc.CursorRequest{Header: req.Header, Cursor: first.Cursor, Close: true})
		check(t, err)
		_, err = p.Read(t.Context(), req)
		check(t, err)
		time.Sleep(11 * time.Minute)
		diff(t, p.Status().Shards[0].Cursors, 0)

		req.Query = rpc.Query{Mode: rpc.Count}
		reply, err = p.Read(t.Context(), req)
		check(t, err)
		diff(t, reply.N, int64(10))
		req.Targets[0].Version++
		_, err = p.Read(t.Context(), req)
		wantStale(t, err)
		req.Collection = 99
		_, err = p.Read(t.Context(), req)
		wantStale(t, err)
		_, err = p.Read(t.Context(), &rpc.ReadRequest{Header: rpc.Header{Shard: "b"}})
		wantFenced(t, err)
		var none manifest.ChunkID
		diff(t, none, manifest.ChunkID(0))
	})
}
