package router_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// noting is small, and notes at every occasion how far it is.
func noting() router.Settings {
	s := small
	s.Reshard.SaveEvery = -1
	return s
}

// on is a router of the cluster with a view of its own of the store.
func on(c *routertest.Cluster, store bucket.Bucket, settings router.Settings) *router.Router {
	open := func(manifest.LocationID) (bucket.Bucket, error) { return store, nil }
	return router.New(router.Config{
		Root: manifest.NewRoot(bucket.NewCell(store), c.Host, nil), Bucket: store, Store: reader.NewStore(open, nil), Dialer: c, Host: c.Host, Settings: settings,
	})
}

// diesAt is a store that is lost for ever at the n-th request.
func diesAt(c *routertest.Cluster, n int, kind faultbucket.Kind) *faultbucket.Bucket {
	return faultbucket.New(c.Bucket, c.Host, func(call faultbucket.Call) faultbucket.Fault {
		switch {
		case call.N == n:
			return faultbucket.Fault{Kind: kind}
		case call.N > n:
			return faultbucket.Fault{Kind: faultbucket.Before}
		}
		return faultbucket.Fault{}
	})
}

// TestAJobThatIsTakenOverGoesOn kills the router that rewrites a collection at twenty points; the
// collection is written to, and the next router goes on from what the first noted: the documents
// are all there, nothing is left behind, and the later the first died the less is read again.
func TestAJobThatIsTakenOverGoesOn(t *testing.T) {
	const docs, points = 400, 20
	calls, whole, resumed := 0, int64(0), 0
	for point := 0; point <= points; point++ {
		synctest.Test(t, func(t *testing.T) {
			ctx := context.Background()
			c := routertest.New(t, routertest.Options{Settings: small})
			shelf(t, c.Router, docs)
			if point == 0 {
				store := diesAt(c, 1<<30, faultbucket.Before)
				if err := on(c, store, noting()).ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 0); err != nil {
					t.Fatal(err)
				}
				calls = store.Calls()
				plain := layer.Metrics(c.Bucket)
				if err := on(c, plain, small).Reshard(ctx, ns, key1(t, `{"v": 1, "k": 1}`), router.Layout{}, 0); err != nil {
					t.Fatal(err)
				}
				whole = ofSegments(plain)
				return
			}
			living, die := c.Host.WithTimeout(ctx, 20*time.Second)
			defer die()
			store := diesAt(c, calls*point/points, faultbucket.Before)
			died := on(c, store, noting()).ShardCollection(living, ns, key1(t, `{"k": 1}`), 0)
			r := c.NewRouter(small)
			if died != nil {
				write(t, r, updateOf(t, `{"_id": 5}`, `{"$inc": {"v": 1}}`), insertOf(t, `{"_id": 5000, "k": 33}`), deleteOf(t, `{"_id": 77}`), updateOf(t, `{"_id": 6}`, `{"$set": {"k": 901}}`))
			}
			before := find(t, r, `{}`)
			record, there := c.State().Record(manifest.RecordReshard, "db.c")
			left := layer.Metrics(c.Bucket)
			collect(t, c)
			err := on(c, left, small).ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 0)
			if died == nil {
				wantCode(t, err, mongoerr.AlreadyInitialized)
			} else if err != nil {
				t.Fatalf("died at %d of %d requests (%v), the next attempt: %v", store.Calls(), calls, died, err)
			}
			after := find(t, r, `{}`)
			slices.Sort(before)
			slices.Sort(after)
			same(t, before, after)
			tidy(t, c)
			if died == nil || !there {
				return
			}
			if saved, _ := record.Body.Lookup("saved").AsInt64OK(); saved > 0 {
				resumed++
				if share := float64(ofSegments(left)) / float64(whole); share > 0.4 && point >= points*8/10 {
					t.Errorf("died at %d%%: the next made %.0f%% of the requests for segments", 100*point/points, 100*share)
				}
			}
		})
	}
	if resumed < points/2 {
		t.Errorf("%d of %d went on", resumed, points)
	}
}

// collect deletes, as a collector does, whatever the root does not refer to and nobody registered
// may still commit.
func collect(t *testing.T, c *routertest.Cluster) {
	t.Helper()
	s, used := c.State(), make(map[manifest.SegmentID]bool)
	for chunk := range s.AllChunks() {
		for i := range chunk.Refs {
			used[chunk.Refs[i].Segment] = true
		}
	}
	list, _, err := c.Bucket.List(context.Background(), "seg/", "", 100_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		id, err := manifest.ParseSegmentKey(o.Key)
		if err == nil && !used[id] && !s.Registered(id.Creator) {
			err = c.Bucket.Delete(context.Background(), o.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestAJobThatWasTakenOverIsLost: a router that was only held up goes on when another has taken its
// job over, or has finished it; nothing of what it does counts.
func TestAJobThatWasTakenOverIsLost(t *testing.T) {
	lost := 0
	for n := 8; n < 80; n += 5 {
		for _, held := range []time.Duration{6 * time.Second, 5 * time.Minute} {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				c := routertest.New(t, routertest.Options{Settings: small})
				shelf(t, c.Router, 200)
				before := find(t, c.Router, `{}`)
				slow := faultbucket.New(c.Bucket, c.Host, func(call faultbucket.Call) faultbucket.Fault {
					if call.N == n {
						return faultbucket.Fault{Kind: faultbucket.Slow, Delay: held}
					}
					return faultbucket.Fault{}
				})
				zombie := make(chan error)
				go func() { zombie <- on(c, slow, noting()).ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 0) }()
				_ = c.Host.Sleep(ctx, 100*time.Millisecond)
				err := on(c, c.Bucket, noting()).ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 0)
				woken := <-zombie
				if (err == nil) == (woken == nil) {
					t.Errorf("held up at request %d for %v: %v; the other: %v", n, held, woken, err)
				}
				if woken != nil {
					lost++
				}
				after := find(t, c.NewRouter(small), `{}`)
				slices.Sort(before)
				slices.Sort(after)
				same(t, before, after)
				tidy(t, c)
			})
		}
	}
	if lost < 10 {
		t.Errorf("%d were taken over", lost)
	}
}

// ofSegments counts the requests that read or write segments.
func ofSegments(m *layer.Metered) int64 {
	s := m.Snapshot()
	return s.Of(layer.Get, layer.Segment).Requests + s.Of(layer.Put, layer.Segment).Requests
}
