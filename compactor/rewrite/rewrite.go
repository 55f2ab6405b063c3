// Package rewrite merges segments of chunks, as package plan wants it.
//
// A pass plans, registers a job by commit, writes the merged rows of each run of references
// into fresh segments, and commits all of that as one change of the root, with which the job
// ends. The change names the references that were read. When one of them is not there any
// more, next to the others and with the same clip, that chunk is left as it is and planned
// again: nothing is ever put in the place of what was not read.
//
// What is written is
//
//   - of each key its newest version in the run, with the seq that it has;
//   - deletions too, and rows that have expired, unless the run is the oldest of its chunk: then
//     there is nothing that they could hide. The commit of one that left out expired rows
//     requires that the indexes are still those that said so;
//   - the retry entries that are in force.
//
// Before a segment is stored it is read back from memory and compared with what was put in.
// Before the commit, keys, seqs and counts of the outputs are compared with those of the inputs,
// and the rows of a chunk that was merged as a whole with what the root counts. What does not
// agree is not committed: the chunk stays as it is, and the error is Corrupt.
//
// A pass may end anywhere. What a killed one has stored is referenced by nothing; its job is
// expelled by whoever has seen it for long enough, after which GC may delete that. Expelling
// a job that is only slow is safe at any time: its commit conflicts. So the wait needs no clock
// that anybody agrees on.
//
// Passes read and write no more in a second than they may, in bytes and in requests, so that
// who is served meanwhile does not notice; and they bypass the process's cache, but for what
// they write: its tails, and all of it when it is small, are in the cache before the root names
// it. What a pass reads twice, tails and small segments, it keeps in a small cache of its own.
//
// Any number of Rewriters may work on one store. What one does its job says, and others leave
// these chunks alone: the second of two that choose the same chunk at the same time cannot
// register, and plans again.
//
// The package may change with any release.
package rewrite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/alarm"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Config is what a Rewriter is made of. Root, Open and Host are required.
type Config struct {
	Root *manifest.Root
	Open func(manifest.LocationID) (bucket.Bucket, error)
	Host host.Host
	// Cache is where outputs are put before they are referenced; nil: nowhere.
	Cache *segment.Cache
	// Holder names this Rewriter to others, and no other one; "": it does not find its own
	// jobs again.
	Holder string
	// Mine are the shards whose chunks it cares for; nil: all.
	Mine func(*manifest.Shard) bool
	// Memory is where outputs are built; nil: no bound but SegmentBytes.
	Memory *admission.Account
	Log    *slog.Logger // nil: silent
	// Alarm hears what is Corrupt; nil: nobody does.
	Alarm    *alarm.Bell
	Settings Settings
}

// Settings tune a Rewriter. Zero fields mean the defaults.
type Settings struct {
	Merge plan.MergeSettings
	// SegmentBytes is the size of outputs, as stored; 32 MiB. As much is held in memory; where
	// Config.Memory has less to give, outputs are smaller.
	SegmentBytes int
	// PassBytes bounds what one pass reads, as stored, unless it is one chunk alone; 128 MiB.
	PassBytes uint64
	// BytesPerSecond bounds what is read and written in a second, as stored, and also the keys
	// and documents that come of it; RequestsPerSecond the requests for segments. 0: what the
	// cluster's setting says, without one 32 MiB and 100.
	BytesPerSecond, RequestsPerSecond int64
	// WarmBytes is the size up to which outputs are put into the cache as a whole; 1 MiB.
	WarmBytes uint64
	// Every is the time between two passes that find something to do, Idle the longest between
	// those that do not; 1 s and 15 s.
	Every, Idle time.Duration
	// SilentFor is how long the job of another process is let be; 15 min.
	SilentFor time.Duration
}

func (s Settings) withDefaults() Settings {
	s.SegmentBytes = cmp.Or(s.SegmentBytes, 32<<20)
	s.PassBytes = cmp.Or(s.PassBytes, 128<<20)
	s.WarmBytes = cmp.Or(s.WarmBytes, 1<<20)
	s.Every, s.Idle = cmp.Or(s.Every, time.Second), cmp.Or(s.Idle, 15*time.Second)
	s.SilentFor = cmp.Or(s.SilentFor, 15*time.Minute)
	return s
}

