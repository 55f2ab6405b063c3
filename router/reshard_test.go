package router_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/reshard"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
)

// small makes a few documents fill memory, a chunk and a segment.
var small = router.Settings{Reshard: reshard.Settings{MemoryBytes: 8 << 10, ChunkBytes: 4 << 10, SegmentBytes: 2 << 10, SilentFor: 4 * time.Second}}

func key1(t testing.TB, json string, points ...string) router.NewCollection {
	n := router.NewCollection{Key: pattern(t, json)}
	for _, p := range points {
		k, full, err := n.Key.Bound(raw(t, p))
		if err != nil {
			t.Fatal(err)
		}
		n.Points, n.Only = append(n.Points, shardkey.Bound{Key: k, BSON: full}), true
	}
	return n
}

// shelf inserts n documents {_id, k, pad} in some order of k.
func shelf(t testing.TB, r *router.Router, n int) {
	t.Helper()
	var list []router.Statement
	for i := range n {
		list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "k": %d, "v": 0, "pad": "%s"}`, i, i*7919%n, strings.Repeat("x", i%90))))
	}
	write(t, r, list...)
}

// tidy makes sure that a job left nothing in the root but garbage for GC.
func tidy(t testing.TB, c *routertest.Cluster) {
	t.Helper()
	s := c.State()
	if n := len(s.Jobs()); n > 0 {
		t.Errorf("%d jobs are left", n)
	}
	if n := len(s.Records(manifest.RecordReshard)); n > 0 {
		t.Errorf("%d records are left", n)
	}
	for _, coll := range s.Collections() {
		if coll.Reshaping() {
			t.Errorf("%s is still marked", coll.Namespace())
		}
	}
	if n := orphans(t, c, s); n > 0 {
		t.Errorf("%d segments are neither referenced nor garbage that GC knows", n)
	}
}

// orphans counts the segments that only a listing finds.
func orphans(t testing.TB, c *routertest.Cluster, s *manifest.State) (n int) {
	t.Helper()
	known := make(map[string]bool)
	for _, d := range s.Dropped() {
		known[d.Segment.Key()] = true
	}
	for chunk := range s.AllChunks() {
		for i := range chunk.Refs {
			known[chunk.Refs[i].Segment.Key()] = true
		}
	}
	c.Check()
	list, _, err := c.Bucket.List(context.Background(), "seg/", "", 100_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		if !known[o.Key] {
			n++
		}
	}
	return n
}

// TestACollectionWithDocumentsGetsAnotherKey rewrites 1000 documents through many sorted runs
// into many chunks, ranged, hashed and cut as asked: the same documents are there, found by the
// new key, and nothing is left behind.
func TestACollectionWithDocumentsGetsAnotherKey(t *testing.T) {
	for _, n := range []struct {
		key    string
		points []string
		least  int
	}{
		{key: `{"k": 1}`, least: 5}, {key: `{"k": "hashed"}`, least: 5}, {key: `{"pad": 1, "k": 1}`, least: 5},
		{key: `{"k": 1, "pad": "hashed"}`, least: 5}, {key: `{"pad": "hashed", "k": 1}`, least: 5},
		{key: `{"k": 1}`, points: []string{`{"k": 300}`, `{"k": 2000}`}, least: 3},
	} {
		t.Run(n.key, func(t *testing.T) {
			in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
				ctx := context.Background()
				shelf(t, c.Router, 999)
				write(t, c.Router, insertOf(t, `{"_id": "keyless"}`)) // counts as null
				before := find(t, c.Router, `{}`)
				other := c.NewRouter(router.Settings{})
				find(t, other, `{"_id": 1}`)
				if err := c.Router.ShardCollection(ctx, ns, key1(t, n.key, n.points...), 0); err != nil {
					t.Fatal(err)
				}
				coll := c.State().CollectionByName("db", "c")
				same(t, pattern(t, n.key).String(), coll.Key.String())
				if got := c.State().NumChunks(coll.ID); got < n.least || n.points != nil && got != n.least {
					t.Errorf("%d chunks, want %d", got, n.least)
				}
				for _, r := range []*router.Router{other, c.Router} {
					after := find(t, r, `{}`)
					slices.Sort(before)
					slices.Sort(after)
					same(t, before, after)
					same(t, 1, len(find(t, r, `{"k": 500}`)))
					same(t, 1, len(find(t, r, `{"k": null, "pad": null}`)))
					n, err := r.Count(ctx, ns, router.Query{})
					if err != nil || n != 1000 {
						t.Errorf("count %d, %v", n, err)
					}
				}
				write(t, other, updateOf(t, `{"_id": 5}`, `{"$inc": {"v": 1}}`), insertOf(t, `{"_id": 5000, "k": 1}`), deleteOf(t, `{"k": 77}`))
				same(t, 1000, len(find(t, c.Router, `{}`)))
				tidy(t, c)
			})
		})
	}
}

func TestDocumentsThatCannotHaveTheKeyStopTheRewrite(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"a": 1}`)
		write(t, c.Router, insertOf(t, `{"_id": 1, "a": 1, "b": [1]}`), insertOf(t, `{"_id": 2, "a": 1, "b": 5}`), insertOf(t, `{"_id": 2, "a": 2, "b": 5}`))
		for key, want := range map[string]mongoerr.Code{`{"b": 1}`: mongoerr.BadValue} {
			err := c.Router.Reshard(ctx, ns, key1(t, key), router.Layout{}, 0)
			wantCode(t, err, want)
			if !strings.Contains(err.Error(), `_id {"$numberInt":"1"}`) {
				t.Error(err)
			}
		}
		write(t, c.Router, deleteOf(t, `{"_id": 1}`))
		err := c.Router.Reshard(ctx, ns, key1(t, `{"b": 1}`), router.Layout{}, 0)
		wantCode(t, err, mongoerr.DuplicateKey)
		same(t, `{ a: 1 }`, c.State().CollectionByName("db", "c").Key.String())
		same(t, 2, len(find(t, c.Router, `{}`)))
		tidy(t, c)
	})
}

