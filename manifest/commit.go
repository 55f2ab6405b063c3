package manifest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/granarydb/granary/manifest/errkind"
)

// request is one call of Commit.
type request struct {
	ctx  context.Context
	edit Edit
	// sent: a PUT with the Edit may have been sent. left: the caller is gone. Both are
	// guarded by Root.mu.
	sent, left bool

	done  chan struct{} // closed when state and err are set
	state *State
	err   error
}

func (q *request) answer(s *State, err error) {
	q.state, q.err = s, err
	close(q.done)
}

func (q *request) answered() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// round is what the committer is at: the requests it took from the queue together. ctx is
// its own: it ends when the last caller has left.
type round struct {
	ctx      context.Context
	cancel   context.CancelFunc
	requests []*request
	done     chan struct{}
}

func newRound(requests []*request) *round {
	x := &round{requests: requests, done: make(chan struct{})}
	x.ctx, x.cancel = context.WithCancel(context.WithoutCancel(requests[0].ctx))
	return x
}

// deserted tells whether nobody waits for an answer any more. Requires: Root.mu.
func (x *round) deserted() bool {
	return !slices.ContainsFunc(x.requests, func(q *request) bool { return !q.left && !q.answered() })
}

// Commit applies e to the newest state and makes the result the root. Calls that wait while
// a PUT is under way go out together in the next one, each Edit on the result of those
// before it; they share a version, and each fails or lands on its own. The state returned
// holds e and may be newer.
//
// Errors: Conflict and Invalid as Apply, judged on a state that was the newest at some
// moment of the call; nothing was changed. UnknownOutcome: e may have been committed, or
// may still be; commit the same Edit, with the same Op, again to find out: one that landed
// is not applied twice while the root remembers it (RecentOps). The context's cause, without UnknownOutcome, when it ended
// before e was sent; Throttled when the store took nothing for a long time and e was not
// sent; NotFound when there is no root; Corrupt.
func (r *Root) Commit(ctx context.Context, e Edit) (*State, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	q := &request{ctx: ctx, edit: e, done: make(chan struct{})}
	r.mu.Lock()
	r.queue = append(r.queue, q)
	if !r.committing {
		r.committing = true
		go r.committer()
	} else if r.wake != nil && !e.Background {
		r.wake()
	}
	r.mu.Unlock()
	if !await(ctx, q.done) && !r.leave(q) {
		if q.sent {
			r.stats.unknown.Add(1)
			return nil, fmt.Errorf("commit edit %x: %w: %w", e.Op, errkind.UnknownOutcome, context.Cause(ctx))
		}
		return nil, context.Cause(ctx)
	}
	return q.state, q.err
}

// leave takes a caller away whose context ended. The last caller of a round ends it, and
// waits for that; leave reports whether there is an answer after all.
func (r *Root) leave(q *request) bool {
	r.mu.Lock()
	q.left = true
	if i := slices.Index(r.queue, q); i >= 0 {
		r.queue = slices.Delete(r.queue, i, i+1)
		if len(r.queue) == 0 && r.wake != nil {
			r.wake()
		}
	}
	x := r.round
	last := x != nil && slices.Contains(x.requests, q) && x.deserted()
	r.mu.Unlock()
	if last {
		x.cancel()
		<-x.done
	}
	return q.answered()
}

// committer serves the queue until it is empty. One runs at a time, started by a Commit.
func (r *Root) committer() {
	for x := r.nextRound(); x != nil; x = r.nextRound() {
		if wait := r.turns.standBack(r.host.Mono()); wait > 0 {
			_ = r.host.Sleep(x.ctx, wait)
		}
		r.serve(x)
		x.cancel()
		close(x.done)
	}
}

// nextRound takes requests from the queue, after a wait for the background budget when all
// of them are background Edits. It returns nil, and the committer ends, when the queue is
// empty.
func (r *Root) nextRound() *round {
	for {
		now := r.host.Mono()
		r.mu.Lock()
		r.round = nil
		if len(r.queue) == 0 {
			r.committing = false
			r.mu.Unlock()
			return nil
		}
		wait := r.budget(now)
		if wait <= 0 {
			r.round = r.board(now)
			x := r.round
			r.mu.Unlock()
			return x
		}
		ctx, cancel := context.WithCancel(context.Background())
		r.wake = cancel
		r.mu.Unlock()
		_ = r.host.Sleep(ctx, wait) // ends early when the queue changes
		r.mu.Lock()
		r.wake = nil
		r.mu.Unlock()
		cancel()
	}
}

// budget is how long the queue must wait for the next background commit; 0 when somebody
// waits for an Edit in it. Requires: r.mu.
func (r *Root) budget(now time.Duration) time.Duration {
	if !r.paced || slices.ContainsFunc(r.queue, func(q *request) bool { return !q.edit.Background }) {
		return 0
	}
	return r.background + r.o.BackgroundEvery - now
}

// board takes a round from the queue. Requires: r.mu, and a queue that is not empty.
func (r *Root) board(now time.Duration) *round {
	n := min(len(r.queue), groupMax)
	x := newRound(slices.Clone(r.queue[:n]))
	r.queue = slices.Delete(r.queue, 0, n)
	if slices.ContainsFunc(x.requests, func(q *request) bool { return q.edit.Background }) {
		r.paced, r.background = true, now
	}
	return x
}
