package localstack_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/compactor/gc"
	"github.com/granarydb/granary/compactor/rewrite"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A pass over small segments asks the store twice for each of them, for its tail and for its rows,
// stores one for each chunk, and changes the root twice, however many chunks there are.
func TestACompactionCostsFewRequests(t *testing.T) {
	t.Parallel()
	inHeap(t, func(t *testing.T, x *heap) {
		counted := layer.Metrics(x.store)
		r := x.rewriter(counted)
		_, _, err := r.Root.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		todo := r.Plan(r.Root.State())
		inputs := 0
		for i := range todo {
			inputs += len(todo[i].Inputs())
		}
		if len(todo) < 2 || inputs < 8 {
			t.Fatalf("%d chunks with %d inputs are too little", len(todo), inputs)
		}
		before := counted.Snapshot()
		if more, err := r.Pass(t.Context()); err != nil || !more {
			t.Fatal(more, err)
		}
		cost, n := counted.Snapshot().Sub(before), r.Counts()
		t.Logf("%d chunks, %d inputs: %s; %+v", len(todo), inputs, cost, n)
		if seg := cost.Of(layer.Get, layer.Segment).Requests; seg > int64(2*inputs) || seg != n.Reads {
			t.Errorf("%d GETs of %d segments, %d counted", seg, inputs, n.Reads)
		}
		if seg := cost.Of(layer.Put, layer.Segment); seg.Requests != n.SegmentsOut || seg.Requests != int64(len(todo)) || seg.Bytes != n.BytesWritten {
			t.Errorf("%+v PUTs of segments for %d chunks, %+v", seg, len(todo), n)
		}
		if puts, gets := cost.Of(layer.Put, layer.Root).Requests, cost.Of(layer.Get, layer.Root).Requests; puts != 2 || gets > 0 {
			t.Errorf("%d PUTs and %d GETs of the root", puts, gets)
		}
		if lists, deletes := cost.Total(layer.List).Requests, cost.Total(layer.Delete).Requests; lists+deletes > 0 {
			t.Errorf("only GC lists and deletes: %d, %d", lists, deletes)
		}
		if n.Jobs != 1 || n.Running != 0 || n.Merges != int64(len(todo)) {
			t.Errorf("%+v", n)
		}
	})
}

