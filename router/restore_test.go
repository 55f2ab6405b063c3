package router_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Collections come back into the cluster that they are of: in the place of what has their names, in
// one commit, when that is asked for, under another name, or not at all; what was replaced can be had
// back in turn. Whoever reads meanwhile sees the one or the other, whole.
func TestCollectionsAreRestoredInPlace(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		alternating(t, c)
		set(t, c, manifest.HistorySetting(time.Hour, time.Minute))
		plain := router.Namespace{Database: "db", Collection: "plain"}
		if res, err := c.Router.Write(ctx, plain, router.Writes{Statements: []router.Statement{insertOf(t, `{"_id": 1}`)}}); err != nil || res[0].Err != nil {
			t.Fatalf("%+v, %v", res, err)
		}
		if _, err := c.Router.CreateSnapshot(ctx, "s", 0, 0); err != nil {
			t.Fatal(err)
		}
		write(t, c.Router, many(updateOf(t, `{}`, `{"$set": {"v": "wrong"}}`)))
		_, src, err := c.Router.SnapshotOf(ctx, "s", 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Router.Restore(ctx, router.Restoring{Source: src})
		if e := wantCode(t, err, mongoerr.NamespaceExists); !strings.Contains(e.Message, "--replace") || !strings.Contains(e.Message, "db.plain") {
			t.Error(e)
		}
		count := func(ns router.Namespace, filter string) int64 {
			n, err := c.NewRouter(router.Settings{}).Count(ctx, ns, router.Query{Filter: raw(t, filter)})
			if err != nil {
				t.Error(err)
			}
			return n
		}
		other := router.Namespace{Database: "db", Collection: "other"}
		list, err := c.Router.Restore(ctx, router.Restoring{Source: src, From: ns, As: other})
		if err != nil || len(list) != 1 || list[0].Documents != 40 || count(other, `{"v": {"$exists": false}}`) != 40 || count(ns, `{"v": "wrong"}`) != 40 {
			t.Errorf("beside it: %+v, %v", list, err)
		}
		before := len(c.State().Collections())
		dry, err := c.Router.Restore(ctx, router.Restoring{Source: src, Replace: true, Dry: true})
		if err != nil || len(dry) != 2 || !dry[0].Replaced || count(ns, `{"v": "wrong"}`) != 40 {
			t.Errorf("dry: %+v, %v", dry, err)
		}
		stop, done := make(chan struct{}), make(chan error)
		go func() { // a reader: 40 of one kind, always
			r := c.NewRouter(router.Settings{})
			for {
				select {
				case <-stop:
					done <- nil
					return
				case <-time.After(time.Millisecond):
				}
				n, err := r.Count(ctx, ns, router.Query{})
				if err == nil && n != 40 {
					err = errors.New("a reader saw a part")
				}
				if err != nil {
					done <- err
					return
				}
			}
		}()
		list, err = c.Router.Restore(ctx, router.Restoring{Source: src, Replace: true})
		if err != nil || len(list) != 2 || !list[0].Replaced {
			t.Errorf("in its place: %+v, %v", list, err)
		}
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := len(c.State().Collections()); n != before || count(ns, `{"v": "wrong"}`) != 0 || count(ns, `{}`) != 40 || count(plain, `{}`) != 1 {
			t.Errorf("%d collections, were %d; %d documents", n, before, count(ns, `{}`))
		}
		write(t, c.Router, updateOf(t, `{"k": 5}`, `{"$set": {"v": "on"}}`))
		if count(ns, `{"v": "on"}`) != 1 {
			t.Error("it does not take writes")
		}
		moments := c.State().Moments()
		was := router.Namespace{Database: "db", Collection: "was"}
		d, err := c.Router.Undrop(ctx, router.Undrop{From: ns, As: was, Snapshot: moments[len(moments)-1].Name})
		if err != nil || count(d.NS, `{"v": "wrong"}`) != 40 {
			t.Errorf("what was replaced: %+v, %v", d, err)
		}
	})
}

// A stored state, as a backup is, comes back by its segments.
func TestAStoredStateIsRestored(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		alternating(t, c)
		if _, err := c.Router.CreateSnapshot(ctx, "s", 0, 0); err != nil {
			t.Fatal(err)
		}
		store := reader.NewStore(func(manifest.LocationID) (bucket.Bucket, error) { return c.Bucket, nil }, nil)
		src := router.Stored(c.State(), store)
		write(t, c.Router, many(updateOf(t, `{}`, `{"$set": {"v": "wrong"}}`)))
		list, err := c.Router.Restore(ctx, router.Restoring{Source: src, From: ns, Replace: true})
		if err != nil || len(list) != 1 || list[0].Documents != 40 {
			t.Errorf("%+v, %v", list, err)
		}
		if n, err := c.Router.Count(ctx, ns, router.Query{Filter: raw(t, `{"v": {"$exists": false}}`)}); err != nil || n != 40 {
			t.Errorf("%d documents, %v", n, err)
		}
		_, err = c.Router.Restore(ctx, router.Restoring{Source: src, From: router.Namespace{Database: "db", Collection: "x"}})
		wantCode(t, err, mongoerr.NamespaceNotFound)
	})
}

// A restore whose source ends early leaves everything as it was.
func TestARestoreThatFailsLeavesNothing(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		alternating(t, c)
		before := len(c.State().Collections())
		broken := errors.New("the backup is torn")
		src := router.Source{State: c.State(), Read: func(_ context.Context, _ router.Namespace, put func([]bson.Raw) error) error {
			if err := put([]bson.Raw{raw(t, `{"_id": 1, "k": 1}`)}); err != nil {
				return err
			}
			return broken
		}}
		_, err := c.Router.Restore(context.Background(), router.Restoring{Source: src, Replace: true})
		if !errors.Is(err, broken) || len(c.State().Collections()) != before {
			t.Errorf("%v, collections %d, were %d", err, len(c.State().Collections()), before)
		}
		if n, err := c.Router.Count(context.Background(), ns, router.Query{}); err != nil || n != 40 {
			t.Errorf("%d documents, %v", n, err)
		}
	})
}
