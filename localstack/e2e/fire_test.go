package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestKillsOfRoutersAndWriters kills random processes of 2 routers and 3 writers under load
// from the Go driver, with both routers in its connection string: no acknowledged write is
// lost, none is done twice, and, since one router lives at any time, no operation fails. Each
// round kills a writer, a router or both, and waits until every client goes on.
func TestKillsOfRoutersAndWriters(t *testing.T) {
	c := startCluster(t, newStore(t), 2, 3)
	client := c.client()
	c.shard(client, "load.docs", "load.counters")
	l := startLoad(client)
	l.settle(t, l.mark())
	var takeovers, failovers []time.Duration
	var kills []string // of routers
	for range *rounds {
		began := time.Now()
		var killed []*role
		what := rand.IntN(4) // writers twice as often
		if what != 0 {
			killed = append(killed, c.writers[rand.IntN(len(c.writers))])
		}
		if what <= 1 {
			killed = append(killed, c.routers[rand.IntN(len(c.routers))])
		}
		holds, atOnce := what != 0 && c.holds(killed[0]) > 0, rand.IntN(2) == 0
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		first := time.Now()
		for _, r := range killed {
			if r.mongo != "" {
				kills = append(kills, fmt.Sprintf("%s %s", r.mongo, time.Now().Format(clock)))
			}
			r.kill()
			if atOnce {
				r.start()
			}
		}
		// From after the last kill on: what a client was told between two of them says nothing of
		// the operation that it is at, and a driver tries that twice, not thrice.
		m := l.mark()
		if took := m.at.Sub(first) + l.settle(t, m); holds {
			takeovers = append(takeovers, took)
		} else {
			failovers = append(failovers, took)
		}
		for _, r := range killed {
			if !atOnce {
				r.start()
			}
			r.ready()
		}
		if took := time.Since(began); took > 10*time.Second+*clusterLease {
			t.Logf("a round took %v", took)
		}
	}
	l.stop()
	quantiles(t, "kill of a writer, until the last client is acknowledged something", takeovers)
	quantiles(t, "kill of a router or of a writer without chunks", failovers)
	l.audit(t, c.client())
	if len(l.failed) > 0 {
		t.Logf("routers were killed: %s", strings.Join(kills, ", "))
	}
	for _, r := range c.roles() {
		if took := r.stop(); took > 10*time.Second {
			t.Errorf("%s took %v to stop", r.name, took)
		}
	}
	fsck(t, c.store)
}

// TestRollingRestart stops and starts every process, one after another, under load: no
// operation fails, and the pause that clients see is short.
func TestRollingRestart(t *testing.T) {
	c := startCluster(t, newStore(t), 2, 3)
	client := c.client()
	c.shard(client, "load.docs", "load.counters")
	l := startLoad(client)
	l.settle(t, l.mark())
	var gaps []time.Duration
	for _, r := range c.roles() {
		m := l.mark()
		stopped := r.stop()
		r.start()
		r.ready()
		time.Sleep(300 * time.Millisecond) // what is given back is given back under load
		l.settle(t, m)
		gaps = append(gaps, m.longest)
		t.Logf("%s: stopped within %v, longest operation meanwhile %v", r.name, stopped.Round(time.Millisecond), m.longest.Round(time.Millisecond))
		if m.longest > 5*time.Second { // on a busy machine
			t.Errorf("an operation took %v while %s was restarted", m.longest, r.name)
		}
	}
	l.stop()
	quantiles(t, "longest operation per restart", gaps)
	if n := len(c.status().Takeovers); n > 0 {
		t.Logf("%d takeovers: on a busy machine a process can be taken for gone", n)
	}
	l.audit(t, c.client())
	fsck(t, c.store)
}

