//go:build mutants && unix

package sim

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/writer"
)

// patience is how long each planted bug may hide: processor time, as this may run beside what
// is more urgent.
const patience = 4 * time.Minute

// used is the processor time of this process.
func used(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestEveryPlantedBugIsFound switches off one rule of the protocol after the other, and
// requires that some seed notices. A bug that no seed finds says that the simulation does
// not try what the rule is for.
func TestEveryPlantedBugIsFound(t *testing.T) {
	for _, m := range writer.Mutants() {
		t.Run(m.String(), func(t *testing.T) {
			writer.SetMutant(m)
			defer writer.SetMutant(0)
			start := used(t)
			seed, r := hunt(t, m.String())
			took := (used(t) - start).Round(100 * time.Millisecond)
			if r == nil {
				t.Fatalf("not found in %v and %d seeds", took, seed)
			}
			t.Logf("found by seed %d after %v: %.200v", seed, took, r.Err)
		})
	}
}

// themes say which kind of trouble each rule is for; see Draw. Seeds of the other themes find
// most of them too, later.
var themes = map[string]uint64{
	"no-seal": 2, "flush-any-epoch": 2, "floor-ignored": 1, "zero-promise": 1, "reads-in-handoff": 1,
	"conflict-is-fenced": 3, "appended-again": 3, "lease-from-reply": 2, "read-without-lease": 2,
	"wal-deleted-early": 3, "retries-not-flushed": 3, "seals-collected": 2, "promise-reused": 1,
	"no-lease-wait": 2, "split-unclipped": 0, "move-unflushed": 1, "data-version-kept": 1, "many-restarted": 3,
	"key-change-in-two-commits": 1, "stale-map-accepted": 0,
	"drop-unflushed": 1, "expired-seen": 1, "gc-by-age": 0, "unreadable-pin-ignored": 0,
	"compacted-against-head": 0, "tombstone-dropped-early": 0, "clip-lost-by-merge": 0, "tie-ignored": 1,
	"located-part-elsewhere": 1, "located-copied-first": 1, "located-retries-tell": 1, "located-page-swept": 1,
}

// aims bend a configuration further towards what the rarest ones need.
var aims = map[string]func(*Config){
	"drop-unflushed": func(c *Config) { c.Mix.Dated = 60 },
	// Collectors, compactors and backups come all the time, and the store loses requests.
	"gc-by-age":              func(c *Config) { c.upkeep(0) },
	"unreadable-pin-ignored": func(c *Config) { c.upkeep(time.Second) },
	"clip-lost-by-merge":     func(c *Config) { c.upkeep(0) },
	// One shard has most chunks, moves take one at a time, and backups are made all the time.
	"tie-ignored": func(c *Config) {
		c.Shards, c.Chaos.Pin, c.Chaos.Move, c.Chaos.Flush, c.Mix.Moving = 2, time.Second, 2*time.Second, 0, 60
		c.Moving, c.IdleFlush = 12, time.Minute
	},
	"located-part-elsewhere": func(c *Config) {
		c.apart()
		c.Chaos.Flush, c.IdleFlush, c.Memtable = 0, time.Minute, 1<<20
	},
	"located-copied-first": func(c *Config) { c.apart() },
	"located-retries-tell": func(c *Config) { c.apart() },
	"located-page-swept": func(c *Config) {
		c.apart()
		c.Copies, c.Chaos.Collect, c.SkewMax = 2*time.Second, time.Second, 0
	},
	// Clocks are right.
	"expired-seen": func(c *Config) { c.Mix.Dated, c.SkewMax = 60, 0 },
	// Chunks are cut right after a flush, with what was written since in memory.
	"split-unclipped": func(c *Config) { c.shapes(rand.New(rand.NewPCG(c.Seed, 8))) },
	// One chunk goes to and fro between two processes that learn late that it did.
	"reads-in-handoff": func(c *Config) {
		c.Writers, c.Shards, c.Chunks, c.Docs, c.Clients = 2, 2, 1, 1, 6
		c.Chaos = Chaos{Move: 700 * time.Millisecond, RouterCrash: 300 * time.Millisecond}
		c.Store = Faults{SlowRoot: 500, SlowMax: 4 * time.Second, LatencyMin: time.Millisecond, LatencyMax: 5 * time.Millisecond}
		c.Net, c.Lease, c.Patience, c.Busy = NetFaults{LatencyMin: 100 * time.Microsecond, LatencyMax: time.Millisecond}, 5*time.Second, 10*time.Second, 30*time.Second
	},
	// A holder is stopped right after a write of his landed, and misses a takeover.
	"lease-from-reply": func(c *Config) {
		c.Writers, c.Shards, c.Chunks, c.Docs, c.Clients = 2, 1, 1, 1, 6
		c.Chaos = Chaos{Aimed: 60, PauseMax: 4 * time.Second, Takeover: 700 * time.Millisecond}
		c.Lease, c.Patience, c.Busy = 300*time.Millisecond, 10*time.Second, 40*time.Second
	},
	// The same, with routers that start anew and know nothing of later holders.
	"read-without-lease": func(c *Config) {
		c.Writers, c.Shards, c.Chunks, c.Docs, c.Clients = 2, 1, 1, 1, 6
		c.Chaos = Chaos{Aimed: 60, PauseMax: 2 * time.Second, Takeover: 500 * time.Millisecond, RouterCrash: 500 * time.Millisecond}
		c.Lease, c.Patience, c.Busy = 300*time.Millisecond, 10*time.Second, 40*time.Second
	},
	// The same, and the log is collected meanwhile.
	"seals-collected": func(c *Config) {
		c.Writers, c.Shards, c.Chunks, c.Docs, c.Clients = 2, 1, 1, 2, 6
		c.Chaos = Chaos{Aimed: 30, PauseMax: 12 * time.Second, Takeover: time.Second, Flush: 400 * time.Millisecond, Collect: 500 * time.Millisecond}
		c.Lease, c.Patience, c.Busy = 300*time.Millisecond, 15*time.Second, 40*time.Second
	},
}

// apart bends a configuration towards chunks that go from bucket to bucket, some of whose documents
// belong to a zone that stays.
func (c *Config) apart() {
	c.Shards, c.Located, c.Chunks = 2, 1, 3
	c.Chaos.Move = time.Second
	c.Moving, c.Mix.Moving = 8, 60
}

// upkeep bends a configuration towards what is done to segments that are there already.
func (c *Config) upkeep(pins time.Duration) {
	c.shapes(rand.New(rand.NewPCG(c.Seed, 8)))
	c.Chaos.Flush, c.Chaos.Compact, c.Chaos.Collect, c.Chaos.Pin = 300*time.Millisecond, 2*time.Second, time.Second, pins
	c.Store.LostBefore, c.Store.LostAfter = 50, 30
	c.Moving, c.Mix.Moving, c.Mix.Dated, c.Placement, c.Think = 0, 0, 0, Placement{}, 50*time.Millisecond
}

// hunt runs seeds of a theme until one fails, or patience ends; then r is nil, and seed is
// how many were tried.
func hunt(t *testing.T, name string) (seed uint64, r *Result) {
	var next atomic.Uint64
	var found atomic.Bool
	var mu sync.Mutex
	var workers sync.WaitGroup
	deadline := used(t) + patience
	side := 2
	if name == "appended-again" {
		side = 1 // what this bug remembers is the program's: two bubbles must not share it
	}
	for range side {
		workers.Go(func() {
			for used(t) < deadline {
				if found.Load() {
					return
				}
				n := next.Add(1)
				cfg := Draw(4*n + themes[name])
				cfg.Stop = &found
				if aim := aims[name]; aim != nil {
					aim(&cfg)
				}
				res := simulate(t, cfg, nil)
				if res.Err == nil {
					continue
				}
				mu.Lock()
				if r == nil {
					seed, r = 4*n+themes[name], &res
				}
				mu.Unlock()
				found.Store(true)
			}
		})
	}
	workers.Wait()
	if r == nil {
		seed = next.Load()
	}
	return seed, r
}
