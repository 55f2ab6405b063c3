package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// ttl makes documents of the collection expire that many seconds after the date in at; < 0:
// never.
func ttl(t *testing.T, r *router.Router, seconds int) {
	t.Helper()
	_, _, err := r.AlterIndexes(context.Background(), ns, true, func(*manifest.Collection) ([]manifest.Index, error) {
		if seconds < 0 {
			return nil, nil
		}
		return []manifest.Index{{Name: "at_1", Spec: raw(t, fmt.Sprintf(`{"v": 2, "key": {"at": 1}, "name": "at_1", "expireAfterSeconds": %d}`, seconds))}}, nil
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
}

// dated is a document with a date.
func dated(id, k int, at time.Time) bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("_id", int32(id)).AppendInt32("k", int32(k)).AppendDateTime("at", at.UnixMilli()).Build())
}

func idsOf(t *testing.T, r *router.Router, filter string) map[int]bool {
	t.Helper()
	cur, err := r.Find(context.Background(), ns, router.Query{Filter: raw(t, filter)})
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[int]bool)
	for {
		docs, err := cur.Batch(context.Background(), 0, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(docs) == 0 {
			return ids
		}
		for _, d := range docs {
			ids[int(d.Lookup("_id").AsInt64())] = true
		}
	}
}

// Documents whose dates are spread over minutes are there until the millisecond at which they
// expire, for every operation, while chunks are flushed, cut, moved, freed and taken over. A
// new document takes the place of an expired one. In the end the chunks count right.
func TestNoExpiredDocumentIsSeen(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`, `{"k": 30}`, `{"k": 60}`)
		ttl(t, c.Router, 60)
		rng := rand.New(rand.NewPCG(1, 2))
		const docs = 120
		until := make(map[int]time.Time)
		insert := func(id int) error {
			at := time.Now().Add(time.Duration(rng.IntN(240)-50) * time.Second).Truncate(time.Millisecond)
			res, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{{Kind: rpc.Insert, Doc: dated(id, id, at)}}})
			if err != nil {
				t.Fatal(err)
			}
			if res[0].Err != nil {
				return res[0].Err
			}
			until[id] = at.Add(60 * time.Second)
			return nil
		}
		for id := range docs {
			if err := insert(id); err != nil {
				t.Fatal(err)
			}
		}
		readers := []*router.Router{c.Router, c.NewRouter(router.Settings{})}
		coll := c.State().CollectionByName("db", "c")
		check := func() {
			t.Helper()
			r := readers[rng.IntN(len(readers))]
			want := make(map[int]bool)
			for id, at := range until {
				if time.Now().Before(at) {
					want[id] = true
				}
			}
			if got := idsOf(t, r, `{}`); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("at %v: found %v, want %v", time.Now(), got, want)
			}
			if n := counted(t, r, `{}`); n != int64(len(want)) {
				t.Fatalf("count %d, want %d", n, len(want))
			}
			values, err := r.Distinct(context.Background(), ns, "k", router.Query{})
			if err != nil || len(values) != len(want) {
				t.Fatalf("%d distinct values, %v, want %d", len(values), err, len(want))
			}
			id := rng.IntN(docs)
			if res := write(t, c.Router, updateOf(t, fmt.Sprintf(`{"k": %d, "_id": %d}`, id, id), `{"$set": {"seen": 1}}`)); res[0].N > 0 != want[id] {
				t.Fatalf("update of %d matched %d, it is there: %v", id, res[0].N, want[id])
			}
			if err := insert(id); (err == nil) == want[id] {
				t.Fatalf("insert of %d: %v, it is there: %v", id, err, want[id])
			}
		}
		for range 150 {
			check()
			time.Sleep(time.Duration(rng.IntN(2500)) * time.Millisecond)
			s := c.State()
			switch rng.IntN(12) {
			case 0:
				chunk, to := s.ChunkOf(coll.ID, nil), s.Shards()[rng.IntN(3)]
				if to.ID != chunk.Shard && to.Status == manifest.ShardHeld && s.Shard(chunk.Shard).Status == manifest.ShardHeld {
					c.Move(coll, nil, to.ID)
				}
			case 1:
				for _, h := range s.Shards() {
					if h.Status != manifest.ShardFree && rng.IntN(3) == 0 {
						c.Stop(h.ID)
					}
				}
			case 2:
				_ = c.Router.SplitChunk(context.Background(), ns, router.Where{Middle: raw(t, fmt.Sprintf(`{"k": %d}`, rng.IntN(docs)))}, 0)
			case 3:
				for _, h := range s.Shards() {
					if h.Status == manifest.ShardFree {
						if err := c.Claim(context.Background(), h.ID); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
		for _, h := range c.State().Shards() {
			if h.Status != manifest.ShardFree {
				c.Stop(h.ID)
			}
		}
		ttl(t, c.Router, -1)
		if found, n := len(idsOf(t, c.Router, `{}`)), counted(t, c.Router, `{}`); n != int64(found) {
			t.Errorf("chunks count %d documents, and hold %d", n, found)
		}
	})
}

// A change of expireAfterSeconds counts for every operation behind it.
func TestExpiryFollowsItsIndex(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`, `{"k": 10}`)
		now := time.Now()
		var list []router.Statement
		for id := range 20 {
			list = append(list, router.Statement{Kind: rpc.Insert, Doc: dated(id, id, now.Add(-time.Duration(id)*time.Minute))})
		}
		write(t, c.Router, list...)
		other := c.NewRouter(router.Settings{})
		for _, x := range []struct {
			seconds int
			want    int64
		}{{600, 10}, {60, 1}, {0, 0}, {900, 15}, {-1, 20}} {
			ttl(t, c.Router, x.seconds)
			for _, r := range []*router.Router{c.Router, other} {
				if n := counted(t, r, `{}`); n != x.want {
					t.Errorf("after %d s: %d documents, want %d", x.seconds, n, x.want)
				}
			}
		}
	})
}

