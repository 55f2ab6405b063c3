package router_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func pattern(t testing.TB, json string) shardkey.Pattern {
	t.Helper()
	p, err := shardkey.ParsePattern(raw(t, json))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCollectionsAreMadeOnceAndSpread(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		for i := range 6 {
			if err := c.Router.Create(ctx, router.Namespace{Database: "db", Collection: fmt.Sprint("c", i)}, router.NewCollection{}, 0); err != nil {
				t.Fatal(err)
			}
		}
		wantCode(t, c.Router.Create(ctx, router.Namespace{Database: "db", Collection: "c1"}, router.NewCollection{}, 0), mongoerr.NamespaceExists)
		chunks := map[manifest.ShardID]int{}
		for chunk := range c.State().AllChunks() {
			chunks[chunk.Shard]++
		}
		same(t, map[manifest.ShardID]int{"shard01": 2, "shard02": 2, "shard03": 2}, chunks)
	})
}

func TestADroppedCollectionIsGone(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		rows(t, c.Router, 5)
		other := c.NewRouter(router.Settings{})
		same(t, 5, len(find(t, other, `{}`)))
		if _, err := c.Router.Drop(ctx, ns, 0); err != nil {
			t.Fatal(err)
		}
		_, err := c.Router.Drop(ctx, ns, 0)
		wantCode(t, err, mongoerr.NamespaceNotFound)
		same(t, 0, len(find(t, other, `{}`)))
		rows(t, other, 3)
		same(t, 3, len(find(t, c.Router, `{}`)))
		if err := c.Router.EnableSharding(ctx, "db", 0); err != nil {
			t.Fatal(err)
		}
		if err := c.Router.EnableSharding(ctx, "db", 0); err != nil {
			t.Fatal(err)
		}
		if err := c.Router.DropDatabase(ctx, "db", 0); err != nil {
			t.Fatal(err)
		}
		if err := c.Router.DropDatabase(ctx, "db", 0); err != nil {
			t.Fatal(err)
		}
		same(t, 0, len(c.State().Databases()))
		if st, err := c.Router.State(ctx, 0); err != nil || st.Version() != c.State().Version() {
			t.Fatalf("%v", err)
		}
	})
}

func TestShardCollectionKeepsWhatItCan(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		n := router.NewCollection{Key: pattern(t, `{"k": 1}`)}
		for range 2 { // the same again is no error
			if err := c.Router.ShardCollection(ctx, ns, n, 0); err != nil {
				t.Fatal(err)
			}
		}
		wantCode(t, c.Router.ShardCollection(ctx, ns, router.NewCollection{Key: pattern(t, `{"other": 1}`)}, 0), 23)
	})
}

// TestAnEmptyCollectionGetsAnotherKey shards a collection that was only created, one that
// holds documents, unflushed ones at that, and one whose shard nobody holds.
func TestAnEmptyCollectionGetsAnotherKey(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		n := router.NewCollection{Key: pattern(t, `{"k": 1}`), Points: []shardkey.Bound{{Key: shardkey.AppendValue(nil, bson.RawValue{Type: bson.TypeString, Value: []byte("\x02\x00\x00\x00m\x00")}, false), BSON: raw(t, `{"k": "m"}`)}}}
		if err := c.Router.Create(ctx, ns, router.NewCollection{Options: raw(t, `{"note": 1}`)}, 0); err != nil {
			t.Fatal(err)
		}
		if err := c.Router.ShardCollection(ctx, ns, n, 0); err != nil {
			t.Fatal(err)
		}
		coll := c.State().CollectionByName("db", "c")
		same(t, `{ k: 1 }`, coll.Key.String())
		same(t, 2, c.State().NumChunks(coll.ID))
		same(t, raw(t, `{"note": 1}`).String(), coll.WithoutReshaping().Options.String())
		same(t, len(coll.WithoutReshaping().Options), len(coll.Options))
		write(t, c.Router, insertOf(t, `{"_id": 1, "k": "z"}`))

		full := router.Namespace{Database: "db", Collection: "full"}
		if _, err := c.Router.Write(ctx, full, router.Writes{Statements: []router.Statement{insertOf(t, `{"_id": 1}`)}}); err != nil {
			t.Fatal(err)
		}
		without := router.New(router.Config{Root: c.Root, Dialer: c, Host: c.Host}) // no bucket to write to
		wantCode(t, without.ShardCollection(ctx, full, n, 0), mongoerr.IllegalOperation)
		if o := c.State().CollectionByName("db", "full").Options; len(o) > 5 {
			t.Fatalf("options %v are left behind", o)
		}

		free := router.Namespace{Database: "db", Collection: "free"}
		if err := c.Router.Create(ctx, free, router.NewCollection{}, 0); err != nil {
			t.Fatal(err)
		}
		for chunk := range c.State().Chunks(c.State().CollectionByName("db", "free").ID) {
			c.Stop(chunk.Shard)
		}
		if err := c.Router.ShardCollection(ctx, free, n, 0); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAMarkOfAnotherIsTakenOver: a router that died while it sharded a collection leaves its
// mark, and whoever tries again replaces it.
func TestAMarkOfAnotherIsTakenOver(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		if err := c.Router.Create(ctx, ns, router.NewCollection{}, 0); err != nil {
			t.Fatal(err)
		}
		was := *c.State().CollectionByName("db", "c")
		now := was.WithReshaping([16]byte{0xde, 0xad})
		c.Commit(manifest.AlterCollection{Was: was, Now: now})
		if err := c.Router.ShardCollection(ctx, ns, router.NewCollection{Key: pattern(t, `{"k": 1}`)}, 0); err != nil {
			t.Fatal(err)
		}
		if o := c.State().CollectionByName("db", "c").Options; len(o) > 5 {
			t.Fatalf("options %v", o)
		}
	})
}

