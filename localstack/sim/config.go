package sim

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Config is one run: everything in it is drawn from the seed, so that seeds differ in what
// they try, not only in the order of the same things.
type Config struct {
	Seed      uint64
	Busy      time.Duration // load and faults
	Quiet     time.Duration // no faults: everything must come back
	Writers   int
	Clients   int
	Shards    int
	Chunks    int
	Docs      int
	Moving    int           // documents whose key changes, in a collection of their own; 0: none
	Pad       int           // bytes carried by each document
	Think     time.Duration // mean wait of a client between operations
	Patience  time.Duration // maxTimeMS of an operation
	Lease     time.Duration
	Memtable  int64 // bytes: small, so that flushes happen
	IdleFlush time.Duration
	Store     Faults
	Net       NetFaults
	Mix       Mix
	Chaos     Chaos
	SkewMax   time.Duration
	DriftMax  float64
	// Upkeep is how often writers cut and merge their chunks, whose target size is ChunkSize
	// bytes, a few documents; 0: never.
	Upkeep    time.Duration
	ChunkSize int64
	Placement Placement
	Copies    time.Duration // between two copies of the root; 0: none are made
	Located   int           // so many of the last shards have buckets of their own, and a zone that may be nowhere else
	// Grow is how often somebody adds a shard or goes on to remove it, and GrowElsewhere whether it
	// has a bucket of its own; 0: never.
	Grow          time.Duration
	GrowElsewhere bool
	// KeepLog records every step's line.
	KeepLog bool
	// Stop, when it is set during the run, ends it: nobody wants the result any more.
	Stop *atomic.Bool
}

// Mix weighs the operations. Moving is how many of a hundred are on moving documents, and Dated
// how many of the rest on documents with dates.
type Mix struct{ Read, Insert, Pair, Inc, Add, Replace, Swap, Delete, Moving, Dated int }

// Chaos is how often, in the mean, something happens to the cluster; 0: never.
type Chaos struct {
	Crash, Pause, Move, Takeover, RouterCrash, Flush, Collect, Term time.Duration
	PauseMax                                                        time.Duration
	Compact, Expire, Pin                                            time.Duration
	// Aimed is the chance in 1/1000 that a writer is paused right after a WAL object of its
	// landed: the moment at which it believes most in itself.
	Aimed int
	// PauseCollector is the chance in 1/1000 that a collector is stopped in the middle of its
	// work, and goes on with what it knew.
	PauseCollector int
}

// Draw makes the configuration of a seed: a mixture drawn evenly, bent towards one theme, so
// that what goes wrong only when several things happen at once is tried often enough.
func Draw(seed uint64) Config {
	r := rand.New(rand.NewPCG(seed, 7))
	c := mixture(seed, r)
	c.Upkeep = oneOf(r, 0, time.Second, 3*time.Second)
	c.ChunkSize = int64(oneOf(r, 1, 1, 2, 3) * (30 + c.Pad))
	switch seed % 4 {
	case 1:
		c.handoffs(r)
	case 2:
		c.takeovers(r)
	case 3:
		c.retries(r)
	default:
		if seed%8 == 0 {
			c.shapes(r)
		}
	}
	// Of its own, so that seeds try what they tried before there was this.
	r = rand.New(rand.NewPCG(seed, 8))
	c.Chaos.Compact = oneOf(r, 0, time.Second, 5*time.Second, 20*time.Second)
	c.keyChanges(r)
	c.placement(rand.New(rand.NewPCG(seed, 9)))
	c.dates(rand.New(rand.NewPCG(seed, 10)))
	r = rand.New(rand.NewPCG(seed, 11))
	c.Chaos.Pin, c.Chaos.PauseCollector = oneOf(r, 0, 0, 3*time.Second, 15*time.Second), oneOf(r, 0, 0, 300)
	c.located(rand.New(rand.NewPCG(seed, 12)))
	c.growing(rand.New(rand.NewPCG(seed, 13)))
	return c
}

// keyChanges: in every other seed some operations are on documents whose shard key changes.
func (c *Config) keyChanges(r *rand.Rand) {
	if r.IntN(2) == 0 {
		return
	}
	c.Moving, c.Mix.Moving = 2+r.IntN(6), oneOf(r, 10, 30, 60)
}

func oneOf[T any](r *rand.Rand, vs ...T) T { return vs[r.IntN(len(vs))] }

