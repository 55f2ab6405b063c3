package wal

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// filled is a log with n objects, of which those below from have been deleted by GC.
func filled(t *testing.T, n, from int) *membucket.Bucket {
	mem := membucket.New()
	l := newLog(mem, testHost(1), 0)
	for i := range n {
		_, err := l.Append(t.Context(), insert(t, i))
		check(t, err)
	}
	for i := range from {
		check(t, mem.Delete(t.Context(), manifest.WALKey(shard, epoch, uint64(i))))
	}
	return mem
}

// A seal goes to the end of the log, whatever its length and floor, with one PUT; a second
// sealer finds it there, with one PUT that is refused.
func TestSealFindsTheEnd(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 3, 7, 8, 9, 10, 127, 128, 129, 200, 255, 256, 700, 1100} {
		for _, from := range []int{0, 1, n / 2, n - 1, n} {
			if from < 0 || from > n {
				continue
			}
			m := layer.Metrics(filled(t, n, from))
			for i := range 2 {
				end, err := seal(t.Context(), m, testHost(uint64(i)), uint64(from))
				check(t, err)
				diff(t, end, uint64(n))
				if got := m.Snapshot().Total(layer.Put).Requests; got != int64(i)+1 {
					t.Errorf("%d objects, floor %d: %d PUTs", n, from, got)
				}
			}
		}
	}
}

// Finding the end of a thousand objects takes a handful of round trips.
func TestSealProbesInFewRounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := testHost(1)
		const trip = 30 * time.Millisecond
		slow := faultbucket.New(filled(t, 1000, 0), h, func(faultbucket.Call) faultbucket.Fault {
			return faultbucket.Fault{Kind: faultbucket.Slow, Delay: trip}
		})
		start := h.Mono()
		_, observed, err := Seal(t.Context(), slow, h, cluster, shard, epoch, 0, epoch+1)
		check(t, err)
		diff(t, observed, h.Mono())
		if rounds := (observed - start) / trip; rounds > 8 {
			t.Errorf("%d round trips", rounds)
		}
	})
}

// Sealers and the owner race, with lost and late answers: the sealers agree on one end, and
// the log holds exactly the acknowledged batches, and at most one more.
func TestRacingSealersAgree(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { race(t, seed) }) })
	}
}

func race(t *testing.T, seed uint64) {
	h := testHost(seed)
	fault := func(k faultbucket.Kind) faultbucket.Rule {
		return faultbucket.Rule{Verbs: []layer.Verb{layer.Put, layer.Head, layer.Get}, OneIn: 20, Fault: faultbucket.Fault{Kind: k, Delay: time.Duration(1+h.Uint64()%800) * time.Millisecond}}
	}
	fb := faultbucket.New(membucket.New(), h, faultbucket.Rules(h, fault(faultbucket.Late), fault(faultbucket.After), fault(faultbucket.Twice), fault(faultbucket.Before), fault(faultbucket.Slow)))
	ctx, cancel := h.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	acked := 0
	wg.Go(func() {
		for l := newLog(fb, testHost(seed+100), 0); ; acked++ {
			if _, err := l.Append(ctx, insert(t, acked)); err != nil {
				wantKind(t, err, errkind.Fenced)
				return
			}
			check(t, h.Sleep(ctx, h.Jitter(20*time.Millisecond)))
		}
	})
	ends := make([]uint64, 3)
	for i := range ends {
		wait := time.Duration(rand.New(rand.NewPCG(seed, uint64(i))).IntN(1000)) * time.Millisecond
		wg.Go(func() {
			check(t, h.Sleep(ctx, wait))
			end, err := seal(ctx, fb, testHost(seed+uint64(i)), 0)
			check(t, err)
			ends[i] = end
		})
	}
	wg.Wait()
	fb.SetPlan(nil)
	fb.Wait()
	end, err := seal(ctx, fb, h, 0)
	check(t, err)
	diff(t, ends, []uint64{end, end, end})
	if got := len(seqs(t, fb, 0, end)); got != acked {
		t.Errorf("%d batches acknowledged, %d in the log", acked, got)
	}
}

// Probing is only an economy: without it the end is found all the same.
func TestSealNeedsNoProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := testHost(1)
		heads := faultbucket.Rule{Verbs: []layer.Verb{layer.Head}, Fault: faultbucket.Fault{Kind: faultbucket.Before}}
		gets := faultbucket.Rule{Verbs: []layer.Verb{layer.Get}, OneIn: 2, Fault: faultbucket.Fault{Kind: faultbucket.Before}}
		for _, rules := range [][]faultbucket.Rule{{heads}, {gets}, {heads, gets}} {
			fb := faultbucket.New(filled(t, 20, 0), h, faultbucket.Rules(h, rules...))
			for range 2 {
				end, err := seal(t.Context(), fb, h, 0)
				check(t, err)
				diff(t, end, uint64(20))
			}
		}
	})
}

// A seal that cannot be made in time says so, and can be made again.
func TestSealEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := testHost(1)
		fb := faultbucket.New(membucket.New(), h, faultbucket.Rules(h, faultbucket.Rule{Verbs: []layer.Verb{layer.Put}, Fault: faultbucket.Fault{Kind: faultbucket.Before}}))
		ctx, cancel := h.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := seal(ctx, fb, h, 0)
		wantKind(t, err, errkind.UnknownOutcome)
		fb.SetPlan(nil)
		end, err := seal(t.Context(), fb, h, 0)
		check(t, err)
		diff(t, end, uint64(0))
	})
}

// A seal has the size by which those who only list a log know it, and nothing else is as small.
func TestASealIsTheSmallestObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := filled(t, 0, 0)
		var b Batch
		check(t, b.Add(Record{Collection: 1, Key: []byte("k"), Op: Delete, Seq: 1}))
		_, err := newLog(mem, testHost(1), 0).Append(t.Context(), &b)
		check(t, err)
		_, _, err = Seal(t.Context(), mem, testHost(2), cluster, shard, epoch, 1, epoch+1)
		check(t, err)
		page, _, err := mem.List(t.Context(), "wal/", "", 0)
		check(t, err)
		if len(page) != 2 || page[0].Size <= SealBytes || page[1].Size != SealBytes {
			t.Errorf("the smallest with a record, and a seal: %+v", page)
		}
	})
}
