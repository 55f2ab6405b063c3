package balancer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/errkind"
)

// Bounds of a round.
const (
	// roundMax is how long a round sends requests: then it says that it lives, and plans again.
	roundMax = 5 * time.Second
	// commitWait bounds a commit of the record.
	commitWait = 20 * time.Second
)

// round is one round of a balancer. The fields below mu are what became of it.
type round struct {
	b    *Balancer
	last balancing.Round // as recorded when it was planned
	seen []byte          // its body
	once bool            // for somebody who waits, and who does not stay active

	mu       sync.Mutex
	moved    int
	reasons  map[policy.Reason]int
	failures map[manifest.ChunkID]balancing.Failure
	err      error // the last failure of a move
}

// run begins, carries out, and ends. moved: some chunk went, and there may be more to do.
func (r *round) run(ctx context.Context, actions []policy.Action, follow []manifest.Change) (moved bool, err error) {
	if len(actions) == 0 {
		return false, r.tidy(ctx, follow)
	}
	h := r.b.c.Host
	started := h.Mono()
	record := r.last
	record.Holder, record.Address = r.b.c.Holder, r.b.c.Address
	record.Rounds++
	record.InRound, record.Started = true, balancing.Millis(h.Wall().UnixMilli())
	if err := r.record(ctx, record, follow...); err != nil {
		return false, lost(err)
	}
	r.begin()
	r.carryOut(ctx, actions)
	record.InRound, record.Failures = false, r.waiting()
	if r.once {
		record.Holder = ""
	}
	// Whoever waits for the end of the round waits for this, also when the process is told
	// to stop.
	if err := r.record(context.WithoutCancel(ctx), record, r.note(len(actions), h.Mono()-started)); err != nil {
		return false, lost(err)
	}
	r.b.c.Log.Info("chunks were moved", "chunks", r.moved, "reasons", r.reasons, "failed", len(r.failures))
	return r.moved > 0, nil
}

// tidy makes shards drain that should, and ends a round that a balancer left.
func (r *round) tidy(ctx context.Context, follow []manifest.Change) error {
	if !r.last.InRound {
		return lost(r.b.commit(ctx, follow...))
	}
	record := r.last
	record.InRound = false
	return lost(r.record(ctx, record, follow...))
}

// begin takes over the failures that still wait.
func (r *round) begin() {
	r.reasons, r.failures = map[policy.Reason]int{}, map[manifest.ChunkID]balancing.Failure{}
	for _, f := range r.last.Failures {
		r.failures[f.Chunk] = f
	}
}

// lost is the error of a commit, but for one that another balancer's came before.
func lost(err error) error {
	if errors.Is(err, errkind.Conflict) {
		return nil
	}
	return err
}

// record commits the record over the one that was seen last.
func (r *round) record(ctx context.Context, to balancing.Round, also ...manifest.Change) error {
	put, err := to.Put(r.seen)
	if err == nil {
		err = r.b.commit(ctx, append(also, put)...)
	}
	if err == nil {
		r.seen = put.Record.Body
	}
	return err
}

func (b *Balancer) commit(ctx context.Context, changes ...manifest.Change) error {
	ctx, cancel := b.c.Host.WithTimeout(ctx, commitWait)
	defer cancel()
	_, err := b.c.Root.Commit(ctx, manifest.Edit{
		Op: b.c.Host.ID16(), Changes: changes, Millis: b.c.Host.Wall().UnixMilli(), Background: true,
	})
	return err
}

// waitMin is the wait after the first failure; the longest is balancing.WaitMax.
const waitMin = 5 * time.Second

// failed makes the chunks of a batch wait.
func (r *round) failed(actions []policy.Action, cause error) {
	if len(actions) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = cause
	for _, a := range actions {
		f := r.failures[a.Chunk.ID]
		f.Collection, f.Chunk = a.Chunk.Collection, a.Chunk.ID
		wait := min(waitMin<<min(f.Tries, 10), balancing.WaitMax)
		f.Tries++
		f.Until = balancing.Millis(r.b.c.Host.Wall().Add(wait).UnixMilli())
		f.Cause = r.b.told(a, cause)
		r.failures[a.Chunk.ID] = f
	}
}

// told is a cause as the root may tell it: errors show keys, and those of a chunk that is kept, or
// would be, in another location are not for the cluster's own bucket.
func (b *Balancer) told(a policy.Action, cause error) string {
	if st := b.c.Root.State(); st.LocationOf(a.From) != 0 || st.LocationOf(a.To) != 0 {
		b.c.Log.Warn("a move did not come about", "chunk", a.Chunk.ID, "from", a.From, "to", a.To, "cause", cause)
		return "a move between shards with locations of their own: the log of the balancer says why it failed"
	}
	return fmt.Sprintf("%.200s", cause.Error())
}

// done counts chunks that went.
func (r *round) done(actions []policy.Action) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moved += len(actions)
	for _, a := range actions {
		r.reasons[a.Reason]++
		delete(r.failures, a.Chunk.ID)
		if a.Reason == policy.Busy {
			r.b.calm = r.b.c.Host.Mono() + calmFor
		}
	}
}

// waiting are the failures to remember: those that wait longest, and those that were tried
// again lately, for their number of tries.
func (r *round) waiting() []balancing.Failure {
	now := r.b.c.Host.Wall().UnixMilli()
	list := slices.SortedFunc(maps.Values(r.failures), func(x, y balancing.Failure) int { return int(y.Until - x.Until) })
	list = slices.DeleteFunc(list, func(f balancing.Failure) bool { return !f.Counts(now) })
	return list[:min(len(list), balancing.FailuresMax)]
}

// note is what the history keeps of the round.
func (r *round) note(wanted int, took time.Duration) manifest.Change {
	n := balancing.RoundNote{Millis: took.Milliseconds(), Wanted: wanted, Moved: r.moved, Reasons: map[string]int{}}
	for reason, chunks := range r.reasons {
		n.Reasons[string(reason)] = chunks
	}
	if r.err != nil {
		n.Error = r.err.Error()
	}
	return n.Change()
}
