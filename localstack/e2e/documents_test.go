package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/localstack/history"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// documents is clients that work on the same few documents, and the history of what they
// were told. Groups of clients share a window of documents, all in one chunk; when a window
// has seen enough operations, the group goes on to the next, so that no document's history
// is too long to check.
type documents struct {
	watch
	documentsOptions
	coll    []*mongo.Collection // one a way to the cluster; clients take them in turn
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	groups  []*documentsGroup
	history history.History

	changed, failed atomic.Int64 // writes that were acknowledged; operations that were told an error
	reason          atomic.Value // of the last failure
}

type documentsOptions struct {
	perGroup int           // clients of a group
	perDoc   int           // operations on a document, about
	patience time.Duration // of a client with an operation; 0: it waits for the router's answer
	hurry    int           // one in so many operations has 1 to 30 ms only; 0: none
	think    time.Duration // between two operations
	pad      int           // bytes that a document has besides
}

// documentsGroup counts the operations of a group's clients.
type documentsGroup struct {
	id  int
	ops atomic.Int64
}

// windowDocs is how many documents a group works on at a time.
const windowDocs = 4

// doc is a document of the group's present window. Its name chooses the chunk.
func (g *documentsGroup) doc(perDoc int) int {
	window := int(g.ops.Add(1)) / (perDoc * windowDocs)
	return (window*windowDocs+rand.IntN(windowDocs))*loadClients + g.id
}

func docName(doc int) string { return fmt.Sprintf("%s-%06d", clientName(doc%loadClients), doc) }

// asking is what an operation's context carries: where its id goes.
type asking struct{}

// noteIDs is the option of a client whose writes tell their ids.
func noteIDs() *options.ClientOptions {
	return options.Client().SetMonitor(&event.CommandMonitor{Started: func(ctx context.Context, e *event.CommandStartedEvent) {
		note, ok := ctx.Value(asking{}).(func(string))
		if !ok {
			return
		}
		_, session, ok := e.Command.Lookup("lsid", "id").BinaryOK()
		txn, numbered := e.Command.Lookup("txnNumber").AsInt64OK()
		if ok && numbered && len(session) == 16 {
			note(history.WriteID([16]byte(session), txn, 0))
		}
	}})
}

// startDocuments starts the clients on the collection load.things, by each of the ways to
// the cluster that the URIs are.
func startDocuments(t testing.TB, o documentsOptions, uris ...string) *documents {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d := &documents{documentsOptions: o, cancel: cancel, watch: watch{clients: loadClients * len(uris)}}
	for _, uri := range uris {
		client, err := mongo.Connect(noteIDs().ApplyURI(uri).SetServerSelectionTimeout(20 * time.Second).
			SetConnectTimeout(2 * time.Second)) // a lost first packet is sent again after 1, 3, 7 s
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { disconnect(client) })
		d.coll = append(d.coll, client.Database("load").Collection("things"))
	}
	for g := range loadClients {
		group := &documentsGroup{id: g}
		d.groups = append(d.groups, group)
		for i := range o.perGroup {
			way := i % len(uris)
			d.wg.Go(func() {
				d.work(ctx, group, g*o.perGroup+i, fmt.Sprintf("%s by way %d", clientName(g), way), d.coll[way])
			})
		}
	}
	return d
}

func (d *documents) work(ctx context.Context, g *documentsGroup, client int, name string, coll *mongo.Collection) {
	last := map[int]int64{} // what it believes of each document, for swaps
	for ctx.Err() == nil {
		in := draw(g.doc(d.perDoc))
		if in.Kind == history.Swap {
			in.Old = last[in.Doc]
		}
		start := time.Now()
		out := d.one(client, in, coll)
		if !out.Unknown {
			d.served(name, start)
		}
		if out.Found && in.Kind != history.Delete {
			last[in.Doc] = out.Val
		}
		time.Sleep(d.think)
	}
}

// draw picks an operation.
func draw(doc int) history.Input {
	in := history.Input{Doc: doc, Val: int64(rand.IntN(1_000_000))}
	switch n := rand.IntN(100); {
	case n < 32:
		in.Kind = history.Read
	case n < 46:
		in.Kind = history.Insert
	case n < 62:
		in.Kind, in.Val = history.Inc, int64(1+rand.IntN(9))
	case n < 74:
		in.Kind, in.Val = history.Add, int64(1+rand.IntN(9))
	case n < 83:
		in.Kind = history.Replace
	case n < 93:
		in.Kind = history.Swap
	default:
		in.Kind = history.Delete
	}
	return in
}