// Two that plan on the same root choose the same chunks: one registers, and the other one reads
// nothing of them.
func TestTheSameWorkIsNotDoneTwice(t *testing.T) {
	t.Parallel()
	inHeap(t, func(t *testing.T, x *heap) {
		slow := faultbucket.New(x.store, x.host, faultbucket.Rules(x.host, faultbucket.Rule{Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Second}}))
		crew := []*rewrite.Rewriter{x.rewriter(slow), x.rewriter(slow), x.rewriter(slow)}
		for _, r := range crew {
			if _, _, err := r.Root.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		todo := len(crew[0].Plan(crew[0].Root.State()))
		var all sync.WaitGroup
		for _, r := range crew {
			all.Go(func() {
				if _, err := r.Pass(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		merges, jobs := int64(0), int64(0)
		for _, r := range crew {
			n := r.Counts()
			merges, jobs = merges+n.Merges, jobs+n.Jobs
			if n.Lost > 0 || n.Jobs == 0 && n.Reads > 0 {
				t.Errorf("worked in vain: %+v", n)
			}
		}
		if merges != int64(todo) || jobs != 1 {
			t.Errorf("%d merges of %d by %d jobs", merges, todo, jobs)
		}
		x.settle(x.rewriter(x.store))
	})
}

// One that is told to stop in the middle commits what it has, and leaves no job.
func TestAPassThatIsStoppedEndsItsJob(t *testing.T) {
	t.Parallel()
	inHeap(t, func(t *testing.T, x *heap) {
		slow := faultbucket.New(x.store, x.host, faultbucket.Rules(x.host, faultbucket.Rule{
			Prefix: "seg/", Verbs: []layer.Verb{layer.Put}, Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Minute},
		}))
		r := x.rewriter(slow)
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		if _, err := r.Pass(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if n := r.Counts(); n.Merges != 1 || len(x.state().Jobs()) > 0 {
			t.Errorf("%+v, jobs %v", n, x.state().Jobs())
		}
		x.settle(x.rewriter(x.store))
	})
}

// Whenever it is told to stop, no job is left.
func TestAPassCanBeStoppedAnywhere(t *testing.T) {
	t.Parallel()
	for at, done := 500*time.Millisecond, false; !done; at += time.Second {
		inHeap(t, func(t *testing.T, x *heap) {
			slow := faultbucket.New(x.store, x.host, faultbucket.Rules(x.host, faultbucket.Rule{Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Second}}))
			ctx, cancel := context.WithTimeout(t.Context(), at)
			defer cancel()
			start := time.Now()
			_, err := x.rewriter(slow).Pass(ctx)
			done = err == nil
			if took := time.Since(start); took > at+5*time.Second || !done && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("stopped after %v: %v, after %v", at, err, took)
			}
			if jobs := x.state().Jobs(); len(jobs) > 0 {
				t.Errorf("stopped after %v: jobs %v", at, jobs)
			}
		})
	}
}

// Ticks of processes that live for one only, each killed at another request, get the work done:
// the next one goes on where the last one was.
func TestTicksGoOnFromAnywhere(t *testing.T) {
	t.Parallel()
	inHeap(t, func(t *testing.T, x *heap) {
		for n := 1; n < 14; n++ {
			dead := faultbucket.New(x.store, x.host, func(c faultbucket.Call) faultbucket.Fault {
				if c.N >= n {
					return faultbucket.Fault{Kind: faultbucket.Before}
				}
				return faultbucket.Fault{}
			})
			_, _ = x.rewriter(dead).Tick(t.Context(), rewrite.Budget{Time: 20 * time.Second})
			time.Sleep(time.Hour) // then its job is old, for whoever comes
		}
		last, err := x.rewriter(x.store).Tick(t.Context(), rewrite.Budget{})
		if err != nil || last.Left || last.TooLarge > 0 {
			t.Errorf("%+v, %v", last, err)
		}
		if left := x.rewriter(x.store).Plan(x.state()); len(left) > 0 || len(x.state().Jobs()) > 0 {
			t.Errorf("%d chunks, jobs %v are left", len(left), x.state().Jobs())
		}
	})
}

// What killed passes have stored, and nobody committed, is gone after two looks at all segments:
// the first deletes what is of jobs that are over, the second what is of those that were not yet.
func TestOrphansAreGoneAfterTwoCycles(t *testing.T) {
	t.Parallel()
	inHeap(t, func(t *testing.T, x *heap) {
		for range 6 {
			stored := false
			dead := faultbucket.New(x.store, x.host, func(c faultbucket.Call) faultbucket.Fault {
				if stored {
					return faultbucket.Fault{Kind: faultbucket.Before}
				}
				stored = c.Verb == layer.Put && strings.HasPrefix(c.Key, "seg/")
				return faultbucket.Fault{}
			})
			_, _ = x.rewriter(dead).Tick(t.Context(), rewrite.Budget{Time: 20 * time.Second})
			time.Sleep(50 * time.Minute)
		}
		before := whole(t, x.store, x.rows)
		if 100*before.OrphanBytes < before.Bytes {
			t.Fatalf("%+v: there are no orphans", before)
		}
		for range 2 {
			s := &gc.Sweeper{Root: manifest.NewRoot(bucket.NewCell(x.store), x.host, nil), Bucket: x.store, Host: x.host}
			if _, err := s.Orphans(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		after := whole(t, x.store, x.rows)
		t.Logf("%d orphans of %d bytes beside %d of segments, then %d of %d", before.Orphans, before.OrphanBytes, before.Bytes, after.Orphans, after.OrphanBytes)
		if 100*after.OrphanBytes > after.Bytes {
			t.Errorf("%d bytes of orphans beside %d", after.OrphanBytes, after.Bytes)
		}
	})
}

// A Tick keeps to its budget, of bytes and of time, and says what it leaves.
func TestTickKeepsToItsBudget(t *testing.T) {
	t.Parallel()
	inHeap(t, func(t *testing.T, x *heap) {
		r := x.rewriter(x.store)
		if got, err := r.Tick(t.Context(), rewrite.Budget{Bytes: 10}); err != nil || got.Merges > 0 || got.TooLarge < 2 || got.Bytes > 0 {
			t.Errorf("nothing fits: %+v, %v", got, err)
		}
		list := r.Plan(r.Root.State())
		first := list[0].Bytes
		if got, err := r.Tick(t.Context(), rewrite.Budget{Bytes: first}); err != nil || got.Merges != 1 || got.Bytes > first || !got.Left && got.TooLarge == 0 {
			t.Errorf("one fits: %+v, %v", got, err)
		}
	})
	inHeap(t, func(t *testing.T, x *heap) {
		slow := faultbucket.New(x.store, x.host, faultbucket.Rules(x.host, faultbucket.Rule{Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: 3 * time.Second}}))
		start := time.Now()
		got, err := x.rewriter(slow).Tick(t.Context(), rewrite.Budget{Time: 20 * time.Second})
		if took := time.Since(start); err != nil || took > 20*time.Second || !got.Left {
			t.Errorf("took %v: %+v, %v", took, got, err)
		}
	})
}

// Rows that have expired are left out of what is written, where nothing older is; whoever counts
// sees no difference, before and after. When the index is dropped while they are left out, nothing
// is left out.
func TestExpiredRowsAreNotWrittenAgain(t *testing.T) {
	t.Parallel()
	for _, dropIndex := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := membucket.New()
			s := open(t, b, localstack.Options{Shards: 1, UpkeepEvery: -1, MemtableBytes: 4 << 10})
			do(t, s, "shop", bson.D{{Key: "createIndexes", Value: "orders"}, {Key: "indexes", Value: bson.A{
				bson.D{{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at_1"}, {Key: "expireAfterSeconds", Value: 60}}}}})
			const each = 100
			for round := range 4 { // in each segment half of the rows live for ever
				var docs bson.A
				for i := range each {
					d := bson.D{{Key: "_id", Value: round*each + i}, {Key: "pad", Value: make([]byte, 100)}}
					if i%2 == 0 {
						d = append(d, bson.E{Key: "at", Value: time.Now()})
					}
					docs = append(docs, d)
				}
				do(t, s, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs}})
				time.Sleep(time.Minute)
			}
			time.Sleep(10 * time.Minute)
			if n := count(t, s); n != 2*each {
				t.Fatalf("%d documents", n)
			}
			changing := faultbucket.New(b, host.System(), faultbucket.Rules(host.System(), faultbucket.Rule{
				Prefix: "seg/", Verbs: []layer.Verb{layer.Put}, Fault: faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Minute},
			}))
			r := rewrite.New(rewrite.Config{
				Root: manifest.NewRoot(bucket.NewCell(changing), host.System(), nil), Host: host.System(),
				Open: func(manifest.LocationID) (bucket.Bucket, error) { return changing, nil },
			})
			done := make(chan error)
			go func() {
				_, err := r.Pass(t.Context())
				done <- err
			}()
			time.Sleep(30 * time.Second)
			want := int64(2 * each)
			if dropIndex {
				do(t, s, "shop", bson.D{{Key: "dropIndexes", Value: "orders"}, {Key: "index", Value: "at_1"}})
				want = 4 * each
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			n := r.Counts()
			if dropIndex && (n.Lost != 1 || n.Merges != 0 || n.Expired != 0) || !dropIndex && (n.Merges != 1 || n.Expired != 2*each || n.RowsOut != 2*each) {
				t.Errorf("index dropped %t: %+v", dropIndex, n)
			}
			if _, _, err := s.Root.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := count(t, s); got != want {
				t.Errorf("%d documents, want %d", got, want)
			}
			if err := s.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			whole(t, b, int(want))
		})
	}
}