// Counts count what a Rewriter did.
type Counts struct {
	// Merges are the runs of references that were replaced, and Lost those that were read in
	// vain: another change came before.
	Merges, Lost int64
	// SegmentsIn, BytesIn and RowsIn were replaced by SegmentsOut, BytesOut and RowsOut.
	// Bytes are as stored. Expired are rows that were left out.
	SegmentsIn, BytesIn, RowsIn    int64
	SegmentsOut, BytesOut, RowsOut int64
	Expired                        int64
	// Reads, BytesRead, Writes and BytesWritten are the requests for segments and the bytes of
	// their bodies, also of those that came to nothing.
	Reads, BytesRead     int64
	Writes, BytesWritten int64
	// Jobs were registered, and Expelled are those of others that were ended.
	Jobs, Expelled int64
	// Running is how many chunks are being merged now.
	Running int64
	// Backlog is how many chunks the last plan wanted to merge something of, and BacklogBytes
	// how much of them.
	Backlog, BacklogBytes int64
}

// Rewriter merges segments.
type Rewriter struct {
	Config
	store *reader.Store
	open  func(manifest.LocationID) (bucket.Bucket, error) // at the Rewriter's pace
	// seen is since when (Mono) jobs of others are there, and content a state in which there
	// was nothing to merge: what is to merge is a function of the state. Owned by: the pass.
	seen    map[manifest.JobID]time.Duration
	content *manifest.State

	mu     sync.Mutex
	counts Counts
}

// New makes a Rewriter.
func New(c Config) *Rewriter {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Mine == nil {
		c.Mine = func(*manifest.Shard) bool { return true }
	}
	c.Settings = c.Settings.withDefaults()
	r := &Rewriter{Config: c, seen: make(map[manifest.JobID]time.Duration)}
	pacer := layer.NewPacer(c.Host, r.rate)
	r.open = func(id manifest.LocationID) (bucket.Bucket, error) {
		b, err := c.Open(id)
		if err != nil {
			return nil, err
		}
		return pacer.Pace(b), nil
	}
	r.store = reader.NewStore(r.open, nil)
	return r
}

// Counts tells what was done so far.
func (r *Rewriter) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

func (r *Rewriter) count(f func(*Counts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.counts)
}

// Run makes passes until ctx ends.
func (r *Rewriter) Run(ctx context.Context) error {
	r.Host.Repeat(ctx, r.Settings.Every, r.Settings.Idle, func() bool {
		more, err := r.Pass(ctx)
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("merging segments failed, the next pass goes on", "cause", err)
			r.Alarm.Hear(err)
		}
		return more && err == nil
	})
	return nil
}

// Plan is what there is to merge in a state, without the chunks that another job works on.
func (r *Rewriter) Plan(s *manifest.State) []plan.Compaction {
	free := Todo(s, r.Mine, r.Settings.Merge)
	bytes := int64(0)
	for i := range free {
		bytes += int64(free[i].Bytes)
	}
	r.count(func(n *Counts) { n.Backlog, n.BacklogBytes = int64(len(free)), bytes })
	return free
}

// Todo is what there is to merge in the chunks of the shards that are mine, without those that
// a job works on, the most urgent first.
func Todo(s *manifest.State, mine func(*manifest.Shard) bool, set plan.MergeSettings) []plan.Compaction {
	list := plan.Compactions(s, mine, set)
	taken := takenBy(s)
	free := list[:0]
	for _, c := range list {
		if !taken[c.Chunk.ID] {
			free = append(free, c)
		}
	}
	return free
}

// Shape is what the segments of the chunks that it cares for cost, in the newest root that this
// process knows.
func (r *Rewriter) Shape() plan.Shape {
	s := r.Root.State()
	if s == nil {
		return plan.Shape{}
	}
	return plan.Measure(s, r.Mine)
}

