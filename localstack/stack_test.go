package localstack_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// do runs a command and requires that it succeeds.
func do(t *testing.T, s *localstack.Stack, db string, cmd bson.D) bson.Raw {
	t.Helper()
	body, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: db}))
	if err != nil {
		t.Fatal(err)
	}
	reply := s.Commands.Do(context.Background(), body)
	if ok, _ := reply.Lookup("ok").AsFloat64OK(); ok != 1 {
		t.Fatalf("%v: %v", cmd[0], reply)
	}
	return reply
}

func open(t *testing.T, b bucket.Bucket, o localstack.Options) *localstack.Stack {
	t.Helper()
	s, err := localstack.Open(context.Background(), b, host.System(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func count(t *testing.T, s *localstack.Stack) int64 {
	n, _ := do(t, s, "shop", bson.D{{Key: "count", Value: "orders"}}).Lookup("n").AsInt64OK()
	return n
}

// TestStackServesWhatAnEarlierOneStored writes through one stack, closes it, and finds the
// documents through the next on the same bucket, with every shard free in between.
func TestStackServesWhatAnEarlierOneStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		first := open(t, b, localstack.Options{Shards: 2})
		do(t, first, "admin", bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "c", Value: 1}}},
			{Key: "splitPoints", Value: bson.A{bson.D{{Key: "c", Value: 10}}, bson.D{{Key: "c", Value: 20}}}}})
		var docs bson.A
		for i := range 30 {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "c", Value: i}})
		}
		do(t, first, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs}})
		if err := first.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		root := manifest.NewRoot(bucket.NewCell(b), host.System(), nil)
		state, _, err := root.Load(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, sh := range state.Shards() {
			if sh.Status != manifest.ShardFree {
				t.Errorf("shard %s is not free after Close", sh.ID)
			}
		}
		second := open(t, b, localstack.Options{})
		defer second.Close(context.Background())
		if n := count(t, second); n != 30 {
			t.Errorf("the second stack counts %d documents, want 30", n)
		}
	})
}

// TestStackTakesOverFromAnAbandonedOne leaves shards held, as a kill does: the next stack
// waits the lease out and serves every acknowledged document.
func TestStackTakesOverFromAnAbandonedOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		first := open(t, b, localstack.Options{Shards: 1})
		do(t, first, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}})
		first.Writer.Abandon()
		h := host.System()
		start := h.Mono()
		second := open(t, b, localstack.Options{})
		if waited := h.Mono() - start; waited < localstack.DefaultLease {
			t.Errorf("served %v after the claim, before the lease of %v was over", waited, localstack.DefaultLease)
		}
		if n := count(t, second); n != 1 {
			t.Errorf("%d documents, want 1", n)
		}
		_ = first.Close(context.Background())
		if err := second.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestShardNamesAreBounded shows the names of new shards, and the refusal of silly numbers.
func TestShardNamesAreBounded(t *testing.T) {
	t.Parallel()
	names, err := localstack.ShardNames(12)
	if err != nil || names[0] != "shard01" || names[11] != "shard12" {
		t.Errorf("%v, %v", names, err)
	}
	for _, n := range []int{-1, 0, 100} {
		if _, err := localstack.ShardNames(n); err == nil || !strings.Contains(err.Error(), "1 to 99") {
			t.Errorf("ShardNames(%d): %v", n, err)
		}
	}
}