// traffic changes documents while something happens, and knows what is there in the end.
type traffic struct {
	t    *testing.T
	c    *routertest.Cluster
	stop chan struct{}
	all  sync.WaitGroup
	mu   sync.Mutex
	docs map[int]string // _id to {k, v}
	n    int
	// moving: some updates change k.
	moving bool
}

// begin starts writers that own the documents of their residue class; each write is sent as a
// client's retryable one, and is sent again under its id now and then.
func begin(t *testing.T, c *routertest.Cluster, writers int, moving bool) *traffic {
	tr := &traffic{t: t, c: c, stop: make(chan struct{}), docs: make(map[int]string), moving: moving}
	for w := range writers {
		r := c.NewRouter(router.Settings{})
		tr.all.Go(func() { tr.write(r, w, writers) })
	}
	return tr
}

func (tr *traffic) write(r *router.Router, w, writers int) {
	rng := rand.New(rand.NewPCG(uint64(w), 7))
	mine := make(map[int][2]int)
	for txn := int64(1); ; txn++ {
		select {
		case <-tr.stop:
			tr.mu.Lock()
			for id, d := range mine {
				tr.docs[id] = fmt.Sprint(d)
			}
			tr.mu.Unlock()
			return
		default:
		}
		id := w + writers*rng.IntN(40)
		d, there := mine[id]
		var s router.Statement
		switch op := rng.IntN(10); {
		case !there:
			d = [2]int{rng.IntN(1000), 1}
			s = insertOf(tr.t, fmt.Sprintf(`{"_id": %d, "k": %d, "v": 1}`, 10_000+id, d[0]))
			mine[id] = d
		case op < 5:
			s = updateOf(tr.t, fmt.Sprintf(`{"_id": %d}`, 10_000+id), `{"$inc": {"v": 1}}`)
			mine[id] = [2]int{d[0], d[1] + 1}
		case op < 7:
			s = updateOf(tr.t, fmt.Sprintf(`{"_id": %d, "k": %d}`, 10_000+id, d[0]), `{"$inc": {"v": 1}}`)
			mine[id] = [2]int{d[0], d[1] + 1}
		case op < 8 && tr.moving:
			k := rng.IntN(1000)
			s = updateOf(tr.t, fmt.Sprintf(`{"_id": %d}`, 10_000+id), fmt.Sprintf(`{"$set": {"k": %d}, "$inc": {"v": 1}}`, k))
			mine[id] = [2]int{k, d[1] + 1}
		default:
			s = deleteOf(tr.t, fmt.Sprintf(`{"_id": %d}`, 10_000+id))
			delete(mine, id)
		}
		tries := 1 + rng.IntN(3)/2
		for try := range tries {
			results, err := r.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{s}, Retry: session(byte(100+w), txn)})
			if err != nil || results[0].Err != nil || results[0].N != 1 {
				tr.t.Errorf("writer %d, txn %d, try %d of %v: %+v, %v", w, txn, try, s, results, err)
				return
			}
		}
		tr.mu.Lock()
		tr.n++
		tr.mu.Unlock()
		_ = tr.c.Host.Sleep(context.Background(), time.Duration(rng.IntN(int(10*time.Millisecond))))
	}
}

