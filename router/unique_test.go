package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// uniqueIndex adds a unique index, and has the owners see it.
func uniqueIndex(t *testing.T, c *routertest.Cluster, spec string) []manifest.Index {
	t.Helper()
	was := *c.State().CollectionByName("db", "c")
	now := was
	x := manifest.Index{Name: "u" + fmt.Sprint(len(was.Indexes)), Spec: raw(t, spec)}
	now.Indexes = append(now.Indexes[:len(now.Indexes):len(now.Indexes)], x)
	c.Commit(manifest.AlterCollection{Was: was, Now: now})
	if err := c.Router.CheckUnique(context.Background(), ns, []manifest.Index{x}); err != nil {
		t.Fatal(err)
	}
	return []manifest.Index{x}
}

// TestOneOfAHundredGetsTheIdentity has 100 clients of two routers insert one identity, by
// inserts, upserts and updates, on a collection whose shard key is unique: one succeeds.
func TestOneOfAHundredGetsTheIdentity(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		n := key1(t, `{"identifier": 1}`)
		n.Unique = true
		if err := c.Router.ShardCollection(ctx, ns, n, 0); err != nil {
			t.Fatal(err)
		}
		routers := []*router.Router{c.Router, c.NewRouter(router.Settings{})}
		for i := range 100 {
			write(t, c.Router, insertOf(t, fmt.Sprintf(`{"_id": "u%d", "identifier": {"user": "u%d"}}`, i, i)))
		}
		for h := range 3 {
			if h == 1 { // some are in segments
				for _, s := range c.State().Shards() {
					c.Stop(s.ID)
				}
			}
			identity := fmt.Sprintf(`{"email": "peter%d@example.com"}`, h)
			var all sync.WaitGroup
			var won, lost atomic.Int32
			for i := range 100 {
				s := insertOf(t, fmt.Sprintf(`{"_id": "%d-%d", "identifier": %s}`, h, i, identity))
				if i%5 == 1 {
					s = updateOf(t, fmt.Sprintf(`{"_id": "u%d", "identifier": {"user": "u%d"}}`, h*30+i/5, h*30+i/5), fmt.Sprintf(`{"$set": {"identifier": %s}}`, identity))
				}
				all.Go(func() {
					results, err := routers[i%2].Write(ctx, ns, router.Writes{Statements: []router.Statement{s}, Retry: session(byte(i), int64(h+1))})
					switch {
					case err != nil:
						t.Error(err)
					case results[0].Err == nil:
						won.Add(1)
					case results[0].Err.Code == mongoerr.DuplicateKey && strings.Contains(results[0].Err.Message, "index: identifier_1 dup key: { identifier: "):
						lost.Add(1)
					default:
						t.Error(results[0].Err)
					}
				})
			}
			all.Wait()
			if won.Load() != 1 || lost.Load() != 99 {
				t.Errorf("round %d: %d won, %d lost", h, won.Load(), lost.Load())
			}
			same(t, 1, len(find(t, c.Router, fmt.Sprintf(`{"identifier": %s}`, identity))))
		}
		c.Check()
	})
}

// TestAUniqueIndexBehindTheShardKey keeps {tenant, name} unique on a collection that is
// sharded by tenant: for inserts, replaces, upserts, arrays, sparse and partial indexes; a retry
// of what was refused is refused again.
func TestAUniqueIndexBehindTheShardKey(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"tenant": 1}`, `{"tenant": 5}`)
		write(t, c.Router, insertOf(t, `{"_id": 1, "tenant": 1, "name": "a"}`))
		uniqueIndex(t, c, `{"key": {"tenant": 1, "name": 1}, "unique": true}`)
		uniqueIndex(t, c, `{"key": {"tenant": 1, "code": -1}, "unique": true, "partialFilterExpression": {"code": {"$gt": 0}}}`)
		refused := func(s router.Statement, id *router.Retry) {
			t.Helper()
			results, err := c.Router.Write(ctx, ns, router.Writes{Statements: []router.Statement{s}, Retry: id})
			if err != nil || results[0].Err == nil || results[0].Err.Code != mongoerr.DuplicateKey || results[0].N != 0 {
				t.Fatalf("%v: %+v, %v", s, results, err)
			}
		}
		again := insertOf(t, `{"_id": 2, "tenant": 1, "name": "a"}`)
		refused(again, session(1, 1))
		write(t, c.Router, insertOf(t, `{"_id": 2, "tenant": 2, "name": "a"}`), insertOf(t, `{"_id": 3, "tenant": 1, "name": "b", "code": 0}`), insertOf(t, `{"_id": 4, "tenant": 1, "code": 0}`))
		refused(insertOf(t, `{"_id": 5, "tenant": 1}`), nil)
		refused(updateOf(t, `{"_id": 3, "tenant": 1}`, `{"$set": {"name": "a"}}`), session(1, 2))
		refused(upsert(updateOf(t, `{"tenant": 1, "name": "a", "x": 1}`, `{"$set": {"y": 1}}`)), nil)
		refused(updateOf(t, `{"_id": 2, "tenant": 2}`, `{"$set": {"tenant": 1}}`), nil)
		write(t, c.Router, updateOf(t, `{"_id": 3, "tenant": 1}`, `{"$set": {"code": 7}}`), updateOf(t, `{"_id": 3, "tenant": 1}`, `{"$inc": {"n": 1}}`))
		refused(updateOf(t, `{"_id": 4, "tenant": 1}`, `{"$set": {"code": 7}}`), nil)
		write(t, c.Router, deleteOf(t, `{"_id": 1}`), insertOf(t, `{"_id": 6, "tenant": 1, "name": ["a", "z"]}`))
		refused(insertOf(t, `{"_id": 7, "tenant": 1, "name": "z"}`), nil)
		refused(again, session(1, 1)) // it was told so
		refused(updateOf(t, `{"_id": 3, "tenant": 1}`, `{"$set": {"name": "a"}}`), session(1, 2))
		same(t, 4, len(find(t, c.Router, `{}`)))
	})
}

// TestDocumentsThatBreakANewIndexAreFound looks for duplicates among documents in memory, in
// segments and on their way.
func TestDocumentsThatBreakANewIndexAreFound(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"k": 1}`, `{"k": 50}`)
		for i := range 100 {
			write(t, c.Router, insertOf(t, fmt.Sprintf(`{"_id": %d, "k": %d, "x": %d}`, i, i%90, i/90)))
		}
		more := uniqueIndex(t, c, `{"key": {"k": 1, "x": 1}, "unique": true}`)
		if err := c.Router.CheckUnique(ctx, ns, more); err != nil {
			t.Fatal(err)
		}
		err := c.Router.CheckUnique(ctx, ns, []manifest.Index{{Name: "k_1", Spec: raw(t, `{"key": {"k": 1}, "unique": true}`)}})
		wantCode(t, err, mongoerr.DuplicateKey)
		c.Stop("shard01")
		wantCode(t, c.Router.CheckUnique(ctx, ns, []manifest.Index{{Name: "k_1", Spec: raw(t, `{"key": {"k": 1}, "unique": true}`)}}), mongoerr.DuplicateKey)
	})
}
