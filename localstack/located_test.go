package localstack_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/audit"
	"github.com/granarydb/granary/chunkstore/audit/audittest"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// sites are the buckets of a cluster, its own under "own".
type sites map[string]bucket.Bucket

func (x sites) open(_ context.Context, url string) (bucket.Bucket, error) {
	if b := x[url]; b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("no bucket %s", url)
}

func (x sites) places() *places.Places { return places.New(x["own"], x.open, host.System(), nil) }

// audited reads everything.
func (x sites) audited(t *testing.T) *audit.Report {
	t.Helper()
	at := x.places()
	r, err := (&audit.Auditor{Root: at.Root(), Open: at.Open}).Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Unread) > 0 {
		t.Errorf("unread: %v", r.Unread)
	}
	return r
}

// zoned starts a cluster with the zones EU and US, each with a bucket of its own, and a
// collection of which the users of both are in them. Keys and documents of EU have the word
// SECRET in them.
func zoned(t *testing.T) (*localstack.Stack, sites) {
	t.Helper()
	x := sites{"own": membucket.New(), "mem:eu": membucket.New(), "mem:us": membucket.New()}
	s := open(t, x["own"], localstack.Options{Shards: 2, OpenLocation: x.open, CollectEvery: 5 * time.Second})
	admin := func(cmd ...bson.E) { t.Helper(); do(t, s, "admin", bson.D(cmd)) }
	e := func(k string, v any) bson.E { return bson.E{Key: k, Value: v} }
	for _, shard := range []string{"eu01/mem:eu", "eu02/mem:eu", "us01/mem:us"} {
		admin(e("addShard", shard))
	}
	admin(e("addShardToZone", "eu01"), e("zone", "EU"))
	admin(e("addShardToZone", "eu02"), e("zone", "EU"))
	admin(e("addShardToZone", "us01"), e("zone", "US"))
	admin(e("updateZoneKeyRange", "shop.orders"), e("min", bson.D{e("c", "EU")}), e("max", bson.D{e("c", "EU\x00")}), e("zone", "EU"))
	admin(e("updateZoneKeyRange", "shop.orders"), e("min", bson.D{e("c", "US")}), e("max", bson.D{e("c", "US\x00")}), e("zone", "US"))
	within(t, time.Minute, "every shard is held", func() bool {
		for _, h := range s.Root.State().Shards() {
			if h.Status == manifest.ShardFree {
				return false
			}
		}
		return true
	})
	admin(e("shardCollection", "shop.orders"), e("key", bson.D{e("c", 1), e("u", 1)}))
	return s, x
}

// user is a document of a region.
func user(region string, i int) bson.D {
	name := fmt.Sprintf("user%03d", i)
	if region == "EU" {
		name = fmt.Sprintf("SECRET%03d", i)
	}
	return bson.D{{Key: "_id", Value: fmt.Sprint(region, i)}, {Key: "c", Value: region}, {Key: "u", Value: name}, {Key: "email", Value: name + "@example.org"}, {Key: "n", Value: 0}}
}

// live is a mixed load: inserts, retried updates with and without the shard key, documents that
// change their region in both directions, splits, moves, flushes and merges.
func live(t *testing.T, s *localstack.Stack) {
	t.Helper()
	txn := int64(0)
	lsid := bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}
	retryable := func(cmd bson.D) bson.Raw {
		t.Helper()
		txn++
		cmd = append(cmd, bson.E{Key: "lsid", Value: lsid}, bson.E{Key: "txnNumber", Value: txn})
		first := do(t, s, "shop", cmd)
		again := do(t, s, "shop", cmd)
		if a, b := first.Lookup("n"), again.Lookup("n"); a.String() != b.String() {
			t.Errorf("%v: n is %v, and sent again %v", cmd[0], a, b)
		}
		return first
	}
	update := func(filter, u bson.D) bson.D {
		return bson.D{{Key: "update", Value: "orders"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: filter}, {Key: "u", Value: u}}}}}
	}
	inc := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	for _, region := range []string{"EU", "US", "AS"} {
		var docs bson.A
		for i := range 60 {
			docs = append(docs, user(region, i))
		}
		retryable(bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs}})
	}
	do(t, s, "admin", bson.D{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "c", Value: "EU"}, {Key: "u", Value: "SECRET020"}}}})
	do(t, s, "admin", bson.D{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "c", Value: "EU"}, {Key: "u", Value: "SECRET040"}}}})
	do(t, s, "admin", bson.D{{Key: "moveChunk", Value: "shop.orders"}, {Key: "find", Value: bson.D{{Key: "c", Value: "EU"}, {Key: "u", Value: "SECRET030"}}}, {Key: "to", Value: other(s, "SECRET030")}})
	for i := range 20 {
		u := user("EU", i)
		retryable(update(bson.D{u[1], u[2]}, inc))
		retryable(update(bson.D{{Key: "email", Value: fmt.Sprintf("SECRET%03d@example.org", 20+i)}}, inc))
		retryable(update(bson.D{{Key: "email", Value: fmt.Sprintf("user%03d@example.org", 20+i)}, {Key: "c", Value: "US"}}, inc))
		retryable(update(bson.D{{Key: "email", Value: fmt.Sprintf("nobody%03d@example.org", i)}}, inc))
	}
	for i := 50; i < 55; i++ {
		u := user("EU", i)
		retryable(bson.D{{Key: "findAndModify", Value: "orders"}, {Key: "query", Value: bson.D{u[1], u[2]}}, {Key: "new", Value: true},
			{Key: "update", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "c", Value: "US"}, {Key: "u", Value: fmt.Sprintf("moved%03d", i)}, {Key: "email", Value: "moved"}}}}}})
		a := user("AS", i)
		retryable(bson.D{{Key: "findAndModify", Value: "orders"}, {Key: "query", Value: bson.D{a[1], a[2]}}, {Key: "new", Value: true},
			{Key: "update", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "c", Value: "EU"}, {Key: "u", Value: fmt.Sprintf("SECRET%03d", 200+i)}, {Key: "email", Value: "SECRET"}}}}}})
	}
	do(t, s, "shop", bson.D{{Key: "delete", Value: "orders"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "c", Value: "EU"}, {Key: "u", Value: "SECRET059"}}}, {Key: "limit", Value: 1}}}}})
}