// one does an operation, and notes it.
func (d *documents) one(client int, in history.Input, coll *mongo.Collection) history.Output {
	ctx, cancel := context.WithCancel(context.Background())
	switch {
	case d.hurry > 0 && rand.IntN(d.hurry) == 0:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(1+rand.IntN(30))*time.Millisecond)
	case d.patience > 0:
		ctx, cancel = context.WithTimeout(ctx, d.patience)
	}
	defer cancel()
	n := d.history.Call(client, in, "")
	ctx = context.WithValue(ctx, asking{}, func(id string) { d.history.Sent(n, id) })
	out, err := ask(ctx, coll, in, d.pad)
	if err != nil {
		d.failed.Add(1)
		d.reason.Store(err.Error())
		return history.Output{Unknown: true}
	}
	d.history.Return(n, out)
	if in.Kind != history.Read && (out.Found || in.Kind == history.Insert && !out.Dup) {
		d.changed.Add(1)
	}
	return out
}

// ask sends an operation as an application would. An error leaves its outcome open.
func ask(ctx context.Context, coll *mongo.Collection, in history.Input, pad int) (out history.Output, err error) {
	id := bson.D{{Key: "_id", Value: docName(in.Doc)}}
	whole := bson.D{{Key: "v", Value: in.Val}, {Key: "pad", Value: make([]byte, pad)}}
	set := func(operator string) bson.D {
		return bson.D{{Key: operator, Value: bson.D{{Key: "v", Value: in.Val}}}}
	}
	var updated *mongo.UpdateResult
	switch in.Kind {
	case history.Read:
		return found(coll.FindOne(ctx, id))
	case history.Inc:
		return found(coll.FindOneAndUpdate(ctx, id, set("$inc"), options.FindOneAndUpdate().SetReturnDocument(options.After)))
	case history.Insert:
		_, err := coll.InsertOne(ctx, append(id, whole...))
		if mongo.IsDuplicateKeyError(err) {
			return history.Output{Dup: true}, nil
		}
		return out, err
	case history.Delete:
		deleted, err := coll.DeleteOne(ctx, id)
		if err != nil {
			return out, err
		}
		return history.Output{Found: deleted.DeletedCount == 1}, nil
	case history.Add:
		updated, err = coll.UpdateOne(ctx, id, set("$inc"))
	case history.Replace:
		updated, err = coll.ReplaceOne(ctx, id, whole)
	case history.Swap:
		updated, err = coll.UpdateOne(ctx, append(id, bson.E{Key: "v", Value: in.Old}), set("$set"))
	}
	if err != nil {
		return out, err
	}
	return history.Output{Found: updated.MatchedCount == 1}, nil
}

func found(r *mongo.SingleResult) (history.Output, error) {
	var doc struct{ V int64 }
	switch err := r.Decode(&doc); {
	case errors.Is(err, mongo.ErrNoDocuments):
		return history.Output{}, nil
	case err != nil:
		return history.Output{}, err
	}
	return history.Output{Found: true, Val: doc.V}, nil
}

// count is how many operations were begun.
func (d *documents) count() int {
	all, _ := d.history.Len()
	return all
}

// stop ends the clients, each after the operation that it is at.
func (d *documents) stop() {
	d.cancel()
	d.wg.Wait()
}

// check asks whether everything that clients were told can be true. The log must have been
// copied to its end.
func (d *documents) check(t testing.TB, log *logCopy) {
	t.Helper()
	all, unknown := d.history.Len()
	start := time.Now()
	err := d.history.Check(log.logged, time.Minute)
	took := time.Since(start)
	t.Logf("%d operations, %d acknowledged changes, %d without an answer (resolved from %d log objects), %d takeovers; checked in %v",
		all, d.changed.Load(), unknown, len(log.seen), log.seals, took.Round(time.Millisecond))
	if reason := d.reason.Load(); reason != nil {
		t.Logf("the last operation without an answer: %v", reason)
	}
	if err != nil {
		t.Error(err)
	}
	if n := int64(d.history.Unlogged(log.logged)); n > d.changed.Load()/1000 {
		t.Errorf("%d of %d acknowledged changes are in no log object", n, d.changed.Load())
	}
}
