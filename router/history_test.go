package router_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// A cluster with a history makes a moment every so often while something changes, and none
// otherwise; it is read as of a time; and what is dropped was remembered as it was just then.
func TestAClusterRemembers(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		alternating(t, c)
		kept := make(chan error, 1)
		go func() { kept <- c.Router.KeepHistory(ctx, func() bool { return true }) }()
		time.Sleep(time.Hour)
		if n := len(c.State().Pins()); n != 0 {
			t.Fatalf("%d moments without the setting", n)
		}
		begin := time.Now()
		_, err := c.Router.SnapshotAt(ctx, begin, 0)
		wantCode(t, err, mongoerr.SnapshotUnavailable)
		set(t, c, manifest.HistorySetting(24*time.Hour, time.Minute))
		watched := make(chan struct{})
		go func() { // as a process that holds shards does
			defer close(watched)
			for c.Host.Sleep(ctx, 5*time.Second) == nil {
				_, _ = c.Router.State(ctx, 0)
			}
		}()
		change := func(v string) { write(t, c.Router, many(updateOf(t, `{}`, `{"$set": {"v": "`+v+`"}}`))) }
		change("first")
		time.Sleep(10 * time.Minute) // one moment, however often it is looked
		second := time.Now()
		change("second")
		time.Sleep(10 * time.Minute)
		if n := len(c.State().Moments()); n != 2 {
			t.Errorf("%d moments of two changes", n)
		}
		pin, err := c.Router.SnapshotAt(ctx, second, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := c.Router.Count(ctx, ns, router.Query{Filter: raw(t, `{"v": "first"}`), At: pin.Version}); err != nil || n != 40 {
			t.Errorf("%d documents as of then, %v", n, err)
		}
		_, err = c.Router.SnapshotAt(ctx, begin.Add(-time.Hour), 0)
		wantCode(t, err, mongoerr.SnapshotUnavailable)

		change("third") // a second before the drop
		time.Sleep(time.Second)
		if _, err := c.Router.Drop(ctx, ns, 0); err != nil {
			t.Fatal(err)
		}
		list := c.State().Moments()
		if len(list) != 3 || !strings.HasSuffix(list[2].Name, " before drop of db.c") || time.Until(time.Unix(list[2].ExpiresAt, 0)) < 23*time.Hour {
			t.Errorf("moments: %+v", list)
		}
		if d, err := c.Router.Undrop(ctx, router.Undrop{From: ns}); err != nil || d.Documents != 40 {
			t.Errorf("%+v, %v", d, err)
		}
		if n, err := c.Router.Count(ctx, ns, router.Query{Filter: raw(t, `{"v": "third"}`)}); err != nil || n != 40 {
			t.Errorf("%d documents came back, %v", n, err)
		}
		if _, err := c.Router.DropRange(ctx, ns, raw(t, `{"k": {"$minKey": 1}}`), raw(t, `{"k": 10}`), false, 0); err != nil {
			t.Fatal(err)
		}
		if err := c.Router.DropDatabase(ctx, "db", 0); err != nil {
			t.Fatal(err)
		}
		list = c.State().Moments()
		if n := len(list); n < 5 || !strings.HasSuffix(list[n-2].Name, " before dropRange of db.c") || !strings.HasSuffix(list[n-1].Name, " before drop of db.c") {
			t.Errorf("moments: %+v", list)
		}
		stop()
		<-watched
		if err := <-kept; err != nil {
			t.Error(err)
		}
	})
}

func set(t *testing.T, c *routertest.Cluster, r manifest.Record) {
	t.Helper()
	if _, err := c.Root.Commit(context.Background(), manifest.Edit{Op: c.Host.ID16(), Changes: []manifest.Change{manifest.PutRecord{Record: r}}}); err != nil {
		t.Fatal(err)
	}
}
