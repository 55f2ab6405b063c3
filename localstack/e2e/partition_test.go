package e2e

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var partitioned = flag.Duration("partition", 0, "how long each partition of TestPartitions lasts; 0: two of them, for 2 s")

// topologies are what is cut from what.
var topologies = []struct {
	name string
	cut  func(n *nets, w *world, d time.Duration)
}{
	{"a writer hears a router, which does not hear it", func(n *nets, w *world, d time.Duration) {
		n.cut("writer1", "router1")
		time.Sleep(d)
	}},
	{"a writer and the store", func(n *nets, w *world, d time.Duration) {
		n.part([]string{"writer1"}, []string{"store"})
		time.Sleep(d)
	}},
	{"a router and a writer", func(n *nets, w *world, d time.Duration) {
		n.part([]string{"router1"}, []string{"writer1"})
		time.Sleep(d)
	}},
	{"a router and the store", func(n *nets, w *world, d time.Duration) {
		n.part([]string{"router1"}, []string{"store"})
		time.Sleep(d)
	}},
	{"the clients and a router", func(n *nets, w *world, d time.Duration) {
		n.part([]string{"client"}, []string{"router1"})
		time.Sleep(d)
	}},
	{"the writers among one another", func(n *nets, w *world, d time.Duration) {
		n.part(w.writers, w.writers)
		time.Sleep(d)
	}},
	{"one after another from all, and back in another order", func(n *nets, w *world, d time.Duration) {
		all := slices.Concat(w.writers, w.routers)
		for _, i := range rand.Perm(len(all)) {
			n.part(all[i:i+1], slices.Concat(all, []string{"store"}))
			time.Sleep(d / time.Duration(2*len(all)))
		}
		for _, i := range rand.Perm(len(all)) {
			n.heal(all[i])
			time.Sleep(d / time.Duration(2*len(all)))
		}
	}},
	{"everybody and the store", func(n *nets, w *world, d time.Duration) {
		n.part(slices.Concat(w.writers, w.routers), []string{"store"})
		time.Sleep(d)
	}},
}

// world is the names of a cluster's processes.
type world struct{ routers, writers []string }

// startInNets starts a cluster on an S3 server, each process in a namespace of its own.
func startInNets(t testing.TB) (*nets, *world, *cluster) {
	t.Helper()
	need(t, "GRANARY_S3SERVER", "the program of localstack/s3server (go build -C localstack/s3server -o PROGRAM .)")
	w := &world{routers: []string{"router1", "router2"}, writers: []string{"writer1", "writer2", "writer3"}}
	n := newNets(t, slices.Concat(w.routers, w.writers, []string{"store"})...)
	t.Setenv("GRANARY_SECRET", "a secret of this test, long enough")
	s3 := startS3(t, n.at["store"]+":7070", n.inside("store")...)
	c := newCluster(t, s3.url(""), len(w.routers), len(w.writers))
	for _, r := range c.routers {
		r.mongo, r.inside = n.at[r.name]+":27017", n.inside(r.name)
		r.args = []string{"router", "--store", c.store, "--mongo", r.mongo, "--insecure"}
	}
	for _, r := range c.writers {
		r.rpc, r.inside = n.at[r.name]+":7017", n.inside(r.name)
		r.args = []string{"writer", "--store", c.store, "--listen", r.rpc, "--lease", clusterLease.String()}
	}
	for _, r := range c.roles() {
		r.start()
	}
	c.ready()
	return n, w, c
}

// TestPartitions cuts processes off from one another, as networks do that lose packets: what
// clients were told stays true per document, and each client goes on soon after the network
// is whole, by whichever router it comes; half of them know one router, half the other.
func TestPartitions(t *testing.T) {
	n, w, c := startInNets(t)
	c.shard(c.client(), "load.things")
	v := newView(t, c.store)
	log := startCopy(v)
	lasts, list := *partitioned, topologies
	if lasts == 0 {
		lasts, list = 2*time.Second, topologies[:2]
	}
	o := documentsOptions{perGroup: 4, perDoc: 200, patience: 3 * time.Second, think: 5 * time.Millisecond}
	d := startDocuments(t, o, "mongodb://"+c.routers[0].mongo+"/?directConnection=true", "mongodb://"+c.routers[1].mongo+"/?directConnection=true")
	d.settle(t, d.mark())
	var back []time.Duration
	for _, topology := range list {
		t.Run(topology.name, func(t *testing.T) {
			changed, failed, begun := d.changed.Load(), d.failed.Load(), d.count()
			topology.cut(n, w, lasts)
			during := d.changed.Load() - changed
			mark := d.mark()
			n.heal()
			took := d.settle(t, mark)
			back = append(back, took)
			t.Logf("%v: %d operations, %d changes acknowledged, %d operations without an answer; back %v after the healing",
				lasts, d.count()-begun, during, d.failed.Load()-failed, took.Round(time.Millisecond))
			if took > 15*time.Second { // 5 s where the machine has nothing else to do
				t.Errorf("back in service only %v after the healing", took)
			}
			c.settled()
		})
	}
	d.stop()
	log.stop()
	quantiles(t, "healing, until each client by each router goes on", back)
	d.check(t, log)
	for _, r := range c.roles() {
		r.stop()
	}
	fsck(t, c.store)
}
