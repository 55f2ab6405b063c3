package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/localstack"
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
	rigs := map[int]*scaled{}
	for _, n := range []int{1, 2, 4} {
		rigs[n] = newScaled(b, n)
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

// scaled is a fleet on a slow store, and what was measured of it.
type scaled struct {
	*fleet
	store         *faultbucket.Bucket
	coll, few     *mongo.Collection
	ids           []bson.RawValue
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

func newScaled(b *testing.B, writers int) *scaled {
	s := &scaled{store: faultbucket.New(membucket.New(), host.System(), nil)}
	// Tails stay in memory, as they do in life, and blocks do not.
	s.fleet = startFleet(b, s.store, writers, localstack.Options{Shards: writers, Lease: 5 * time.Second, CacheBytes: 1 << 20, CollectEvery: time.Hour})
	s.coll, s.few = s.spread(b, "bench.fleet"), s.spread(b, "bench.few")
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
	s.flush(b)
	return s
}

// round writes for a while, then reads cold rows for a while and asks all shards meanwhile.
func (s *scaled) round(b *testing.B) {
	s.store.SetPlan(s3Latency())
	defer s.store.SetPlan(nil)
	const long = 2 * time.Second
	s.writes.run(len(s.writers), long, func() error {
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
	s.reads.run(len(s.writers), long, func() error { return findOne(s.coll, s.ids) }, b)
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
