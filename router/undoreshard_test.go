package router_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// kept are layouts of which the version before can be had back.
var kept = router.Layout{Keep: time.Hour}

// TestAReshardingIsUndoneWithoutARewrite puts a collection back that nobody wrote to, after
// writes, deletes and moves under the old key of which the logs still tell: all is as it was,
// also when every owner is lost then and the logs are read again. The pin is given up.
func TestAReshardingIsUndoneWithoutARewrite(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"k": 1}`, `{"k": 100}`, `{"k": 200}`)
		shelf(t, c.Router, 300)
		write(t, c.Router, updateOf(t, `{"_id": 7}`, `{"$set": {"v": 5}}`), deleteOf(t, `{"_id": 8}`), deleteOf(t, `{"k": 150}`))
		coll := func() *manifest.Collection { return c.State().CollectionByName("db", "c") }
		moveAway(c, c.State(), c.State().ChunkOf(coll().ID, key(t, coll(), 120)))
		write(t, c.Router, deleteOf(t, `{"k": 120}`))
		before := find(t, c.Router, `{}`)
		was := coll()
		sent := insertOf(t, `{"_id": 1000, "k": 5}`)
		for round := range 2 {
			if err := c.Router.ReshardCollection(ctx, ns, key1(t, `{"v": 1, "pad": 1}`), kept, false, 0); err != nil {
				t.Fatal(err)
			}
			if n := len(c.State().Pins()); n != 1 || coll().ID == was.ID {
				t.Fatalf("%d pins, collection %d was %d", n, coll().ID, was.ID)
			}
			if round == 1 { // compactions and splits are no writes
				s := c.State()
				k, full, err := coll().Key.Bound(raw(t, `{"v": 0, "pad": "xxxxxxxxxx"}`))
				if err != nil {
					t.Fatal(err)
				}
				c.Commit(manifest.Split{Chunk: s.ChunkOf(coll().ID, k).At(), Points: []manifest.Bound{{Key: k, BSON: full}}})
			}
			c.Reset()
			restored, err := c.NewRouter(small).UndoReshard(ctx, ns, 0, nil, 0)
			if err != nil || !restored {
				t.Fatalf("restored %t, %v", restored, err)
			}
			if coll().ID != was.ID || !coll().Key.Equal(was.Key) || len(c.State().Pins()) != 0 {
				t.Errorf("collection %d under %v, pins %v", coll().ID, coll().Key, c.State().Pins())
			}
			same(t, before, find(t, c.NewRouter(router.Settings{}), `{}`))
			for _, h := range c.State().Shards() {
				if h.Status == manifest.ShardHeld && round == 0 {
					c.Unplug(h.ID)
				}
			}
			same(t, before, find(t, c.NewRouter(router.Settings{}), `{}`))
			tidy(t, c)
			wantCode(t, undo(c.Router), mongoerr.IllegalOperation)
			write(t, c.Router, sent)
			same(t, len(before)+1, len(find(t, c.Router, `{}`)))
			write(t, c.Router, deleteOf(t, `{"_id": 1000}`))
			before = find(t, c.Router, `{}`)
		}
	})
}

func undo(r *router.Router) error {
	_, err := r.UndoReshard(context.Background(), ns, 0, nil, 0)
	return err
}

// TestUndoingLosesNoWrite undoes a resharding while documents are written, and after one was:
// the collection is rewritten under its old key, cut where it was, with all of them.
func TestUndoingLosesNoWrite(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"k": 1}`, `{"k": 100}`)
		shelf(t, c.Router, 200)
		coll := func() *manifest.Collection { return c.State().CollectionByName("db", "c") }
		home := c.State().ChunkOf(coll().ID, nil).Shard
		if err := c.Router.ReshardCollection(ctx, ns, key1(t, `{"v": "hashed"}`), kept, false, 0); err != nil {
			t.Fatal(err)
		}
		write(t, c.Router, insertOf(t, `{"_id": 1000, "k": 5}`))
		restored, err := c.Router.UndoReshard(ctx, ns, time.Hour, nil, 0)
		if err != nil || restored {
			t.Fatalf("restored %t, %v", restored, err)
		}
		same(t, 201, len(find(t, c.Router, `{}`)))
		if k := c.State().ChunkOf(coll().ID, nil); coll().Key.String() != "{ k: 1 }" || k.Shard != home {
			t.Errorf("%v, on %s, was on %s", coll().Key, k.Shard, home)
		}
		tr := begin(t, c, 3, true)
		_ = c.Host.Sleep(ctx, 200*time.Millisecond)
		if _, err := c.NewRouter(small).UndoReshard(ctx, ns, 0, nil, 0); err != nil { // what was undone comes back
			t.Error(err)
		}
		_ = c.Host.Sleep(ctx, 200*time.Millisecond)
		same(t, `{ v: "hashed" }`, coll().Key.String())
		tr.check()
		same(t, 201, len(find(t, c.Router, `{"_id": {"$lt": 10000}}`)))
		wantCode(t, undo(c.Router), mongoerr.IllegalOperation)
		tidy(t, c)
	})
}

// TestAWriteSentAgainAfterAnUndoHappensOnce: it was answered before the switch, or after it and
// changed nothing.
func TestAWriteSentAgainAfterAnUndoHappensOnce(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"k": 1}`)
		shelf(t, c.Router, 100)
		send := func(session_ byte, s router.Statement) int64 {
			results, err := c.NewRouter(router.Settings{}).Write(ctx, ns, router.Writes{Statements: []router.Statement{s}, Retry: session(session_, 5)})
			if err != nil || results[0].Err != nil {
				t.Fatalf("%+v, %v", results, err)
			}
			return int64(results[0].N)
		}
		first := updateOf(t, `{"_id": 7}`, `{"$inc": {"v": 1}}`)
		same(t, int64(1), send(1, first))
		if err := c.Router.ReshardCollection(ctx, ns, key1(t, `{"pad": 1}`), kept, false, 0); err != nil {
			t.Fatal(err)
		}
		same(t, int64(1), send(1, first))
		if err := undo(c.Router); err != nil {
			t.Fatal(err)
		}
		same(t, int64(1), send(1, first))
		same(t, 1, len(find(t, c.Router, `{"_id": 7, "v": 1}`)))
		tidy(t, c)
	})
}

// TestNothingIsUndoneWithoutAPin: it was given up, or nothing was kept; and an attempt that
// fails before its commit leaves no pin.
func TestNothingIsUndoneWithoutAPin(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		wantCode(t, undo(c.Router), mongoerr.NamespaceNotFound)
		shard(t, c.Router, `{"k": 1}`)
		shelf(t, c.Router, 50)
		wantCode(t, undo(c.Router), mongoerr.IllegalOperation)
		if err := c.Router.ReshardCollection(ctx, ns, key1(t, `{"v": 1}`), kept, false, 0); err != nil {
			t.Fatal(err)
		}
		pin := c.State().Pins()[0].ID
		for i := range 3 { // each replaces the one before
			if err := c.Router.ReshardCollection(ctx, ns, key1(t, fmt.Sprintf(`{"x%d": 1}`, i)), kept, false, 0); err != nil {
				t.Fatal(err)
			}
		}
		pins := c.State().Pins()
		if len(pins) != 1 || slices.ContainsFunc(pins, func(p manifest.Pin) bool { return p.ID == pin }) {
			t.Errorf("pins %v", pins)
		}
		c.Commit(manifest.DropPin{ID: pins[0].ID})
		wantCode(t, undo(c.Router), mongoerr.IllegalOperation)
		tidy(t, c)
	})
}
