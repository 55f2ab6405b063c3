package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// A snapshot shows what the memtable held when it was taken, in any range, both ways, and
// nothing that came later; what a floor covers can be dropped.
func TestSnapshotShowsItsMoment(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := new(memtable)
		want := make(map[string]manifest.Seq)
		put := func(n int) {
			for i := range n {
				key := []byte{byte(rapid.IntRange(1, 40).Draw(t, "key"))}
				seq := manifest.Seq(len(want)*100 + i + 1)
				m.put(&row{path: appendPath(nil, 1, key), doc: emptyDocument, seq: seq, at: &stamp{manifest.Position{Epoch: 1, Next: uint64(i + 1)}}})
				want[string(key)] = seq
			}
		}
		put(rapid.IntRange(0, 60).Draw(t, "before"))
		s := m.snapshot()
		seen := make(map[string]manifest.Seq, len(want))
		for k, v := range want {
			seen[k] = v
		}
		put(rapid.IntRange(0, 20).Draw(t, "after"))
		var r shardkey.Range
		if rapid.Bool().Draw(t, "from") {
			r.Min = []byte{byte(rapid.IntRange(0, 41).Draw(t, "min"))}
		}
		if rapid.Bool().Draw(t, "to") {
			r.Max = []byte{byte(rapid.IntRange(1, 42).Draw(t, "max"))}
		}
		reverse := rapid.Bool().Draw(t, "reverse")
		var got, wanted []string
		for it := s.Scan(r, reverse); it.Next(); {
			got = append(got, string(it.Row().Key))
			if it.Row().Seq != seen[string(it.Row().Key)] {
				t.Fatalf("key %x has seq %d, want %d", it.Row().Key, it.Row().Seq, seen[string(it.Row().Key)])
			}
		}
		for k := range seen {
			if r.Contains([]byte(k)) {
				wanted = append(wanted, k)
			}
			if x, ok := s.Get([]byte(k)); !ok || x.Seq != seen[k] {
				t.Fatalf("Get %x: %v %v", k, x, ok)
			}
		}
		slices.Sort(wanted)
		if reverse {
			slices.Reverse(wanted)
		}
		if !slices.Equal(got, wanted) {
			t.Fatalf("scan %s reverse %v: %x, want %x", r, reverse, got, wanted)
		}
		floor := manifest.Position{Epoch: 1, Next: uint64(rapid.IntRange(0, 60).Draw(t, "floor"))}
		above := 0
		m.each(func(r *row) {
			if r.above(floor) {
				above++
			}
		})
		if n := m.above(floor).len(); n != above {
			t.Fatalf("%d rows above %v, want %d", n, floor, above)
		}
	})
}

// What is recorded for a retry is read back as it was; anything else is corrupt, not a panic.
func TestRecordedReplies(t *testing.T) {
	t.Parallel()
	for _, r := range []rpc.WriteResult{
		{}, {N: 1, Modified: 1}, {N: 1, UpsertedID: doc("{_id: 5}").Lookup("_id")},
		{N: 1, Value: doc("{_id: 1, v: 2}")}, {N: 1, UpsertedID: bson.RawValue{Type: bson.TypeNull}, Value: doc("{}")},
	} {
		got, err := parseAnswer(answerReply(&r))
		check(t, err)
		diff(t, fmt.Sprint(got), fmt.Sprint(r))
	}
	p := progress{done: shardkey.Range{Min: []byte("a"), Max: []byte("b")}, last: []byte("aa"), n: 300, modified: 2}
	got, err := parseProgress(p.reply())
	check(t, err)
	diff(t, fmt.Sprint(got), fmt.Sprint(p))
	for _, whole := range [][]byte{p.reply(), answerReply(&rpc.WriteResult{N: 1, UpsertedID: doc("{_id: 5}").Lookup("_id")})} {
		for n := 1; n < len(whole); n++ {
			_, err := parseProgress(whole[:n])
			wantKind(t, err, errkind.Corrupt)
			_, _ = parseAnswer(whole[:n])
		}
	}
	_, err = recall(segment.RetryEntry{Reply: []byte{byte(progressed), 1}}, nil)
	wantKind(t, err, errkind.Corrupt)
	if kindOf(&segment.RetryEntry{}) != 0 {
		t.Error("an empty reply has a kind")
	}
}

