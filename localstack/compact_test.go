package localstack_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/compactor/rewrite"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/manifesttest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Six chunks with random keys under steady inserts, updates and deletes, flushed all the time:
// the references of a chunk stay few, a segment is written again a bounded number of times,
// and when it has settled the bucket holds little more than what is live.
func TestSegmentsAreMergedUnderLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := layer.Metrics(membucket.New())
		s := open(t, store, localstack.Options{MemtableBytes: 64 << 10, CollectEvery: 5 * time.Second})
		do(t, s, "admin", bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
		for at := 1; at < 6; at++ {
			do(t, s, "admin", bson.D{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "k", Value: at * 1000}}}})
		}
		rng := rand.New(rand.NewPCG(1, 2))
		model := map[int]int{}
		most := 0
		for n := range 300 {
			var updates bson.A
			for range 60 {
				k := rng.IntN(6000)
				model[k] = n
				updates = append(updates, bson.D{{Key: "q", Value: bson.D{{Key: "k", Value: k}, {Key: "_id", Value: k}}}, {Key: "u", Value: bson.D{{Key: "k", Value: k}, {Key: "_id", Value: k}, {Key: "n", Value: n}, {Key: "pad", Value: strings.Repeat("x", 300)}}}, {Key: "upsert", Value: true}})
			}
			do(t, s, "shop", bson.D{{Key: "update", Value: "orders"}, {Key: "updates", Value: updates}})
			var deletes bson.A
			for range 6 {
				k := rng.IntN(6000)
				delete(model, k)
				deletes = append(deletes, bson.D{{Key: "q", Value: bson.D{{Key: "k", Value: k}, {Key: "_id", Value: k}}}, {Key: "limit", Value: 1}})
			}
			do(t, s, "shop", bson.D{{Key: "delete", Value: "orders"}, {Key: "deletes", Value: deletes}})
			time.Sleep(500 * time.Millisecond)
			for c := range s.Root.State().AllChunks() {
				most = max(most, len(c.Refs))
			}
		}
		if n := count(t, s); n != int64(len(model)) {
			t.Errorf("%d documents, want %d", n, len(model))
		}
		time.Sleep(20 * time.Minute) // the memtable is flushed, replaced segments are deleted
		counts := s.Rewriter().Counts()
		if most > 13 || counts.Merges < 20 {
			t.Errorf("%d references in one chunk, %+v", most, counts)
		}
		if n := count(t, s); n != int64(len(model)) {
			t.Errorf("%d documents, want %d", n, len(model))
		}
		live, refs := int64(0), 0
		for c := range s.Root.State().AllChunks() {
			live += c.Bytes
			refs += len(c.Refs)
		}
		var stored int64
		objects, _, err := store.List(t.Context(), "seg/", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			stored += o.Size
		}
		x, put := s.Rewriter().Shape(), store.Snapshot().Of(layer.Put, layer.Segment).Bytes
		write, space := float64(put)/float64(put-counts.BytesWritten), float64(stored)*x.Space()/float64(named(s.Root.State()))
		t.Logf("each flushed byte was written %.2f times; a point read asks %.1f segments, at most %d; %.2f bytes are stored for each live one", write, x.Read(), x.ReadMost, space)
		if write > 6 || x.ReadMost > 13 || space > 1.3 { // as TestAmplificationIsBounded of the plan promises
			t.Errorf("amplification: write %.2f, read %d, space %.2f", write, x.ReadMost, space)
		}
		t.Logf("at most %d references in a chunk, then %d in all; %d live bytes, %d stored in %d objects; %+v", most, refs, live, stored, len(objects), counts)
		if len(s.Root.State().Jobs()) > 0 || len(s.Root.State().Dropped()) > 0 {
			t.Errorf("jobs %v, dropped %v", s.Root.State().Jobs(), s.Root.State().Dropped())
		}
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		whole(t, store, len(model))
	})
}

