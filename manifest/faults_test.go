package manifest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// TestEveryCommitCountsOnce has 50 goroutines on 5 roots, each counting its own shard's
// epoch up 100 times (40 with faults), over a cell that is healthy, or loses, delays and
// refuses requests: every count is exact, no commit is lost or applied twice.
func TestEveryCommitCountsOnce(t *testing.T) {
	const roots, perRoot = 5, 10
	for odds, times := range map[uint64]manifest.Epoch{0: 100, 12: 40} {
		t.Run(fmt.Sprintf("faults 1 in %d", odds), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var shards []manifest.ShardID
				for i := range roots * perRoot {
					shards = append(shards, manifest.ShardID(fmt.Sprintf("s%02d", i)))
				}
				cell := cluster(t, shards...)
				if odds > 0 {
					h := manifesttest.Host(3)
					cell.Fault = func(manifesttest.Request) manifesttest.Fault {
						if h.Uint64()%odds != 0 {
							return manifesttest.Fault{}
						}
						return manifesttest.Fault{Kind: manifesttest.FaultKind(1 + h.Uint64()%5), After: int(h.Uint64() % 20)}
					}
				}
				var all sync.WaitGroup
				for i := 0; i < len(shards); i += perRoot {
					r := manifest.NewRoot(cell, manifesttest.Host(uint64(i)), nil)
					for k := range perRoot {
						shard := shards[i+k]
						all.Go(func() {
							for e := range times {
								if _, err := commit(t.Context(), r, edit(fmt.Sprint(shard, e), manifest.AdvanceFree{Shard: shard, Epoch: e})); err != nil {
									t.Errorf("advance %s from %d: %v", shard, e, err)
									return
								}
							}
						})
					}
				}
				all.Wait()
				cell.Fault = nil
				s := load(t, manifest.NewRoot(cell, manifesttest.Host(1), nil))
				for _, h := range s.Shards() {
					if h.Epoch != times {
						t.Errorf("shard %s counted %d, expected %d", h.ID, h.Epoch, times)
					}
				}
				if err := manifest.Validate(s); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestAnyFaultAtAnyRequest puts every kind of fault on each request of a short script, in
// turn: the script ends as without it, and nothing is applied twice.
func TestAnyFaultAtAnyRequest(t *testing.T) {
	script := func(t *testing.T, cell *manifesttest.MemCell, stale bool) {
		a := manifest.NewRoot(cell, manifesttest.Host(1), nil)
		b := manifest.NewRoot(cell, manifesttest.Host(2), nil)
		steps := []struct {
			r *manifest.Root
			e manifest.Edit
		}{
			{a, edit("1", manifest.Claim{Shard: "a", Holder: "p"})},
			{b, edit("2", manifest.Claim{Shard: "a", Epoch: 1, Holder: "q"})},
			{a, edit("3", put("x"))},
			{b, edit("4", put("y"))},
		}
		for i, step := range steps {
			for {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := step.r.Commit(ctx, step.e)
				cancel()
				if errors.Is(err, errkind.UnknownOutcome) || errors.Is(err, context.DeadlineExceeded) {
					continue // after a request without an answer: the same edit again
				}
				if errors.Is(err, errkind.Conflict) && stale {
					continue // judged on a state that the store passed off as the newest
				}
				if err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				break
			}
		}
		cell.Deliver()
		cell.Fault = nil
		s := load(t, manifest.NewRoot(cell, manifesttest.Host(3), nil))
		if h := s.Shard("a"); h.Epoch != 2 || h.Holder != "q" || len(s.Records(manifest.RecordSetting)) != 2 || s.Version() != 5 {
			t.Errorf("script ended with\n%s", manifesttest.Format(s))
		}
	}
	var faults []manifesttest.Fault
	for kind := manifesttest.LostBefore; kind <= manifesttest.Hang; kind++ {
		faults = append(faults, manifesttest.Fault{Kind: kind})
	}
	for _, after := range []int{1, 2, 3, 5} {
		faults = append(faults, manifesttest.Fault{Kind: manifesttest.Late, After: after})
	}
	for n := 1; n < 14; n++ { // the first request is Create's
		for _, f := range faults {
			t.Run(fmt.Sprintf("%d/%v", n, f), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					cell := cluster(t, "a")
					cell.Fault = func(q manifesttest.Request) manifesttest.Fault {
						if q.N == n {
							return f
						}
						return manifesttest.Fault{}
					}
					script(t, cell, f.Kind == manifesttest.Stale)
				})
			})
		}
	}
}