// The table of retries finds what was put as long as it is within its bounds, and counts
// what it holds: after everything is forgotten nothing is left.
func TestRetriesAreBounded(t *testing.T) {
	t.Parallel()
	var table retries
	rng := rand.New(rand.NewPCG(3, 4))
	entry := func(session byte, txn int64, stmt int32) *retry {
		return &retry{RetryEntry: segment.RetryEntry{
			Collection: 1, Key: []byte("key"), Reply: insertedReply, ExpiresAt: 1000 + txn,
			Op: segment.OpID{Session: [32]byte{session}, Txn: txn, Stmt: stmt},
		}}
	}
	for range 20000 {
		table.put(entry(byte(rng.IntN(200)), int64(rng.IntN(50)), int32(rng.IntN(20))))
	}
	op := rpc.OpID{Session: [32]byte{7}, Txn: 99, Stmt: 3}
	table.put(entry(7, 99, 3))
	if table.result(op) == nil || table.result(rpc.OpID{Session: [32]byte{7}, Txn: 99}) != nil {
		t.Error("an entry is not found, or one that was never put is")
	}
	table.trim(1 << 20)
	if table.bytes > 1<<20 || table.result(op) == nil {
		t.Errorf("%d bytes after a trim", table.bytes)
	}
	sum := int64(0)
	for s := table.silent; s != nil; s = s.next {
		sum += sessionBytes
	}
	table.each(func(e *retry) { sum += e.size() })
	diff(t, table.bytes, sum)
	table.expire(1099)
	diff(t, table.bytes, int64(0))
	diff(t, len(table.sessions), 0)
	diff(t, table.superseded, 0)
}

// A latch goes from hand to hand in order; who gave up waiting does not get it.
func TestLatchGoesFromHandToHand(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		s := w.process("p").holds("a").shard("a")
		h := latch{hash: 1}
		check(t, s.acquire(t.Context(), h))
		order := make(chan int, 5)
		for i := range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				if err := s.acquire(ctx, h); err == nil {
					order <- i
					s.release(h)
				} else {
					order <- -i
				}
			}()
			time.Sleep(time.Millisecond)
			if i == 2 {
				cancel()
				diff(t, <-order, -2)
			}
			t.Cleanup(cancel)
		}
		s.release(h)
		diff(t, []int{<-order, <-order, <-order, <-order}, []int{0, 1, 3, 4})
		time.Sleep(time.Millisecond) // the last of them releases after it has told
		s.mu.Lock()
		left := len(s.latches.held)
		s.mu.Unlock()
		diff(t, left, 0)
		held, err := s.acquireAll(t.Context(), []latch{{hash: 9}, {hash: 3}, {hash: 9}})
		check(t, err)
		diff(t, len(held), 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.acquireAll(ctx, []latch{{hash: 1}, {hash: 9}}); err == nil {
			t.Error("took a latch that is held")
		}
		s.release(held...)
		diff(t, len(s.latches.held), 0)
		waits := make(chan error, 1)
		check(t, s.acquire(t.Context(), h))
		go func() { waits <- s.acquire(t.Context(), h) }()
		time.Sleep(time.Millisecond)
		s.end(errkind.Fenced)
		wantFenced(t, <-waits)
		s.release(h)
	})
}

