//go:build mutants

package sim

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/writer"
)

// patience is how long each planted bug may hide.
const patience = 3 * time.Minute

// TestEveryPlantedBugIsFound switches off one rule of the protocol after the other, and
// requires that some seed notices. A bug that no seed finds says that the simulation does
// not try what the rule is for.
func TestEveryPlantedBugIsFound(t *testing.T) {
	for _, m := range writer.Mutants() {
		t.Run(m.String(), func(t *testing.T) {
			writer.SetMutant(m)
			defer writer.SetMutant(0)
			start := time.Now()
			seed, r := hunt(t)
			if r == nil {
				t.Fatalf("not found in %v and %d seeds", time.Since(start).Round(time.Second), seed)
			}
			t.Logf("found by seed %d after %v: %.200v", seed, time.Since(start).Round(100*time.Millisecond), r.Err)
		})
	}
}

// hunt runs seeds until one fails, or patience ends; then r is nil.
func hunt(t *testing.T) (seed uint64, r *Result) {
	var next atomic.Uint64
	var mu sync.Mutex
	var workers sync.WaitGroup
	deadline := time.Now().Add(patience)
	for range 2 {
		workers.Go(func() {
			for time.Now().Before(deadline) {
				mu.Lock()
				done := r != nil
				mu.Unlock()
				if done {
					return
				}
				n := next.Add(1)
				res := simulate(t, Draw(n), nil)
				if res.Err == nil {
					continue
				}
				mu.Lock()
				if r == nil || n < seed {
					seed, r = n, &res
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if r == nil {
		seed = next.Load()
	}
	return seed, r
}
