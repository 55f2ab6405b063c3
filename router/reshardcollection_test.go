package router_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/reshard"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// TestAShardedCollectionIsResharded changes the key of a sharded collection, deals it out anew
// under the same key, puts ranges on shards by name, in zones and in about as many chunks as
// asked, and unshards it in the end: the documents are the same throughout.
func TestAShardedCollectionIsResharded(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"k": 1}`, `{"k": 100}`)
		shelf(t, c.Router, 400)
		before := find(t, c.Router, `{}`)
		slices.Sort(before)
		shards := c.State().Shards()
		a, b := shards[0].ID, shards[1].ID
		coll := func() *manifest.Collection { return c.State().CollectionByName("db", "c") }
		step := func(what string, err error, good func() bool) {
			t.Helper()
			after := find(t, c.NewRouter(router.Settings{}), `{}`)
			slices.Sort(after)
			same(t, before, after)
			if err != nil || !good() {
				t.Errorf("%s: %v; %v, %d chunks, zones %v", what, err, coll().Key, c.State().NumChunks(coll().ID), coll().Zones)
			}
			tidy(t, c)
		}
		all := func(home manifest.ShardID) bool {
			for chunk := range c.State().Chunks(coll().ID) {
				if chunk.Shard != home {
					return false
				}
			}
			return true
		}
		id := coll().ID
		err := c.Router.ReshardCollection(ctx, ns, key1(t, `{"k": 1}`), router.Layout{}, false, 0)
		step("the same key", err, func() bool { return coll().ID == id })
		err = c.Router.ReshardCollection(ctx, ns, key1(t, `{"k": 1}`), router.Layout{Parts: 3}, true, 0)
		step("the same key, by force", err, func() bool { n := c.State().NumChunks(coll().ID); return coll().ID != id && n > 1 && n <= 3 })
		err = c.Router.ReshardCollection(ctx, ns, key1(t, `{"pad": 1, "k": 1}`, `{"pad": "x"}`), router.Layout{Homes: []manifest.ShardID{b, a}}, false, 0)
		step("by name", err, func() bool {
			s := c.State()
			return s.NumChunks(coll().ID) == 2 && s.ChunkOf(coll().ID, nil).Shard == b && s.ChunkOf(coll().ID, []byte{0xff}).Shard == a
		})
		if err := c.Router.AddShardToZone(ctx, b, "EU", 0); err != nil {
			t.Fatal(err)
		}
		zones := []router.ZoneBounds{{Zone: "EU", Min: raw(t, `{"v": -5}`), Max: raw(t, `{"v": 5}`)}}
		err = c.Router.ReshardCollection(ctx, ns, key1(t, `{"v": 1}`), router.Layout{Zones: zones}, false, 0)
		step("in zones", err, func() bool { return len(coll().Zones) == 1 && c.State().NumChunks(coll().ID) >= 3 })
		wantCode(t, c.Router.ReshardCollection(ctx, ns, key1(t, `{"k": 1}`), router.Layout{}, false, 0), mongoerr.BadValue)
		wantCode(t, c.Router.ReshardCollection(ctx, ns, key1(t, `{"k": 1}`), router.Layout{Zones: []router.ZoneBounds{{Zone: "none", Min: raw(t, `{"k": 1}`), Max: raw(t, `{"k": 2}`)}}}, false, 0), mongoerr.ZoneNotFound)
		wantCode(t, c.Router.UnshardCollection(ctx, ns, "nobody", 0, nil, 0), mongoerr.ShardNotFound)
		err = c.Router.UnshardCollection(ctx, ns, a, 0, nil, 0)
		step("unsharded", err, func() bool {
			return !coll().Sharded && len(coll().Zones) == 0 && coll().Key.String() == `{ _id: 1 }` && all(a)
		})
		wantCode(t, c.Router.UnshardCollection(ctx, ns, a, 0, nil, 0), mongoerr.NamespaceNotSharded)
		wantCode(t, c.Router.ReshardCollection(ctx, ns, key1(t, `{"k": 1}`), router.Layout{}, false, 0), mongoerr.NamespaceNotSharded)
		wantCode(t, c.Router.ReshardCollection(ctx, router.Namespace{Database: "db", Collection: "none"}, key1(t, `{"k": 1}`), router.Layout{}, false, 0), mongoerr.NamespaceNotFound)
	})
}

// slowed has a router reshard the collection while every flush takes a second, and waits until
// that has begun; the channel gets how it ended.
func slowed(t *testing.T, c *routertest.Cluster, r *router.Router) <-chan error {
	t.Helper()
	c.Fate(func(m routertest.Message) routertest.Fate {
		if m.Verb == "flush" {
			_ = c.Host.Sleep(context.Background(), time.Second)
		}
		return routertest.Deliver
	})
	done := make(chan error, 1)
	go func() {
		done <- r.ReshardCollection(context.Background(), ns, key1(t, `{"v": 1}`), router.Layout{}, false, 0)
	}()
	_ = c.Host.Sleep(context.Background(), 500*time.Millisecond)
	return done
}

// TestAReshardingIsShownAndEndedFromAnywhere aborts it by the router that does it and by another,
// by name and by its number, and has it switch early; a second one of the same collection is
// refused, one of another collection goes on beside it.
func TestAReshardingIsShownAndEndedFromAnywhere(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"k": 1}`)
		shelf(t, c.Router, 200)
		before := find(t, c.Router, `{}`)
		other := c.NewRouter(small)
		wantCode(t, c.Router.AbortReshard(ctx, ns, 0), mongoerr.NoSuchReshardCollection)
		wantCode(t, other.CommitReshard(ctx, ns, 0), mongoerr.NoSuchReshardCollection)
		for _, end := range []func() error{
			func() error { return c.Router.AbortReshard(ctx, ns, 0) },
			func() error { return other.AbortReshard(ctx, ns, 0) },
			func() error {
				list, err := other.Reshardings(ctx, 0)
				if err != nil || len(list) != 1 || list[0].Namespace != "db.c" || list[0].Key.String() != "{ v: 1 }" {
					t.Fatalf("%+v, %v", list, err)
				}
				found, err := other.Cancel(ctx, list[0].Op, 0)
				if none, err := other.Cancel(ctx, list[0].Op+1, 0); !found || none || err != nil {
					t.Errorf("found %t, one that is not there %t, %v", found, none, err)
				}
				return err
			},
		} {
			done := slowed(t, c, c.Router)
			wantCode(t, c.Router.ReshardCollection(ctx, ns, key1(t, `{"pad": 1}`), router.Layout{}, false, 0), mongoerr.ConflictingOperationInProg)
			if err := end(); err != nil {
				t.Error(err)
			}
			var m *mongoerr.Error
			if err := <-done; !errors.As(err, &m) || m.Code != mongoerr.Interrupted && m.Code != mongoerr.ReshardCollectionAborted {
				t.Error(err)
			}
			c.Fate(nil)
			same(t, before, find(t, c.Router, `{}`))
			same(t, `{ k: 1 }`, c.State().CollectionByName("db", "c").Key.String())
			tidy(t, c)
		}
		done := slowed(t, c, c.Router)
		if err := other.CommitReshard(ctx, ns, 0); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		same(t, `{ v: 1 }`, c.State().CollectionByName("db", "c").Key.String())
		tidy(t, c)
	})
}

