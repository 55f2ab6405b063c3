package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func reversed(list []string) []string {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

func all(n int) (list []string) {
	for i := range n {
		list = append(list, doc(i, i%10))
	}
	return list
}

func TestASortByTheKeyVisitsShardsInOrderAndStopsAtTheLimit(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		var points []string
		for i := 1; i < 100; i++ {
			points = append(points, fmt.Sprintf(`{"_id": %d}`, i*10))
		}
		shard(t, c.Router, `{"_id": 1}`, points...)
		rows(t, c.Router, 100)
		c.Reset()
		same(t, all(10), find(t, c.Router, `{}`, sorted(t, `{"_id": 1}`), limited(0, 10)))
		same(t, 1, c.Sent("read"))
		same(t, all(100)[5:25], find(t, c.Router, `{}`, sorted(t, `{"_id": 1}`), limited(5, 20)))
		same(t, 4, c.Sent("read")) // one for each of its three chunks
		same(t, reversed(all(100)[90:]), find(t, c.Router, `{"_id": {"$lt": 100}}`, sorted(t, `{"_id": -1}`), limited(0, 10)))
		same(t, 5, c.Sent("read"))
	})
}

func TestShardsThatSortAreMerged(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		byV := func(n int) (list []string) {
			for i := range n {
				for _, id := range []int{0, 10, 20} {
					list = append(list, doc(id+i, i))
				}
			}
			return list
		}
		same(t, byV(10), find(t, c.Router, `{}`, sorted(t, `{"v": 1, "_id": 1}`)))
		same(t, byV(10)[4:9], find(t, c.Router, `{}`, sorted(t, `{"v": 1, "_id": 1}`), limited(4, 5)))
		same(t, reversed(byV(10))[7:], find(t, c.Router, `{}`, sorted(t, `{"v": -1, "_id": -1}`), limited(7, 0)))
		same(t, []string{`{"v": {"$numberInt":"9"}}`}, find(t, c.Router, `{}`, sorted(t, `{"v": -1}`), limited(0, 1), func(q *router.Query) {
			q.Projection = raw(t, `{"_id": 0, "v": 1}`)
		}))
	})
}

func TestSkipAndLimitCountOverAllShards(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		same(t, 7, len(find(t, c.Router, `{}`, limited(3, 7))))
		same(t, 2, len(find(t, c.Router, `{}`, limited(28, 7))))
		same(t, 0, len(find(t, c.Router, `{}`, limited(31, 0))))
		n, err := c.Router.Count(context.Background(), ns, router.Query{Skip: 25, Limit: 3})
		if err != nil || n != 3 {
			t.Fatalf("count %d, %v", n, err)
		}
	})
}

func TestDistinctUnitesTheShards(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		write(t, c.Router, insertOf(t, `{"_id": 100, "v": [2.0, "a"]}`))
		vs, err := c.Router.Distinct(context.Background(), ns, "v", router.Query{Filter: raw(t, `{"v": {"$in": [1, 2, "a"]}}`)})
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, v := range vs {
			got = append(got, v.String())
		}
		same(t, []string{`{"$numberInt":"1"}`, `{"$numberInt":"2"}`, `"a"`}, got)
		c2 := router.Settings{DistinctBytes: 8}
		_, err = c.NewRouter(c2).Distinct(context.Background(), ns, "v", router.Query{})
		wantCode(t, err, 17217)
	})
}

func wantCode(t testing.TB, err error, code mongoerr.Code) *mongoerr.Error {
	t.Helper()
	var m *mongoerr.Error
	if !errors.As(err, &m) || m.Code != code {
		t.Fatalf("error %v, expected code %v", err, code)
	}
	return m
}

// TestACursorTakesBatchesAndSaysGoodbye pages through three shards, and closes early.
func TestACursorTakesBatchesAndSaysGoodbye(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		ctx := context.Background()
		for _, sort := range []string{``, `{"v": 1}`, `{"_id": 1}`} {
			q := router.Query{First: 4}
			if sort != "" {
				q.Sort = raw(t, sort)
			}
			cur, err := c.Router.Find(ctx, ns, q)
			if err != nil {
				t.Fatal(err)
			}
			var sizes []int
			for !cur.Done() {
				docs, err := cur.Batch(ctx, 4, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				sizes = append(sizes, len(docs))
			}
			if sum := 28; sizes[0] != 4 || len(sizes) < 8 || sizes[6]*7 != sum {
				t.Fatalf("sort %q: batches %v", sort, sizes)
			}
		}
		cur, err := c.Router.Find(ctx, ns, router.Query{First: 2})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cur.Batch(ctx, 2, 1<<20); err != nil {
			t.Fatal(err)
		}
		c.Reset()
		cur.Close(ctx)
		same(t, 3, c.Sent("close"))
	})
}