// mixture draws everything independently.
func mixture(seed uint64, r *rand.Rand) Config {
	return Config{
		Chunks: 1 + r.IntN(6),
		Seed:   seed, Busy: 90 * time.Second, Quiet: 2 * time.Minute,
		Writers: 2 + r.IntN(2), Clients: 2 + r.IntN(5), Shards: 1 + r.IntN(3),
		Docs: 3 + r.IntN(12), Pad: oneOf(r, 0, 0, 100, 5000),
		Think:     oneOf(r, 50*time.Millisecond, 300*time.Millisecond, 2*time.Second),
		Patience:  oneOf(r, 2*time.Second, 10*time.Second),
		Lease:     oneOf(r, 300*time.Millisecond, 2*time.Second, 5*time.Second),
		Memtable:  oneOf[int64](r, 2<<10, 16<<10, 1<<20),
		IdleFlush: oneOf(r, 2*time.Second, 20*time.Second),
		SkewMax:   oneOf(r, 0, time.Minute, 24*time.Hour),
		DriftMax:  oneOf(r, 0, 0.001, 0.01),
		Store: Faults{
			LostBefore: oneOf(r, 0, 0, 5, 30), LostAfter: oneOf(r, 0, 5, 30, 100), Late: oneOf(r, 0, 0, 5, 30), Twice: oneOf(r, 0, 0, 5, 30),
			Throttled: oneOf(r, 0, 0, 10), LateMax: oneOf(r, time.Second, 10*time.Second, time.Minute),
			LatencyMin: time.Millisecond, LatencyMax: oneOf(r, 2*time.Millisecond, 30*time.Millisecond, 300*time.Millisecond),
			SlowRoot: oneOf(r, 0, 0, 100), SlowMax: oneOf(r, time.Second, 5*time.Second),
		},
		Net: NetFaults{
			LostThere: oneOf(r, 0, 0, 5, 30), LostBack: oneOf(r, 0, 5, 30),
			LatencyMin: 100 * time.Microsecond, LatencyMax: oneOf(r, time.Millisecond, 50*time.Millisecond),
		},
		Mix: Mix{Read: 1 + r.IntN(10), Insert: 1 + r.IntN(5), Pair: r.IntN(3), Inc: 1 + r.IntN(10), Add: r.IntN(5), Replace: r.IntN(3), Swap: r.IntN(5), Delete: r.IntN(4)},
		Chaos: Chaos{
			Crash: oneOf(r, 0, 20*time.Second, time.Minute), Pause: oneOf(r, 0, 10*time.Second, 40*time.Second),
			PauseMax: oneOf(r, time.Second, 15*time.Second, time.Minute),
			Move:     oneOf(r, 0, 2*time.Second, 15*time.Second), Takeover: oneOf(r, 0, 15*time.Second, 45*time.Second),
			RouterCrash: oneOf(r, 0, 30*time.Second), Flush: oneOf(r, 0, 5*time.Second),
			Collect: oneOf(r, 3*time.Second, 20*time.Second), Term: oneOf(r, 0, 0, 30*time.Second), Aimed: oneOf(r, 0, 0, 5, 20),
		},
	}
}

// handoffs: chunks move all the time, and whoever commits learns the outcome late, while
// clients read through routers with old maps.
func (c *Config) handoffs(r *rand.Rand) {
	c.Shards, c.Writers, c.Docs, c.Clients = 2+r.IntN(2), 2, 2+r.IntN(3), 4+r.IntN(3)
	c.Chunks = 1 + r.IntN(3)
	c.Think, c.Lease = 50*time.Millisecond, oneOf(r, 2*time.Second, 5*time.Second)
	c.Chaos.Move = oneOf(r, 300*time.Millisecond, time.Second)
	c.Chaos.Term, c.Chaos.Crash = oneOf(r, 0, 10*time.Second), oneOf(r, 0, 20*time.Second)
	c.Store.SlowRoot, c.Store.SlowMax = oneOf(r, 100, 300), oneOf(r, time.Second, 4*time.Second)
	c.Mix.Read, c.Mix.Delete = 10, 1+r.IntN(4)
	// A new router knows the new owner; the others still ask the old one.
	c.Chaos.RouterCrash = oneOf(r, time.Second, 5*time.Second)
	c.Busy = 40 * time.Second
}