// TestTwoCollectionsAreReshardedAtOnce under traffic, by two routers.
func TestTwoCollectionsAreReshardedAtOnce(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		second := router.Namespace{Database: "db", Collection: "d"}
		shard(t, c.Router, `{"k": 1}`)
		if err := c.Router.ShardCollection(ctx, second, key1(t, `{"k": 1}`), 0); err != nil {
			t.Fatal(err)
		}
		shelf(t, c.Router, 200)
		for i := range 100 {
			results, err := c.Router.Write(ctx, second, router.Writes{Statements: []router.Statement{insertOf(t, fmt.Sprintf(`{"_id": %d, "k": %d}`, i, i))}})
			if err != nil || results[0].Err != nil {
				t.Fatal(results, err)
			}
		}
		tr := begin(t, c, 2, false)
		other, done := c.NewRouter(small), make(chan error)
		go func() {
			done <- other.ReshardCollection(ctx, second, key1(t, `{"_id": "hashed"}`), router.Layout{}, false, 0)
		}()
		if err := c.Router.ReshardCollection(ctx, ns, key1(t, `{"k": "hashed"}`), router.Layout{}, false, 0); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = c.Host.Sleep(ctx, 200*time.Millisecond)
		tr.check()
		same(t, 200, len(find(t, c.Router, `{"_id": {"$lt": 10000}}`)))
		n, err := c.Router.Count(ctx, second, router.Query{})
		if err != nil || n != 100 {
			t.Errorf("%d documents, %v", n, err)
		}
		tidy(t, c)
	})
}

// TestWhatTheStoreChangedIsNotSwitchedTo: a store loses a row of a segment that it was given
// under the new key, keeping the file sound. The job reads it back, and the collection keeps its key.
func TestWhatTheStoreChangedIsNotSwitchedTo(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"k": 1}`)
		shelf(t, c.Router, 60)
		before := find(t, c.Router, `{}`)
		store := &swapping{Bucket: c.Bucket}
		open := func(manifest.LocationID) (bucket.Bucket, error) { return store, nil }
		r := router.New(router.Config{
			Root: manifest.NewRoot(bucket.NewCell(c.Bucket), c.Host, nil), Bucket: store, Store: reader.NewStore(open, nil), Dialer: c, Host: c.Host,
			Settings: router.Settings{Reshard: reshard.Settings{SegmentBytes: 1 << 10}},
		})
		err := r.ReshardCollection(ctx, ns, key1(t, `{"v": 1}`), router.Layout{}, false, 0)
		if err == nil || !errors.Is(err, errkind.Corrupt) && !strings.Contains(err.Error(), "verify db.c") {
			t.Fatal(err)
		}
		same(t, `{ k: 1 }`, c.State().CollectionByName("db", "c").Key.String())
		same(t, before, find(t, c.Router, `{}`))
		tidy(t, c)
	})
}

// swapping answers a GET of the second segment of a job with the bytes of the first.
type swapping struct {
	bucket.Bucket
	first  []byte
	second string
}

func (s *swapping) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	if strings.HasPrefix(key, "seg/") {
		switch {
		case s.first == nil:
			s.first = bytes.Clone(body)
		case s.second == "":
			s.second = key
			body = s.first
		}
	}
	return s.Bucket.Put(ctx, key, body, c)
}
