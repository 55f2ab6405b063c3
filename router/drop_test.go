package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// A dropped collection comes back with every write that was acknowledged before the drop, flushed or
// not and also beside it, without a snapshot; so does one of a database. Other collections are not
// touched, and nothing is marked afterwards.
func TestADropIsTakenBackToTheLastWrite(t *testing.T) {
	slow := faultbucket.Rules(manifesttest.Host(1), faultbucket.Rule{
		Verbs: []layer.Verb{layer.Put}, Prefix: "seg/", Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: 20 * time.Millisecond},
	})
	in(t, routertest.Options{Plan: slow}, func(t *testing.T, c *routertest.Cluster) { // writes go on while segments are stored
		ctx := context.Background()
		alternating(t, c)
		set(t, c, manifest.HistorySetting(time.Hour, time.Minute))
		write(t, c.Router, many(updateOf(t, `{}`, `{"$set": {"v": "acknowledged"}}`))) // in logs only
		var acknowledged atomic.Int64
		done := make(chan error)
		go func() { // until the collection is gone
			r := c.NewRouter(router.Settings{})
			for i := 0; ; i++ {
				ws := router.Writes{Statements: []router.Statement{updateOf(t, fmt.Sprintf(`{"k": %d}`, i%40), `{"$inc": {"n": 1}}`)}}
				res, err := r.Write(ctx, ns, ws)
				if err != nil || res[0].Err != nil || res[0].N == 0 {
					if err == nil && res[0].Err != nil {
						err = res[0].Err
					}
					done <- err
					return
				}
				acknowledged.Add(1)
				time.Sleep(time.Millisecond)
			}
		}()
		time.Sleep(50 * time.Millisecond)
		if _, err := c.Router.Drop(ctx, ns, 0); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		list, err := c.Router.DroppedCollections(ctx, 0)
		if err != nil || len(list) != 1 || list[0].NS != ns || !strings.HasSuffix(list[0].Snapshot.Name, "before drop of db.c") || list[0].Rows != 40 {
			t.Fatalf("dropped: %+v, %v", list, err)
		}
		d, err := c.Router.Undrop(ctx, router.Undrop{From: ns})
		if err != nil || !strings.HasSuffix(d.Snapshot.Name, "before drop of db.c") || d.Documents != 40 {
			t.Fatalf("%+v, %v", d, err)
		}
		count := func(ns router.Namespace, filter string, want int64) {
			t.Helper()
			if got, err := c.Router.Count(ctx, ns, router.Query{Filter: raw(t, filter)}); err != nil || got != want {
				t.Errorf("%d documents of %s, want %d, %v", got, filter, want, err)
			}
		}
		count(ns, `{"v": "acknowledged"}`, 40)
		cur, err := c.Router.Find(ctx, ns, router.Query{})
		if err != nil {
			t.Fatal(err)
		}
		docs, err := cur.Batch(ctx, 0, 1<<20)
		sum := int64(0)
		for _, d := range docs {
			n, _ := d.Lookup("n").AsInt64OK()
			sum += n
		}
		if err != nil || sum != acknowledged.Load() || sum == 0 {
			t.Errorf("%d writes came back of %d that were acknowledged, %v", sum, acknowledged.Load(), err)
		}
		if coll := c.State().CollectionByName("db", "c"); coll.Reshaping() || !coll.Sharded || len(coll.Options) > 0 {
			t.Errorf("%+v", coll)
		}
		if err := c.Router.DropDatabase(ctx, "db", 0); err != nil {
			t.Fatal(err)
		}
		if d, err := c.Router.Undrop(ctx, router.Undrop{From: ns, Dry: true}); err != nil || !strings.HasSuffix(d.Snapshot.Name, "before drop of db.c") || d.Documents < 40 {
			t.Errorf("%+v, %v", d, err)
		}
		other := router.Namespace{Database: "db", Collection: "never"}
		_, err = c.Router.Undrop(ctx, router.Undrop{From: other})
		wantCode(t, err, mongoerr.NamespaceNotFound)
	})
}

// A drop whose owners do not answer is not made, and its mark is taken back.
func TestADropThatCannotBeKeptIsNotMade(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		alternating(t, c)
		set(t, c, manifest.HistorySetting(time.Hour, time.Minute))
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb == "flush" {
				return routertest.LoseRequest
			}
			return routertest.Deliver
		})
		if _, err := c.Router.Drop(context.Background(), ns, 3*time.Second); err == nil {
			t.Fatal("dropped, without what would bring it back")
		}
		c.Fate(nil)
		time.Sleep(20 * time.Second)
		if coll := c.State().CollectionByName("db", "c"); coll == nil || coll.Reshaping() {
			t.Errorf("%+v", coll)
		}
		if n, err := c.Router.Count(context.Background(), ns, router.Query{}); err != nil || n != 40 {
			t.Errorf("%d documents, %v", n, err)
		}
	})
}
