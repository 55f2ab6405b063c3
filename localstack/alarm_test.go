package localstack_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/localstack"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestDamageRaisesTheAlarm flips a byte in every segment: who reads is told that it is corrupt,
// never anything else, and the process remembers that it found it.
func TestDamageRaisesTheAlarm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := membucket.New()
		first := open(t, b, localstack.Options{Shards: 1})
		do(t, first, "shop", insertOne(1, 10_000))
		if err := first.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		segments, _, err := b.List(t.Context(), "seg/", "", 0)
		if err != nil || len(segments) == 0 {
			t.Fatalf("%d segments, %v", len(segments), err)
		}
		for _, o := range segments {
			body := object(t, b, o.Key)
			body[100] ^= 1
			if _, err := b.Put(t.Context(), o.Key, body, bucket.Condition{}); err != nil {
				t.Fatal(err)
			}
		}
		s := open(t, b, localstack.Options{Shards: 1, UpkeepEvery: -1})
		defer s.Close(context.Background())
		if f := s.Alarm.Found(); f.Count != 0 {
			t.Errorf("before anybody read: %+v", f)
		}
		find, err := bson.Marshal(bson.D{{Key: "find", Value: "orders"}, {Key: "$db", Value: "shop"}})
		if err != nil {
			t.Fatal(err)
		}
		if reply := s.Commands.Do(t.Context(), find); reply.Lookup("code").Int32() != int32(mongoerr.DataCorruptionDetected) {
			t.Errorf("%.200s", reply)
		}
		if f := s.Alarm.Found(); f.Count != 1 || !strings.Contains(f.Last, "segment") {
			t.Errorf("afterwards: %+v", f)
		}
	})
}
