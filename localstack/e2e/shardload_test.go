package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var changes = flag.Int("changes", 60, "moves, splits and merges under load, in the tests that change chunks")

// takeoverTime is how long after a kill operations may still wait for it.
const takeoverTime = 5 * time.Second

// TestChunksChangeUnderLoad moves, splits and merges chunks under load from the Go driver with
// two routers, while writers are killed. No operation fails, no acknowledged write is lost or
// done twice, and what concerns many documents is exact all the time: a count lies between
// what was acknowledged before it began and what was sent before it ended, an increment of all
// documents reaches each of them once, and a document whose shard key changes is seen once,
// wherever it is.
func TestChunksChangeUnderLoad(t *testing.T) {
	c := startCluster(t, newStore(t), 2, 3)
	client := c.client()
	c.shard(client, "load.docs", "load.counters", "load.sums")
	e := newExact(t, client)
	l := startLoad(client)
	l.settle(t, l.mark())
	time.Sleep(2 * time.Second)
	calm := l.times()
	e.start(l)
	m := &chunkChanger{client: client, names: []string{"load.docs", "load.counters", "load.sums", "load.keys"}}
	var stalls, afterKill []time.Duration
	kills, killed := 0, time.Time{}
	for i := range *changes {
		k := l.mark()
		m.change(t)
		l.settle(t, k)
		if k.at.Sub(killed) < takeoverTime {
			afterKill = append(afterKill, k.longest)
		} else {
			stalls = append(stalls, k.longest)
		}
		if i%40 == 39 {
			w := c.writers[rand.IntN(len(c.writers))]
			w.kill()
			killed = time.Now()
			w.start()
			w.ready()
			kills++
		}
	}
	busy := l.times()
	e.stop()
	l.stop()
	t.Logf("%d moves, %d splits, %d merges, %d refused; %d writers killed", m.done["moveChunk"], m.done["split"], m.done["mergeChunks"], m.refused, kills)
	quantiles(t, "operations before", calm)
	quantiles(t, "operations meanwhile", busy)
	quantiles(t, "longest operation per change", stalls)
	quantiles(t, "longest operation per change beside a takeover", afterKill)
	l.audit(t, c.client())
	e.audit(t)
	consistent(t, client)
	fsck(t, c.store)
}

// consistent requires that checkMetadataConsistency finds nothing.
func consistent(t testing.TB, client *mongo.Client) {
	t.Helper()
	cur, err := client.Database("admin").RunCommandCursor(context.Background(), bson.D{{Key: "checkMetadataConsistency", Value: 1}})
	var found []bson.D
	if err == nil {
		err = cur.All(context.Background(), &found)
	}
	if err != nil || len(found) > 0 {
		t.Errorf("checkMetadataConsistency: %v, %v", found, err)
	}
}

// chunkChanger changes chunks at random, as a person does by commands.
type chunkChanger struct {
	client  *mongo.Client
	names   []string
	done    map[string]int
	refused int
}

// change makes one change, or tries one that cannot be.
func (m *chunkChanger) change(t testing.TB) {
	t.Helper()
	if m.done == nil {
		m.done = map[string]int{}
	}
	ns := m.names[rand.IntN(len(m.names))]
	chunks := m.chunks(t, ns)
	n := rand.IntN(len(chunks))
	at := bson.E{Key: "bounds", Value: bson.A{chunks[n].Min, chunks[n].Max}}
	shards := []string{"shard01", "shard02", "shard03"}
	var cmd bson.D
	switch what := rand.IntN(4); {
	case what == 0 && len(chunks) < 20:
		cmd = bson.D{{Key: "split", Value: ns}, at}
	case what == 1 && n+1 < len(chunks):
		if chunks[n].Shard != chunks[n+1].Shard {
			m.run(t, bson.D{{Key: "moveChunk", Value: ns}, at, {Key: "to", Value: chunks[n+1].Shard}})
		}
		cmd = bson.D{{Key: "mergeChunks", Value: ns}, {Key: "bounds", Value: bson.A{chunks[n].Min, chunks[n+1].Max}}}
	default:
		cmd = bson.D{{Key: "moveChunk", Value: ns}, at, {Key: "to", Value: shards[rand.IntN(len(shards))]}}
	}
	m.run(t, cmd)
}

