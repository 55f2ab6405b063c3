package router

import (
	"context"
	"errors"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// attempts is the patience of one operation: until when it is tried again, and what it has
// seen. Not safe for concurrent use.
type attempts struct {
	r *Router
	// until is the deadline on the router's monotonic clock.
	until time.Duration
	// limited: the client gave the limit.
	limited bool
	// begun: something of the operation was done, or may have been. It is not given up because
	// somebody is busy.
	begun bool
	// remembered: the history has what the operation removes.
	remembered bool
	n          int   // attempts that failed since the last progress
	last       error // why the last one failed
	// fresh: a root was read by a GET that was sent after the operation began, so that the
	// newest known one is no older than the operation.
	fresh bool
	// silent are the holders that failed to answer, as long as they did.
	silent map[manifest.ShardID]silence
}

// silence is how often in a row, and since when, a shard's holder gave no answer.
type silence struct {
	n     int
	since time.Duration // Mono
}

// begin starts the clock of an operation; limit 0 means the router's own patience.
func (r *Router) begin(ctx context.Context, limit time.Duration) (context.Context, *attempts, context.CancelFunc) {
	a := &attempts{r: r, limited: limit > 0}
	if limit <= 0 {
		limit = r.settings.Patience
	}
	a.until = r.host.Mono() + limit
	ctx, cancel := r.host.WithTimeout(ctx, limit)
	return ctx, a, cancel
}

// left is what remains of the deadline; at least a millisecond, since 0 means none to an
// owner.
func (a *attempts) left() time.Duration {
	return max(a.until-a.r.host.Mono(), time.Millisecond)
}

// state is the newest known root; the first one is loaded.
func (a *attempts) state(ctx context.Context) (*manifest.State, error) {
	if s := a.r.root.State(); s != nil {
		return s, nil
	}
	return a.load(ctx)
}

// load reads the root by a GET that is sent now, trying again while the bucket fails.
func (a *attempts) load(ctx context.Context) (*manifest.State, error) {
	for {
		s, _, err := a.r.root.Load(ctx)
		if err == nil {
			a.fresh = true
			return s, nil
		}
		if ctx.Err() != nil || errors.Is(err, errkind.Corrupt) || errors.Is(err, errkind.Invalid) {
			return nil, a.ended(ctx, err)
		}
		if err := a.pause(ctx, err); err != nil {
			return nil, err
		}
	}
}

// again decides whether an operation that failed with cause is tried once more: nil says
// yes, and a fresh root is loaded then; otherwise the error for the client.
func (a *attempts) again(ctx context.Context, cause error) error {
	switch {
	case ctx.Err() != nil:
		return a.ended(ctx, cause)
	case !passing(cause) || errors.Is(cause, admission.Overloaded) && !a.begun:
		return cause
	}
	// The first refusal of a stale map needs no wait: the owner knows the newer one.
	if a.n == 0 && errors.Is(cause, errkind.StaleVersion) {
		a.n, a.last = 1, cause
	} else if err := a.pause(ctx, cause); err != nil {
		return err
	}
	if errors.Is(cause, errkind.Throttled) && !errors.Is(cause, rpc.Unreachable) {
		return nil
	}
	_, err := a.load(ctx)
	return err
}

// passing reports whether an error can be gone at the next attempt. An error with a code for
// clients and no kind is an answer, not a failure to answer.
func passing(err error) bool {
	var m *mongoerr.Error
	return moved(err) || !errors.As(err, &m) && !errors.Is(err, errkind.Corrupt) && !errors.Is(err, errkind.Invalid)
}

// moved reports whether an error is of a kind that says that things are not where, or as, they were
// thought to be, or that somebody is too busy at the moment.
func moved(err error) bool {
	for _, kind := range []error{errkind.StaleVersion, errkind.Fenced, errkind.Throttled, errkind.UnknownOutcome, errkind.SnapshotUnavailable} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// progress forgets the failures so far: something was done.
func (a *attempts) progress() { a.n, a.begun = 0, true }

// pause waits before the next attempt: exponential, jittered, bounded.
func (a *attempts) pause(ctx context.Context, cause error) error {
	d := a.r.settings.BackoffMin << min(a.n, 16)
	a.n, a.last = a.n+1, cause
	if err := a.r.host.Sleep(ctx, a.r.host.Jitter(min(d, a.r.settings.BackoffMax))); err != nil {
		return a.ended(ctx, cause)
	}
	return nil
}

// ended is the error for a client whose operation ran out of time, or was given up.
func (a *attempts) ended(ctx context.Context, cause error) error {
	if ctx.Err() == nil {
		return cause
	}
	if errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, context.Canceled) {
		cause = a.last
	}
	why := ""
	if cause != nil {
		why = ": " + cause.Error()
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return mongoerr.New(mongoerr.Interrupted, "operation was interrupted%s", why)
	case a.limited:
		return mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit%s", why)
	}
	return mongoerr.New(mongoerr.ExceededTimeLimit, "operation was not possible within %s%s", a.r.settings.Patience, why)
}

// nothingDone reports whether a write that failed with err surely had no effect.
func nothingDone(err error) bool {
	if errors.Is(err, errkind.UnknownOutcome) {
		return false
	}
	var m *mongoerr.Error
	return errors.As(err, &m) || errors.Is(err, errkind.StaleVersion) || errors.Is(err, errkind.Fenced) ||
		errors.Is(err, errkind.Throttled) || errors.Is(err, errkind.Invalid)
}