// An upsert inserts where only an expired document matches, and an expired document breaks no
// unique index.
func TestExpiredDocumentsAreInNobodysWay(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`, `{"k": 10}`)
		_, _, err := c.Router.AlterIndexes(context.Background(), ns, true, func(*manifest.Collection) ([]manifest.Index, error) {
			return []manifest.Index{
				{Name: "at_1", Spec: raw(t, `{"v": 2, "key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 5, "partialFilterExpression": {"keep": {"$exists": false}}}`)},
				{Name: "u", Spec: raw(t, `{"v": 2, "key": {"k": 1, "u": 1}, "name": "u", "unique": true}`)},
			}, nil
		}, 0)
		if err != nil {
			t.Fatal(err)
		}
		at := fmt.Sprintf(`{"$date": {"$numberLong": "%d"}}`, time.Now().UnixMilli())
		write(t, c.Router, insertOf(t, `{"_id": 1, "k": 1, "u": 1, "at": `+at+`}`), insertOf(t, `{"_id": 2, "k": 2, "keep": 1, "at": `+at+`}`))
		again := insertOf(t, `{"_id": 3, "k": 1, "u": 1, "at": `+at+`}`)
		res, err := c.Router.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{again}})
		if err != nil || res[0].Err == nil || res[0].Err.Code != mongoerr.DuplicateKey {
			t.Fatalf("%+v, %v", res, err)
		}
		time.Sleep(5 * time.Second)
		write(t, c.Router, insertOf(t, `{"_id": 3, "k": 1, "u": 1}`))
		up := updateOf(t, `{"_id": 1, "k": 1}`, `{"$set": {"u": 2}}`)
		up.Upsert = true
		if res := write(t, c.Router, up); res[0].UpsertedID.AsInt64() != 1 {
			t.Errorf("upsert: %+v", res[0])
		}
		if ids := idsOf(t, c.Router, `{}`); len(ids) != 3 || !ids[1] || !ids[2] || !ids[3] {
			t.Errorf("%v", ids)
		}
	})
}