// check ends the traffic, and compares.
func (tr *traffic) check() {
	tr.t.Helper()
	close(tr.stop)
	tr.all.Wait()
	tr.c.Fate(nil)
	got := make(map[int]string)
	for _, text := range find(tr.t, tr.c.NewRouter(router.Settings{}), `{"_id": {"$gte": 10000}}`) {
		d := raw(tr.t, text)
		id := int(d.Lookup("_id").AsInt64()) - 10_000
		if got[id] != "" {
			tr.t.Errorf("document %d is there twice", id)
		}
		got[id] = fmt.Sprint([2]int{int(d.Lookup("k").AsInt64()), int(d.Lookup("v").AsInt64())})
	}
	same(tr.t, tr.docs, got)
	if tr.n < 20 {
		tr.t.Errorf("only %d writes were made", tr.n)
	}
}

// TestTheRewriteIsOnline gives a collection another key while it is written to by retryable
// statements of which messages get lost, and meanwhile chunks are moved and cut and a writer is
// replaced: every document is as its last write left it.
func TestTheRewriteIsOnline(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
				shelf(t, c.Router, 300)
				tr := begin(t, c, 4, false)
				lossyBy(c, seed, 25)
				_ = c.Host.Sleep(context.Background(), 300*time.Millisecond)
				end := make(chan struct{})
				if seed%2 == 1 {
					go func() { defer close(end); disturb(t, c, seed) }()
				} else {
					close(end)
				}
				if err := c.Router.ShardCollection(context.Background(), ns, key1(t, []string{`{"k": 1}`, `{"k": "hashed"}`}[seed/2%2]), 0); err != nil {
					t.Error(err)
				}
				_ = c.Host.Sleep(context.Background(), 300*time.Millisecond)
				<-end
				tr.check()
				same(t, 300, len(find(t, c.Router, `{"_id": {"$lt": 10000}}`)))
				tidy(t, c)
			})
		})
	}
}

// TestTheRewriteFollowsDocumentsWhoseKeysChange rewrites a collection, sharded over three
// shards by k, under the key v, while updates change both: documents change chunks and shards
// under the old key, and their place under the new one.
func TestTheRewriteFollowsDocumentsWhoseKeysChange(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
				shard(t, c.Router, `{"k": 1}`, `{"k": 200}`, `{"k": 500}`, `{"k": 800}`)
				shelf(t, c.Router, 200)
				tr := begin(t, c, 3, true)
				lossyBy(c, seed, 40)
				_ = c.Host.Sleep(context.Background(), 300*time.Millisecond)
				if err := c.Router.Reshard(context.Background(), ns, key1(t, []string{`{"v": 1}`, `{"v": "hashed"}`}[seed%2]), router.Layout{}, 0); err != nil {
					t.Error(err)
				}
				_ = c.Host.Sleep(context.Background(), 300*time.Millisecond)
				tr.check()
				same(t, 200, len(find(t, c.Router, `{"_id": {"$lt": 10000}}`)))
				c.Check()
			})
		})
	}
}

