package router_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

func dropped(t *testing.T, c *routertest.Cluster, min, max string) manifest.Extent {
	t.Helper()
	e, err := c.Router.DropRange(context.Background(), ns, raw(t, min), raw(t, max), false, 0)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func counted(t *testing.T, r *router.Router, filter string) int64 {
	t.Helper()
	n, err := r.Count(context.Background(), ns, router.Query{Filter: raw(t, filter)})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Documents of several shards, flushed and not, leave in one commit; those beside them stay,
// and the count is exact at once, through every router, and after every writer is gone.
func TestARangeOfSeveralShardsIsDropped(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		alternating(t, c)
		coll := c.State().CollectionByName("db", "c")
		other := c.NewRouter(router.Settings{})
		if n := counted(t, other, `{}`); n != 40 {
			t.Fatalf("%d documents", n)
		}
		e, err := c.Router.DropRange(context.Background(), ns, raw(t, `{"k": 5}`), raw(t, `{"k": 27}`), true, 0)
		if err != nil || e.Rows != 22 || e.Chunks < 2 {
			t.Errorf("a dry run says %+v, %v", e, err)
		}
		if n := counted(t, other, `{}`); n != 40 {
			t.Errorf("%d documents after a dry run", n)
		}
		version := c.State().CollectionByName("db", "c").DataVersion
		dropped(t, c, `{"k": 5}`, `{"k": 27}`)
		for _, r := range []*router.Router{c.Router, other} {
			if n := counted(t, r, `{}`); n != 18 {
				t.Errorf("%d documents are left", n)
			}
			if n := counted(t, r, `{"k": {"$gte": 5, "$lt": 27}}`); n != 0 {
				t.Errorf("%d documents of the range", n)
			}
		}
		write(t, other, insertOf(t, `{"_id": 6, "k": 6, "new": true}`))
		s := c.State()
		if now := s.CollectionByName("db", "c").DataVersion; now <= version || len(s.RangeHolds()) > 0 {
			t.Errorf("data version %d after %d, holds %v", now, version, s.RangeHolds())
		}
		part, _, _, err := coll.Key.Range(raw(t, `{"k": 5}`), raw(t, `{"k": 27}`))
		if err != nil {
			t.Fatal(err)
		}
		for chunk := range s.ChunksIn(coll.ID, part) {
			for _, ref := range chunk.Refs {
				if ref.Rows > 0 {
					t.Errorf("chunk %d still shows rows of %s", chunk.ID, ref.Segment)
				}
			}
		}
		for _, h := range s.Shards() {
			c.Stop(h.ID)
		}
		if n := counted(t, c.NewRouter(router.Settings{}), `{}`); n != 19 {
			t.Errorf("%d documents in the bucket", n)
		}
	})
}

// However many documents there are, a drop makes the same number of requests to the bucket.
func TestADropCostsTheSameForManyDocuments(t *testing.T) {
	cost := func(docs int) (n int) {
		var mu sync.Mutex
		counting := false
		plan := func(faultbucket.Call) faultbucket.Fault {
			mu.Lock()
			defer mu.Unlock()
			if counting {
				n++
			}
			return faultbucket.Fault{}
		}
		synctest.Test(t, func(t *testing.T) {
			c := routertest.New(t, routertest.Options{Shards: 1, Plan: plan})
			shard(t, c.Router, `{"k": 1}`)
			for i := range docs {
				write(t, c.Router, insertOf(t, fmt.Sprintf(`{"_id": %d, "k": %d}`, i, i)))
				if i%(docs/5) == 0 {
					flushAll(t, c)
				}
			}
			flushAll(t, c)
			write(t, c.Router, insertOf(t, `{"_id": "unflushed", "k": 11}`))
			before := c.State().Version()
			mu.Lock()
			counting = true
			mu.Unlock()
			dropped(t, c, `{"k": 10}`, fmt.Sprintf(`{"k": %d}`, docs-10))
			mu.Lock()
			counting = false
			mu.Unlock()
			if commits := c.State().Version() - before; commits != 3 { // hold, flush, drop
				t.Errorf("%d commits", commits)
			}
			if left := counted(t, c.Router, `{}`); left != 20 {
				t.Errorf("%d of %d documents are left", left, docs)
			}
		})
		return n
	}
	if few, many := cost(50), cost(2000); few == 0 || many > few {
		t.Errorf("%d requests of the owner for 50 documents, %d for 2000", few, many)
	}
}