// A segment that is gone is never an empty one: still referenced, it is lost, and every
// operation that needs it says so; replaced, the read begins again, and an open cursor ends.
func TestMissingSegment(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		noise := rand.New(rand.NewPCG(1, 1))
		for i := range 400 { // a segment that is not read as a whole
			var s strings.Builder
			for range 200 {
				fmt.Fprintf(&s, "%016x", noise.Uint64())
			}
			c.insert(fmt.Sprintf(`{_id: %d, s: "%s"}`, i, s.String()))
		}
		check(t, p.Release(t.Context(), "a"))
		p.kill()
		q := w.process("q", longLease).holds("a")
		chunk := w.chunk(1)
		w.directDelete(t, chunk, 999)
		old := chunk.Refs[0].Segment.Key()
		read := &rpc.ReadRequest{
			Header:  rpc.Header{Shard: "a", Collection: chunk.Collection},
			Targets: []rpc.Target{{ID: chunk.ID, Version: chunk.Version}}, Batch: rpc.Batch{Docs: 1}, Query: rpc.Query{KeyOrder: 1},
		}
		first, err := q.Read(t.Context(), read)
		check(t, err)
		check(t, w.mem.Delete(t.Context(), old))
		_, err = q.Cursor(t.Context(), &rpc.CursorRequest{Header: read.Header, Cursor: first.Cursor})
		wantKind(t, err, errkind.SnapshotUnavailable)
		q.kill()

		r := w.process("r", longLease).holds("a")
		chunk = w.chunk(1)
		w.directDelete(t, chunk, 999)
		check(t, w.mem.Delete(t.Context(), chunk.Refs[0].Segment.Key()))
		diff(t, c.update(7, "{$set: {v: 1}}"), rpc.WriteResult{N: 1, Modified: 1}) // on the new references
		first, err = r.Read(t.Context(), read)
		check(t, err)
		diff(t, len(first.Docs), 1)
		r.kill()

		s := w.process("s", longLease).holds("a")
		check(t, w.mem.Delete(t.Context(), w.chunk(1).Refs[0].Segment.Key()))
		_, err = s.Read(t.Context(), read)
		wantKind(t, err, errkind.Corrupt)
		key := w.chunk(1).Refs[0].Segment.Key()
		if !strings.Contains(err.Error(), key) {
			t.Errorf("error %q does not name %s", err, key)
		}
		for _, op := range []rpc.WriteOp{insertOp("{_id: 50}"), updateOp(51, "{$set: {v: 1}}"), {Kind: rpc.Delete, Filter: doc("{v: 5}"), Key: nil}} {
			reply, err := c.sendTo(t.Context(), 1, op)
			check(t, err)
			if e := reply.Results[0].Err; e == nil || e.Code != mongoerr.DataCorruptionDetected {
				t.Errorf("kind %d answers %+v", op.Kind, reply.Results[0])
			}
		}
	})
}

// Values in the text of a duplicate are written as MongoDB writes them.
func TestDuplicateShowsValues(t *testing.T) {
	t.Parallel()
	coll := &manifest.Collection{Database: "db", Name: "c", Key: shardkey.Pattern{Fields: []shardkey.Field{{Path: "a.b"}, {Path: "h", Hashed: true}}}}
	d := raw(bson.D{
		{Key: "_id", Value: bson.ObjectID{1, 2}}, {Key: "a", Value: bson.D{{Key: "b", Value: 2.5}}}, {Key: "h", Value: time.UnixMilli(5)},
	})
	const want = "E11000 duplicate key error collection: db.c index: a.b_1_h_hashed__id_1 dup key: { a.b: 2.5, h: new Date(5), _id: ObjectId('010200000000000000000000') }"
	diff(t, duplicateKey(coll, d).Message, want)
	d = raw(bson.D{{Key: "_id", Value: int64(7)}, {Key: "h", Value: "x"}})
	const missing = "E11000 duplicate key error collection: db.c index: a.b_1_h_hashed__id_1 dup key: { a.b: null, h: \"x\", _id: 7 }"
	diff(t, duplicateKey(coll, d).Message, missing)
	diff(t, shown(bson.RawValue{Type: bson.TypeDouble, Value: doc("{v: 1.0}").Lookup("v").Value}), "1.0")
}

