package router_test

import (
	"context"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// A dropped collection comes back from the newest snapshot that has it, as it was then: its key,
// its chunks and its documents. A name that is taken is refused, with the way out.
func TestADroppedCollectionComesBack(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		alternating(t, c)
		was := c.State().CollectionByName("db", "c")
		chunks := c.State().NumChunks(was.ID)
		for _, name := range []string{"old", "new"} {
			if _, err := c.Router.CreateSnapshot(ctx, name, 0, 0); err != nil {
				t.Fatal(err)
			}
			write(t, c.Router, many(updateOf(t, `{}`, `{"$set": {"v": "later"}}`)))
		}
		_, err := c.Router.Undrop(ctx, router.Undrop{From: ns})
		wantCode(t, err, mongoerr.NamespaceExists)
		other := router.Namespace{Database: "db", Collection: "c_old"}
		d, err := c.Router.Undrop(ctx, router.Undrop{From: ns, As: other, Snapshot: "old"})
		if err != nil || d.Documents != 40 || d.Snapshot.Name != "old" {
			t.Fatalf("%+v, %v", d, err)
		}
		if n, err := c.Router.Count(ctx, other, router.Query{Filter: raw(t, `{"v": "later"}`)}); err != nil || n != 0 {
			t.Errorf("%d documents are of later, %v", n, err)
		}
		if _, err := c.Router.Drop(ctx, ns, 0); err != nil {
			t.Fatal(err)
		}
		list, err := c.Router.DroppedCollections(ctx, 0)
		if err != nil || len(list) != 1 || list[0].NS != ns || list[0].Snapshot.Name != "new" || list[0].Rows != 40 {
			t.Errorf("dropped: %+v, %v", list, err)
		}
		if d, err := c.Router.Undrop(ctx, router.Undrop{From: ns, Dry: true}); err != nil || d.Snapshot.Name != "new" || c.State().CollectionByName("db", "c") != nil {
			t.Errorf("dry: %+v, %v", d, err)
		}
		if _, err := c.Router.Undrop(ctx, router.Undrop{From: ns}); err != nil {
			t.Fatal(err)
		}
		now := c.State().CollectionByName("db", "c")
		if !now.Key.Equal(was.Key) || !now.Sharded || now.ID == was.ID || c.State().NumChunks(now.ID) != chunks {
			t.Errorf("%+v with %d chunks, was %+v with %d", now, c.State().NumChunks(now.ID), was, chunks)
		}
		if n, err := c.Router.Count(ctx, ns, router.Query{Filter: raw(t, `{"v": "later"}`)}); err != nil || n != 40 {
			t.Errorf("%d documents of the newest snapshot, %v", n, err)
		}
		_, err = c.Router.Undrop(ctx, router.Undrop{From: router.Namespace{Database: "db", Collection: "never"}})
		wantCode(t, err, mongoerr.NamespaceNotFound)
		_, err = c.Router.Undrop(ctx, router.Undrop{From: ns, As: router.Namespace{Database: "db", Collection: "x"}, Snapshot: "none"})
		wantCode(t, err, mongoerr.NamespaceNotFound)
	})
}