// run is one command. A split of what cannot be split is refused, and a command that names
// chunks as they were before another change as well; nothing else may go wrong.
func (m *chunkChanger) run(t testing.TB, cmd bson.D) {
	t.Helper()
	err := m.client.Database("admin").RunCommand(context.Background(), cmd).Err()
	var refused mongo.CommandError
	switch {
	case err == nil:
		m.done[cmd[0].Key]++
	case errors.As(err, &refused) && (refused.Name == "OperationFailed" || refused.Name == "BadValue" || refused.Name == "IllegalOperation"):
		m.refused++
	default:
		t.Errorf("%v: %v", cmd, err)
	}
}

// configChunk is what config.chunks says of one.
type configChunk struct {
	Min, Max bson.D
	Shard    string
}

func (m *chunkChanger) chunks(t testing.TB, ns string) (chunks []configChunk) {
	t.Helper()
	config := m.client.Database("config")
	var coll struct{ UUID bson.Binary }
	ctx := context.Background()
	err := config.Collection("collections").FindOne(ctx, bson.D{{Key: "_id", Value: ns}}).Decode(&coll)
	if err != nil {
		t.Fatal(err)
	}
	cur, err := config.Collection("chunks").Find(ctx, bson.D{{Key: "uuid", Value: coll.UUID}}, options.Find().SetSort(bson.D{{Key: "min", Value: 1}}))
	if err == nil {
		err = cur.All(ctx, &chunks)
	}
	if err != nil || len(chunks) == 0 {
		t.Fatalf("chunks of %s: %v, %v", ns, chunks, err)
	}
	return chunks
}

// exact are clients whose answers have one right value, whatever happens to chunks.
type exact struct {
	t      testing.TB
	client *mongo.Client
	cancel context.CancelFunc
	wg     sync.WaitGroup

	sums, wanders, scans, counts atomic.Int64 // operations that were answered
}

const (
	exactDocs = 200 // in load.sums
	wanderers = 64  // in load.keys
	// wanderBelow is where their shard keys are.
	wanderBelow = 1000
)

