package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	byURL "github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/chunkstore/bucket/s3test"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// cold keeps nothing of segments in memory: every point read asks the store for a segment's
// tail and a block.
var cold = localstack.Options{CacheBytes: 1, CollectEvery: time.Hour}

// took is how long operations of one kind took.
type took struct {
	mu   sync.Mutex
	list []time.Duration
}

func (t *took) time(tb testing.TB, f func() error) {
	start := time.Now()
	if err := f(); err != nil {
		tb.Error(err)
	}
	d := time.Since(start)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, d)
}

// at is the q-th part of the sorted times, in milliseconds.
func (t *took) at(q float64) float64 {
	slices.Sort(t.list)
	return float64(t.list[int(q*float64(len(t.list)-1))].Microseconds()) / 1000
}

// onS3 opens a store on a real server as the binary does.
func onS3(b *testing.B) bucket.Bucket {
	at := s3test.Real(b)
	s3test.SetKeys()
	store, err := byURL.URL(b.Context(), "s3://"+s3test.BucketName+"/bench?region=us-east-1&endpoint=http://"+at, host.System())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	return layer.Retry(layer.Deadline(store, host.System(), 10*time.Second), host.System(), nil)
}

// BenchmarkDurableBatchOnS3 compares an insertMany of 100 documents, durable when it is
// answered, with a bare create of an object as large as its log object, in turns. An operation
// is one of each.
func BenchmarkDurableBatchOnS3(b *testing.B) {
	store := onS3(b)
	stack := startStack(b, store, localstack.Options{})
	coll, d := serve(b, stack.Commands).Database("bench").Collection("s3"), newDocs(1)
	var batches, puts took
	body := make([]byte, 20<<10)
	for i := range body {
		body[i] = byte(rand.Uint32())
	}
	n := 0
	for b.Loop() {
		batches.time(b, func() error {
			_, err := coll.InsertMany(b.Context(), d.batch(100))
			return err
		})
		n++
		puts.time(b, func() error {
			_, err := store.Put(b.Context(), fmt.Sprint("bench/", n), body, bucket.IfAbsent)
			return err
		})
	}
	b.ReportMetric(batches.at(.5), "batch-p50-ms")
	b.ReportMetric(puts.at(.5), "put-p50-ms")
	b.ReportMetric(batches.at(.5)/puts.at(.5), "of-put")
}

// BenchmarkColdPointReadOnS3 compares a findOne of a row of which nothing is in memory with a
// bare GET of 64 KiB, in turns.
func BenchmarkColdPointReadOnS3(b *testing.B) {
	store := onS3(b)
	coll, ids := coldRows(b, startStack(b, store, cold))
	if _, err := store.Put(b.Context(), "bench/raw", make([]byte, 64<<10), bucket.Condition{}); err != nil {
		b.Fatal(err)
	}
	var finds, gets took
	for b.Loop() {
		finds.time(b, func() error { return findOne(coll, ids) })
		gets.time(b, func() error {
			_, err := store.Get(b.Context(), "bench/raw", bucket.GetOptions{})
			return err
		})
	}
	b.ReportMetric(finds.at(.5), "find-p50-ms")
	b.ReportMetric(gets.at(.5), "get-p50-ms")
	b.ReportMetric(finds.at(.5)/gets.at(.5), "of-get")
}

// coldRows are 20,000 rows in segments.
func coldRows(b *testing.B, stack *localstack.Stack) (coll *mongo.Collection, ids []bson.RawValue) {
	client := serve(b, stack.Commands)
	coll = client.Database("bench").Collection("cold")
	d := newDocs(1)
	for range 20 {
		list := d.batch(1000)
		if _, err := coll.InsertMany(b.Context(), list); err != nil {
			b.Fatal(err)
		}
		for _, doc := range list {
			ids = append(ids, doc.Lookup("_id"))
		}
	}
	flush(b, stack)
	return coll, ids
}

func findOne(coll *mongo.Collection, ids []bson.RawValue) error {
	return coll.FindOne(context.Background(), bson.D{{Key: "_id", Value: ids[rand.IntN(len(ids))]}}).Err()
}

// s3Latency delays requests as S3 does: log-normal, by the median and the 99th percentile of a
// PUT and a GET.
func s3Latency() faultbucket.Plan {
	draw := func(p50, p99 float64) time.Duration {
		sigma := math.Log(p99/p50) / 2.326
		return time.Duration(p50 * math.Exp(sigma*rand.NormFloat64()) * float64(time.Millisecond))
	}
	return func(c faultbucket.Call) faultbucket.Fault {
		f := faultbucket.Fault{Kind: faultbucket.Slow, Delay: draw(25, 75)}
		if c.Verb == layer.Put {
			f.Delay = draw(30, 70)
		}
		return f
	}
}

// BenchmarkWithS3Latency reports what clients wait for a durable insert, sixteen of them at
// once, and for a cold point read, on a store with the latency of S3. An operation is one of
// each.
func BenchmarkWithS3Latency(b *testing.B) {
	store := faultbucket.New(membucket.New(), host.System(), nil)
	stack := startStack(b, layer.Hedge(store, host.System(), nil), cold)
	coll, ids := coldRows(b, stack)
	store.SetPlan(s3Latency())
	defer store.SetPlan(nil)
	var acks, finds took
	left := make(chan struct{})
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range left {
				acks.time(b, func() error {
					_, err := coll.InsertOne(context.Background(), bson.D{{Key: "v", Value: 1}})
					return err
				})
				finds.time(b, func() error { return findOne(coll, ids) })
			}
		})
	}
	for b.Loop() {
		left <- struct{}{}
	}
	close(left)
	all.Wait()
	for name, t := range map[string]*took{"ack": &acks, "find": &finds} {
		b.ReportMetric(t.at(.5), name+"-p50-ms")
		b.ReportMetric(t.at(.99), name+"-p99-ms")
	}
}