// named is how many bytes the segments have that the root refers to.
func named(s *manifest.State) (n int64) {
	seen := make(map[manifest.SegmentID]bool)
	for c := range s.AllChunks() {
		for _, r := range c.Refs {
			if !seen[r.Segment] {
				seen[r.Segment] = true
				n += int64(r.Size)
			}
		}
	}
	return n
}

// whole requires that everything in the store is in order, that it has so many documents, and
// no orphans.
func whole(t *testing.T, b bucket.Bucket, rows int) *fsck.Report {
	t.Helper()
	check := &fsck.Checker{
		Root: manifest.NewRoot(bucket.NewCell(b), manifesttest.Host(3), nil), Bucket: b, Deep: true,
		Open: func(manifest.LocationID) (bucket.Bucket, error) { return b, nil },
	}
	report, err := check.Run(context.Background())
	if err != nil || len(report.Problems) > 0 || report.Rows != int64(rows) {
		t.Fatalf("fsck: %+v, %v", report, err)
	}
	return report
}

// heap is a store with two chunks of many segments each, that nobody serves, and what a
// rewriter on a store with faults does to it.
type heap struct {
	t     *testing.T
	store bucket.Bucket
	rows  int
	host  host.Host
}

// heaped are the objects of a heap that nobody has touched.
var heaped = map[string][]byte{}

// inHeap runs f on a fresh heap, in a bubble.
func inHeap(t *testing.T, f func(t *testing.T, x *heap)) {
	t.Helper()
	fillHeap(t)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour) // it was made in a bubble that began when this one does
		x := &heap{t: t, store: membucket.New(), host: manifesttest.Host(99), rows: 88}
		for key, body := range heaped {
			if _, err := x.store.Put(t.Context(), key, body, bucket.Condition{}); err != nil {
				t.Fatal(err)
			}
		}
		f(t, x)
		whole(t, x.store, x.rows)
	})
}

var filling sync.Mutex

// fillHeap makes the heap, once.
func fillHeap(t *testing.T) {
	filling.Lock()
	defer filling.Unlock()
	if len(heaped) > 0 {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		store := membucket.New()
		s := open(t, store, localstack.Options{MemtableBytes: 4 << 10, UpkeepEvery: -1})
		do(t, s, "admin", bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
		do(t, s, "admin", bson.D{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 50}}}})
		for n := range 12 {
			var docs bson.A
			for k := n; k < 100; k += 12 {
				docs = append(docs, bson.D{{Key: "k", Value: k}, {Key: "_id", Value: k}, {Key: "pad", Value: strings.Repeat("x", 500)}})
			}
			do(t, s, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs}})
			gone := bson.D{{Key: "q", Value: bson.D{{Key: "k", Value: n}, {Key: "_id", Value: n}}}, {Key: "limit", Value: 1}}
			do(t, s, "shop", bson.D{{Key: "delete", Value: "orders"}, {Key: "deletes", Value: bson.A{gone}}})
			time.Sleep(2 * time.Minute)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"meta/", "seg/", "wal/"} {
			page, _, err := store.List(t.Context(), prefix, "", 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range page {
				o, err := store.Get(t.Context(), a.Key, bucket.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				heaped[a.Key] = o.Body
			}
		}
	})
}

// rewriter works on a view of the store of its own.
func (x *heap) rewriter(b bucket.Bucket) *rewrite.Rewriter {
	return rewrite.New(rewrite.Config{
		Root: manifest.NewRoot(bucket.NewCell(b), x.host, nil), Host: x.host, Holder: hex.EncodeToString(binary.BigEndian.AppendUint64(nil, x.host.Uint64())),
		Open: func(manifest.LocationID) (bucket.Bucket, error) { return b, nil },
	})
}

