package sim

import (
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	gcHours = flag.Float64("gchours", 0.5, "how many simulated hours TestNothingLiveIsCollected tries")
	gcFirst = flag.Uint64("gcfirst", 1, "the first of its seeds")
)

// collectedFor is how long each of its clusters lives.
const collectedFor = 15 * time.Minute

// TestNothingLiveIsCollected has collectors race compactors, slow uploads, pins and one another,
// some stopped in their work for a while: no deletion takes away what the root, a pin or a log
// still needs, and in the end everything is there.
func TestNothingLiveIsCollected(t *testing.T) {
	seeds := uint64(*gcHours/collectedFor.Hours()) + 1
	if testing.Short() {
		seeds = 1
	}
	var next atomic.Uint64
	var mu sync.Mutex
	var workers sync.WaitGroup
	events := map[string]int{}
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for n := next.Add(1); n <= seeds; n = next.Add(1) {
				seed := *gcFirst + n - 1
				cfg := Draw(seed)
				cfg.collecting(rand.New(rand.NewPCG(seed, 12)), collectedFor)
				r := simulate(t, cfg, nil)
				mu.Lock()
				for k, v := range r.Events {
					events[k] += v
				}
				mu.Unlock()
				if r.Err != nil {
					t.Errorf("seed %d: %v\n  %v\n  again: go test ./localstack/sim -run TestNothingLiveIsCollected -gchours 0.1 -gcfirst %d", seed, r.Err, r, seed)
				}
			}
		})
	}
	workers.Wait()
	if events["deleted segment"] == 0 || events["deleted log object"] == 0 {
		t.Errorf("nothing was collected in %d seeds: %s", seeds, summary(events))
	}
	t.Logf("%.2f simulated hours: %s", float64(seeds)*collectedFor.Hours(), summary(events))
}
