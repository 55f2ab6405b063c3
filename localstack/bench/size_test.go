package bench

import (
	"context"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/localstack"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

var largeMB = flag.Int("chunk-mb", 128, "megabytes in the large chunk of BenchmarkChangesBySize")

// BenchmarkChangesBySize moves, splits and merges a chunk of one megabyte and a large one, in
// turns, and reports how much longer it takes with the large one. No byte of a segment may be
// read or written. An operation is a move there and back, a split and a merge of each.
func BenchmarkChangesBySize(b *testing.B) {
	store := layer.Metrics(openDir(b))
	stack := startStack(b, store, localstack.Options{CollectEvery: time.Hour, Lease: time.Minute})
	client := serve(b, stack.Commands)
	small, large := newSized(b, client, "small", 1), newSized(b, client, "large", *largeMB)
	flush(b, stack)
	before := store.Snapshot()
	for b.Loop() {
		small.change(b)
		large.change(b)
	}
	spent := store.Snapshot().Sub(before)
	for _, verb := range []layer.Verb{layer.Get, layer.Put} {
		if n := spent.Of(verb, layer.Segment).Bytes; n != 0 {
			b.Errorf("%v of %d bytes of segments", verb, n)
		}
	}
	b.ReportMetric(large.moves.at(.5)/small.moves.at(.5), "move-of-small")
	b.ReportMetric(large.splits.at(.5)/small.splits.at(.5), "split-of-small")
	b.ReportMetric(large.moves.at(.5), "move-p50-ms")
	b.ReportMetric(large.splits.at(.5), "split-p50-ms")
}

// sized is a collection of one chunk.
type sized struct {
	admin         *mongo.Database
	ns            string
	docs          int32
	moves, splits took
}

func newSized(b *testing.B, client *mongo.Client, name string, mb int) *sized {
	s := &sized{admin: client.Database("admin"), ns: "bench." + name}
	s.run(b, bson.D{{Key: "shardCollection", Value: s.ns}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	noise := rand.NewChaCha8([32]byte{1}) // does not compress: segments are as large as it sounds
	for range mb {
		var list []any
		for range 16 {
			pad := make([]byte, 64<<10)
			_, _ = noise.Read(pad)
			list = append(list, bson.D{{Key: "_id", Value: s.docs}, {Key: "pad", Value: bson.Binary{Data: pad}}})
			s.docs++
		}
		if _, err := client.Database("bench").Collection(name).InsertMany(b.Context(), list); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func (s *sized) run(b *testing.B, cmd bson.D) {
	b.Helper()
	if err := s.admin.RunCommand(context.Background(), cmd).Err(); err != nil {
		b.Fatal(err)
	}
}

func (s *sized) change(b *testing.B) {
	middle := bson.D{{Key: "_id", Value: s.docs / 2}}
	first := bson.D{{Key: "_id", Value: 0}}
	for _, to := range []string{"shard02", "shard01"} {
		s.moves.time(b, func() error {
			return s.admin.RunCommand(context.Background(), bson.D{{Key: "moveChunk", Value: s.ns}, {Key: "find", Value: first}, {Key: "to", Value: to}}).Err()
		})
	}
	s.splits.time(b, func() error {
		return s.admin.RunCommand(context.Background(), bson.D{{Key: "split", Value: s.ns}, {Key: "middle", Value: middle}}).Err()
	})
	s.run(b, bson.D{{Key: "mergeChunks", Value: s.ns}, {Key: "bounds", Value: bson.A{bson.D{{Key: "_id", Value: bson.MinKey{}}}, bson.D{{Key: "_id", Value: bson.MaxKey{}}}}}})
}
