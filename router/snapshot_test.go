package router_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A snapshot shows what was acknowledged before it, to every router, after every document was
// changed, chunks were split and moved, and the writers are gone.
func TestASnapshotIsReadWhateverBecomesOfItsChunks(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		alternating(t, c)
		pin, err := c.Router.CreateSnapshot(context.Background(), "s", 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		coll := c.State().CollectionByName("db", "c")
		write(t, c.Router, many(updateOf(t, `{}`, `{"$set": {"v": "new"}}`)))
		write(t, c.Router, updateOf(t, `{"k": 5}`, `{"$set": {"k": 7}}`))
		c.Move(coll, nil, "shard03")
		if err := c.Router.SplitChunk(context.Background(), ns, router.Where{Middle: raw(t, `{"k": 25}`)}, 0); err != nil {
			t.Fatal(err)
		}
		for _, order := range []string{``, `{"k": 1}`, `{"_id": -1}`} {
			q := router.Query{At: pin.Version}
			if order != "" {
				q.Sort = raw(t, order)
			}
			cur, err := c.NewRouter(router.Settings{}).Find(context.Background(), ns, q)
			if err != nil {
				t.Fatal(err)
			}
			docs, err := cur.Batch(context.Background(), 0, 1<<20)
			if err != nil || len(docs) != 40 {
				t.Fatalf("sorted by %s: %d documents, %v", order, len(docs), err)
			}
			for _, d := range docs {
				if id, k := d.Lookup("_id").AsInt64(), d.Lookup("k").AsInt64(); id != k || d.Lookup("v").Type != 0 {
					t.Errorf("%v is of later", d)
				}
			}
		}
		c.Reset()
		n, err := c.Router.Count(context.Background(), ns, router.Query{At: pin.Version, Filter: raw(t, `{"k": {"$lt": 15}}`)})
		if err != nil || n != 15 || c.Sent("read") != 0 {
			t.Errorf("count %d, %v, after %d requests to owners", n, err, c.Sent("read"))
		}
		_, err = c.Router.Count(context.Background(), ns, router.Query{At: pin.Version - 1})
		wantCode(t, err, mongoerr.SnapshotUnavailable)
		if err := c.Router.DropSnapshot(context.Background(), "s", 0); err != nil {
			t.Error(err)
		}
		_, err = c.NewRouter(router.Settings{}).Count(context.Background(), ns, router.Query{At: pin.Version})
		wantCode(t, err, mongoerr.SnapshotUnavailable)
	})
}

// Snapshots and other commits at the same time: each pin has a copy of exactly its version.
func TestSnapshotsBesideOtherCommits(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		write(t, c.Router, insertOf(t, `{"_id": 1}`))
		pins := make([]manifest.Pin, 8)
		done := make(chan error, 2*len(pins))
		for i := range pins {
			go func() {
				var err error
				pins[i], err = c.Router.CreateSnapshot(context.Background(), fmt.Sprint(i), 0, 0)
				done <- err
			}()
			go func() {
				done <- c.Router.EnableSharding(context.Background(), fmt.Sprint("db", i), 0)
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		for _, p := range pins {
			s, err := c.Root.Pinned(context.Background(), p.Version)
			if err != nil || s.Version() != p.Version {
				t.Errorf("snapshot %s: %v", p.Name, err)
			}
		}
		if n := len(c.State().Pins()); n != len(pins) {
			t.Errorf("%d pins, want %d", n, len(pins))
		}
	})
}

// The size of a collection is that of its documents: the keys of their rows are not in it.
func TestFiguresAreOfDocuments(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		alternating(t, c)
		if _, err := c.Router.CreateSnapshot(ctx, "flushed", 0, 0); err != nil {
			t.Fatal(err)
		}
		cur, err := c.Router.Find(ctx, ns, router.Query{})
		if err != nil {
			t.Fatal(err)
		}
		want, n := int64(0), 0
		for docs := []bson.Raw(nil); n == 0 || len(docs) > 0; {
			if docs, err = cur.Batch(ctx, 100, 1<<20); err != nil {
				t.Fatal(err)
			}
			for _, d := range docs {
				want, n = want+int64(len(d)), n+1
			}
		}
		figures, err := c.Router.Figures(ctx, ns, 0)
		if err != nil {
			t.Fatal(err)
		}
		have := int64(0)
		for _, f := range figures {
			have += f.Bytes
		}
		if have != want {
			t.Errorf("%d bytes of %d documents, which have %d", have, n, want)
		}
	})
}
