package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// load is clients that write all the time, and the parent's account of what they were told.
type load struct {
	client *mongo.Client
	cancel context.CancelFunc
	wg     sync.WaitGroup

	watch

	mu     sync.Mutex
	acked  []string         // inserts that were acknowledged
	incs   map[string]int64 // increments that were, by counter
	failed []string         // operations that were told an error
	unsent []string         // operations that the driver sent to nobody
	sent   int64            // inserts that were begun
	took   []time.Duration  // of the operations acknowledged since times was asked
}

// loadClients is how many write at once. Their names choose the chunk, so that each has one
// shard, and every shard has some.
const loadClients = 8

func clientName(i int) string { return fmt.Sprintf("c%d", i) }

// startLoad starts the clients on the collections load.docs and load.counters.
func startLoad(client *mongo.Client) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{client: client, cancel: cancel, incs: map[string]int64{}, watch: watch{clients: loadClients}}
	for i := range loadClients {
		l.wg.Go(func() { l.write(ctx, clientName(i)) })
	}
	return l
}

// write is one client: an operation after another, inserts and increments in turn. An
// operation has no time limit: it ends when the router gives up.
func (l *load) write(ctx context.Context, name string) {
	docs, counters := l.client.Database("load").Collection("docs"), l.client.Database("load").Collection("counters")
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%s-%07d", name, n)
		start := time.Now()
		var err error
		insert := n%2 == 0
		if insert {
			l.begin()
			_, err = docs.InsertOne(context.Background(), bson.D{{Key: "_id", Value: id}, {Key: "pad", Value: "some bytes to carry"}})
		} else {
			_, err = counters.UpdateOne(context.Background(), bson.D{{Key: "_id", Value: name}},
				bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
		}
		l.note(name, id, insert, start, err)
		time.Sleep(2 * time.Millisecond) // the machine has more to do
	}
}

func (l *load) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
}

// inserts are how many were acknowledged by now, and how many were sent.
func (l *load) inserts() (acked, sent int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.acked)), l.sent
}

// times is how long the operations took that were acknowledged since the last call.
func (l *load) times() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := l.took
	l.took = nil
	return took
}

// clock is how moments are written that are to be compared.
const clock = "15:04:05.000"

func (l *load) note(name, id string, insert bool, start time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := fmt.Sprintf("%s, sent %s, after %v: %v", id, start.Format(clock), time.Since(start).Round(time.Microsecond), err)
	switch {
	case err != nil && neverSent(err):
		l.unsent = append(l.unsent, told)
		return
	case err != nil:
		l.failed = append(l.failed, told)
		return
	case insert:
		l.acked = append(l.acked, id)
	default:
		l.incs[name]++
	}
	l.took = append(l.took, time.Since(start))
	l.served(name, start)
}

// neverSent reports whether the driver gave an operation up without having sent it. Between the
// death of a router and the moment in which the driver has noted it everywhere, less than a
// millisecond, it can choose that router twice; it tries no third time.
func neverSent(err error) bool {
	return strings.HasPrefix(err.Error(), "connection pool for ") || strings.Contains(err.Error(), "error occurred during connection handshake")
}

// unsentRounds is in how many rounds, each of which may kill a router, that may happen once.
const unsentRounds = 40

// stop ends the clients, each after the operation that it is at.
func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}

// audit requires that nothing failed, that every acknowledged insert is there once and no
// other, and that every counter is exactly what was acknowledged.
func (l *load) audit(t testing.TB, client *mongo.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(len(l.acked)/10)*time.Millisecond)
	defer cancel()
	if len(l.failed) > 0 {
		t.Errorf("%d operations failed, the first:\n%s", len(l.failed), strings.Join(l.failed[:min(len(l.failed), 20)], "\n"))
	}
	if n := len(l.unsent); n > 1+*rounds/unsentRounds {
		t.Errorf("%d operations were never sent, the first: %s", n, l.unsent[0])
	}
	lost := map[string]bool{}
	for _, id := range l.acked {
		lost[id] = true
	}
	cur, err := client.Database("load").Collection("docs").Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}).SetBatchSize(100_000))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for cur.Next(ctx) {
		id, _ := cur.Current.Lookup("_id").StringValueOK()
		if found[id] {
			t.Errorf("%s is there twice", id)
		}
		if !lost[id] && len(l.failed) == 0 {
			t.Errorf("%s is there, and was never acknowledged", id)
		}
		found[id] = true
		delete(lost, id)
	}
	if err := cur.Err(); err != nil {
		t.Fatal(err)
	}
	for id := range lost {
		t.Errorf("acknowledged insert %s is lost", id)
	}
	l.auditCounters(ctx, t, client)
	t.Logf("%d inserts and %d increments acknowledged, %d operations failed, %d were never sent", len(l.acked), l.increments(), len(l.failed), len(l.unsent))
}

func (l *load) increments() (n int64) {
	for _, k := range l.incs {
		n += k
	}
	return n
}

func (l *load) auditCounters(ctx context.Context, t testing.TB, client *mongo.Client) {
	t.Helper()
	for name, acked := range l.incs {
		var doc struct{ N int64 }
		if err := client.Database("load").Collection("counters").FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&doc); err != nil {
			t.Fatal(err)
		}
		if doc.N != acked && (len(l.failed) == 0 || doc.N < acked) {
			t.Errorf("counter %s is %d, %d increments were acknowledged", name, doc.N, acked)
		}
	}
}
