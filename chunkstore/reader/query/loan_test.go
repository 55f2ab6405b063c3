package query

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Sorts and distincts share their memory: one that finds none is refused, and what a cursor has
// comes back at its end, after an error, or when nobody knows the cursor any more.
func TestSortsShareTheirMemory(t *testing.T) {
	w := newWorld(t)
	var docs []bson.Raw
	for id := range 400 {
		docs = append(docs, doc(1, id, bson.E{Key: "n", Value: strings.Repeat("x", 1000)}, bson.E{Key: "m", Value: id}))
	}
	w.flush(docs...)
	pot := admission.NewPot(900 << 10)
	limits := Limits{Sorts: pot.Account("sorts", 100)}
	open := func(q rpc.Query) *Cursor {
		c, err := Open(ctx, w.store, w.targets(), q, limits)
		w.must(err)
		return c
	}
	sorted := rpc.Query{Sort: raw(bson.D{{Key: "m", Value: 1}})}
	held := open(sorted)
	_, done, err := held.Next(ctx, rpc.Batch{Docs: 1})
	w.must(err)
	if used := pot.Bounds()[0].Used; done || used < 256<<10 || used > 768<<10 {
		t.Errorf("done %v, %d bytes for 400 KB", done, used)
	}
	if _, _, err := open(sorted).Next(ctx, rpc.Batch{}); !errors.Is(err, admission.Overloaded) || !strings.Contains(err.Error(), "sorts have") {
		t.Errorf("a second one: %v", err)
	}
	w.find(rpc.Query{Sort: sorted.Sort, Limit: 3}, w.targets()) // takes too little to be counted
	if got := w.all(held, rpc.Batch{Docs: 1000}); len(got) != 399 {
		t.Errorf("%d documents more", len(got))
	}
	if used := pot.Bounds()[0].Used; used != 0 {
		t.Errorf("%d bytes are held by cursors at their end", used)
	}

	_, _, err = open(sorted).Next(ctx, rpc.Batch{Docs: 1}) // and forgotten
	w.must(err)
	for deadline := time.Now().Add(10 * time.Second); pot.Bounds()[0].Used > 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		runtime.GC()
	}
	if used := pot.Bounds()[0].Used; used != 0 {
		t.Errorf("%d bytes are held by a cursor that is gone", used)
	}

	small := Limits{Sorts: admission.NewPot(100).Account("sorts", 100)}
	var many []bson.Raw
	for id := range 3000 {
		many = append(many, doc(2, id, bson.E{Key: "k", Value: id}))
	}
	w.flush(many...)
	c, err := Open(ctx, w.store, w.targets(), rpc.Query{Mode: rpc.Distinct, Field: "k"}, small)
	w.must(err)
	for err = nil; err == nil; {
		_, done, err = c.Next(ctx, rpc.Batch{Docs: 1000})
		if done && err == nil {
			t.Fatal("distinct took more than there is")
		}
	}
	if !errors.Is(err, admission.Overloaded) {
		t.Error(err)
	}
}