// other is a shard of EU that does not have the chunk of a user.
func other(s *localstack.Stack, u string) string {
	st := s.Root.State()
	c := st.CollectionByName("shop", "orders")
	filter, _ := bson.Marshal(bson.D{{Key: "c", Value: "EU"}, {Key: "u", Value: u}})
	key, _, _ := c.Key.Bound(filter)
	if st.ChunkOf(c.ID, key).Shard == "eu01" {
		return "eu02"
	}
	return "eu01"
}

// TestDataStaysInItsZone: after a mixed load nothing outside of the EU's bucket has a key or a
// document of it; the audit agrees, fsck finds nothing, nothing is lost, also over a restart;
// and a move out of the zone is refused by the zone's name.
func TestDataStaysInItsZone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, x := zoned(t)
		live(t, s)
		if _, err := s.Root.Pin(context.Background(), "kept", 0, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second) // flushes, merges of segments, sweeps
		live2 := func() {
			t.Helper()
			once, _ := do(t, s, "shop", bson.D{{Key: "count", Value: "orders"}, {Key: "query", Value: bson.D{{Key: "n", Value: 1}}}}).Lookup("n").AsInt64OK()
			more, _ := do(t, s, "shop", bson.D{{Key: "count", Value: "orders"}, {Key: "query", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 1}}}}}}).Lookup("n").AsInt64OK()
			if once != 60 || more != 0 {
				t.Errorf("%d documents were raised once, and %d more often; expected 60 and 0", once, more)
			}
			if n := count(t, s); n != 179 {
				t.Errorf("%d documents, expected 179", n)
			}
			if r := x.audited(t); len(r.Breaches) > 0 || r.Zones != 2 || r.Keys == 0 {
				t.Errorf("the audit found %+v", r)
			}
			x.silent(t)
		}
		live2()
		body, _ := bson.Marshal(bson.D{{Key: "moveChunk", Value: "shop.orders"}, {Key: "find", Value: bson.D{{Key: "c", Value: "EU"}, {Key: "u", Value: "SECRET001"}}},
			{Key: "to", Value: "us01"}, {Key: "$db", Value: "admin"}})
		if reply := s.Commands.Do(context.Background(), body); !bytes.Contains([]byte(reply.String()), []byte("zone EU")) {
			t.Errorf("a move out of the zone: %v", reply)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		s = open(t, x["own"], localstack.Options{OpenLocation: x.open})
		defer s.Close(context.Background())
		live2()
		at := x.places()
		if _, _, err := at.Root().Load(context.Background()); err != nil {
			t.Fatal(err)
		}
		r, err := (&fsck.Checker{Root: at.Root(), Bucket: x["own"], Open: at.Open, Deep: true}).Run(context.Background())
		if err != nil || len(r.Problems) > 0 {
			t.Errorf("fsck: %+v, %v", r, err)
		}
	})
}

// TestAuditFindsWhatIsPlanted: an object of the EU's bucket that is copied elsewhere is found, of
// every kind, and only that.
func TestAuditFindsWhatIsPlanted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, x := zoned(t)
		defer s.Close(context.Background())
		live(t, s)
		time.Sleep(40 * time.Second)
		do(t, s, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{user("EU", 301), user("US", 302)}}}) // the log has records again
		planted := map[string]bool{}
		for _, prefix := range []string{"wal/eu", "seg/", "meta/page/"} {
			list, _, err := x["mem:eu"].List(context.Background(), prefix, "", 0)
			if err != nil || len(list) == 0 {
				t.Fatalf("nothing under %s: %v", prefix, err)
			}
			for _, o := range list {
				body, err := x["mem:eu"].Get(context.Background(), o.Key, bucket.GetOptions{})
				if err != nil || !audittest.Holds(t, "SECRET", o.Key, body.Body) {
					continue
				}
				if _, err := x["mem:us"].Put(context.Background(), o.Key, body.Body, bucket.Condition{}); err != nil {
					t.Fatal(err)
				}
				planted[o.Key] = true
				break
			}
		}
		if len(planted) != 3 {
			t.Fatalf("planted %v", planted)
		}
		found := map[string]bool{}
		for _, b := range x.audited(t).Breaches {
			found[b.Object] = true
			if b.Zone != "EU" || b.Namespace != "shop.orders" || b.Count == 0 {
				t.Errorf("found %+v", b)
			}
		}
		if fmt.Sprint(found) != fmt.Sprint(planted) {
			t.Errorf("found %v, planted %v", found, planted)
		}
	})
}

// silent fails when an object outside of the EU's bucket has the word SECRET in it. It knows no
// format but that of compression.
func (x sites) silent(t *testing.T) {
	t.Helper()
	for _, name := range []string{"own", "mem:us"} {
		for after, more := "", true; more; {
			list, further, err := x[name].List(context.Background(), "", after, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range list {
				body, err := x[name].Get(context.Background(), o.Key, bucket.GetOptions{})
				if err == nil && audittest.Holds(t, "SECRET", o.Key, body.Body) {
					t.Errorf("%s in %s has a word of the EU", o.Key, name)
				}
				after = o.Key
			}
			more = further && len(list) > 0
		}
	}
}
