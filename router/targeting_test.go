package router_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// TestOperationsCountByTheirReach runs operations of every kind, and finds each once, also
// those that were tried several times; an explain counts for nothing.
func TestOperationsCountByTheirReach(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		rows(t, c.Router, 30)
		coll := c.State().CollectionByName("db", "c")
		shards := map[manifest.ShardID]manifest.ShardID{"shard01": "shard02", "shard02": "shard03", "shard03": "shard01"}
		for i := range 3 { // a stale map has operations tried again
			c.Move(coll, key(t, coll, i*10), shards[c.State().ChunkOf(coll.ID, key(t, coll, i*10)).Shard])
		}
		find(t, c.Router, `{"_id": 7}`)
		find(t, c.Router, `{"_id": {"$gte": 15}}`)
		for i := range 5 {
			find(t, c.Router, fmt.Sprintf(`{"v": %d}`, i))
		}
		find(t, c.Router, `{"v": 1}`, sorted(t, `{"v": -1}`))
		find(t, c.Router, `{}`, sorted(t, `{"_id": -1}`), limited(0, 3))
		_, _ = c.Router.Count(context.Background(), ns, router.Query{Filter: raw(t, `{"v": {"$gt": 3}}`)})
		_, _ = c.Router.Distinct(context.Background(), ns, "v", router.Query{})
		write(t, c.Router, updateOf(t, `{"_id": 7}`, `{"$set": {"v": 7}}`), updateOf(t, `{"v": 3}`, `{"$set": {"v": 3}}`), deleteOf(t, `{"_id": 40}`))
		if _, err := c.Router.Explain(context.Background(), ns, router.Query{Filter: raw(t, `{"x": 1}`)}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Router.ExplainWrite(context.Background(), ns, deleteOf(t, `{"x": 1}`), router.Query{}); err != nil {
			t.Fatal(err)
		}
		all := c.Router.Targeting()
		if len(all) != 1 || all[0].Namespace != ns || !all[0].Sharded {
			t.Fatalf("%+v", all)
		}
		want := router.Targeting{Namespace: ns, Sharded: true}
		want.Operations[router.InsertVerb][router.OneShard] = 30
		want.Operations[router.FindVerb] = [3]int64{1, 2, 6}
		want.Operations[router.CountVerb] = [3]int64{0, 0, 1}
		want.Operations[router.DistinctVerb] = [3]int64{0, 0, 1}
		want.Operations[router.UpdateVerb] = [3]int64{1, 0, 1}
		want.Operations[router.DeleteVerb] = [3]int64{1, 0, 0}
		same(t, want, all[0])
		if share := all[0].Share(); share < 0.79 || share > 0.8 {
			t.Fatalf("share %v", share) // 35 of 44
		}
		var got []string
		for _, k := range c.Router.Broadcasts(3) {
			got = append(got, fmt.Sprintf("%d %s %s", k.Count, k.Verb, k.Shape))
		}
		same(t, []string{"5 find { v: ? }", "1 find { v: ? } sort { v: -1 }", "1 count { v: { $gt: ? } }"}, got)
	})
}

// TestAFrequentShapeIsNotLost sends more kinds of broadcasts than are remembered, one of them
// again and again: it is the first, and the list stays bounded.
func TestAFrequentShapeIsNotLost(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		thirds(t, c.Router)
		for i := range 500 {
			find(t, c.Router, fmt.Sprintf(`{"field%d": 1}`, i))
			if i%5 == 0 {
				find(t, c.Router, `{"often": 1}`)
			}
		}
		top := c.Router.Broadcasts(1000)
		if len(top) != 128 || top[0].Shape != "{ often: ? }" || top[0].Count < 100 {
			t.Fatalf("%d shapes, the first %+v", len(top), top[0])
		}
	})
}
