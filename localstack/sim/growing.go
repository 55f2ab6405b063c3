package sim

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// grown is a shard that somebody adds while everything else goes on, and removes again.
const grown manifest.ShardID = "shard09"

// growing: in some of the seeds with balancers a shard comes and goes, with a bucket of its own
// or without.
func (c *Config) growing(r *rand.Rand) {
	if c.Placement.Balancers > 0 && r.IntN(3) == 0 {
		c.Grow, c.GrowElsewhere = oneOf(r, 3*time.Second, 10*time.Second), r.IntN(2) == 0
	}
}

// startGrowing begins it.
func (w *World) startGrowing(all *sync.WaitGroup) {
	if w.cfg.Grow == 0 {
		return
	}
	somebody := newClient(w, w.cfg.Clients)
	somebody.node = NewNode(w.ctx, w.bus, "grower", w.cfg.Seed, 0, 0)
	all.Go(func() {
		for !w.quiet() {
			pause := time.Duration(somebody.rng.Int64N(int64(2 * w.cfg.Grow)))
			if somebody.node.Host().Sleep(somebody.node.Context(), pause) != nil || w.quiet() {
				return
			}
			somebody.grow()
		}
	})
}

// grow adds the shard when it is not there, begins to empty it, takes that back, or goes on until
// it is removed.
func (c *client) grow() {
	st := c.world.look(c.node)
	if st.Shard(grown) == nil {
		name := string(grown)
		if c.world.cfg.GrowElsewhere {
			name += "/" + locationURL(elsewhere[min(c.world.cfg.Located, len(elsewhere)-1)])
		}
		c.tell(bson.D{{Key: "addShard", Value: name}})
		return
	}
	cmd := bson.D{{Key: "removeShard", Value: string(grown)}}
	if _, drains := balancing.Draining(st, grown); drains && c.rng.IntN(8) == 0 {
		cmd = append(cmd, bson.E{Key: "cancel", Value: true})
	}
	if c.tell(cmd) && c.world.look(c.node).Shard(grown) == nil {
		c.world.did("removed shard")
	}
}