// disturb cuts and moves chunks, and stops a writer.
func disturb(t *testing.T, c *routertest.Cluster, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	for i := range 6 {
		_ = c.Host.Sleep(context.Background(), time.Duration(rng.IntN(int(40*time.Millisecond))))
		s := c.State()
		coll := s.CollectionByName("db", "c")
		if i == 3 {
			for chunk := range s.Chunks(coll.ID) {
				if s.Shard(chunk.Shard).Status != manifest.ShardHeld {
					break
				}
				if seed%4 == 3 {
					c.Unplug(chunk.Shard) // nobody reaches it any more: another takes its shard
				} else {
					c.Stop(chunk.Shard)
				}
				break
			}
			continue
		}
		if coll.Sharded {
			return // it is done
		}
		if i%2 == 1 {
			moveAway(c, s, s.ChunkOf(coll.ID, key(t, coll, rng.IntN(300))))
			continue
		}
		k, full, err := coll.Key.Bound(raw(t, fmt.Sprintf(`{"_id": %d}`, rng.IntN(300))))
		if err != nil {
			t.Error(err)
		}
		chunk := s.ChunkOf(coll.ID, k)
		_, _ = c.Root.Commit(context.Background(), manifest.Edit{Op: c.Host.ID16(), Changes: []manifest.Change{
			manifest.Split{Chunk: chunk.At(), Points: []manifest.Bound{{Key: k, BSON: full}}},
		}}) // or it is another chunk by now
	}
}

// moveAway gives a chunk to another shard, unless it is another chunk by now.
func moveAway(c *routertest.Cluster, s *manifest.State, chunk *manifest.Chunk) {
	h := s.Shard(chunk.Shard)
	owner, err := c.Dial(h.ID, h.Holder, "")
	if err != nil {
		return
	}
	for _, to := range s.Shards() {
		if to.ID != h.ID && to.Status == manifest.ShardHeld {
			_, _ = owner.Move(context.Background(), &rpc.MoveRequest{
				Header: rpc.Header{Shard: h.ID, Collection: chunk.Collection, RootVersion: s.Version()}, Chunks: []manifest.ChunkAt{chunk.At()}, To: to.ID,
			})
			return
		}
	}
}

// hooked calls put before each PUT.
type hooked struct {
	bucket.Bucket
	put func(key string)
}

func (h hooked) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	h.put(key)
	return h.Bucket.Put(ctx, key, body, c)
}

// TestASwitchThatSomethingCameBeforeIsMadeAgain: between the last look and the commit a chunk
// is cut, or the mark is taken back because the store was slow, and documents are written then.
func TestASwitchThatSomethingCameBeforeIsMadeAgain(t *testing.T) {
	for _, what := range []string{"cut", "slow"} {
		t.Run(what, func(t *testing.T) {
			in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
				ctx := context.Background()
				shelf(t, c.Router, 100)
				tr := begin(t, c, 2, false)
				_ = c.Host.Sleep(ctx, 100*time.Millisecond)
				times := 0
				store := hooked{c.Bucket, func(key string) {
					coll := c.State().CollectionByName("db", "c")
					if !strings.HasPrefix(key, "seg/") || !coll.Reshaping() || times == 2 {
						return
					}
					times++
					if what == "slow" {
						_ = c.Host.Sleep(ctx, 20*time.Second)
						return
					}
					k, full, err := coll.Key.Bound(raw(t, fmt.Sprintf(`{"_id": %d}`, 40*times)))
					if err != nil {
						t.Error(err)
					}
					c.Commit(manifest.Split{Chunk: c.State().ChunkOf(coll.ID, k).At(), Points: []manifest.Bound{{Key: k, BSON: full}}})
				}}
				open := func(manifest.LocationID) (bucket.Bucket, error) { return store, nil }
				root := manifest.NewRoot(bucket.NewCell(c.Bucket), c.Host, nil)
				r := router.New(router.Config{Root: root, Bucket: store, Store: reader.NewStore(open, nil), Dialer: c, Host: c.Host, Settings: small})
				if err := r.ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 0); err != nil {
					t.Fatal(err)
				}
				if times != 2 {
					t.Errorf("disturbed %d times", times)
				}
				tr.check()
				same(t, 100, len(find(t, c.Router, `{"_id": {"$lt": 10000}}`)))
				tidy(t, c)
			})
		})
	}
}

