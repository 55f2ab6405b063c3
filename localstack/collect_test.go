package localstack_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// logs are the keys of all log objects.
func logs(t *testing.T, b bucket.Bucket) (keys []string) {
	t.Helper()
	page, _, err := b.List(t.Context(), "wal/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range page {
		keys = append(keys, o.Key)
	}
	return keys
}

func object(t *testing.T, b bucket.Bucket, key string) []byte {
	t.Helper()
	o, err := b.Get(t.Context(), key, bucket.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o.Body
}

// TestLatePutFindsTheSealAfterCollection sends a write into a store that holds it back while
// the sender dies, the next stack takes over, flushes, and collects the log. When it arrives,
// of its epoch only the seal is there, in its place: nothing of it is ever seen, and the
// client's retry is the first that is done.
func TestLatePutFindsTheSealAfterCollection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, insert := membucket.New(), func(id int) bson.D {
			return bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
				{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}}, {Key: "txnNumber", Value: int64(id)}}
		}
		store := faultbucket.New(b, host.System(), nil)
		defer store.Wait()
		first := open(t, store, localstack.Options{Shards: 1, HistoryEvery: -1})
		for id := range 5 {
			do(t, first, "shop", insert(id))
		}
		late := faultbucket.Fault{Kind: faultbucket.Late, Delay: 10 * time.Minute}
		store.SetPlan(faultbucket.Rules(host.System(), faultbucket.Rule{Verbs: []layer.Verb{layer.Put}, Prefix: "wal/", Fault: late}))
		answered := make(chan bson.Raw)
		go func() {
			body, _ := bson.Marshal(append(insert(77), bson.E{Key: "$db", Value: "shop"}))
			answered <- first.Commands.Do(context.Background(), body)
		}()
		time.Sleep(time.Millisecond)
		first.Writer.Abandon()
		if ok, _ := (<-answered).Lookup("ok").AsFloat64OK(); ok == 1 {
			t.Fatal("a write that nobody stored was acknowledged")
		}
		_ = first.Close(context.Background())

		second := open(t, b, localstack.Options{CollectEvery: time.Second, HistoryEvery: -1})
		defer second.Close(context.Background())
		if _, err := second.Writer.Flush(t.Context(), &rpc.FlushRequest{Header: rpc.Header{Shard: "shard01"}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		seal := manifest.WALKey("shard01", 1, 5)
		if got := logs(t, b); !slices.Equal(got, []string{seal}) {
			t.Fatalf("after the collection %v, want the seal only", got)
		}
		was := object(t, b, seal)

		store.Wait() // it arrives, and whatever was sent again
		if n := store.Injected(faultbucket.Late); n == 0 {
			t.Error("nothing was late")
		}
		if got := logs(t, b); !slices.Equal(got, []string{seal}) || !bytes.Equal(object(t, b, seal), was) {
			t.Errorf("the late PUT changed the log: %v", got)
		}
		if n := count(t, second); n != 5 {
			t.Errorf("%d documents, want 5", n)
		}
		if n, _ := do(t, second, "shop", insert(77)).Lookup("n").AsInt64OK(); n != 1 {
			t.Errorf("the retry inserted %d documents, want 1", n)
		}
		if n := count(t, second); n != 6 {
			t.Errorf("%d documents, want 6", n)
		}
	})
}

// TestCollectionKeepsUpWithTheLog makes more garbage than one sweep deletes: it is all gone
// after one turn.
func TestCollectionKeepsUpWithTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		s := open(t, b, localstack.Options{Shards: 1, CollectEvery: time.Hour, HistoryEvery: -1})
		defer s.Close(context.Background())
		const more = 12_000 // than 10,000
		for id := range more {
			do(t, s, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}}})
		}
		if _, err := s.Writer.Flush(t.Context(), &rpc.FlushRequest{Header: rpc.Header{Shard: "shard01"}}); err != nil {
			t.Fatal(err)
		}
		if s.Collected() != 0 {
			t.Fatalf("%d objects were collected before it was time", s.Collected())
		}
		time.Sleep(time.Hour + time.Second)
		if n := s.Collected(); n < more {
			t.Errorf("one turn collected %d objects of at least %d", n, more)
		}
	})
}
