package router_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ns = router.Namespace{Database: "db", Collection: "c"}

func raw(t testing.TB, v any) bson.Raw {
	t.Helper()
	if s, ok := v.(string); ok {
		var d bson.Raw
		if err := bson.UnmarshalExtJSON([]byte(s), false, &d); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		return d
	}
	d, err := bson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// in runs a test of a cluster on virtual time.
func in(t *testing.T, o routertest.Options, f func(t *testing.T, c *routertest.Cluster)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(t, routertest.New(t, o)) })
}

// shard makes the collection with chunks cut at the points.
func shard(t testing.TB, r *router.Router, key string, points ...string) {
	t.Helper()
	p, err := shardkey.ParsePattern(raw(t, key))
	if err != nil {
		t.Fatal(err)
	}
	n := router.NewCollection{Key: p}
	for _, x := range points {
		k, full, err := p.Bound(raw(t, x))
		if err != nil {
			t.Fatal(err)
		}
		n.Points = append(n.Points, shardkey.Bound{Key: k, BSON: full})
	}
	if err := r.ShardCollection(context.Background(), ns, n, 0); err != nil {
		t.Fatal(err)
	}
}

// write runs statements in order, and fails the test when one of them fails.
func write(t testing.TB, r *router.Router, statements ...router.Statement) []router.Result {
	t.Helper()
	results, err := r.Write(context.Background(), ns, router.Writes{Statements: statements, Ordered: true})
	if err != nil {
		t.Fatal(err)
	}
	for i, res := range results {
		if res.Err != nil || !res.Done {
			t.Fatalf("statement %d: %+v", i, res)
		}
	}
	return results
}

func insertOf(t testing.TB, doc string) router.Statement {
	return router.Statement{Kind: rpc.Insert, Doc: raw(t, doc)}
}

func updateOf(t testing.TB, filter, update string) router.Statement {
	u := raw(t, update)
	return router.Statement{Kind: rpc.Update, Filter: raw(t, filter), Update: bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: u}}
}

func deleteOf(t testing.TB, filter string) router.Statement {
	return router.Statement{Kind: rpc.Delete, Filter: raw(t, filter)}
}

// find returns the matches as extended JSON.
func find(t testing.TB, r *router.Router, filter string, more ...func(*router.Query)) []string {
	t.Helper()
	q := router.Query{Filter: raw(t, filter)}
	for _, f := range more {
		f(&q)
	}
	cur, err := r.Find(context.Background(), ns, q)
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close(context.Background())
	docs, err := cur.Batch(context.Background(), 0, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, d := range docs {
		out = append(out, d.String())
	}
	return out
}

func sorted(t testing.TB, sort string) func(*router.Query) {
	return func(q *router.Query) { q.Sort = raw(t, sort) }
}

func limited(skip, limit int64) func(*router.Query) {
	return func(q *router.Query) { q.Skip, q.Limit = skip, limit }
}

// rows inserts {_id: i, v: i % 10} for i below n.
func rows(t testing.TB, r *router.Router, n int) {
	t.Helper()
	var list []router.Statement
	for i := range n {
		list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "v": %d}`, i, i%10)))
	}
	write(t, r, list...)
}

func doc(id, v int) string {
	return fmt.Sprintf(`{"_id": {"$numberInt":"%d"},"v": {"$numberInt":"%d"}}`, id, v)
}

func same(t testing.TB, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("-want +got:\n%s", d)
	}
}

func thirds(t testing.TB, r *router.Router) {
	t.Helper()
	shard(t, r, `{"_id": 1}`, `{"_id": 10}`, `{"_id": 20}`)
}

func TestAQueryFindsWhatWasWritten(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		same(t, []string{doc(15, 5)}, find(t, c.Router, `{"_id": 15}`))
		same(t, 30, len(find(t, c.Router, `{}`)))
		same(t, []string{doc(3, 3), doc(13, 3), doc(23, 3)}, find(t, c.Router, `{"v": 3}`, sorted(t, `{"_id": 1}`)))
		n, err := c.Router.Count(context.Background(), ns, router.Query{Filter: raw(t, `{"v": {"$lt": 2}}`), Skip: 1})
		if err != nil || n != 5 {
			t.Fatalf("count %d, %v", n, err)
		}
		owners := map[manifest.ShardID]bool{}
		for chunk := range c.State().AllChunks() {
			owners[chunk.Shard] = true
		}
		same(t, 3, len(owners))
	})
}