// newExact fills the collections load.sums and load.keys.
func newExact(t testing.TB, client *mongo.Client) *exact {
	t.Helper()
	e := &exact{t: t, client: client}
	ctx := context.Background()
	points := bson.A{}
	for k := 100; k < wanderBelow; k += 100 {
		points = append(points, bson.D{{Key: "k", Value: k}})
	}
	err := client.Database("admin").RunCommand(ctx, bson.D{
		{Key: "shardCollection", Value: "load.keys"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "splitPoints", Value: points},
	}).Err()
	if err != nil {
		t.Fatal(err)
	}
	var sums, keys []any
	for i := range exactDocs {
		sums = append(sums, bson.D{{Key: "_id", Value: fmt.Sprintf("%s-%d", clientName(i%loadClients), i)}, {Key: "n", Value: 0}})
	}
	for i := range wanderers {
		keys = append(keys, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: rand.IntN(wanderBelow)}})
	}
	for name, docs := range map[string][]any{"sums": sums, "keys": keys} {
		if _, err := client.Database("load").Collection(name).InsertMany(ctx, docs); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// start begins all of them; l is the load whose inserts are counted.
func (e *exact) start(l *load) {
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	db := e.client.Database("load")
	for _, f := range []func(){
		func() { e.incAll(db.Collection("sums")) },
		func() { e.wander(db.Collection("keys"), 0) },
		func() { e.wander(db.Collection("keys"), 1) },
		func() { e.scan(db.Collection("keys")) },
		func() { e.count(l, db.Collection("docs")) },
	} {
		e.wg.Go(func() {
			for ctx.Err() == nil {
				f()
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
}

func (e *exact) stop() { e.cancel(); e.wg.Wait() }

// incAll increments every document of load.sums.
func (e *exact) incAll(sums *mongo.Collection) {
	res, err := sums.UpdateMany(context.Background(), bson.D{}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	if err != nil {
		e.t.Errorf("increment of all: %v", err)
		return
	}
	e.sums.Add(1)
	if res.MatchedCount != exactDocs || res.ModifiedCount != exactDocs {
		e.t.Errorf("increment of all: matched %d, modified %d of %d", res.MatchedCount, res.ModifiedCount, exactDocs)
	}
}

// wander gives one document of load.keys another shard key. Two clients have a half of the
// documents each.
func (e *exact) wander(keys *mongo.Collection, half int) {
	id := 2*rand.IntN(wanderers/2) + half
	res, err := keys.UpdateOne(context.Background(), bson.D{{Key: "_id", Value: id}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "k", Value: rand.IntN(wanderBelow)}}}, {Key: "$inc", Value: bson.D{{Key: "moves", Value: 1}}}})
	if err != nil {
		e.t.Errorf("change of the shard key: %v", err)
		return
	}
	e.wanders.Add(1)
	if res.MatchedCount != 1 {
		e.t.Errorf("change of the shard key of %d: %d documents matched", id, res.MatchedCount)
	}
}

// scan sees every document of load.keys once, in three ways.
func (e *exact) scan(keys *mongo.Collection) {
	ctx := context.Background()
	var docs []struct {
		ID int `bson:"_id"`
	}
	opts := options.Find()
	if rand.IntN(2) == 0 {
		opts.SetSort(bson.D{{Key: "k", Value: 1 - 2*rand.IntN(2)}})
	}
	if rand.IntN(2) == 0 {
		opts.SetBatchSize(10)
	}
	cur, err := keys.Find(ctx, bson.D{}, opts)
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	var ended mongo.CommandError
	if errors.As(err, &ended) && (ended.Name == "SnapshotUnavailable" || ended.Name == "CursorNotFound") {
		return // a cursor ends with its writer, and when it is too old; it never lies
	}
	seen := map[int]bool{}
	for _, d := range docs {
		seen[d.ID] = true
	}
	if err != nil || len(docs) != wanderers || len(seen) != wanderers {
		e.t.Errorf("a scan saw %d documents, %d different ones of %d, %v", len(docs), len(seen), wanderers, err)
	}
	if n, err := keys.CountDocuments(ctx, bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: 0}}}}); err != nil || n != wanderers {
		e.t.Errorf("a count said %d of %d, %v", n, wanderers, err)
	}
	if n, err := keys.CountDocuments(ctx, bson.D{{Key: "_id", Value: rand.IntN(wanderers)}}); err != nil || n != 1 {
		e.t.Errorf("%d documents have one _id, %v", n, err)
	}
	e.scans.Add(1)
}

// count holds a count of the load's inserts against what it sent and was acknowledged.
func (e *exact) count(l *load, docs *mongo.Collection) {
	atLeast, _ := l.inserts()
	n, err := docs.CountDocuments(context.Background(), bson.D{})
	_, atMost := l.inserts()
	if err != nil || n < atLeast || n > atMost {
		e.t.Errorf("a count said %d: %d inserts were acknowledged before it, %d were sent until it ended, %v", n, atLeast, atMost, err)
	}
	e.counts.Add(1)
}

// audit looks at all documents once more.
func (e *exact) audit(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	var sums []struct {
		ID string `bson:"_id"`
		N  int64
	}
	cur, err := e.client.Database("load").Collection("sums").Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &sums)
	}
	if err != nil || len(sums) != exactDocs {
		t.Errorf("%d documents of %d, %v", len(sums), exactDocs, err)
	}
	for _, d := range sums {
		if d.N != e.sums.Load() {
			t.Errorf("%s was incremented %d times, all of them were %d times", d.ID, d.N, e.sums.Load())
		}
	}
	var moves []struct{ Moves int64 }
	cur, err = e.client.Database("load").Collection("keys").Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &moves)
	}
	total := int64(0)
	for _, d := range moves {
		total += d.Moves
	}
	if err != nil || len(moves) != wanderers || total != e.wanders.Load() {
		t.Errorf("%d documents of %d, whose keys changed %d times; %d changes were acknowledged, %v", len(moves), wanderers, total, e.wanders.Load(), err)
	}
	t.Logf("exact: %d increments of all, %d shard keys changed, %d scans, %d counts", e.sums.Load(), e.wanders.Load(), e.scans.Load(), e.counts.Load())
}