// Documents and keys beyond the format are refused, not stored.
func TestWhatCannotBeStoredIsRefused(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		big := raw(bson.D{{Key: "_id", Value: 1}, {Key: "s", Value: strings.Repeat("x", segment.MaxDocBytes)}})
		diff(t, c.do(rpc.WriteOp{Kind: rpc.Insert, Doc: big}).Err.Code, mongoerr.BSONObjectTooLarge)
		long := raw(bson.D{{Key: "_id", Value: strings.Repeat("x", segment.MaxKeyBytes)}})
		diff(t, c.do(rpc.WriteOp{Kind: rpc.Insert, Doc: long}).Err.Code, mongoerr.BadValue)
		many := rpc.WriteOp{Kind: rpc.Update, Filter: doc("{_id: 1}"), Update: value("{_id: 1, a: 1}"), Multi: true}
		diff(t, c.do(many).Err.Code, mongoerr.FailedToParse)
		diff(t, c.do(rpc.WriteOp{Kind: rpc.Update, Filter: doc("{_id: 1}"), Update: value("{$nonsense: {a: 1}}")}).Err.Code, mongoerr.FailedToParse)
		_, err := c.sendTo(t.Context(), 1, rpc.WriteOp{Kind: 99})
		wantKind(t, err, errkind.Invalid)
		_, err = c.sendTo(t.Context(), 1, rpc.WriteOp{Kind: rpc.Update, Target: 4})
		wantKind(t, err, errkind.Invalid)
		_, err = c.sendTo(t.Context(), 1, rpc.WriteOp{Kind: rpc.Delete, Key: []byte{0x20, 'x'}, Filter: doc("{}")})
		if err == nil {
			t.Log("a key that is none matches nothing")
		}
		mid := raw(bson.D{{Key: "_id", Value: 2}, {Key: "s", Value: strings.Repeat("x", 9<<20)}}) // larger than a batch
		diff(t, c.do(rpc.WriteOp{Kind: rpc.Insert, Doc: mid}), rpc.WriteResult{N: 1})
		docs, _, err := c.readOnce(t.Context(), rpc.Query{}, rpc.Verified)
		check(t, err)
		if len(docs) != 1 || !bytes.Equal(docs[0], mid) {
			t.Errorf("%d documents", len(docs))
		}
	})
}

// A commit whose outcome stays unknown for longer than the root's own patience is resolved
// when the bucket is back: the shard does not die of it, and nothing is done twice.
func TestUnknownCommitIsResolvedWhenTheBucketIsBack(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("p").holds("a")
		w.collection("a")
		c := w.client()
		c.insert("{_id: 1}", "{_id: 2}")
		c.mapped = w.state()
		p.fault.SetPlan(func(call faultbucket.Call) faultbucket.Fault {
			if strings.HasPrefix(call.Key, "meta/") {
				return faultbucket.Fault{Kind: faultbucket.After}
			}
			return faultbucket.Fault{}
		})
		flushed := make(chan error, 1)
		go func() {
			_, err := p.Flush(context.Background(), &rpc.FlushRequest{Header: rpc.Header{Shard: "a"}})
			flushed <- err
		}()
		time.Sleep(time.Hour)
		c.insert("{_id: 3}") // the WAL goes on
		p.fault.SetPlan(nil)
		check(t, <-flushed)
		c.mapped = nil
		c.want("{_id: 1}", "{_id: 2}", "{_id: 3}")
		p.flushAll("a")
		c.wantRows(1, 3)
		diff(t, p.Status().Shards[0].Epoch, manifest.Epoch(1))
		diff(t, errors.Is(p.shard("a").endedErr(), errkind.Fenced), false)
	})
}
