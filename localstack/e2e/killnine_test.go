package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var rounds = flag.Int("rounds", 5, "rounds of kill -9, in the tests that kill")

// ledger is what clients were told: the parent's account, which no kill touches.
type ledger struct {
	mu       sync.Mutex
	acked    map[string]bool // inserts that were acknowledged
	tried    map[string]bool // inserts that were sent
	incAcked map[string]int64
	incTried map[string]int64
}

func connect(t testing.TB, p *process) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(p.uri()).SetServerSelectionTimeout(2 * time.Second).SetTimeout(5 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestKillNine kills granary local in the middle of a load from the Go driver, again and
// again: no acknowledged write is lost, none is doubled, and fsck is clean after each kill.
func TestKillNine(t *testing.T) {
	store := "dir:" + t.TempDir()
	l := &ledger{acked: map[string]bool{}, tried: map[string]bool{}, incAcked: map[string]int64{}, incTried: map[string]int64{}}
	for round := range *rounds {
		p := startLocal(t, store, "--lease", "300ms")
		if round == 0 {
			shard(t, p)
		}
		l.audit(t, p)
		l.load(p, round, 200*time.Millisecond+time.Duration(rand.IntN(800))*time.Millisecond)
		fsck(t, store)
	}
	p := startLocal(t, store, "--lease", "300ms")
	l.audit(t, p)
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, p.out)
	}
	fsck(t, store)
	t.Logf("%d rounds: %d inserts acknowledged of %d sent", *rounds, len(l.acked), len(l.tried))
}

// shard spreads the two collections over several chunks.
func shard(t *testing.T, p *process) {
	t.Helper()
	c := connect(t, p)
	defer disconnect(c)
	for _, ns := range []string{"kill.docs", "kill.counters"} {
		err := c.Database("admin").RunCommand(context.Background(), bson.D{
			{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "splitPoints", Value: bson.A{bson.D{{Key: "_id", Value: "c2"}}, bson.D{{Key: "_id", Value: "c4"}}, bson.D{{Key: "_id", Value: "c6"}}}},
		}).Err()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// disconnect does not wait for a server to end the sessions at: tests stop them first.
func disconnect(c *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = c.Disconnect(ctx)
}

// load runs eight clients until the process is killed after d.
func (l *ledger) load(p *process, round int, d time.Duration) {
	c, err := mongo.Connect(options.Client().ApplyURI(p.uri()).SetServerSelectionTimeout(300 * time.Millisecond).SetTimeout(2 * time.Second))
	if err != nil {
		panic(err)
	}
	defer disconnect(c)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			l.client(ctx, c, fmt.Sprintf("c%d", i), round)
		}()
	}
	time.Sleep(d)
	p.kill()
	cancel()
	wg.Wait()
}

func (l *ledger) client(ctx context.Context, c *mongo.Client, name string, round int) {
	docs, counters := c.Database("kill").Collection("docs"), c.Database("kill").Collection("counters")
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%s-%04d-%06d", name, round, n)
		l.note(func() { l.tried[id] = true })
		_, err := docs.InsertOne(context.Background(), bson.D{{Key: "_id", Value: id}, {Key: "round", Value: round}, {Key: "pad", Value: "some bytes to carry"}})
		if err == nil {
			l.note(func() { l.acked[id] = true })
		}
		if n%3 != 0 {
			continue
		}
		l.note(func() { l.incTried[name]++ })
		_, err = counters.UpdateOne(context.Background(), bson.D{{Key: "_id", Value: name}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
		if err == nil {
			l.note(func() { l.incAcked[name]++ })
		}
	}
}

func (l *ledger) note(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// audit compares what the store serves with what clients were told.
func (l *ledger) audit(t *testing.T, p *process) {
	t.Helper()
	c := connect(t, p)
	defer disconnect(c)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cur, err := c.Database("kill").Collection("docs").Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for cur.Next(ctx) {
		id, _ := cur.Current.Lookup("_id").StringValueOK()
		if found[id] {
			t.Errorf("%s is there twice", id)
		}
		if found[id] = true; !l.tried[id] {
			t.Errorf("%s was never inserted", id)
		}
	}
	if err := cur.Err(); err != nil {
		t.Fatal(err)
	}
	for id := range l.acked {
		if !found[id] {
			t.Errorf("acknowledged insert %s is lost", id)
		}
	}
	l.auditCounters(ctx, t, c)
}

func (l *ledger) auditCounters(ctx context.Context, t *testing.T, c *mongo.Client) {
	t.Helper()
	for name, tried := range l.incTried {
		var doc struct{ N int64 }
		err := c.Database("kill").Collection("counters").FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&doc)
		if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
			t.Fatal(err)
		}
		if acked := l.incAcked[name]; doc.N < acked || doc.N > tried {
			t.Errorf("counter %s is %d: %d increments were acknowledged, %d sent", name, doc.N, acked, tried)
		}
	}
}
