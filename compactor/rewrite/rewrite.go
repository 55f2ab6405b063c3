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
//   - deletions too, unless the run is the oldest of its chunk: then there is nothing that they
//     could hide;
//   - the retry entries that are in force.
//
// Before a segment is stored it is read back from memory and compared with what was put in;
// before the commit, the rows of a chunk that was merged as a whole are compared with what the
// root counts.
//
// A pass may end anywhere. What a killed one has stored is referenced by nothing; its job is
// expelled by whoever has seen it for long enough, after which GC may delete that. Expelling
// a job that is only slow is safe at any time: its commit conflicts. So the wait needs no clock
// that anybody agrees on.
//
// Passes read and write no more in a second than they may, and bypass the cache, but for what
// they write: its tails, and all of it when it is small, are in the cache of this process
// before the root names it.
//
// The package may change with any release.
package rewrite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/bucket"
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
	Memory   *admission.Account
	Log      *slog.Logger // nil: silent
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
	// BytesPerSecond bounds keys and documents that are read; 32 MiB.
	BytesPerSecond int64
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
	s.BytesPerSecond = cmp.Or(s.BytesPerSecond, 32<<20)
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
	// Bytes are as stored.
	SegmentsIn, BytesIn, RowsIn    int64
	SegmentsOut, BytesOut, RowsOut int64
	// Expelled are jobs of others.
	Expelled int64
	// Backlog is how many chunks the last plan wanted to merge something of.
	Backlog int64
}

// Rewriter merges segments.
type Rewriter struct {
	Config
	store *reader.Store
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
	return &Rewriter{Config: c, store: reader.NewStore(c.Open, nil), seen: make(map[manifest.JobID]time.Duration)}
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
		}
		return more && err == nil
	})
	return nil
}

// Plan is what there is to merge in a state, without the chunks that another job works on.
func (r *Rewriter) Plan(s *manifest.State) []plan.Compaction {
	list := plan.Compactions(s, r.Mine, r.Settings.Merge)
	taken := takenBy(s)
	free := list[:0]
	for _, c := range list {
		if !taken[c.Chunk.ID] {
			free = append(free, c)
		}
	}
	r.count(func(n *Counts) { n.Backlog = int64(len(free)) })
	return free
}

// Pass plans on the newest root that this process knows, and merges as much as one pass may.
// more: there was something to do, so that the next pass should be soon. Errors: those of the
// bucket, Corrupt; a change that came too late is none.
func (r *Rewriter) Pass(ctx context.Context) (more bool, err error) {
	s := r.Root.State()
	if s == nil {
		if s, _, err = r.Root.Load(ctx); err != nil {
			return false, err
		}
	}
	silent := r.silent(s)
	var todo []plan.Compaction
	if s != r.content {
		todo = r.Plan(s)
	}
	if len(todo) == 0 {
		r.content = s
		return len(silent) > 0, r.expel(ctx, silent)
	}
	n, bytes := 0, uint64(0)
	for n < min(len(todo), jobsMax) && (n == 0 || bytes+todo[n].Bytes <= r.Settings.PassBytes) {
		bytes += todo[n].Bytes
		n++
	}
	p := &pass{Rewriter: r, state: s, id: r.Host.ID16()}
	if err := p.register(ctx, todo[:n], silent); err != nil {
		return false, err
	}
	return true, p.run(ctx, todo[:n])
}

// jobsMax bounds the chunks of one pass, and so the size of its commit.
const jobsMax = 64

// pass is one job.
type pass struct {
	*Rewriter
	state  *manifest.State // that was planned on
	id     manifest.JobID
	done   []*merged
	stored []manifest.SegmentRef // one reference of each segment that was stored, or may have been
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
			return errors.Join(context.Cause(ctx), p.leave(ctx))
		case errors.Is(err, errkind.NotFound):
			p.count(func(n *Counts) { n.Lost++ }) // replaced, and collected, while it was read
		default:
			failed = append(failed, fmt.Errorf("merge %d segments of chunk %d: %w", len(todo[i].Inputs()), todo[i].Chunk.ID, err))
		}
	}
	return errors.Join(append(failed, p.finish(ctx))...)
}
