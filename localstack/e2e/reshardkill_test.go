package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var (
	reshardDocs  = flag.Int("reshard.docs", 2000, "documents of TestReshardingSurvivesKills, beside those that come meanwhile")
	reshardKills = flag.Int("reshard.kills", 2, "processes that TestReshardingSurvivesKills kills")
)

// rekeyed are the keys that load.docs gets in turn.
var rekeyed = []bson.D{{{Key: "_id", Value: "hashed"}}, {{Key: "pad", Value: 1}, {Key: "_id", Value: 1}}, {{Key: "_id", Value: 1}}}

// resharded is a cluster in which load.docs is resharded while it is written to.
type resharded struct {
	*cluster
	load   *load
	client *mongo.Client
	keys   int // used so far
}

// preload puts n documents there, of which the load then keeps account, and into load.twin.
func (r *resharded) preload(n int) {
	r.t.Helper()
	docs, twin := r.client.Database("load").Collection("docs"), r.client.Database("load").Collection("twin")
	for at := 0; at < n; at += 1000 {
		var batch []bson.D
		for i := at; i < min(at+1000, n); i++ {
			id := fmt.Sprintf("p-%07d", i)
			batch = append(batch, bson.D{{Key: "_id", Value: id}, {Key: "pad", Value: fmt.Sprintf("%x", i*7919%n)}, {Key: "v", Value: i}})
			r.load.acked = append(r.load.acked, id)
		}
		for _, c := range []*mongo.Collection{docs, twin} {
			if _, err := c.InsertMany(context.Background(), batch, options.InsertMany().SetOrdered(false)); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// content is a sum of hashes of the documents that were preloaded into a collection, in any
// order.
func (r *resharded) content(name string) (sum uint64, n int) {
	r.t.Helper()
	cur, err := r.client.Database("load").Collection(name).Find(context.Background(), bson.D{{Key: "v", Value: bson.D{{Key: "$exists", Value: true}}}}, options.Find().SetBatchSize(50_000))
	if err != nil {
		r.t.Fatal(err)
	}
	for cur.Next(context.Background()) {
		h := fnv.New64a()
		_, _ = h.Write(cur.Current)
		sum, n = sum+h.Sum64(), n+1
	}
	if cur.Err() != nil {
		r.t.Fatal(cur.Err())
	}
	return sum, n
}

// reshard asks a router for the next key.
func (r *resharded) reshard(by *role) error {
	key := rekeyed[r.keys%len(rekeyed)]
	r.keys++
	return r.admin(by, bson.D{{Key: "reshardCollection", Value: "load.docs"}, {Key: "key", Value: key}, {Key: "numInitialChunks", Value: 8}})
}

func (r *resharded) admin(by *role, cmd bson.D) error {
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + by.mongo + "/?directConnection=true"))
	if err != nil {
		return err
	}
	defer disconnect(client)
	return client.Database("admin").RunCommand(context.Background(), cmd).Err()
}

func hasCode(err error, codes ...int32) bool {
	var e mongo.CommandError
	for _, code := range codes {
		if errors.As(err, &e) && e.Code == code {
			return true
		}
	}
	return false
}

// Codes of the server.
const noSuchReshard, reshardAborted, interrupted, conflictingOperation = 339, 341, 11601, 117

// end takes an end to a resharding whose router was killed, by the other one.
func (r *resharded) end(by *role) {
	r.t.Helper()
	if err := r.admin(by, bson.D{{Key: "abortReshardCollection", Value: "load.docs"}}); err != nil && !hasCode(err, noSuchReshard) {
		r.t.Error("abort: ", err)
	}
}

// killed has a router reshard, and kills it, or a writer, somewhere in between; within is how
// long it takes undisturbed.
func (r *resharded) killed(rng *rand.Rand, round int, within time.Duration) {
	r.t.Helper()
	victim, by, other := r.writers[round/2%2], r.routers[round/4%2], r.routers[1-round/4%2]
	if round%2 == 0 {
		victim = by
	}
	taken, was := *reshardKills >= 10 && round%8 == 0, r.key()
	done := make(chan error, 1)
	go func() { done <- r.reshard(by) }()
	if taken {
		time.Sleep(within / 2)
	} else {
		time.Sleep(time.Duration(rng.Int64N(int64(within))))
	}
	victim.kill()
	victim.start()
	err := <-done
	if taken {
		r.takenUp(was)
	} else if victim == by {
		r.end(other)
	} else if err != nil && !hasCode(err, conflictingOperation) {
		r.t.Logf("kill %d, of %s: %v", round, victim.name, err)
	}
	victim.ready()
}

// takenUp waits until a router has carried out what another one died over.
func (r *resharded) takenUp(was string) {
	r.t.Helper()
	start := time.Now()
	for r.key() == was {
		if time.Since(start) > 5*time.Minute {
			r.t.Errorf("the key is %s still: nobody took the resharding up", was)
			return
		}
		time.Sleep(time.Second)
	}
	r.t.Logf("taken up, and done %v after the kill", time.Since(start).Round(time.Second))
}

var stoppedFor = regexp.MustCompile(`msg="a collection (?:has another shard key|was put back as it was)".* stopped=(\S+)`)

// stops are how long the switches kept writes waiting, as the routers say.
func (r *resharded) stops() (n int, most time.Duration) {
	for _, role := range r.routers {
		for _, m := range stoppedFor.FindAllStringSubmatch(role.said(1<<26), -1) {
			d, err := time.ParseDuration(m[1])
			if err != nil {
				r.t.Error(err)
			}
			n, most = n+1, max(most, d)
		}
	}
	return n, most
}

// TestReshardingSurvivesKills gives a collection one key after another while eight clients write
// to it through two routers, and kills the router that does it or a writer at random moments; it
// is aborted, two collections get a key at once, and it is undone with and without writes
// in between. No operation fails, none is lost or done twice, and the documents that nobody
// writes to are what they were. The long form: -reshard.docs=1000000 -reshard.kills=20.
func TestReshardingSurvivesKills(t *testing.T) {
	store := "dir:" + t.TempDir()
	r := &resharded{cluster: startCluster(t, store, 2, 2)}
	r.client = r.cluster.client()
	r.shard(r.client, "load.docs", "load.counters", "load.twin")
	r.load = &load{client: r.client}
	r.preload(*reshardDocs)
	acked := r.load.acked
	before, n := r.content("docs")
	if n != *reshardDocs {
		t.Fatalf("%d documents were preloaded of %d", n, *reshardDocs)
	}
	r.load = startLoad(r.client)
	r.load.mu.Lock()
	r.load.acked = append(r.load.acked, acked...)
	r.load.mu.Unlock()
	start := time.Now()
	if err := r.reshard(r.routers[0]); err != nil {
		t.Fatal(err)
	}
	within := time.Since(start)
	t.Logf("%d documents took %v", n, within.Round(time.Millisecond))
	rng := rand.New(rand.NewPCG(uint64(*reshardKills), 1))
	for round := range *reshardKills {
		r.killed(rng, round, within)
	}
	r.aborted(within)
	r.together()
	r.undone(false)
	r.load.stop()
	r.undone(true)
	for _, name := range []string{"docs", "twin"} {
		if after, m := r.content(name); after != before || m != n {
			t.Errorf("%s: %d documents of content %x, were %d of %x", name, m, after, n, before)
		}
	}
	r.load.audit(t, r.client)
	switches, most := r.stops()
	t.Logf("%d switches, writes waited %v at most", switches, most)
	for _, p := range r.roles() {
		p.stop()
	}
	fsck(t, store)
}

// aborted ends one through the other router: the key is what it was.
func (r *resharded) aborted(within time.Duration) {
	r.t.Helper()
	was := r.key()
	done := make(chan error, 1)
	go func() { done <- r.reshard(r.routers[0]) }()
	time.Sleep(within / 4)
	err := r.admin(r.routers[1], bson.D{{Key: "abortReshardCollection", Value: "load.docs"}})
	switch ended := <-done; {
	case hasCode(err, noSuchReshard) && ended == nil: // it had switched
	case err != nil || !hasCode(ended, reshardAborted, interrupted):
		r.t.Errorf("abort: %v; the command: %v", err, ended)
	case r.key() != was:
		r.t.Errorf("the key is %s, was %s", r.key(), was)
	}
}

// together reshards two collections of the same documents at once, by two routers.
func (r *resharded) together() {
	r.t.Helper()
	var all sync.WaitGroup
	start := time.Now()
	all.Go(func() {
		err := r.admin(r.routers[1], bson.D{{Key: "reshardCollection", Value: "load.twin"}, {Key: "key", Value: rekeyed[0]}})
		if err != nil {
			r.t.Error(err)
		}
	})
	all.Go(func() {
		if err := r.reshard(r.routers[0]); err != nil {
			r.t.Error(err)
		}
	})
	all.Wait()
	r.t.Logf("two at once took %v", time.Since(start).Round(time.Millisecond))
}

// undone reshards and takes it back; quiet: nobody writes, so that nothing is rewritten.
func (r *resharded) undone(quiet bool) {
	r.t.Helper()
	was := r.key()
	if err := r.reshard(r.routers[0]); err != nil {
		r.t.Fatal(err)
	}
	for from, _ := r.load.inserts(); !quiet; time.Sleep(10 * time.Millisecond) {
		if now, _ := r.load.inserts(); now >= from+2*loadClients {
			break // each has written since
		}
	}
	start := time.Now()
	var reply struct{ Restored, Rewritten bool }
	if err := r.client.Database("admin").RunCommand(context.Background(), bson.D{{Key: "undoReshardCollection", Value: "load.docs"}}).Decode(&reply); err != nil {
		r.t.Fatal(err)
	}
	if reply.Restored != quiet || reply.Rewritten == quiet || r.key() != was {
		r.t.Errorf("%+v with nobody writing: %t; the key is %s, was %s", reply, quiet, r.key(), was)
	}
	r.t.Logf("undoing took %v, restored: %t", time.Since(start).Round(time.Millisecond), reply.Restored)
}

// key is the shard key of load.docs.
func (r *resharded) key() string {
	r.t.Helper()
	var doc struct{ Key bson.Raw }
	if err := r.client.Database("config").Collection("collections").FindOne(context.Background(), bson.D{{Key: "_id", Value: "load.docs"}}).Decode(&doc); err != nil {
		r.t.Fatal(err)
	}
	return doc.Key.String()
}