// TestTheSwitchTakesFewRequests counts what the router and the owners send to the bucket while
// writes and reads of a collection wait: one flush of each owner, one small delta, the retry
// entries and two commits, however large the collection is. What is kept for undoing takes a
// commit and a copy of the root more.
func TestTheSwitchTakesFewRequests(t *testing.T) {
	for keep, most := range map[time.Duration]int{0: 2, time.Hour: 4} {
		t.Run(keep.String(), func(t *testing.T) { switchTakesFewRequests(t, keep, most) })
	}
}

func switchTakesFewRequests(t *testing.T, keep time.Duration, most int) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shelf(t, c.Router, 500)
		var puts []string
		store := hooked{c.Bucket, func(key string) {
			if c.State().CollectionByName("db", "c").Reshaping() {
				puts = append(puts, key[:4])
			}
		}}
		open := func(manifest.LocationID) (bucket.Bucket, error) { return store, nil }
		r := router.New(router.Config{
			Root: manifest.NewRoot(bucket.NewCell(store), c.Host, nil), Bucket: store, Store: reader.NewStore(open, nil), Dialer: c, Host: c.Host, Settings: small,
		})
		tr := begin(t, c, 2, false)
		_ = c.Host.Sleep(ctx, 200*time.Millisecond)
		c.Reset()
		if err := r.Reshard(ctx, ns, key1(t, `{"k": 1}`), router.Layout{Keep: keep}, 0); err != nil {
			t.Fatal(err)
		}
		tr.check()
		slices.Sort(puts)
		// The commit, once more if an owner's came before it; the delta and the retry entries.
		commits := strings.Count(strings.Join(puts, " "), "meta")
		if n := len(puts) - commits; commits < most/2 || commits > most || n < 1 || n > 2 {
			t.Errorf("while others waited the router sent %v", puts)
		}
	})
}

// TestAUniqueKeyIsUniqueFromTheSwitchOn gives a collection a key that is to be unique: the
// rewrite finds two documents of one value, also one that comes while it runs; without them
// the key is unique from then on.
func TestAUniqueKeyIsUniqueFromTheSwitchOn(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shelf(t, c.Router, 200)
		n := key1(t, `{"k": 1}`)
		n.Unique = true
		write(t, c.Router, insertOf(t, `{"_id": 1000, "k": 150}`))
		wantCode(t, c.Router.ShardCollection(ctx, ns, n, 0), mongoerr.DuplicateKey)
		write(t, c.Router, deleteOf(t, `{"_id": 1000}`))
		late := 0
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb == "flush" {
				if late++; late == 2 { // after the base was read
					write(t, c.NewRouter(router.Settings{}), insertOf(t, `{"_id": 1001, "k": 151}`))
				}
			}
			return routertest.Deliver
		})
		wantCode(t, c.Router.ShardCollection(ctx, ns, n, 0), mongoerr.DuplicateKey)
		c.Fate(nil)
		write(t, c.Router, deleteOf(t, `{"_id": 1001}`))
		same(t, `{ _id: 1 }`, c.State().CollectionByName("db", "c").Key.String())
		if err := c.Router.ShardCollection(ctx, ns, n, 0); err != nil {
			t.Fatal(err)
		}
		results, err := c.Router.Write(ctx, ns, router.Writes{Statements: []router.Statement{insertOf(t, `{"_id": 1002, "k": 151}`)}})
		if err != nil || results[0].Err == nil || results[0].Err.Code != mongoerr.DuplicateKey {
			t.Fatalf("%+v, %v", results, err)
		}
		same(t, 200, len(find(t, c.Router, `{}`)))
		tidy(t, c)
	})
}

