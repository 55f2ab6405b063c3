package bench

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/localstack"
)

// slow is a store whose PUTs take their time, as those of an object store do.
type slow struct {
	bucket.Bucket
	put time.Duration
}

func (s slow) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	time.Sleep(s.put)
	return s.Bucket.Put(ctx, key, body, c)
}

// BenchmarkGroupCommit has 64 clients insert one document after another, on a store whose
// PUTs take 30 ms: what comes while one PUT is in flight goes into the next. An operation is
// one document.
func BenchmarkGroupCommit(b *testing.B) {
	const writers = 64
	ctx := context.Background()
	store := layer.Metrics(slow{membucket.New(), 30 * time.Millisecond})
	stack := startStack(b, store, localstack.Options{})
	client := serve(b, stack.Commands)
	if err := client.Database("bench").CreateCollection(ctx, "group"); err != nil {
		b.Fatal(err)
	}
	coll := client.Database("bench").Collection("group")
	work := make(chan struct{})
	var all sync.WaitGroup
	for i := range writers {
		d := newDocs(uint64(i))
		all.Go(func() {
			for range work {
				if _, err := coll.InsertOne(ctx, d.batch(1)[0]); err != nil {
					b.Error(err)
				}
			}
		})
	}
	before := store.Snapshot()
	n := 0
	for b.Loop() {
		work <- struct{}{}
		n++
	}
	close(work)
	all.Wait()
	spent := store.Snapshot().Sub(before)
	b.ReportMetric(float64(n)/float64(spent.Of(layer.Put, layer.WAL).Requests), "docs/log-object")
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "docs/s")
}