// Pass plans on the newest root that this process knows, and merges as much as one pass may.
// more: there was something to do, so that the next pass should be soon. Errors: those of the
// bucket, Corrupt; a change that came too late is none.
func (r *Rewriter) Pass(ctx context.Context) (more bool, err error) {
	p, err := r.pass(ctx, order{room: math.MaxUint64, parting: goodbye})
	return p.more, err
}

// order is what one pass is told: how many bytes it may read, how long it may take to end when it
// is stopped, and whether it judges the jobs of others by the wall clock, too.
type order struct {
	room    uint64
	parting time.Duration
	byWall  bool
}

// passed is what a pass did.
type passed struct {
	more     bool
	bytes    uint64
	tooLarge int // chunks for which there was no room
}

func (r *Rewriter) pass(ctx context.Context, o order) (did passed, err error) {
	s := r.Root.State()
	if s == nil {
		if s, _, err = r.Root.Load(ctx); err != nil {
			return did, err
		}
	}
	silent := r.silent(s, o.byWall)
	var todo []plan.Compaction
	if s != r.content {
		list := r.Plan(s)
		if len(list) == 0 {
			r.content = s
		}
		todo, did.tooLarge = r.choose(list, o.room)
	}
	if len(todo) == 0 {
		did.more = len(silent) > 0
		return did, r.expel(ctx, silent)
	}
	did.more = true
	p := &pass{Rewriter: r, state: s, id: r.Host.ID16(), parting: o.parting, store: r.store.Apart(segment.NewCache(passCache))}
	switch err := p.register(ctx, todo, silent); {
	case errors.Is(err, errkind.Conflict):
		return did, nil // another one is at a chunk of it: the next pass sees that
	case err != nil:
		return did, err
	}
	for i := range todo {
		did.bytes += todo[i].Bytes
	}
	r.count(func(n *Counts) { n.Jobs, n.Running = n.Jobs+1, int64(len(todo)) })
	defer r.count(func(n *Counts) { n.Running = 0 })
	return did, p.run(ctx, todo)
}

const (
	// jobsMax bounds the chunks of one pass, and so the size of its commit.
	jobsMax = 64
	// passCache bounds what a pass keeps of what it reads.
	passCache = 4 << 20
	// passFor is about how long a pass may take at its rate, unless it is one chunk alone.
	passFor = time.Minute
)

// choose takes what one pass does, and tells for how many there is no room at all.
func (r *Rewriter) choose(list []plan.Compaction, room uint64) (todo []plan.Compaction, tooLarge int) {
	most := min(room, r.Settings.PassBytes, uint64(r.rate().Bytes)*uint64(passFor/time.Second)/2)
	bytes, full := uint64(0), false
	for _, c := range list {
		switch {
		case c.Bytes > room:
			tooLarge++
		case full || len(todo) > 0 && bytes+c.Bytes > most:
			full = true
		default:
			todo, bytes = append(todo, c), bytes+c.Bytes
			full = len(todo) == jobsMax
		}
	}
	return todo, tooLarge
}

// pass is one job.
type pass struct {
	*Rewriter
	state   *manifest.State // that was planned on
	id      manifest.JobID
	parting time.Duration
	store   *reader.Store
	done    []*merged
	stored  []manifest.SegmentRef // one reference of each segment that was stored, or may have been
}

// run merges, and commits what was merged even when some of it failed.
func (p *pass) run(ctx context.Context, todo []plan.Compaction) error {
	var failed []error
	for i := range todo {
		m, err := p.merge(ctx, &todo[i])
		switch {
		case err == nil:
			p.done = append(p.done, m)
		case ctx.Err() != nil:
			return errors.Join(context.Cause(ctx), p.finish(ctx))
		case errors.Is(err, errkind.NotFound):
			p.count(func(n *Counts) { n.Lost++ }) // replaced, and collected, while it was read
		default:
			failed = append(failed, fmt.Errorf("merge %d segments of chunk %d: %w", len(todo[i].Inputs()), todo[i].Chunk.ID, err))
		}
	}
	return errors.Join(append(failed, p.finish(ctx))...)
}
