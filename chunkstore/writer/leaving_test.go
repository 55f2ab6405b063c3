package writer

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// retriesIn are the retry entries of all segments in the cluster's own bucket.
func (w *world) retriesIn() (list []segment.RetryEntry) {
	w.t.Helper()
	page, _, err := w.mem.List(context.Background(), "seg/", "", 0)
	check(w.t, err)
	for _, a := range page {
		o, err := w.mem.Get(context.Background(), a.Key, bucket.GetOptions{})
		check(w.t, err)
		id, err := manifest.ParseSegmentKey(a.Key)
		check(w.t, err)
		check(w.t, segment.Walk(id, o.Body, func(segment.Row) error { return nil }, func(e segment.RetryEntry) error {
			list = append(list, e)
			return nil
		}))
	}
	return list
}

// A chunk that goes to another location takes along what is known of operations, and nothing of
// rows that stay behind: what a document became in another chunk, and where a statement went. Sent
// again, the operations have the outcome that they had.
func TestRetriesThatLeaveTellOfTheirRowsOnly(t *testing.T) {
	t.Parallel()
	for _, flushed := range []bool{true, false} {
		inWorld(t, func(t *testing.T, w *world) {
			w.located("eu")
			p := w.process("p", longLease, quiet).holds("a", "eu")
			w.keyed("{k: 1}", "eu,eu", 10)
			c := w.client()
			c.insert("{_id: 1, k: 1}", "{_id: 2, k: 3}", "{_id: 5, k: 2}", "{_id: 5, k: 777}")
			gone := c.op(w.rekeyOp("{_id: 1, k: 1}", `{$set: {k: 888, v: "secret"}}`))
			gone.Return = rpc.ReturnAfter
			if res := c.do(gone); res.Modified != 1 || !strings.Contains(res.Value.String(), "secret") {
				t.Fatalf("got %+v", res)
			}
			stays := c.op(w.rekeyOp("{_id: 2, k: 3}", `{$set: {v: "here"}}`))
			stays.Return = rpc.ReturnAfter
			c.do(stays)
			taken := c.op(w.rekeyOp("{_id: 5, k: 2}", "{$set: {k: 777}}"))
			if res := c.do(taken); res.Err == nil || !strings.Contains(res.Err.Message, "777") {
				t.Fatalf("got %+v", res)
			}
			home := w.rowKey("{_id: 0, k: 5}")
			intent := func(n byte, of string) rpc.WriteOp {
				told := raw(bson.D{{Key: "a", Value: int32(0)}, {Key: "t", Value: bson.Binary{Data: w.rowKey(of)}}})
				return rpc.WriteOp{Kind: rpc.Intent, Op: rpc.OpID{Session: [32]byte{n}, Txn: 1}, Key: home, Doc: told}
			}
			there, here := intent(8, "{_id: 5, k: 777}"), intent(9, "{_id: 2, k: 3}")
			c.do(there)
			c.do(here)
			if flushed {
				p.flushAll("eu")
			}
			leaves := w.chunk(doc("{k: 1}"))
			check(t, w.moveAll(p, "eu", "a", func(i int) bool { return i == 0 }))

			list := w.retriesIn()
			for _, e := range list {
				docs, row := Told(&e)
				if row != nil && !leaves.Range.Contains(row) {
					t.Errorf("entry of %x names the row %x", e.Op.Session[:1], row)
				}
				for _, d := range docs {
					if !strings.Contains(d.String(), "here") {
						t.Errorf("entry of %x answers %v", e.Op.Session[:1], d)
					}
				}
				if strings.Contains(string(e.Reply), "777") {
					t.Errorf("entry of %x says %q", e.Op.Session[:1], e.Reply)
				}
			}
			if len(list) < 5 {
				t.Errorf("%d entries came along", len(list))
			}
			if res := c.do(gone); res.Modified != 1 || res.Value != nil {
				t.Errorf("sent again: %+v", res)
			}
			if res := c.do(stays); res.Modified != 1 || !strings.Contains(res.Value.String(), "here") {
				t.Errorf("sent again: %+v", res)
			}
			if res := c.do(taken); res.Err == nil || res.Err.Code != mongoerr.DuplicateKey {
				t.Errorf("sent again: %+v", res)
			}
			diff(t, show(c.do(there).Value), `{"a":0,"d":2}`)
			if got := c.do(here).Value; !slices.Equal(got, here.Doc) {
				t.Errorf("the intent for a row of the chunk is %v", got)
			}
		})
	}
}