// Whoever counts while a range is dropped sees all of it or nothing, and what is written
// afterwards stays.
func TestNobodySeesHalfADrop(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		alternating(t, c)
		for round := range 6 {
			dropped(t, c, `{"k": 0}`, `{"k": 100}`)
			var list []router.Statement
			for k := 5; k < 35; k++ {
				list = append(list, insertOf(t, fmt.Sprintf(`{"_id": "%d.%d", "k": %d, "r": %d}`, round, k, k, round)))
			}
			write(t, c.Router, list...)
			var all sync.WaitGroup
			for range 3 {
				reader := c.NewRouter(router.Settings{})
				all.Go(func() {
					for n := int64(30); n != 0; time.Sleep(17 * time.Microsecond) {
						if n = counted(t, reader, `{}`); n != 30 && n != 0 {
							t.Errorf("round %d: %d documents", round, n)
						}
					}
				})
			}
			dropped(t, c, `{"k": 0}`, `{"k": 100}`)
			all.Wait()
			write(t, c.Router, insertOf(t, fmt.Sprintf(`{"_id": 1, "k": %d}`, 10+round)))
			if n := counted(t, c.Router, `{}`); n != 1 {
				t.Errorf("round %d: %d documents in the end", round, n)
			}
		}
	})
}

// An owner that dies in the middle does not stop a drop for good, and a request that is lost
// leaves no hold.
func TestADropSurvivesLostRequests(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		alternating(t, c)
		var lost atomic.Int32
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb == "flush" {
				if n := lost.Add(1); n <= 3 {
					return routertest.Fate(n%2 + 1)
				}
			}
			return routertest.Deliver
		})
		dropped(t, c, `{"k": 5}`, `{"k": 27}`)
		c.Fate(nil)
		if n := counted(t, c.Router, `{}`); n != 18 || len(c.State().RangeHolds()) > 0 {
			t.Errorf("%d documents, holds %v", n, c.State().RangeHolds())
		}
		c.Unplug("shard01")
		dropped(t, c, `{"k": 0}`, `{"k": 3}`)
		if n := counted(t, c.Router, `{}`); n != 15 {
			t.Errorf("%d documents", n)
		}
	})
}

// What is no range of a sharded collection is refused.
func TestDropRangeSaysWhatIsWrong(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		alternating(t, c)
		drop := func(ns router.Namespace, min, max string) error {
			_, err := c.Router.DropRange(context.Background(), ns, raw(t, min), raw(t, max), false, 0)
			return err
		}
		wantCode(t, drop(router.Namespace{Database: "db", Collection: "none"}, `{"k": 1}`, `{"k": 2}`), mongoerr.NamespaceNotSharded)
		wantCode(t, drop(ns, `{"k": 2}`, `{"k": 2}`), mongoerr.BadValue)
		wantCode(t, drop(ns, `{"x": 2}`, `{"x": 3}`), mongoerr.BadValue)
	})
}

func flushAll(t *testing.T, c *routertest.Cluster) {
	t.Helper()
	s := c.State()
	for _, h := range s.Shards() {
		o, err := c.Dial(h.ID, h.Holder, h.Address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Flush(context.Background(), &rpc.FlushRequest{Header: rpc.Header{Shard: h.ID}}); err != nil {
			t.Fatal(err)
		}
	}
}
