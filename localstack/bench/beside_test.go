package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/localstack"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// The load of BenchmarkForegroundBesideMoves: clients that each do so many operations a second,
// which leaves half of two cores to the moves.
const (
	besideClients = 16
	besideChunks  = 240
	besideThink   = 10 * time.Millisecond
)

// BenchmarkForegroundBesideMoves measures what moves cost those who do not ask for them: inserts
// and reads by key of a collection with 240 chunks on three writers, for a second while nothing
// moves and for a second in which one chunk after the other does, in turns: without a pause, with
// one that leaves twenty moves a second, and with the balancer's, which asks for two a second. It
// reports p99 while chunks move over p99 while none does, and how long the commands took.
func BenchmarkForegroundBesideMoves(b *testing.B) {
	for _, pause := range []time.Duration{0, 50 * time.Millisecond, 500 * time.Millisecond} {
		b.Run(fmt.Sprint("pause=", pause), func(b *testing.B) { besideMoves(b, pause) })
	}
}

func besideMoves(b *testing.B, pause time.Duration) {
	f := startFleet(b, openDir(b), 3, localstack.Options{Shards: 3, Lease: 5 * time.Second, CollectEvery: time.Hour})
	err := f.client.Database("admin").RunCommand(b.Context(), bson.D{
		{Key: "shardCollection", Value: "bench.beside"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}, {Key: "numInitialChunks", Value: besideChunks},
	}).Err()
	if err != nil {
		b.Fatal(err)
	}
	coll, d := f.client.Database("bench").Collection("beside"), newDocs(1)
	var ids []bson.RawValue
	for range 10 {
		list := d.batch(1000)
		if _, err := coll.InsertMany(b.Context(), list); err != nil {
			b.Fatal(err)
		}
		for _, doc := range list {
			ids = append(ids, doc.Lookup("_id"))
		}
	}
	var calm, beside, moves took
	next := 0
	for b.Loop() {
		foreground(b, coll, ids, &calm, time.Second)
		done := make(chan struct{})
		go func() {
			defer close(done)
			foreground(b, coll, ids, &beside, time.Second)
		}()
		for moving := true; moving; {
			select {
			case <-done:
				moving = false
			case <-time.After(pause):
				moves.time(b, func() error { return f.moveOf(ids[next%len(ids)], shardName(next%3)) })
				next++
			}
		}
	}
	b.ReportMetric(beside.at(.99)/calm.at(.99), "p99-of-calm")
	b.ReportMetric(beside.at(.5)/calm.at(.5), "p50-of-calm")
	b.ReportMetric(calm.at(.99), "calm-p99-ms")
	b.ReportMetric(beside.at(.999), "beside-p999-ms")
	b.ReportMetric(moves.at(.5), "move-p50-ms")
	b.ReportMetric(moves.at(.99), "move-p99-ms")
	b.ReportMetric(float64(len(moves.list))/float64(b.N), "moves/s")
	b.ReportMetric(0, "ns/op")
}

// moveOf moves the chunk of a document.
func (f *fleet) moveOf(id bson.RawValue, to any) error {
	return f.client.Database("admin").RunCommand(context.Background(), bson.D{
		{Key: "moveChunk", Value: "bench.beside"}, {Key: "find", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "to", Value: to},
	}).Err()
}

// foreground is the load: an insert or a read in turn, and a pause.
func foreground(b *testing.B, coll *mongo.Collection, ids []bson.RawValue, t *took, long time.Duration) {
	var all sync.WaitGroup
	start := time.Now()
	for range besideClients {
		all.Go(func() {
			for n := 0; time.Since(start) < long; n++ {
				t.time(b, func() error {
					if n%2 == 0 {
						return findOne(coll, ids)
					}
					_, err := coll.InsertOne(context.Background(), bson.D{{Key: "v", Value: n}})
					return err
				})
				time.Sleep(besideThink)
			}
		})
	}
	all.Wait()
}
