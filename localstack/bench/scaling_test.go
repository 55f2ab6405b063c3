package bench

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// clientsPerWriter write and read at once, for every writer.
const clientsPerWriter = 16

// BenchmarkWriters measures what a second and a fourth writer are worth, on a store with the
// latency of S3 and with sixteen clients for each writer: durable inserts and cold point reads
// a second, over those of one writer, and how long a count takes that all shards must answer,
// of a collection with a few documents in each: more would measure the cores.
// The network is real (loopback); cpu-% says how busy the cores were, since a machine that is
// full measures itself. An operation is one round of all three sizes.
func BenchmarkWriters(b *testing.B) {
	rigs := map[int]*fleet{}
	for _, n := range []int{1, 2, 4} {
		rigs[n] = newFleet(b, n)
	}
	for b.Loop() {
		for _, n := range []int{1, 2, 4} {
			rigs[n].round(b)
		}
	}
	for _, n := range []int{2, 4} {
		b.ReportMetric(rigs[n].writes.rate()/rigs[1].writes.rate(), fmt.Sprintf("writes-x%d", n))
		b.ReportMetric(rigs[n].reads.rate()/rigs[1].reads.rate(), fmt.Sprintf("reads-x%d", n))
		b.ReportMetric(rigs[n].all.at(.5)/rigs[1].all.at(.5), fmt.Sprintf("broadcast-x%d", n))
	}
	b.ReportMetric(rigs[1].writes.rate(), "writes/s")
	b.ReportMetric(rigs[1].reads.rate(), "reads/s")
	b.ReportMetric(max(rigs[4].writes.busy(), rigs[4].reads.busy()), "cpu-%")
	b.ReportMetric(0, "ns/op")
}

// fleet is a cluster whose shards are each held by a writer of its own, over HTTP.
type fleet struct {
	store         *faultbucket.Bucket
	coll, few     *mongo.Collection
	ids           []bson.RawValue
	writers       int
	writes, reads phase
	all           took
}

// phase is how much of one thing was done in how much time.
type phase struct {
	n          atomic.Int64
	clock, cpu time.Duration
}

func (p *phase) rate() float64 { return float64(p.n.Load()) / p.clock.Seconds() }
func (p *phase) busy() float64 {
	return 100 * p.cpu.Seconds() / p.clock.Seconds() / float64(runtime.GOMAXPROCS(0))
}

func newFleet(b *testing.B, writers int) *fleet {
	s := &fleet{store: faultbucket.New(membucket.New(), host.System(), nil), writers: writers}
	// Tails stay in memory, as they do in life, and blocks do not.
	o := localstack.Options{Shards: writers, Lease: 5 * time.Second, CacheBytes: 1 << 20, CollectEvery: time.Hour}
	dialer := rpc.NewHTTPDialer("", host.System(), nil)
	b.Cleanup(dialer.Close)
	var owners []*localstack.Writer
	for i := range writers {
		owners = append(owners, serveWriter(b, s.store, dialer, shardName(i), o))
	}
	r, err := localstack.OpenRouter(b.Context(), s.store, host.System(), dialer, o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.Close(context.Background()) })
	client := serve(b, r.Commands)
	for _, ns := range []string{"bench.fleet", "bench.few"} {
		err = client.Database("admin").RunCommand(b.Context(), bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}, {Key: "numInitialChunks", Value: writers}}).Err()
		if err != nil {
			b.Fatal(err)
		}
	}
	s.coll, s.few = client.Database("bench").Collection("fleet"), client.Database("bench").Collection("few")
	d := newDocs(uint64(writers))
	if _, err := s.few.InsertMany(b.Context(), d.batch(100*writers)); err != nil {
		b.Fatal(err)
	}
	for range 20 * writers {
		list := d.batch(1000)
		if _, err := s.coll.InsertMany(b.Context(), list); err != nil {
			b.Fatal(err)
		}
		for _, doc := range list {
			s.ids = append(s.ids, doc.Lookup("_id"))
		}
	}
	for i, w := range owners {
		if _, err := w.Writer.Flush(b.Context(), &rpc.FlushRequest{Header: rpc.Header{Shard: shardName(i)}}); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func shardName(i int) manifest.ShardID { return manifest.ShardID(fmt.Sprintf("shard%02d", i+1)) }

// serveWriter runs a writer for one shard until the benchmark ends.
func serveWriter(b *testing.B, store *faultbucket.Bucket, dialer *rpc.HTTPDialer, shard manifest.ShardID, o localstack.Options) *localstack.Writer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	role := localstack.WriterRole{Address: l.Addr().String(), Named: []manifest.ShardID{shard}}
	w, err := localstack.OpenWriter(b.Context(), store, host.System(), dialer, role, o)
	if err != nil {
		b.Fatal(err)
	}
	check := func(doc []byte) error { return document.Validate(doc, document.Limits{}) }
	server := &http.Server{Handler: rpc.Handler(w.Writer, w.Member, "", host.System(), check, w.Limits())}
	go func() { _ = server.Serve(l) }()
	b.Cleanup(func() {
		if err := w.Close(context.Background()); err != nil {
			b.Error(err)
		}
		_ = server.Close()
	})
	return w
}

// round writes for a while, then reads cold rows for a while and asks all shards meanwhile.
func (s *fleet) round(b *testing.B) {
	s.store.SetPlan(s3Latency())
	defer s.store.SetPlan(nil)
	const long = 2 * time.Second
	s.writes.run(s.writers, long, func() error {
		_, err := s.coll.InsertOne(context.Background(), bson.D{{Key: "v", Value: 1}})
		return err
	}, b)
	var asked sync.WaitGroup
	asked.Go(func() {
		for range 20 { // the reads beside it put out of memory what it needs
			s.all.time(b, func() error {
				_, err := s.few.CountDocuments(context.Background(), bson.D{{Key: "customer", Value: -1}})
				return err
			})
			time.Sleep(long / 40)
		}
	})
	s.reads.run(s.writers, long, func() error { return findOne(s.coll, s.ids) }, b)
	asked.Wait()
}

// run has the clients of so many writers do something for a while.
func (p *phase) run(writers int, long time.Duration, do func() error, b *testing.B) {
	start, cpu := time.Now(), cpuTime()
	var all sync.WaitGroup
	for range clientsPerWriter * writers {
		all.Go(func() {
			for time.Since(start) < long {
				if err := do(); err != nil {
					b.Error(err)
					return
				}
				p.n.Add(1)
			}
		})
	}
	all.Wait()
	p.clock, p.cpu = p.clock+time.Since(start), p.cpu+cpuTime()-cpu
}