func TestABatchStopsAtItsSize(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		rows(t, c.Router, 10)
		cur, err := c.Router.Find(context.Background(), ns, router.Query{Sort: raw(t, `{"_id": 1}`)})
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for !cur.Done() {
			docs, err := cur.Batch(context.Background(), 0, 3*len(raw(t, doc(1, 1))))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, len(docs))
		}
		same(t, []int{3, 3, 3, 1}, got)
	})
}

// TestAStaleMapIsNeverSeen moves and splits chunks behind a router's back.
func TestAStaleMapIsNeverSeen(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		coll := c.State().CollectionByName("db", "c")
		for i, to := range []manifest.ShardID{"shard02", "shard03", "shard01"} {
			c.Move(coll, key(t, coll, i*10), to)
			split(t, c, coll, i*10+5)
			same(t, all(30), find(t, c.Router, `{}`, sorted(t, `{"_id": 1}`)))
			same(t, 30, len(find(t, c.Router, `{}`)))
			write(t, c.Router, updateOf(t, fmt.Sprintf(`{"_id": %d}`, i*10+7), `{"$inc": {"v": 0}}`))
		}
		same(t, 6, c.State().NumChunks(coll.ID))
	})
}

func key(t testing.TB, coll *manifest.Collection, id int) []byte {
	t.Helper()
	k, err := coll.Key.AppendKey(nil, raw(t, fmt.Sprintf(`{"_id": %d}`, id)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func split(t testing.TB, c *routertest.Cluster, coll *manifest.Collection, at int) {
	t.Helper()
	k, full, err := coll.Key.Bound(raw(t, fmt.Sprintf(`{"_id": %d}`, at)))
	if err != nil {
		t.Fatal(err)
	}
	chunk := c.State().ChunkOf(coll.ID, k)
	if string(chunk.Range.Min) == string(k) {
		return // it is cut there
	}
	c.Commit(manifest.Split{Chunk: chunk.At(), Points: []manifest.Bound{{Key: k, BSON: full}}})
}

// TestAnOrderedVisitGoesOnAfterAMove moves chunks that a cursor has still to visit.
func TestAnOrderedVisitGoesOnAfterAMove(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		coll := c.State().CollectionByName("db", "c")
		for _, sort := range []string{`{"_id": 1}`, `{"_id": -1}`} {
			cur, err := c.Router.Find(context.Background(), ns, router.Query{Sort: raw(t, sort), First: 5})
			if err != nil {
				t.Fatal(err)
			}
			docs, err := cur.Batch(context.Background(), 5, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			middle := c.State().ChunkOf(coll.ID, key(t, coll, 15))
			c.Move(coll, key(t, coll, 15), map[manifest.ShardID]manifest.ShardID{
				"shard01": "shard02", "shard02": "shard03", "shard03": "shard01"}[middle.Shard])
			split(t, c, coll, 12+len(sort))
			rest, err := cur.Batch(context.Background(), 0, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			got := []string{}
			for _, d := range append(docs, rest...) {
				got = append(got, d.String())
			}
			want := all(30)
			if sort == `{"_id": -1}` {
				want = reversed(want)
			}
			same(t, want, got)
		}
	})
}

// TestAFreeShardIsReadFromTheBucket stops all writers: reads ask nobody, and a write gets a
// writer.
func TestAFreeShardIsReadFromTheBucket(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		for _, id := range []manifest.ShardID{"shard01", "shard02", "shard03"} {
			c.Stop(id)
		}
		c.Reset()
		same(t, all(30), find(t, c.Router, `{}`, sorted(t, `{"_id": 1}`)))
		same(t, []string{doc(7, 7)}, find(t, c.Router, `{"_id": 7}`))
		n, err := c.Router.Count(context.Background(), ns, router.Query{})
		if err != nil || n != 30 {
			t.Fatalf("count %d, %v", n, err)
		}
		cur, err := c.Router.Find(context.Background(), ns, router.Query{Sort: raw(t, `{"v": 1}`), First: 3})
		if err != nil {
			t.Fatal(err)
		}
		for want := 30; want > 0; want -= 10 {
			docs, err := cur.Batch(context.Background(), 10, 1<<20)
			if err != nil || len(docs) != 10 {
				t.Fatalf("%d documents, %v", len(docs), err)
			}
		}
		cur.Close(context.Background())
		same(t, 0, c.Sent("read"))
		write(t, c.Router, updateOf(t, `{"_id": 7}`, `{"$set": {"v": 70}}`))
		same(t, []string{doc(7, 70)}, find(t, c.Router, `{"_id": 7}`))
	})
}

// TestASilentHolderIsReplaced unplugs a writer: after a few attempts another one is asked
// for, which takes the shard over.
func TestASilentHolderIsReplaced(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		before := c.State().Shard("shard02").Epoch
		c.Unplug("shard02")
		same(t, all(30), find(t, c.Router, `{}`, sorted(t, `{"_id": 1}`)))
		same(t, before+1, c.State().Shard("shard02").Epoch)
	})
}

