package sim

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seeds    = flag.Int("seeds", 30, "how many seeds TestSeeds runs")
	first    = flag.Uint64("first", 1, "the first of them")
	oneSeed  = flag.Uint64("seed", 0, "run only this seed, and tell everything")
	showBus  = flag.Bool("steps", false, "with -seed: print every step")
	showLogs = flag.Bool("logs", false, "with -seed: print what the processes log")
)

// TestMain lets garbage lie longer: a simulated cluster is small, and a fifth of the time of its
// runs would go into looking for what is left of the last.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// simulate runs one configuration in a bubble of its own.
func simulate(t *testing.T, cfg Config, logs *slog.Logger) (r Result) {
	synctest.Test(t, func(*testing.T) { r = Run(cfg, logs) })
	return r
}

// TestSeeds runs one simulated cluster per seed: no invariant may break, every history must
// be linearizable, and after the last fault everything must come back.
func TestSeeds(t *testing.T) {
	if *oneSeed != 0 {
		tellOne(t, *oneSeed)
		return
	}
	n := *seeds
	if testing.Short() {
		n = min(n, 5)
	}
	var next atomic.Uint64
	var mu sync.Mutex
	var workers sync.WaitGroup
	var ops, unknown, steps int
	start := time.Now()
	for range runtime.GOMAXPROCS(0) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for {
				i := next.Add(1)
				if i > uint64(n) {
					return
				}
				seed := *first + i - 1
				r := simulate(t, Draw(seed), nil)
				mu.Lock()
				ops, unknown, steps = ops+r.Ops, unknown+r.Unknown, steps+int(r.Steps)
				mu.Unlock()
				if r.Err != nil {
					t.Errorf("seed %d: %v\n  %v\n  again: go test ./localstack/sim -run TestSeeds -seed %d -logs", seed, r.Err, r, seed)
				}
			}
		}()
	}
	workers.Wait()
	t.Logf("%d seeds, %d operations (%d unknown), %d steps in %v", n, ops, unknown, steps, time.Since(start).Round(time.Second))
}

// tellOne runs one seed and prints what happened.
func tellOne(t *testing.T, seed uint64) {
	cfg := Draw(seed)
	cfg.KeepLog = *showBus
	var logs *slog.Logger
	if *showLogs {
		logs = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	t.Logf("%+v", cfg)
	r := simulate(t, cfg, logs)
	for _, line := range r.Log {
		fmt.Println(line)
	}
	t.Log(r)
	if r.Err != nil {
		t.Error(r.Err)
	}
}

// TestSeedsAreReproducible runs seeds twice: a seed is worth nothing if it does not show the
// same run again.
func TestSeedsAreReproducible(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector shuffles goroutines that go on between two steps; this runs without it")
	}
	for seed := uint64(1); seed <= 5; seed++ {
		cfg := Draw(seed)
		cfg.Busy, cfg.Quiet = 30*time.Second, time.Minute
		cfg.Located, cfg.GrowElsewhere = 0, false // pages that are elsewhere are fetched side by side, in any order
		a, b := simulate(t, cfg, nil), simulate(t, cfg, nil)
		if a.Steps != b.Steps || a.Trace != b.Trace {
			t.Errorf("seed %d: %v\nagain:  %v", seed, a, b)
		}
	}
}