// takeovers: shards are taken from holders that live, or that are stopped for a while right
// after a write of theirs landed.
func (c *Config) takeovers(r *rand.Rand) {
	c.Docs, c.Clients, c.Think = 2+r.IntN(3), 4+r.IntN(3), oneOf(r, 50*time.Millisecond, 300*time.Millisecond)
	c.Lease = oneOf(r, 300*time.Millisecond, 2*time.Second)
	c.Chaos.Takeover, c.Chaos.Aimed = oneOf(r, 3*time.Second, 8*time.Second), oneOf(r, 0, 10, 40)
	c.Chaos.PauseMax, c.Chaos.Flush = oneOf(r, 3*time.Second, 10*time.Second), oneOf(r, 500*time.Millisecond, 2*time.Second)
	c.Store.LatencyMax = oneOf(r, 30*time.Millisecond, 300*time.Millisecond)
	c.Store.Late, c.Store.LateMax = oneOf(r, 5, 50), oneOf(r, time.Second, 10*time.Second)
	c.Mix.Read = 10
}

// retries: answers are lost on every way, and rows leave memory quickly.
func (c *Config) retries(r *rand.Rand) {
	c.Docs, c.Clients, c.Think = 3+r.IntN(5), 4+r.IntN(3), oneOf(r, 50*time.Millisecond, 300*time.Millisecond)
	c.Store.LostAfter, c.Net.LostBack, c.Net.LostThere = oneOf(r, 30, 100), oneOf(r, 50, 150), oneOf(r, 0, 50)
	c.Memtable, c.IdleFlush = oneOf[int64](r, 2<<10, 16<<10), 2*time.Second
	c.Chaos.Flush, c.Chaos.Takeover = oneOf(r, 300*time.Millisecond, time.Second), oneOf(r, 0, 5*time.Second)
	c.Chaos.Crash, c.Chaos.Collect = oneOf(r, 5*time.Second, 20*time.Second), 3*time.Second
	c.Mix.Delete, c.Mix.Insert = 1+r.IntN(4), 3
}

// shapes: documents come and go, and chunks are cut and merged all the time, while they move,
// and while what they have is in memory, on its way, or in segments.
func (c *Config) shapes(r *rand.Rand) {
	c.Shards, c.Docs, c.Chunks, c.Clients = 1+r.IntN(2), 8+r.IntN(5), 1, 4+r.IntN(3)
	c.Think, c.Pad = oneOf(r, 50*time.Millisecond, 300*time.Millisecond), oneOf(r, 0, 0, 100)
	c.Upkeep, c.ChunkSize = oneOf(r, 300*time.Millisecond, time.Second), int64(oneOf(r, 2, 3, 4)*(30+c.Pad))
	c.Chaos.Move, c.Chaos.Flush = oneOf(r, 0, time.Second, 5*time.Second), oneOf(r, 0, 500*time.Millisecond, 2*time.Second)
	c.Mix = Mix{Read: 10, Insert: 6, Pair: 2, Inc: 6, Add: 3, Replace: 1, Swap: 2, Delete: 8}
	c.Busy = 40 * time.Second
}

// collecting: hours in which little is asked for, while collectors, compactors and pins come and
// go, uploads take long, and what was sent arrives late.
func (c *Config) collecting(r *rand.Rand, busy time.Duration) {
	c.Busy, c.Writers, c.Clients, c.Shards, c.Chunks = busy, 2, 2, 1+r.IntN(2), 1+r.IntN(3)
	c.Docs, c.Pad, c.Think, c.Patience = 4+r.IntN(6), 0, oneOf(r, 10*time.Second, 40*time.Second), 10*time.Second
	c.Lease, c.IdleFlush, c.Memtable = 20*time.Second, oneOf(r, 20*time.Second, 2*time.Minute), 2<<10
	c.Upkeep, c.Placement, c.Grow, c.Moving = 0, Placement{}, 0, 0
	c.Mix = Mix{Read: 2, Insert: 3, Pair: 2, Inc: 6, Add: 3, Replace: 1, Swap: 2, Delete: 3}
	c.Chaos = Chaos{
		Crash: oneOf(r, 0, 10*time.Minute), Pause: oneOf(r, 0, 5*time.Minute), PauseMax: oneOf(r, 15*time.Second, 2*time.Minute),
		Flush: time.Minute, Collect: oneOf(r, 30*time.Second, 2*time.Minute), PauseCollector: 300,
		Compact: oneOf(r, time.Minute, 3*time.Minute), Pin: oneOf(r, time.Minute, 5*time.Minute), Takeover: oneOf(r, 0, 5*time.Minute),
	}
	c.Store = Faults{
		LostBefore: oneOf(r, 5, 30), LostAfter: oneOf(r, 5, 30), Late: oneOf(r, 5, 50), Twice: oneOf(r, 0, 30), LateMax: oneOf(r, 10*time.Second, time.Minute),
		LatencyMin: time.Millisecond, LatencyMax: oneOf(r, 30*time.Millisecond, 3*time.Second), SlowRoot: 100, SlowMax: 10 * time.Second,
	}
}