// TestALostReadIsAskedAgain loses messages of reads in both directions.
func TestALostReadIsAskedAgain(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		var n atomic.Int64
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb != "read" {
				return routertest.Deliver
			}
			return []routertest.Fate{routertest.LoseRequest, routertest.Deliver, routertest.Deliver, routertest.LoseReply, routertest.Deliver,
				routertest.Deliver, routertest.Deliver, routertest.Deliver}[n.Add(1)%8]
		})
		for range 5 {
			same(t, 30, len(find(t, c.Router, `{}`, sorted(t, `{"v": 1}`))))
		}
	})
}

// TestALostBatchEndsTheCursor: nobody knows whether the cursor moved on.
func TestALostBatchEndsTheCursor(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		rows(t, c.Router, 30)
		cur, err := c.Router.Find(context.Background(), ns, router.Query{First: 2})
		if err != nil {
			t.Fatal(err)
		}
		c.Fate(func(routertest.Message) routertest.Fate { return routertest.LoseReply })
		_, err = cur.Batch(context.Background(), 10, 1<<20)
		if err == nil {
			_, err = cur.Batch(context.Background(), 10, 1<<20)
		}
		wantCode(t, err, mongoerr.CursorNotFound)
	})
}

func TestAReadEndsWithItsTimeLimit(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		rows(t, c.Router, 3)
		c.Fate(func(routertest.Message) routertest.Fate { return routertest.LoseRequest })
		start := c.Host.Mono()
		_, err := c.Router.Find(context.Background(), ns, router.Query{MaxTime: 2 * time.Second})
		wantCode(t, err, mongoerr.MaxTimeMSExpired)
		_, err = c.NewRouter(router.Settings{Patience: 3 * time.Second}).Count(context.Background(), ns, router.Query{})
		wantCode(t, err, mongoerr.ExceededTimeLimit)
		if took := c.Host.Mono() - start; took < 5*time.Second || took > 6*time.Second {
			t.Fatalf("took %v", took)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = c.Router.Distinct(ctx, ns, "v", router.Query{})
		wantCode(t, err, mongoerr.Interrupted)
	})
}

func TestWhatDoesNotExistIsEmpty(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		same(t, []string{}, find(t, c.Router, `{"a": 1}`))
		rows(t, c.NewRouter(router.Settings{}), 3)
		same(t, 3, len(find(t, c.Router, `{}`))) // though its map shows no such collection
		same(t, []string{}, find(t, c.Router, `{"_id": {"$gt": 5, "$lt": 3}}`))
		x, err := c.Router.Explain(context.Background(), router.Namespace{Database: "db", Collection: "none"}, router.Query{})
		if err != nil || x.Plan != nil {
			t.Fatalf("%+v, %v", x, err)
		}
		for _, q := range []router.Query{
			{Filter: raw(t, `{"$foo": 1}`)}, {Sort: raw(t, `{"a": 7}`)}, {Projection: raw(t, `{"a": 1, "b": 0}`)},
		} {
			if _, err := c.Router.Find(context.Background(), ns, q); err == nil {
				t.Fatalf("%v passed", q)
			}
		}
	})
}

// TestAHashedCollectionIsFoundByEquality targets one chunk of many.
func TestAHashedCollectionIsFoundByEquality(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		p, err := shardkey.ParsePattern(raw(t, `{"_id": "hashed"}`))
		if err != nil {
			t.Fatal(err)
		}
		n := router.NewCollection{Key: p, Points: shardkey.HashedInitialPoints(p, 6)}
		if err := c.Router.ShardCollection(context.Background(), ns, n, 0); err != nil {
			t.Fatal(err)
		}
		rows(t, c.Router, 100)
		c.Reset()
		for i := range 20 {
			same(t, []string{doc(i, i%10)}, find(t, c.Router, fmt.Sprintf(`{"_id": %d}`, i)))
		}
		same(t, 20, c.Sent("read"))
		same(t, all(100), find(t, c.Router, `{}`, sorted(t, `{"_id": 1}`)))
		for chunk := range c.State().AllChunks() {
			if chunk.MinBSON.Lookup("_id").Type != bson.TypeInt64 && len(chunk.Range.Min) > 0 {
				t.Fatalf("bound %v", chunk.MinBSON)
			}
		}
	})
}