func (x *heap) state() *manifest.State {
	s, _, err := manifest.NewRoot(bucket.NewCell(x.store), x.host, nil).Load(context.Background())
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

// settle merges until there is nothing to merge.
func (x *heap) settle(r *rewrite.Rewriter) {
	x.t.Helper()
	for range 100 {
		if _, _, err := r.Root.Load(context.Background()); err != nil {
			x.t.Fatal(err)
		}
		more, err := r.Pass(context.Background())
		if err != nil {
			x.t.Fatal(err)
		}
		if !more && len(x.state().Jobs()) == 0 {
			return
		}
		time.Sleep(time.Minute)
	}
	x.t.Fatalf("no end: %+v, jobs %v", r.Counts(), x.state().Jobs())
}

// Every request of a pass fails once, before its effect or after it, later, or twice: no row is
// lost or comes back, and another rewriter ends what was begun, jobs included.
func TestAPassThatFailsAnywhereLosesNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Late, faultbucket.Twice, faultbucket.Throttle} {
		t.Run(kind.String(), func(t *testing.T) {
			for n, done := 1, false; !done; n++ {
				inHeap(t, func(t *testing.T, x *heap) {
					b := faultbucket.New(x.store, x.host, faultbucket.FailAt(n, faultbucket.Fault{Kind: kind, Delay: time.Minute}))
					_, err := x.rewriter(b).Pass(t.Context())
					done = b.Calls() < n
					if done && err != nil {
						t.Error(err)
					}
					b.SetPlan(nil)
					b.Wait()
					whole(t, x.store, x.rows)
					x.settle(x.rewriter(x.store))
				})
			}
		})
	}
}

// A pass that is killed leaves its job, and what it stored: its job is expelled by another one
// that saw it for long enough.
func TestAKilledPassIsExpelled(t *testing.T) {
	t.Parallel()
	for n := 1; n < 12; n++ {
		inHeap(t, func(t *testing.T, x *heap) {
			dead := faultbucket.New(x.store, x.host, func(c faultbucket.Call) faultbucket.Fault {
				if c.N >= n {
					return faultbucket.Fault{Kind: faultbucket.Before}
				}
				return faultbucket.Fault{}
			})
			_, _ = x.rewriter(dead).Pass(t.Context())
			whole(t, x.store, x.rows)
			other := x.rewriter(x.store)
			x.settle(other)
			whole(t, x.store, x.rows)
			for c := range x.state().AllChunks() {
				if len(c.Refs) > 3 {
					t.Errorf("%d: chunk %d has %d references: %+v", n, c.ID, len(c.Refs), other.Counts())
				}
			}
		})
	}
}

// Several rewriters at once, on everything: each reference is replaced once, nothing is lost.
func TestRewritersAtOnceDoNotCollide(t *testing.T) {
	t.Parallel()
	inHeap(t, func(t *testing.T, x *heap) {
		slow := faultbucket.New(x.store, x.host, faultbucket.Rules(x.host, faultbucket.Rule{Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Second}}))
		var all sync.WaitGroup
		for range 4 {
			r := x.rewriter(slow)
			all.Go(func() {
				for range 3 {
					if _, err := r.Pass(t.Context()); err != nil {
						t.Error(err)
					}
					_, _, _ = r.Root.Load(t.Context())
				}
			})
		}
		all.Wait()
		x.settle(x.rewriter(x.store))
	})
}

// A deletion that hides nothing any more is gone, and with it what it hid: what is left is what
// is live.
func TestDeletionsGoWithTheOldest(t *testing.T) {
	t.Parallel()
	inHeap(t, func(t *testing.T, x *heap) {
		x.settle(x.rewriter(x.store))
		var rows, live int64
		for c := range x.state().AllChunks() {
			live += c.Rows
			for _, r := range c.Refs {
				rows += int64(r.Rows)
			}
		}
		if live != int64(x.rows) || float64(rows) > 1.25*float64(live) {
			t.Errorf("%d rows, %d live", rows, live)
		}
	})
}
