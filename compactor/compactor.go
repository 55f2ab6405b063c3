// Package compactor keeps chunks in shape: it cuts those that are too large or too busy, and
// merges small neighbours. What to do is decided by package plan; here it is done.
//
// A cut or a merge is one change of the root and touches no row. To cut, a bound is needed: a
// shard-key value in the middle of the data. Where the middle is, the tails of the chunk's
// segments tell; the value itself is read from the row there. Many jobs are one commit, and
// commits of the upkeep wait for their turn at the root.
//
// Nothing here has to be repeated or undone after a crash: a pass reads the root, plans,
// and commits changes with what it saw as their preconditions. A commit that comes too late
// conflicts, and one whose outcome is unknown is planned again on what there is then. So any
// number of processes may do the upkeep of one shard; each does it for those that it holds.
//
// When there is nothing to do, a pass asks nobody outside of the process, and passes become
// rare.
//
// The package may change with any release.
package compactor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/alarm"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Config is what an Upkeep is made of. Root, Store, Host and Dial are required.
type Config struct {
	Root  *manifest.Root
	Store *reader.Store // reads segments
	Host  host.Host
	Dial  rpc.Dialer
	// Mine are the shards whose chunks it cares for; nil: all.
	Mine func(*manifest.Shard) bool
	Log  *slog.Logger // nil: silent
	// Alarm hears what is Corrupt; nil: nobody does.
	Alarm    *alarm.Bell
	Settings Settings
}

// Settings tune an Upkeep. Zero fields mean the defaults.
type Settings struct {
	Plan plan.Settings
	// Every is the time between two passes that find something to do, Idle the longest between
	// those that do not; 1 s and 10 s.
	Every, Idle time.Duration
	// MergeAfter is how long neighbours must have been small before they are merged; 10 min.
	MergeAfter time.Duration
	// Patience bounds the calls to owners; 10 s.
	Patience time.Duration
}

func (s Settings) withDefaults() Settings {
	for field, value := range map[*time.Duration]time.Duration{
		&s.Every: time.Second, &s.Idle: 10 * time.Second, &s.MergeAfter: 10 * time.Minute, &s.Patience: 10 * time.Second,
	} {
		if *field == 0 {
			*field = value
		}
	}
	return s
}

// Counts count what an Upkeep did.
type Counts struct {
	// Attempts are the searches for a point to cut at, Cuts the chunks cut, Marks those found
	// indivisible, and Merges the pairs merged.
	Attempts, Cuts, Marks, Merges int64
}

// Upkeep cuts and merges chunks.
type Upkeep struct {
	Config
	// small is since when (Mono) pairs of neighbours are to be merged, futile the chunks for
	// which no point was found. Owned by: the pass.
	small  map[pair]time.Duration
	futile map[manifest.ChunkID]try

	mu     sync.Mutex
	counts Counts
	hot    map[manifest.CollectionID]*hotTail
}

// hotTail is a hot tail, and since when and until when (Mono) it was seen.
type hotTail struct {
	plan.HotTail
	since, last time.Duration
	said        bool
}

// hotAfter is how long a hot tail must have been seen before it is spoken of, and hotFor how
// long it is remembered: a chunk that was just cut shows none for a moment.
const (
	hotAfter = time.Minute
	hotFor   = time.Minute
)

type pair struct{ left, right manifest.ChunkID }

// try is a chunk as it was when no point was found.
type try struct {
	version manifest.ChunkVersion
	bytes   int64
}

// New makes an Upkeep.
func New(c Config) *Upkeep {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Mine == nil {
		c.Mine = func(*manifest.Shard) bool { return true }
	}
	c.Settings = c.Settings.withDefaults()
	return &Upkeep{
		Config: c, small: make(map[pair]time.Duration), futile: make(map[manifest.ChunkID]try),
		hot: make(map[manifest.CollectionID]*hotTail),
	}
}

// Counts tells what was done so far.
func (u *Upkeep) Counts() Counts {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.counts
}

func (u *Upkeep) count(f func(*Counts)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f(&u.counts)
}

// Run makes passes until ctx ends.
func (u *Upkeep) Run(ctx context.Context) error {
	u.Host.Repeat(ctx, u.Settings.Every, u.Settings.Idle, func() bool {
		busy, err := u.Pass(ctx)
		if err != nil && ctx.Err() == nil {
			u.Log.Warn("upkeep of chunks failed, the next pass goes on", "cause", err)
			u.Alarm.Hear(err)
		}
		return busy && err == nil
	})
	return nil
}

// Pass plans once and does it. busy: something was done, or is about to be. Errors: those of
// the bucket; a change that came too late is none.
func (u *Upkeep) Pass(ctx context.Context) (busy bool, err error) {
	s := u.Root.State()
	if s == nil {
		if s, _, err = u.Root.Load(ctx); err != nil {
			return false, err
		}
	}
	loads, told := u.loads(ctx, s)
	p := plan.Make(s, func(id manifest.ShardID) bool { return told[id] }, loads, u.Host.Wall().Unix(), u.Settings.Plan)
	u.warn(p.HotTails)
	x := pass{Upkeep: u, s: s, flushed: make(map[manifest.ShardID]bool)}
	ripe := make(map[pair]time.Duration)
	for i := range p.Jobs {
		if job := &p.Jobs[i]; job.Kind == plan.Merge {
			x.merge(ctx, job, ripe)
		} else if err := x.cut(ctx, job); err != nil {
			x.failed = append(x.failed, err)
		}
	}
	u.small = ripe
	if err := x.commit(ctx); err != nil {
		x.failed = append(x.failed, err)
	}
	return len(x.changes) > 0 || len(x.flushed) > 0, errors.Join(x.failed...)
}