// TestARouterThatDiesAtAnyRequestLeavesTheCollectionWhole has the router that rewrites a
// collection lose the store for ever at its n-th request, for every n, with and without the
// effect of that request: all documents are there under the old key or the new one, they can
// be written, and the next attempt succeeds.
func TestARouterThatDiesAtAnyRequestLeavesTheCollectionWhole(t *testing.T) {
	for _, settings := range []router.Settings{small, noting()} {
		dyingAtAnyRequest(t, settings)
	}
}

func dyingAtAnyRequest(t *testing.T, settings router.Settings) {
	died := true
	for n := 1; died; n++ {
		for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After} {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				c := routertest.New(t, routertest.Options{Settings: small})
				shelf(t, c.Router, 60)
				before := find(t, c.Router, `{}`)
				store := diesAt(c, n, kind)
				dying := on(c, store, settings)
				living, die := c.Host.WithTimeout(ctx, 20*time.Second)
				defer die()
				err := dying.ShardCollection(living, ns, key1(t, `{"k": 1}`), 0)
				if died = store.Calls() >= n; !died && err != nil {
					t.Fatalf("request %d of %d: %v", n, store.Calls(), err)
				}
				r := c.NewRouter(small)
				write(t, r, updateOf(t, `{"_id": 5}`, `{"$set": {"v": 0}}`))
				if err := r.ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 0); err != nil {
					t.Fatalf("request %d, %v: the next attempt: %v", n, kind, err)
				}
				after := find(t, r, `{}`)
				slices.Sort(before)
				slices.Sort(after)
				same(t, before, after)
				c.Check()
				s := c.State()
				if len(s.Jobs()) > 0 || len(s.Records(manifest.RecordReshard)) > 0 || s.CollectionByName("db", "c").Reshaping() {
					t.Errorf("request %d, %v: the next attempt left a job, a record or a mark", n, kind)
				}
				if left := orphans(t, c, s); left > 0 {
					t.Errorf("request %d, %v: %d segments of the dead job are known to nobody", n, kind, left)
				}
			})
		}
		if t.Failed() {
			t.Fatalf("at request %d", n)
		}
	}
}

// TestAWriteSentAgainAfterTheRewriteHappensOnce sends retryable statements before and after
// the collection got another key, through other routers; in between their documents changed.
func TestAWriteSentAgainAfterTheRewriteHappensOnce(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		shelf(t, c.Router, 60)
		after := updateOf(t, `{"pad": "xxx"}`, `{"$inc": {"v": 1}}`)
		after.Return = rpc.ReturnAfter
		statements := []router.Statement{
			insertOf(t, `{"_id": 1000, "k": 5}`), insertOf(t, `{"_id": 1001, "k": 6}`), updateOf(t, `{"_id": 7}`, `{"$inc": {"v": 1}}`),
			after, deleteOf(t, `{"v": 0}`), upsert(updateOf(t, `{"name": "new", "k": 3}`, `{"$inc": {"v": 1}}`)),
			updateOf(t, `{"name": "nobody"}`, `{"$inc": {"v": 1}}`),
		}
		var first []router.Result
		send := func(i int) router.Result {
			results, err := c.NewRouter(router.Settings{}).Write(context.Background(), ns, router.Writes{Statements: statements[i : i+1], Retry: session(byte(i), 5)})
			if err != nil || results[0].Err != nil {
				t.Fatalf("statement %d: %+v, %v", i, results, err)
			}
			return results[0]
		}
		for i := range statements {
			first = append(first, send(i))
		}
		write(t, c.Router, deleteOf(t, `{"_id": 1000}`), updateOf(t, `{"_id": 1001}`, `{"$set": {"k": 50}}`))
		if err := c.Router.ShardCollection(context.Background(), ns, key1(t, `{"k": 1}`, `{"k": 10}`, `{"k": 20}`), 0); err != nil {
			t.Fatal(err)
		}
		before := find(t, c.Router, `{}`)
		for i := range statements {
			again := send(i)
			if again.N != first[i].N || again.Modified != first[i].Modified || !slices.Equal(again.Value, first[i].Value) || !again.UpsertedID.Equal(first[i].UpsertedID) {
				t.Errorf("statement %d: %+v, first %+v", i, again, first[i])
			}
		}
		same(t, before, find(t, c.Router, `{}`))
		for _, h := range c.State().Shards() {
			c.Stop(h.ID)
		}
		if err := c.Router.SplitChunk(context.Background(), ns, router.Where{Middle: raw(t, `{"k": 15}`)}, 0); err != nil {
			t.Fatal(err)
		}
		send(0)
		send(2)
		same(t, before, find(t, c.Router, `{}`))
	})
}

