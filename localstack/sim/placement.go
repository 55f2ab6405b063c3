package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/balancer"
	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Placement is how much happens to where chunks should be.
type Placement struct {
	// Balancers are processes that balance: of several one is active, and any may die.
	Balancers int
	Every     time.Duration // between two looks of one
	// Admin is how often, in the mean, a person changes zones, drains a shard or takes that
	// back, or stops or starts the balancers; Trouble how often a balancer is killed, or
	// stopped for a while. 0: never.
	Admin, Trouble time.Duration
}

// placement: in every other seed with several shards balancers run, and somebody changes what
// they shall do.
func (c *Config) placement(r *rand.Rand) {
	p := Placement{
		Balancers: oneOf(r, 0, 0, 1, 2), Every: oneOf(r, time.Second, 3*time.Second),
		Admin: oneOf(r, 0, 2*time.Second, 8*time.Second), Trouble: oneOf(r, 0, 8*time.Second, 25*time.Second),
	}
	if c.Shards > 1 && p.Balancers > 0 {
		c.Placement = p
	}
}

// startPlacement begins what chaos does to the placement of chunks.
func (w *World) startPlacement(all *sync.WaitGroup) {
	p := w.cfg.Placement
	w.every(all, "balancer trouble", p.Trouble, w.troubleBalancer)
	if p.Admin == 0 || p.Balancers == 0 {
		return
	}
	admin := newAdmin(w)
	all.Go(func() {
		for !w.quiet() {
			pause := time.Duration(admin.rng.Int64N(int64(2 * p.Admin)))
			if admin.node.Host().Sleep(admin.node.Context(), pause) != nil || w.quiet() {
				return
			}
			admin.order()
		}
	})
}

// startBalancer starts a balancer.
func (w *World) startBalancer(s *slot) {
	p, _ := w.newProcess(s)
	b := balancer.New(balancer.Config{
		Root: p.root, Dial: w.net.From(p.node), Host: p.node.HostOf("balancer"), Holder: p.node.name, Every: w.cfg.Placement.Every, Log: w.log(p.node),
	})
	p.run(func(ctx context.Context) { _ = b.Run(ctx) })
	s.put(p)
}

// troubleBalancer kills a balancer, or stops it in the middle of whatever it does.
func (w *World) troubleBalancer() {
	s := w.balancers[w.rng.IntN(len(w.balancers))]
	if w.cfg.Chaos.PauseMax > 0 && w.rng.IntN(2) == 0 {
		w.pause(s.current().node, time.Duration(w.rng.Int64N(int64(w.cfg.Chaos.PauseMax))))
		return
	}
	s.current().crash()
	w.startBalancer(s)
}

// newAdmin is a person at the routers that the reader uses when all is over.
func newAdmin(w *World) *client {
	c := newClient(w, w.cfg.Clients)
	c.node = NewNode(w.ctx, w.bus, "admin", w.cfg.Seed, 0, 0)
	return c
}

// tell sends a command to the database admin. What comes of it is seen in the root.
func (c *client) tell(cmd bson.D) (done bool) {
	cmd = append(cmd, bson.E{Key: "maxTimeMS", Value: c.world.cfg.Patience.Milliseconds()}, bson.E{Key: "$db", Value: "admin"})
	reply, err := c.world.ask(c, mustMarshal(cmd))
	c.world.log(c.node).Debug("told", "command", cmd, "reply", reply, "err", err)
	if err == nil && number(reply, "ok") == 1 {
		c.world.did(cmd[0].Key)
		return true
	}
	return false
}

// order draws one wish about where chunks shall be. Many are refused, as those of people are.
func (c *client) order() {
	shard := fmt.Sprintf("shard%02d", 1+c.rng.IntN(c.world.cfg.Shards))
	zone := string('y' + byte(c.rng.IntN(2)))
	switch n := c.rng.IntN(20); {
	case n < 6:
		_, wish := balancing.Draining(c.world.look(c.node), manifest.ShardID(shard))
		cmd := bson.D{{Key: "removeShard", Value: shard}}
		if wish { // sent again it would remove the shard, once that is empty
			cmd = append(cmd, bson.E{Key: "cancel", Value: true})
		}
		c.tell(cmd)
	case n < 10:
		c.tell(bson.D{{Key: "addShardToZone", Value: shard}, {Key: "zone", Value: zone}})
	case n < 13:
		c.tell(bson.D{{Key: "removeShardFromZone", Value: shard}, {Key: "zone", Value: zone}})
	case n < 18:
		c.orderRange(zone)
	default:
		c.tell(bson.D{{Key: "balancerStop", Value: 1}})
		_ = c.node.Host().Sleep(c.node.Context(), c.world.cfg.Placement.Admin)
		c.tell(bson.D{{Key: "balancerStart", Value: 1}})
	}
}