// loads asks the owners of the shards that are ours; told are those that answered, and those
// that nobody holds.
func (u *Upkeep) loads(ctx context.Context, s *manifest.State) (plan.Loads, map[manifest.ShardID]bool) {
	loads, told := make(plan.Loads), make(map[manifest.ShardID]bool)
	for _, h := range s.Shards() {
		if !u.Mine(h) {
			continue
		}
		if h.Status == manifest.ShardFree {
			told[h.ID] = true
			continue
		}
		owner, err := u.Dial.Dial(h.ID, h.Holder, h.Address)
		if err != nil {
			continue
		}
		reply, err := owner.Loads(ctx, &rpc.LoadsRequest{Header: rpc.Header{Shard: h.ID, Deadline: u.Settings.Patience}})
		if err != nil {
			continue
		}
		told[h.ID] = true
		for _, l := range reply.Chunks {
			loads[l.ID] = l
		}
	}
	return loads, told
}

// pass is one pass at work.
type pass struct {
	*Upkeep
	s       *manifest.State
	changes []manifest.Change
	did     []func() // to tell when they are committed
	flushed map[manifest.ShardID]bool
	failed  []error
}

// merge merges two neighbours that have been small for long enough; their floors must be equal,
// therefore their owner flushes first.
func (x *pass) merge(ctx context.Context, job *plan.Job, ripe map[pair]time.Duration) {
	left, right := job.Chunks[0], job.Chunks[1]
	key := pair{left.ID, right.ID}
	now := x.Host.Mono()
	since, known := x.small[key]
	if !known {
		since = now
	}
	ripe[key] = since
	switch {
	case now-since < x.Settings.MergeAfter:
	case x.s.EffectiveFloor(left) != x.s.EffectiveFloor(right):
		x.flush(ctx, left)
	default:
		x.changes = append(x.changes, manifest.Merge{Left: left.At(), Right: right.At()})
		x.did = append(x.did, func() {
			x.count(func(c *Counts) { c.Merges++ })
			x.Log.Info("chunks merged", "ns", x.s.Collection(left.Collection).Namespace(), "from", left.MinBSON.String(), "to", right.MaxBSON.String(), "reason", job.Reason)
		})
	}
}

// flush has the owner of a chunk flush, once in a pass: the next one finds the rows in segments.
func (x *pass) flush(ctx context.Context, c *manifest.Chunk) {
	h := x.s.Shard(c.Shard)
	if h.Status == manifest.ShardFree || x.flushed[h.ID] {
		return
	}
	x.flushed[h.ID] = true
	owner, err := x.Dial.Dial(h.ID, h.Holder, h.Address)
	if err == nil {
		_, err = owner.Flush(ctx, &rpc.FlushRequest{Header: rpc.Header{Shard: h.ID, RootVersion: x.s.Version(), Deadline: x.Settings.Patience}})
	}
	if err != nil {
		x.failed = append(x.failed, fmt.Errorf("flush shard %s: %w", h.ID, err))
	}
}

// afterOthers is longer than what was woken at one moment takes to go on.
const afterOthers = 50 * time.Microsecond

// commit commits what was prepared, all or nothing. A conflict is left to the next pass: one
// of the chunks is another by now.
func (x *pass) commit(ctx context.Context) error {
	if len(x.changes) == 0 {
		return nil
	}
	// Others may have waited for the same request, of a segment or of the root, and go on at the
	// same moment: before and after they go first, so that what happens has one order.
	if err := x.Host.Sleep(ctx, afterOthers); err != nil {
		return nil
	}
	_, err := x.Root.Commit(ctx, manifest.Edit{
		Op: x.Host.ID16(), Changes: x.changes, Millis: x.Host.Wall().UnixMilli(), Background: true,
	})
	_ = x.Host.Sleep(ctx, afterOthers)
	switch {
	case errors.Is(err, errkind.Conflict):
		return nil
	case err != nil:
		return fmt.Errorf("commit %d cuts and merges: %w", len(x.changes), err)
	}
	for _, tell := range x.did {
		tell()
	}
	return nil
}

// warn says once of each collection that has a hot tail that it has one.
func (u *Upkeep) warn(seen []plan.HotTail) {
	now := u.Host.Mono()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range seen {
		h := u.hot[t.Collection.ID]
		if h == nil {
			h = &hotTail{since: now}
			u.hot[t.Collection.ID] = h
		}
		if now > h.last+hotFor {
			h.since = now
		}
		h.HotTail, h.last = t, now
		if h.said || now < h.since+hotAfter {
			continue
		}
		h.said = true
		u.Log.Warn("nearly all inserts go to the upper end of one chunk: its owner takes them alone, however many shards there are",
			"ns", t.Collection.Namespace(), "key", t.Collection.Key.String(), "share", fmt.Sprintf("%.0f%%", 100*t.Share), "perSecond", int64(t.Inserts),
			"remedy", plan.HotTailRemedy)
	}
}

// HotTails are the collections of which nearly all inserts go to the upper end of one chunk,
// by name.
func (u *Upkeep) HotTails() []plan.HotTail {
	now := u.Host.Mono()
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []plan.HotTail
	for _, h := range u.hot {
		if now >= h.since+hotAfter && now <= h.last+hotFor {
			list = append(list, h.HotTail)
		}
	}
	slices.SortFunc(list, func(a, b plan.HotTail) int { return cmp.Compare(a.Collection.Namespace(), b.Collection.Namespace()) })
	return list
}