// TestARewriteThatIsGivenUpChangesNothing ends rewrites by their time limit, by Cancel, by the
// client, and by another that takes them for dead.
func TestARewriteThatIsGivenUpChangesNothing(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shelf(t, c.Router, 300)
		before := find(t, c.Router, `{}`)
		slow := func(routertest.Message) routertest.Fate { // every flush takes a second
			_ = c.Host.Sleep(ctx, time.Second)
			return routertest.Deliver
		}
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb == "flush" {
				return slow(m)
			}
			return routertest.Deliver
		})
		wantCode(t, c.Router.ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 2500*time.Millisecond), mongoerr.MaxTimeMSExpired)
		done := make(chan error)
		go func() { done <- c.Router.ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 0) }()
		_ = c.Host.Sleep(ctx, 2500*time.Millisecond)
		jobs, err := c.Router.Reshardings(ctx, 0)
		if err != nil || len(jobs) != 1 || jobs[0].Namespace != "db.c" {
			t.Fatalf("%+v, %v", jobs, err)
		}
		if found, err := c.Router.Cancel(ctx, jobs[0].Op, 0); !found || err != nil {
			t.Error(found, err)
		}
		wantCode(t, <-done, mongoerr.Interrupted)
		leaving, leave := context.WithCancel(ctx)
		go func() { done <- c.Router.ShardCollection(leaving, ns, key1(t, `{"k": 1}`), 0) }()
		_ = c.Host.Sleep(ctx, 2500*time.Millisecond)
		leave()
		wantCode(t, <-done, mongoerr.Interrupted)
		c.Fate(nil)
		same(t, before, find(t, c.Router, `{}`))
		same(t, `{ _id: 1 }`, c.State().CollectionByName("db", "c").Key.String())
		tidy(t, c)
	})
}

// TestAJobThatDiedIsExpelled leaves a job and its record as a process that was killed does:
// the next attempt waits for a sign of life, then takes over; one that lives is left alone.
func TestAJobThatDiedIsExpelled(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shelf(t, c.Router, 100)
		dead := manifest.JobID{1, 2, 3}
		record := func(at int) manifest.PutRecord {
			return manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordReshard, ID: "db.c", Body: raw(t, fmt.Sprintf(`{"job": {"$binary": {"base64": "AQIDAAAAAAAAAAAAAAAAAA==", "subType": "00"}}, "at": %d}`, at))}}
		}
		c.Commit(manifest.RegisterJob{Job: manifest.Job{ID: dead, Kind: manifest.JobReshard, Detail: manifest.JobDetail(c.State().NextCollection(), "db.c")}}, record(1))
		done := make(chan error)
		go func() { done <- c.Router.ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 0) }()
		_ = c.Host.Sleep(ctx, time.Second)
		c.Commit(record(2))
		wantCode(t, <-done, mongoerr.ConflictingOperationInProg)
		if err := c.Router.ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 0); err != nil {
			t.Fatal(err)
		}
		same(t, 100, len(find(t, c.Router, `{}`)))
		tidy(t, c)
	})
}