// orderRange gives a range to a zone, or takes one back.
func (c *client) orderRange(zone string) {
	ns, field, step, ends := "sim."+collection, "_id", 10, c.world.cfg.Docs
	if c.world.cfg.Moving > 0 && c.rng.IntN(2) == 0 {
		ns, field, step, ends = "sim."+movingCollection, "k", 5, 2*c.world.cfg.Chunks
	}
	st := c.world.look(c.node)
	zones := slices.DeleteFunc(slices.Clone(st.CollectionByName("sim", ns[len("sim."):]).Zones), func(z manifest.ZoneRange) bool { return z.Zone == residents })
	if len(zones) > 0 && c.rng.IntN(2) == 0 {
		z := zones[c.rng.IntN(len(zones))]
		c.tell(bson.D{{Key: "updateZoneKeyRange", Value: ns}, {Key: "min", Value: z.MinBSON}, {Key: "max", Value: z.MaxBSON}, {Key: "zone", Value: nil}})
		return
	}
	low := c.rng.IntN(ends)
	high := low + 1 + c.rng.IntN(ends-low)
	bound := func(i int) bson.D { return bson.D{{Key: field, Value: int32(i * step)}} }
	c.tell(bson.D{{Key: "updateZoneKeyRange", Value: ns}, {Key: "min", Value: bound(low)}, {Key: "max", Value: bound(high)}, {Key: "zone", Value: zone}})
}

// settlePlacement lets the balancers work after the last fault: every chunk must come to where
// it should be.
func (w *World) settlePlacement() {
	if w.cfg.Placement.Balancers == 0 || w.failed() != nil {
		return
	}
	admin, deadline := newAdmin(w), w.bus.Elapsed()+placedWithin
	for stopped := true; w.failed() == nil; _ = w.chaos.Host().Sleep(w.ctx, time.Second) {
		stopped = stopped && !admin.tell(bson.D{{Key: "balancerStart", Value: 1}})
		_ = w.bus.Step(w.chaos, "adopt", w.adopt)
		st := w.look(w.chaos)
		if w.cfg.Located > 0 && len(st.Jobs()) > 0 {
			// A job whose process is gone keeps its chunk from being copied until it is expelled.
			_ = w.bus.Step(w.chaos, "compact", w.compact)
		}
		wrong := misplaced(st)
		if wrong == "" && !stopped {
			w.countBalanced()
			return
		}
		if w.bus.Elapsed() > deadline {
			last, _ := balancing.LastRound(w.look(w.chaos))
			w.fail("no progress: %s after the last fault %s; the last round at %d: %+v", placedWithin, wrong, w.chaos.Host().Wall().UnixMilli(), last)
		}
	}
}

// countBalanced notes what the balancers did, as far as the root remembers.
func (w *World) countBalanced() {
	for _, e := range w.look(w.chaos).History() {
		if e.What == "balancer.round" {
			w.didAll("balanced", number(e.Detail, "chunksMoved"))
		}
	}
}

// placedWithin is how long after the last fault chunks may be where they should not be: a
// chunk whose move failed waits, twice as long each time.
const placedWithin = 12 * time.Minute

// misplaced says what is not where it should be; "": nothing.
func misplaced(st *manifest.State) string {
	takes := func(h *manifest.Shard, zone string) bool {
		_, drains := balancing.Draining(st, h.ID)
		return h.Status == manifest.ShardHeld && !drains && (zone == "" || h.InZone(zone))
	}
	for c := range st.AllChunks() {
		coll, on, zone := st.Collection(c.Collection), st.Shard(c.Shard), ""
		if z, _ := coll.ZoneOf(c.Range); z != nil {
			zone = z.Zone
		}
		if takes(on, zone) {
			continue
		}
		for _, h := range st.Shards() {
			if takes(h, zone) {
				return fmt.Sprintf("chunk %d of %s, in zone %q, is on %s (%v, zones %v) and could be on %s", c.ID, coll.Namespace(), zone, on.ID, on.Status, on.Zones, h.ID)
			}
		}
	}
	if follow := balancing.Follow(st); len(follow) > 0 {
		return fmt.Sprintf("%d shards do not drain as they should", len(follow))
	}
	if plan := policy.Make(policy.Input{State: st, Settings: balancing.Of(st)}); len(plan.Actions) > 0 {
		return fmt.Sprintf("%d chunks should move, the first: %+v", len(plan.Actions), plan.Actions[0])
	}
	return ""
}