// TestTheDriverGoesOnWithTheNextRouter: with one of two routers gone, whichever it is, the
// driver uses the other.
func TestTheDriverGoesOnWithTheNextRouter(t *testing.T) {
	c := startCluster(t, newStore(t), 2, 1)
	client := c.client()
	docs := client.Database("shop").Collection("orders")
	n := 0
	insert := func() {
		t.Helper()
		for range 5 {
			n++
			if _, err := docs.InsertOne(context.Background(), bson.D{{Key: "_id", Value: n}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	insert()
	for _, r := range append(c.routers, c.routers...) {
		r.kill()
		insert()
		r.start()
		r.ready()
		insert()
	}
	var hello struct{ Msg string }
	if err := client.Database("admin").RunCommand(context.Background(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil || hello.Msg != "isdbgrid" {
		t.Errorf("hello says %q, %v", hello.Msg, err)
	}
}

// TestProcessesStartInAnyOrder: whoever is first makes the cluster; a store that is not there
// yet is waited for, and that is said.
func TestProcessesStartInAnyOrder(t *testing.T) {
	t.Run("router first", func(t *testing.T) {
		c := newCluster(t, newStore(t), 1, 1)
		c.routers[0].start()
		c.ready()
		if _, err := c.client().Database("a").Collection("b").CountDocuments(context.Background(), bson.D{}); err != nil {
			t.Error("a read without any writer:", err)
		}
		inserted := make(chan error, 1)
		go func() {
			_, err := c.client().Database("a").Collection("b").InsertOne(context.Background(), bson.D{{Key: "_id", Value: 1}})
			inserted <- err
		}()
		c.routers[0].saysWithin(10*time.Second, "start one with granary writer --any")
		c.writers[0].start()
		if err := <-inserted; err != nil {
			t.Error("a write that waited for a writer:", err)
		}
	})
	t.Run("the store last", func(t *testing.T) {
		dir := t.TempDir()
		blocked := filepath.Join(dir, "mount")
		if err := os.WriteFile(blocked, nil, 0o600); err != nil { // a file where a directory will be
			t.Fatal(err)
		}
		c := newCluster(t, "dir:"+filepath.Join(blocked, "data"), 2, 2)
		for _, r := range c.roles() {
			r.start()
		}
		for _, r := range c.roles() {
			r.saysWithin(10*time.Second, "the store cannot be reached, waiting for it")
		}
		if out, err := granary(t, "writer", "--store", c.store, "--listen", "127.0.0.1:0", "--admin", "", "--wait", "0s").CombinedOutput(); err == nil {
			t.Errorf("with --wait 0s it did not fail: %s", out)
		}
		if err := os.Remove(blocked); err != nil {
			t.Fatal(err)
		}
		c.ready()
		if _, err := c.client().Database("a").Collection("b").InsertOne(context.Background(), bson.D{{Key: "_id", Value: 1}}); err != nil {
			t.Error(err)
		}
		c.routers[0].saysWithin(time.Second, "the store is there")
	})
}

// TestASecondSignalEndsAtOnce: a router that was told to stop lets a request finish, here one
// that waits for a writer that never comes; told again, it ends.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	c := newCluster(t, newStore(t), 1, 0)
	r := c.routers[0]
	r.start()
	c.ready()
	client, err := mongo.Connect(options.Client().ApplyURI(c.uri()).SetServerSelectionTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer disconnect(client)
	done := make(chan error, 1)
	go func() {
		_, err := client.Database("a").Collection("b").InsertOne(context.Background(), bson.D{{Key: "_id", Value: 1}})
		done <- err
	}()
	r.saysWithin(10*time.Second, "start one with granary writer --any")
	r.signal(syscall.SIGTERM)
	r.saysWithin(5*time.Second, "a second signal ends at once")
	time.Sleep(300 * time.Millisecond)
	if !r.running() {
		t.Error("it did not let the request finish")
	}
	start := time.Now()
	r.signal(syscall.SIGTERM)
	<-r.done
	if took := time.Since(start); took > 2*time.Second || r.cmd.ProcessState.ExitCode() == 0 {
		t.Errorf("ended %v after the second signal: %v", took, r.cmd.ProcessState)
	}
	if err := <-done; err == nil {
		t.Error("a write was acknowledged by nobody")
	}
}

// TestOnlyTheBucketIsLeft kills everything at once, three times: new processes, with new
// addresses, serve every document, and so do those after a stop.
func TestOnlyTheBucketIsLeft(t *testing.T) {
	store := newStore(t)
	n := 0
	for round := range 4 {
		c := startCluster(t, store, 2, 3)
		client := c.client()
		if round == 0 {
			c.shard(client, "left.docs")
		}
		docs := client.Database("left").Collection("docs")
		if got, err := docs.CountDocuments(context.Background(), bson.D{}); err != nil || int(got) != n {
			t.Fatalf("round %d: %d documents, %v; %d were acknowledged", round, got, err, n)
		}
		var batch []any
		for i := range 400 {
			batch = append(batch, bson.D{{Key: "_id", Value: clientName(i%loadClients) + "-" + strings.Repeat("x", round) + time.Now().String()}, {Key: "i", Value: i}})
		}
		if _, err := docs.InsertMany(context.Background(), batch); err != nil {
			t.Fatal(err)
		}
		n += len(batch)
		disconnect(client)
		for _, r := range c.roles() {
			if round == 2 {
				r.stop()
			} else {
				r.kill()
			}
		}
		fsck(t, store)
	}
}

// TestStoppedProcessesTellNoLies stops a writer together with a router, whose map and whose
// connections lead to it, for longer than a lease, and wakes both at once. Meanwhile another
// router and writer go on. Whoever reads through the woken router, at once, sees every
// increment that was acknowledged before; and of the increments through either, also of those
// that were under way when their processes were stopped, nothing is lost and nothing counted
// twice.
func TestStoppedProcessesTellNoLies(t *testing.T) {
	c := startCluster(t, newStore(t), 2, 2)
	stale, fresh := c.client(c.routers[0]), c.client(c.routers[1])
	c.shard(fresh, "load.others", "load.docs", "load.counters")
	c.settled()
	n := counters{t: t, acked: map[string]int64{}}
	l := startLoad(stale) // always has something under way where it is stopped
	n.incAll(fresh, "at first")
	for round := range max(*rounds-2, 1) { // a round takes some seconds
		w := c.writers[round%2]
		n.incAll(stale, "to warm the router's map")
		before := c.status().Shards
		w.pause()
		c.routers[0].pause()
		start := time.Now()
		n.incAll(fresh, "while a writer is stopped") // these wait for the takeover
		took := time.Since(start)
		w.resume()
		c.routers[0].resume()
		n.want(stale, "through the woken router")
		n.incAll(stale, "through the woken router")
		claims := 0
		for i, s := range c.status().Shards {
			claims += s.Epoch - before[i].Epoch
		}
		t.Logf("round %d: served again %v after the stop, %d claims", round, took.Round(time.Millisecond), claims)
		if claims == 0 {
			t.Errorf("round %d: nothing was taken over", round)
		}
		c.settled()
	}
	l.stop()
	n.want(fresh, "in the end")
	l.audit(t, fresh)
	fsck(t, c.store)
}

// counters are one document a chunk and more, and what was acknowledged of each.
type counters struct {
	t     testing.TB
	acked map[string]int64
}

func (n *counters) of(client *mongo.Client) *mongo.Collection {
	return client.Database("load").Collection("others")
}

// incAll increments each of them, one after another.
func (n *counters) incAll(client *mongo.Client, when string) {
	n.t.Helper()
	for i := range loadClients {
		_, err := n.of(client).UpdateOne(context.Background(), bson.D{{Key: "_id", Value: clientName(i)}},
			bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
		if err != nil {
			n.t.Errorf("increment %s: %v", when, err)
			continue
		}
		n.acked[clientName(i)]++
	}
}

// want reads each of them, and requires all that was acknowledged and no more.
func (n *counters) want(client *mongo.Client, when string) {
	n.t.Helper()
	for i := range loadClients {
		var doc struct{ N int64 }
		name := clientName(i)
		if err := n.of(client).FindOne(context.Background(), bson.D{{Key: "_id", Value: name}}).Decode(&doc); err != nil {
			n.t.Errorf("read %s: %v", when, err)
		} else if doc.N != n.acked[name] {
			n.t.Errorf("%s is %d %s, %d increments were acknowledged before", name, doc.N, when, n.acked[name])
		}
	}
}

// settled waits until every writer has a shard again.
func (c *cluster) settled() {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		has := map[string]bool{}
		for _, s := range c.status().Shards {
			has[s.Address] = true
		}
		all := true
		for _, w := range c.writers {
			all = all && has[w.rpc]
		}
		if all {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatal("30 s later some writer has no shard")
		}
	}
}

// TestADeadWriterConcernsItsChunksOnly kills one of three writers: until another has taken its
// shard over, the clients of the other shards go on as if nothing had happened.
func TestADeadWriterConcernsItsChunksOnly(t *testing.T) {
	c := newCluster(t, newStore(t), 1, 3)
	for _, w := range c.writers {
		w.args = append(w.args, "--lease", "5s") // long enough to see who waits
	}
	for _, r := range c.roles() {
		r.start()
	}
	c.ready()
	client := c.client()
	c.shard(client, "load.docs", "load.counters")
	c.settled()
	l := startLoad(client)
	defer l.stop()
	l.settle(t, l.mark())
	waits := map[string]bool{}
	shards := map[string]string{}
	for _, s := range c.status().Shards {
		shards[s.ID] = s.Address
	}
	for _, ns := range []string{"load.docs", "load.counters"} {
		for i, chunk := range (&chunkChanger{client: client}).chunks(t, ns) {
			if shards[chunk.Shard] == c.writers[0].rpc { // two clients have each chunk
				waits[clientName(2*i)], waits[clientName(2*i+1)] = true, true
			}
		}
	}
	c.writers[0].kill()
	time.Sleep(500 * time.Millisecond) // for answers that were under way
	m := l.mark()
	time.Sleep(1500 * time.Millisecond)
	l.watching.Lock()
	goes := maps.Clone(m.first)
	l.watching.Unlock()
	for i := range loadClients {
		if _, ok := goes[clientName(i)]; ok == waits[clientName(i)] {
			t.Errorf("client %s goes on: %v; its shard has lost its writer: %v", clientName(i), ok, waits[clientName(i)])
		}
	}
	t.Logf("%d of %d clients go on", len(goes), loadClients)
	l.settle(t, m)
}