// TestAnUpdateOfManyDoesNotHappenTwiceAcrossTheRewrite: what it changed before the switch, it
// does not change again; it ends with an error when it cannot know.
func TestAnUpdateOfManyDoesNotHappenTwiceAcrossTheRewrite(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shelf(t, c.Router, 200)
		other := c.NewRouter(router.Settings{})
		for i := range 20 {
			var all sync.WaitGroup
			all.Go(func() {
				results, err := other.Write(ctx, ns, router.Writes{Statements: []router.Statement{many(updateOf(t, `{"v": {"$gte": 0}}`, `{"$inc": {"v": 1}}`))}})
				var m *mongoerr.Error
				if err == nil && results[0].Err != nil {
					err = results[0].Err
				}
				if err != nil && (!errors.As(err, &m) || m.Code != mongoerr.QueryPlanKilled) {
					t.Error(err)
				}
			})
			_ = c.Host.Sleep(ctx, time.Duration(i)*200*time.Microsecond)
			if err := c.Router.Reshard(ctx, ns, key1(t, []string{`{"k": 1}`, `{"pad": 1}`}[i%2]), router.Layout{}, 0); err != nil {
				t.Fatal(err)
			}
			all.Wait()
			for _, text := range find(t, c.Router, fmt.Sprintf(`{"v": {"$gt": %d}}`, i+1)) {
				t.Fatalf("round %d: %s was changed twice", i, text)
			}
		}
		tidy(t, c)
	})
}

// TestARefinedKeyDividesWhatOneValueFilled refines the key of a collection with two values
// under traffic, and finds more chunks than values, cut also where they were before.
func TestARefinedKeyDividesWhatOneValueFilled(t *testing.T) {
	in(t, routertest.Options{Settings: small}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		shard(t, c.Router, `{"g": 1}`, `{"g": 1}`)
		var list []router.Statement
		for i := range 600 {
			list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "g": %d, "k": %d, "pad": "%s"}`, i, i%2, i*31%600, strings.Repeat("x", i%80))))
		}
		write(t, c.Router, list...)
		before := find(t, c.Router, `{}`)
		n := key1(t, `{"g": 1, "k": 1}`, `{"g": 1}`)
		n.Only = false
		if err := c.Router.Reshard(ctx, ns, n, router.Layout{}, 0); err != nil {
			t.Fatal(err)
		}
		coll := c.State().CollectionByName("db", "c")
		if got := c.State().NumChunks(coll.ID); got < 6 {
			t.Errorf("%d chunks", got)
		}
		after := find(t, c.Router, `{}`)
		slices.Sort(before)
		slices.Sort(after)
		same(t, before, after)
		same(t, 300, len(find(t, c.Router, `{"g": 1}`)))
		tidy(t, c)
	})
}

// TestAWriteThatIsOnItsWayIsNotLostByTheSwitch: its PUT takes long, the collection, empty so
// far, gets another key meanwhile, and then it is acknowledged: it is there.
func TestAWriteThatIsOnItsWayIsNotLostByTheSwitch(t *testing.T) {
	slow := faultbucket.Rules(host.System(), faultbucket.Rule{Verbs: []layer.Verb{layer.Put}, Prefix: "wal/", Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: 300 * time.Millisecond}})
	in(t, routertest.Options{Settings: small, Plan: slow}, func(t *testing.T, c *routertest.Cluster) {
		ctx := context.Background()
		if err := c.Router.Create(ctx, ns, router.NewCollection{}, 0); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() { write(t, c.NewRouter(router.Settings{}), insertOf(t, `{"_id": 1, "k": 1}`)) })
		_ = c.Host.Sleep(ctx, 10*time.Millisecond) // it is decided, and on its way to the log
		if err := c.Router.ShardCollection(ctx, ns, key1(t, `{"k": 1}`), 0); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		same(t, 1, len(find(t, c.Router, `{}`)))
		tidy(t, c)
	})
}
