package e2e

import (
	"context"
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

// inserts is clients that insert documents with ids of their own, alone and many at once.
type inserts struct {
	watch
	coll  *mongo.Collection
	next  atomic.Int64
	mu    sync.Mutex
	acked []string
}

// work inserts until it is told to stop. Every insert must be acknowledged: one router lives.
func (s *inserts) work(t testing.TB, stop <-chan struct{}, client int) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		docs := make([]any, 1)
		if rand.IntN(2) == 0 {
			docs = make([]any, 2+rand.IntN(40))
		}
		ids := make([]string, len(docs))
		for i := range docs {
			ids[i] = fmt.Sprintf("%s-%08d", clientName(rand.IntN(loadClients)), s.next.Add(1))
			docs[i] = bson.D{{Key: "_id", Value: ids[i]}, {Key: "by", Value: client}}
		}
		start := time.Now()
		if _, err := s.coll.InsertMany(context.Background(), docs, options.InsertMany().SetOrdered(rand.IntN(2) == 0)); err != nil {
			t.Errorf("insert of %d: %v", len(docs), err)
			return
		}
		s.served(clientName(client), start)
		s.mu.Lock()
		s.acked = append(s.acked, ids...)
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
}

// TestEveryInsertIsThereOnce inserts documents while writers are killed and chunks are moved.
// Whenever no insert is under way their number is what was acknowledged; in the end each of
// them is found once by its _id, by a scan and by a count, through either router.
func TestEveryInsertIsThereOnce(t *testing.T) {
	c := startCluster(t, newStore(t), 2, 3)
	client := c.client()
	c.shard(client, "set.docs")
	v := newView(t, c.store)
	s := &inserts{coll: client.Database("set").Collection("docs"), watch: watch{clients: loadClients}}
	m := startMover(v, "set", "docs", 100*time.Millisecond)
	for range *rounds {
		stop := make(chan struct{})
		var working sync.WaitGroup
		for i := range loadClients {
			working.Go(func() { s.work(t, stop, i) })
		}
		s.settle(t, s.mark())
		w := c.writers[rand.IntN(len(c.writers))]
		mark := s.mark()
		w.kill()
		w.start()
		s.settle(t, mark)
		close(stop)
		working.Wait()
		if n, err := s.coll.CountDocuments(context.Background(), bson.D{}); err != nil || n != int64(len(s.acked)) {
			t.Errorf("count is %d, %v; %d were acknowledged", n, err, len(s.acked))
		}
		w.ready()
	}
	m.stop()
	for _, r := range c.routers {
		s.audit(t, c.client(r).Database("set").Collection("docs"))
	}
	t.Logf("%d inserts, %d kills, %d moves", len(s.acked), *rounds, m.count())
	for _, r := range c.roles() {
		r.stop()
	}
	fsck(t, c.store)
}

// audit looks for every document in three ways.
func (s *inserts) audit(t testing.TB, coll *mongo.Collection) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	all := map[string]bool{}
	for _, id := range s.acked {
		all[id] = true
	}
	s.once(ctx, t, coll, "a scan", bson.D{}, all)
	for rest := s.acked; len(rest) > 0; {
		part := rest[:min(500, len(rest))]
		rest = rest[len(part):]
		want := map[string]bool{}
		for _, id := range part {
			want[id] = true
		}
		s.once(ctx, t, coll, "_id", bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: part}}}}, want)
	}
	for _, id := range []string{s.acked[0], s.acked[len(s.acked)/2], s.acked[len(s.acked)-1]} {
		s.once(ctx, t, coll, "one _id", bson.D{{Key: "_id", Value: id}}, map[string]bool{id: true})
	}
	n, err := coll.CountDocuments(ctx, bson.D{})
	estimate, err2 := coll.EstimatedDocumentCount(ctx)
	if err != nil || err2 != nil || n != int64(len(all)) || estimate != n {
		t.Errorf("count is %d, %v; estimated %d, %v; %d were acknowledged", n, err, estimate, err2, len(all))
	}
}

// once requires that a filter finds each wanted document once, and nothing else.
func (s *inserts) once(ctx context.Context, t testing.TB, coll *mongo.Collection, how string, filter bson.D, want map[string]bool) {
	t.Helper()
	cur, err := coll.Find(ctx, filter, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for cur.Next(ctx) {
		id, _ := cur.Current.Lookup("_id").StringValueOK()
		if found[id] || !want[id] {
			t.Errorf("by %s %s is found, for the second time: %v, inserted: %v", how, id, found[id], want[id])
		}
		found[id] = true
	}
	if err := cur.Err(); err != nil {
		t.Fatal(err)
	}
	for id := range want {
		if !found[id] {
			t.Errorf("by %s %s is not found", how, id)
		}
	}
}
