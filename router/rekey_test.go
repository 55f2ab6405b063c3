package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// alternating shards db.c by k at 10, 20 and 30, with the chunks on shard01, 02, 01, 02, and
// a document of each k below 40.
func alternating(t testing.TB, c *routertest.Cluster) {
	t.Helper()
	shard(t, c.Router, `{"k": 1}`, `{"k": 10}`, `{"k": 20}`, `{"k": 30}`)
	coll := c.State().CollectionByName("db", "c")
	i := 0
	for chunk := range c.State().Chunks(coll.ID) {
		if to := []manifest.ShardID{"shard01", "shard02"}[i%2]; chunk.Shard != to {
			c.Move(coll, chunk.Range.Min, to)
		}
		i++
	}
	var list []router.Statement
	for i := range 40 {
		list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "k": %d}`, i, i)))
	}
	write(t, c.Router, list...)
}

// refresh shows a router the newest root.
func refresh(t testing.TB, r *router.Router) {
	t.Helper()
	if _, _, err := r.Root().Load(context.Background()); err != nil {
		t.Error(err)
	}
}

// ids are those of a cursor's next documents.
func ids(t testing.TB, cur *router.Cursor, n int) (list []int) {
	t.Helper()
	docs, err := cur.Batch(context.Background(), n, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range docs {
		list = append(list, int(d.Lookup("_id").AsInt64()))
	}
	return list
}

// upTo is 0 to n-1, or back.
func upTo(n int, back bool) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	if back {
		slices.Reverse(list)
	}
	return list
}

// Documents go from chunk to chunk of one shard, without any change of the root, while a read
// in key order is between these chunks: it shows the moment at which it began.
func TestAnOrderedReadIsOfOneMomentWhileKeysChange(t *testing.T) {
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprint("back ", back), func(t *testing.T) {
			in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
				alternating(t, c)
				order := `{"k": 1}`
				if back {
					order = `{"k": -1}`
				}
				cursor := func(limit int64) *router.Cursor {
					cur, err := c.Router.Find(context.Background(), ns, router.Query{Sort: raw(t, order), First: 3, Limit: limit})
					if err != nil {
						t.Fatal(err)
					}
					return cur
				}
				first := cursor(0)
				seen := ids(t, first, 3)
				write(t, c.Router, updateOf(t, `{"k": 5}`, `{"$set": {"k": 25}}`)) // the first in the collection
				_, err := first.Batch(context.Background(), 0, 1<<20)
				wantCode(t, err, mongoerr.SnapshotUnavailable)
				write(t, c.Router, updateOf(t, `{"k": 25, "_id": 5}`, `{"$set": {"k": 5}}`))
				same(t, upTo(40, back)[:3], seen)

				refresh(t, c.Router)
				cur := cursor(0)
				seen = ids(t, cur, 3)
				for _, k := range [][2]int{{6, 26}, {25, 7}, {13, 33}, {36, 12}} {
					write(t, c.Router, updateOf(t, fmt.Sprintf(`{"k": %d}`, k[0]), fmt.Sprintf(`{"$set": {"k": %d}}`, k[1])))
				}
				same(t, upTo(40, back), append(seen, ids(t, cur, 0)...))

				c.Reset()
				cur = cursor(3) // the first chunk has three
				same(t, upTo(40, back)[:3], ids(t, cur, 0))
				same(t, 1, c.Sent("read"))
				n, err := c.Router.Count(context.Background(), ns, router.Query{})
				if err != nil || n != 40 {
					t.Fatalf("count %d, %v", n, err)
				}
			})
		})
	}
}

// A shard got a chunk after a scatter was planned, and moved a document between it and
// another of its chunks; the other shard was asked for that chunk before. The scatter is
// planned again.
func TestAScatterDoesNotMissADocumentThatFollowedItsChunk(t *testing.T) {
	in(t, routertest.Options{}, func(t *testing.T, c *routertest.Cluster) {
		alternating(t, c)
		write(t, c.Router, updateOf(t, `{"k": 5}`, `{"$set": {"k": 25}}`))
		coll := c.State().CollectionByName("db", "c")
		r := c.NewRouter(router.Settings{Fanout: 1})
		reads := 0
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb != "read" {
				return routertest.Deliver
			}
			if reads++; m.Shard == "shard02" && reads <= 2 {
				// shard01 has answered: its chunk below 10 follows to shard02, and a document
				// in it goes on to a chunk that was there all the time.
				c.Move(coll, nil, "shard02")
				refresh(t, c.Router)
				write(t, c.Router, updateOf(t, `{"k": 35}`, `{"$set": {"k": 4}}`))
			}
			return routertest.Deliver
		})
		n, err := r.Count(context.Background(), ns, router.Query{})
		if err != nil || n != 40 {
			t.Fatalf("count %d after %d reads, %v", n, reads, err)
		}
		if reads <= 2 {
			t.Fatal("it was not planned again")
		}
	})
}

// wantResults runs one statement and compares its counts.
func wantResult(t testing.TB, r *router.Router, s router.Statement, n, modified int64) rpc.WriteResult {
	t.Helper()
	res := write(t, r, s)[0].WriteResult
	if res.N != n || res.Modified != modified {
		t.Fatalf("matched %d, modified %d, want %d and %d", res.N, res.Modified, n, modified)
	}
	return res
}

// An update of many that moves documents ahead of itself into other chunks of the shard
// changes each once, whatever becomes of answers.
func TestAMultiMovesEveryMatchOnce(t *testing.T) {
	in(t, routertest.Options{Shards: 1}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`, `{"k": 10}`, `{"k": 20}`, `{"k": 30}`)
		var list []router.Statement
		for i := range 40 {
			list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "k": %d}`, i, i)))
		}
		write(t, c.Router, list...)
		lost := 0
		c.Fate(func(m routertest.Message) routertest.Fate {
			if m.Verb == "write" && lost < 2 {
				lost++
				return routertest.LoseReply
			}
			return routertest.Deliver
		})
		wantResult(t, c.Router, many(updateOf(t, `{}`, `{"$inc": {"k": 15, "n": 1}}`)), 40, 40)
		same(t, 40, len(find(t, c.Router, `{"n": 1}`)))
		same(t, 15, len(find(t, c.Router, `{"k": {"$gte": 40}}`)))
	})
}

// fleet is a few clients of db.c, each with a router of its own whose map gets old.
type fleet struct {
	t       *testing.T
	c       *routertest.Cluster
	docs    int
	all     sync.WaitGroup
	mu      sync.Mutex
	failed  bool
	done    bool
	scanned int
}

func (f *fleet) fail(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.failed {
		f.t.Errorf(format, args...)
	}
	f.failed, f.done = true, true
}

func (f *fleet) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done
}

// change gives documents other keys, by _id or by key, one at a time or all of a range.
func (f *fleet) change(client, clients, times int) {
	r := f.c.NewRouter(router.Settings{})
	rng := rand.New(rand.NewPCG(uint64(client), 7))
	keys := map[int]int{}
	var past []string
	for i := client; i < f.docs; i += clients {
		keys[i] = i
	}
	for n := range times {
		id := client + clients*rng.IntN(f.docs/clients)
		to := rng.IntN(f.docs)
		filter := fmt.Sprintf(`{"_id": %d}`, id)
		if n%2 == 0 {
			filter = fmt.Sprintf(`{"_id": %d, "k": %d}`, id, keys[id])
		}
		s := updateOf(f.t, filter, fmt.Sprintf(`{"$set": {"k": %d}, "$inc": {"n": 1}}`, to))
		if s.Multi = n%5 == 0; n%7 == 0 && !s.Multi {
			s.Return = rpc.ReturnAfter
		}
		results, err := r.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{s}, Retry: session(byte(client+1), int64(n))})
		if err != nil || results[0].Err != nil || results[0].N != 1 {
			f.fail("client %d, change %d of document %d to %d: %+v, %v, it is %v, past %v", client, n, id, to, results, err, find(f.t, f.c.Router, fmt.Sprintf(`{"_id": %d}`, id)), past)
			return
		}
		past = append(past, fmt.Sprint(n, ":", id, "->", to))
		keys[id] = to
		if f.over() {
			return
		}
	}
}

// read counts and reads all documents, as a whole and one by one: each is there once.
func (f *fleet) read(reader int) {
	r := f.c.NewRouter(router.Settings{})
	ctx := context.Background()
	for n := 0; !f.over(); n++ {
		time.Sleep(time.Duration(1+n%5) * time.Millisecond)
		count, err := r.Count(ctx, ns, router.Query{})
		if err != nil || int(count) != f.docs {
			f.fail("reader %d: count %d, %v", reader, count, err)
			return
		}
		q := router.Query{First: 4}
		switch n % 3 {
		case 1:
			q.Sort = raw(f.t, `{"k": 1}`)
		case 2:
			q.Sort = raw(f.t, `{"k": -1}`)
		}
		seen := map[int64]bool{}
		cur, err := r.Find(ctx, ns, q)
		last, rows := int64(-1), 0
		for err == nil {
			var docs []bson.Raw
			if docs, err = cur.Batch(ctx, 4, 1<<20); len(docs) == 0 {
				break
			}
			for _, d := range docs {
				seen[d.Lookup("_id").AsInt64()] = true
				if k := d.Lookup("k").AsInt64(); n%3 == 1 && k < last || n%3 == 2 && k > last && rows > 0 {
					f.fail("reader %d: %d after %d", reader, k, last)
				} else {
					last = k
				}
				rows++
			}
		}
		if m := router.MongoError(err); err != nil && (m.Code == mongoerr.SnapshotUnavailable || m.Code == mongoerr.CursorNotFound) {
			continue // its owner died
		}
		if err != nil || len(seen) != f.docs || rows != f.docs {
			f.fail("reader %d, kind %d: %d rows of %d documents, %v", reader, n%3, rows, len(seen), err)
			return
		}
		id := n % f.docs
		if found := find(f.t, r, fmt.Sprintf(`{"_id": %d}`, id)); len(found) != 1 {
			f.fail("reader %d: document %d: %v", reader, id, found)
			return
		}
		f.mu.Lock()
		f.scanned++
		f.mu.Unlock()
	}
}

// trouble moves, cuts and takes over.
func (f *fleet) trouble() {
	rng := rand.New(rand.NewPCG(1, 2))
	ctx := context.Background()
	for n := 0; !f.over(); n++ {
		st := f.c.State()
		shards := []manifest.ShardID{"shard01", "shard02", "shard03"}
		to := shards[rng.IntN(len(shards))]
		chunk := st.ChunkOf(st.CollectionByName("db", "c").ID, rowsOf(f.t, f.c, rng.IntN(f.docs)))
		switch h := st.Shard(chunk.Shard); {
		case n%20 == 19:
			_ = f.c.Claim(ctx, to)
		case n%10 == 9 && st.NumChunks(chunk.Collection) < 20:
			at := rng.IntN(f.docs)
			k := rowsOf(f.t, f.c, at)
			if chunk.Range.Contains(k) && string(chunk.Range.Min) != string(k) {
				_, _ = f.c.Root.Commit(ctx, manifest.Edit{Op: f.c.Host.ID16(), Changes: []manifest.Change{
					manifest.Split{Chunk: chunk.At(), Points: []manifest.Bound{{Key: k, BSON: raw(f.t, fmt.Sprintf(`{"k": %d}`, at))}}},
				}})
			}
		case chunk.Shard != to:
			if o, err := f.c.Dial(h.ID, h.Holder, h.Address); err == nil {
				_, _ = o.Move(ctx, &rpc.MoveRequest{
					Header: rpc.Header{Shard: h.ID, Collection: chunk.Collection, RootVersion: st.Version(), Deadline: time.Second}, Chunks: []manifest.ChunkAt{chunk.At()}, To: to,
				})
			}
		}
		time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
	}
}

// rowsOf is where the rows of a shard-key value begin.
func rowsOf(t testing.TB, c *routertest.Cluster, k int) []byte {
	t.Helper()
	b, err := c.Root.State().CollectionByName("db", "c").Key.AppendShardKey(nil, raw(t, fmt.Sprintf(`{"k": %d}`, k)))
	if err != nil {
		t.Error(err)
	}
	return b
}

// Clients change shard keys, of documents here and there, while chunks move and are cut and
// shards are taken over, and answers get lost. Every count is N; every read of all, in any
// order, has each document once; each change happens once.
func TestDocumentsAreConservedWhileKeysChange(t *testing.T) {
	in(t, routertest.Options{Plan: slowly()}, func(t *testing.T, c *routertest.Cluster) {
		const docs, clients = 32, 4
		times := 100
		if testing.Short() {
			times = 30
		}
		shard(t, c.Router, `{"k": 1}`, `{"k": 8}`, `{"k": 16}`, `{"k": 24}`)
		var list []router.Statement
		for i := range docs {
			list = append(list, insertOf(t, fmt.Sprintf(`{"_id": %d, "k": %d}`, i, i)))
		}
		write(t, c.Router, list...)
		rng := rand.New(rand.NewPCG(5, 6))
		var mu sync.Mutex
		c.Fate(func(m routertest.Message) routertest.Fate {
			mu.Lock()
			defer mu.Unlock()
			if m.Verb == "write" && rng.IntN(20) == 0 {
				return routertest.LoseReply
			}
			return routertest.Deliver
		})
		f := &fleet{t: t, c: c, docs: docs}
		var changing sync.WaitGroup
		for i := range clients {
			changing.Go(func() { f.change(i, clients, times) })
		}
		f.all.Go(f.trouble)
		for i := range 2 {
			f.all.Go(func() { f.read(i) })
		}
		changing.Wait()
		f.mu.Lock()
		f.done = true
		f.mu.Unlock()
		f.all.Wait()
		c.Fate(nil)
		sum := 0
		for _, d := range find(t, c.Router, `{}`) {
			if n, ok := raw(t, d).Lookup("n").AsInt64OK(); ok {
				sum += int(n)
			}
		}
		if !f.failed && (sum != clients*times || f.scanned < 20) {
			t.Errorf("%d changes are to be seen, want %d; %d scans", sum, clients*times, f.scanned)
		}
		t.Logf("%d scans, data version %d", f.scanned, c.State().CollectionByName("db", "c").DataVersion)
	})
}

// slowly is a bucket with latency.
func slowly() faultbucket.Plan {
	rng := rand.New(rand.NewPCG(8, 9))
	var mu sync.Mutex
	return func(faultbucket.Call) faultbucket.Fault {
		mu.Lock()
		defer mu.Unlock()
		return faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Duration(1+rng.IntN(10)) * time.Millisecond}
	}
}

// Several change the key of one document, which is all in one chunk, at once and by its _id
// alone: whoever finds it under a key that it has no more looks again.
func TestADocumentIsFoundWhileItsKeyChanges(t *testing.T) {
	in(t, routertest.Options{Shards: 1}, func(t *testing.T, c *routertest.Cluster) {
		shard(t, c.Router, `{"k": 1}`)
		write(t, c.Router, insertOf(t, `{"_id": 0, "k": 0}`))
		const clients, changes = 4, 40
		done := make(chan error, clients)
		for client := range clients {
			r := c.NewRouter(router.Settings{})
			go func() {
				for i := range changes {
					res, err := r.Write(context.Background(), ns, router.Writes{Statements: []router.Statement{
						updateOf(t, `{"_id": 0}`, fmt.Sprintf(`{"$set": {"k": %d}, "$inc": {"n": 1}}`, (7*i+13*client)%50)),
					}})
					if err == nil && (res[0].Err != nil || res[0].N != 1) {
						err = fmt.Errorf("client %d, change %d: %+v", client, i, res[0])
					}
					if err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
		for range clients {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := find(t, c.Router, fmt.Sprintf(`{"n": %d}`, clients*changes)); len(n) != 1 {
			t.Errorf("it was not changed %d times: %v", clients*changes, find(t, c.Router, `{}`))
		}
	})
}