func TestIndexesAreRecorded(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		add := func(name string) func(*manifest.Collection) ([]manifest.Index, error) {
			return func(coll *manifest.Collection) ([]manifest.Index, error) {
				return append(coll.Indexes[:len(coll.Indexes):len(coll.Indexes)], manifest.Index{Name: name, Spec: raw(t, `{"name": "`+name+`"}`)}), nil
			}
		}
		_, _, err := c.Router.AlterIndexes(ctx, ns, false, add("a"), 0)
		wantCode(t, err, mongoerr.NamespaceNotFound)
		was, now, err := c.Router.AlterIndexes(ctx, ns, true, add("a"), 0)
		if err != nil || was != nil || len(now.Indexes) != 1 {
			t.Fatalf("%+v, %+v, %v", was, now, err)
		}
		was, now, err = c.NewRouter(router.Settings{}).AlterIndexes(ctx, ns, true, add("b"), 0)
		if err != nil || len(was.Indexes) != 1 || len(now.Indexes) != 2 {
			t.Fatalf("%+v, %+v, %v", was, now, err)
		}
		v := c.State().Version()
		keep := func(coll *manifest.Collection) ([]manifest.Index, error) { return coll.Indexes, nil }
		if _, _, err = c.Router.AlterIndexes(ctx, ns, true, keep, 0); err != nil || c.State().Version() != v {
			t.Fatalf("version %d after %d, %v", c.State().Version(), v, err)
		}
		want := errors.New("no")
		no := func(*manifest.Collection) ([]manifest.Index, error) { return nil, want }
		if _, _, err = c.Router.AlterIndexes(ctx, ns, true, no, 0); !errors.Is(err, want) {
			t.Fatal(err)
		}
		_, _, err = c.Router.AlterIndexes(ctx, router.Namespace{Database: "db", Collection: "x"}, true, no, 0)
		if !errors.Is(err, want) {
			t.Fatal(err)
		}
	})
}

// TestEveryErrorHasACode maps the kinds to what clients know.
func TestEveryErrorHasACode(t *testing.T) {
	t.Parallel()
	for err, code := range map[error]mongoerr.Code{
		errkind.Corrupt: mongoerr.DataCorruptionDetected, errkind.Invalid: mongoerr.BadValue, errkind.UnknownOutcome: mongoerr.MaxTimeMSExpired,
		errkind.SnapshotUnavailable: mongoerr.SnapshotUnavailable, errkind.Fenced: mongoerr.ExceededTimeLimit,
		context.Canceled: mongoerr.Interrupted, context.DeadlineExceeded: mongoerr.MaxTimeMSExpired, errors.New("x"): mongoerr.InternalError,
		mongoerr.New(mongoerr.BadValue, "x"): mongoerr.BadValue,
	} {
		if got := router.MongoError(fmt.Errorf("do it: %w", err)).Code; got != code {
			t.Errorf("%v: %v, expected %v", err, got, code)
		}
	}
}

// TestALostSegmentIsNotAnEmptyOne deletes a segment under a free shard: still named by the
// root it is corruption, and with the collection dropped it is simply gone.
func TestALostSegmentIsNotAnEmptyOne(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		rows(t, c.Router, 30)
		coll := c.State().CollectionByName("db", "c")
		chunk := c.State().ChunkOf(coll.ID, key(t, coll, 1))
		c.Stop(chunk.Shard)
		chunk = c.State().ChunkOf(coll.ID, key(t, coll, 1))
		cold := c.NewRouter(router.Settings{Patience: 2 * time.Second})
		if err := c.Bucket.Delete(ctx, chunk.Refs[0].Segment.Key()); err != nil {
			t.Fatal(err)
		}
		_, err := cold.Find(ctx, ns, router.Query{})
		if !errors.Is(err, errkind.Corrupt) {
			t.Fatalf("find: %v", err)
		}
		_, err = cold.Count(ctx, ns, router.Query{Filter: raw(t, `{"v": 1}`)})
		if !errors.Is(err, errkind.Corrupt) {
			t.Fatalf("count: %v", err)
		}
	})
}