// Parts of writes of many are cut to the chunk that leaves. One that comes back, and is joined with
// a chunk that knows the whole part, counts it once.
func TestPartsThatLeaveAreCutAndCountedOnce(t *testing.T) {
	t.Parallel()
	inWorld(t, func(t *testing.T, w *world) {
		w.located("eu")
		p := w.process("p", longLease, quiet).holds("a", "eu")
		w.collection("eu")
		c := w.client()
		c.insert("{_id: 1, v: 1}", "{_id: 2, v: 1}", "{_id: 101, v: 1}", "{_id: 102, v: 1}")
		many := c.op(rpc.WriteOp{Kind: rpc.Update, Filter: doc("{v: 1}"), Update: value("{$inc: {n: 1}}"), Multi: true})
		diff(t, c.do(many), rpc.WriteResult{N: 4, Modified: 4})
		p.flushAll("eu")
		w.split(t, 1, 100)
		check(t, w.moveAll(p, "eu", "a", func(i int) bool { return i == 1 }))
		for _, e := range w.retriesIn() {
			if p, err := parseProgress(e.Reply); kindOf(&e) == progressed && (err != nil || e.Span.Contains(idKey(2)) || p.done.Contains(idKey(2))) {
				t.Errorf("a part tells of %v, %v", e.Span, err)
			}
		}
		check(t, w.moveAll(p, "a", "eu", func(i int) bool { return i == 1 }))
		low, high := w.chunk(1), w.chunk(101)
		check(t, w.commit(manifest.Merge{Left: low.At(), Right: high.At()}))
		diff(t, c.do(many), rpc.WriteResult{N: 4, Modified: 4})
		c.want("{_id: 1, v: 1, n: 1}", "{_id: 2, v: 1, n: 1}", "{_id: 101, v: 1, n: 1}", "{_id: 102, v: 1, n: 1}")
	})
}

func TestPartsAreCut(t *testing.T) {
	t.Parallel()
	r := func(min, max string) shardkey.Range { return shardkey.Range{Min: []byte(min), Max: []byte(max)} }
	for _, x := range []struct {
		done shardkey.Range
		last string
		to   shardkey.Range
		want progress
	}{
		{r("b", "y"), "x", r("a", "z"), progress{done: r("b", "y"), last: []byte("x"), n: 3, modified: 2}},
		{r("b", "y"), "x", r("m", "z"), progress{done: r("m", "y"), last: []byte("x"), n: 3, modified: 2}},
		{r("b", "y"), "x", r("a", "m"), progress{done: r("b", "m"), last: []byte("b")}},
		{r("", ""), "x", r("", "m"), progress{done: r("", "m"), last: []byte{0}}},
		{r("b", "c"), "x", r("m", "z"), progress{done: r("x", "x"), last: []byte("x"), n: 3, modified: 2}},
	} {
		p := progress{done: x.done, last: []byte(x.last), n: 3, modified: 2}
		p.cutTo(x.to)
		if string(p.reply()) != string(x.want.reply()) {
			t.Errorf("%v, last %q, cut to %v: %+v", x.done, x.last, x.to, p)
		}
		if s := p.span(); !s.Overlaps(x.to) || s.Contains([]byte("x")) && !x.to.Contains([]byte("x")) {
			t.Errorf("cut to %v it is shown to %v", x.to, s)
		}
	}
}
