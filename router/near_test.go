package router_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// A router that is told its zone begins collections on shards of it, however many chunks these
// have; one that is not, or whose zone has no shards, takes the emptiest.
func TestCollectionsBeginNearTheirRouter(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shards := c.State().Shards()
		home := shards[len(shards)-1].ID
		if err := c.Router.AddShardToZone(ctx, home, "EU", 0); err != nil {
			t.Fatal(err)
		}
		on := func(zone string, n int) map[manifest.ShardID]int {
			r := c.NewRouter(router.Settings{Zone: zone})
			count := make(map[manifest.ShardID]int)
			for i := range n {
				name := router.Namespace{Database: "db" + zone, Collection: fmt.Sprint("c", i)}
				if err := r.Create(ctx, name, router.NewCollection{}, 0); err != nil {
					t.Fatal(err)
				}
				s := c.State()
				for chunk := range s.Chunks(s.CollectionByName(name.Database, name.Collection).ID) {
					count[chunk.Shard]++
				}
			}
			return count
		}
		if got := on("EU", 6); got[home] != 6 {
			t.Errorf("near EU: %v", got)
		}
		for _, zone := range []string{"", "nowhere"} {
			if got := on(zone, 2); got[home] != 0 {
				t.Errorf("near %q: %v", zone, got)
			}
		}
	})
}
