package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/granarydb/granary/manifest/errkind"
)

// serve commits the Edits of a round, and answers every caller that stays.
//
// The state that an Edit is planned on may be one seen earlier: a successful swap proves
// that it still was the newest, for the Edits in it and for those that it refused. Only
// when nothing is left to swap a refusal is checked against a state read for it.
func (r *Root) serve(x *round) {
	p := &patience{r: r, left: r.o.Attempts, wait: pauseMin}
	base, fresh := r.seen.Load(), false
	for races := 0; ; {
		pending := r.pending(x)
		if len(pending) == 0 {
			return
		}
		if base == nil {
			var err error
			if base, err = r.readPatiently(x.ctx, p); err != nil {
				r.giveUp(x, err)
				return
			}
			fresh = true
		}
		d := r.draft(base.state, pending)
		if len(d.in) == 0 {
			if fresh {
				d.refuse()
				return
			}
			base = nil
			continue
		}
		now, mine, err := r.push(x, p, base, d)
		switch {
		case errors.Is(err, errLeft):
			continue
		case err != nil:
			r.giveUp(x, err)
			return
		case mine:
			d.refuse()
			return
		}
		r.settle(base, now, d.in)
		base, fresh = now, true
		if len(r.pending(x)) == 0 {
			return
		}
		if err := r.overtaken(races); err != nil {
			r.giveUp(x, err)
			return
		}
		races++
	}
}

// overtaken notes a lost race. There is no wait: it is winners who stand back (see turns). Errors:
// Throttled after racesMax.
func (r *Root) overtaken(races int) error {
	r.stats.lostRaces.Add(1)
	r.turns.lose(r.host.Mono())
	if races == racesMax {
		return fmt.Errorf("%w: other commits came first %d times", errkind.Throttled, races)
	}
	return nil
}

// pending are the requests of a round that still want an answer, as they arrived.
func (r *Root) pending(x *round) []*request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(x.requests), func(q *request) bool { return q.left || q.answered() })
}

// giveUp answers all that is left of a round with an error. When the callers are gone there
// is nobody to answer, and each has found its own words.
func (r *Root) giveUp(x *round, err error) {
	if x.ctx.Err() != nil {
		return
	}
	for _, q := range r.pending(x) {
		if q.sent {
			r.stats.unknown.Add(1)
			q.answer(nil, fmt.Errorf("commit edit %x: %w: %w", q.edit.Op, errkind.UnknownOutcome, err))
		} else {
			q.answer(nil, fmt.Errorf("commit edit %x: nothing was sent: %w", q.edit.Op, err))
		}
	}
}

// draft is a state with the Edits that fit, and what became of the others.
type draft struct {
	next *State
	in   []*request
	out  []refusal
}

type refusal struct {
	q   *request
	err error
}

// refuse answers those whose Edit did not fit.
func (d *draft) refuse() {
	for _, x := range d.out {
		x.q.answer(nil, x.err)
	}
}

// draft applies the Edits of the pending requests, each on the result of those before it.
// A request whose Edit has landed already, in an earlier attempt, is answered.
func (r *Root) draft(base *State, pending []*request) *draft {
	d := &draft{next: base}
	nonce := r.host.ID16()
	for _, q := range pending {
		if _, ok := base.HasOp(q.edit.Op); ok {
			q.answer(base, nil)
			continue
		}
		if _, ok := d.next.HasOp(q.edit.Op); ok {
			d.in = append(d.in, q) // the same Edit twice in the queue
			continue
		}
		s, err := applyAt(d.next, q.edit, nonce, base.version+1)
		if err == nil && base.format.MinWriter > FormatVersion {
			err = invalid("commit", "edit", "the root asks for format %s, this release writes %s: install a newer granary",
				base.format, formatName(FormatVersion))
		}
		if err != nil {
			d.out = append(d.out, refusal{q, err})
			continue
		}
		d.next, d.in = s, append(d.in, q)
	}
	return d
}

// errLeft: a caller left before its Edit was sent, so the draft must be made without it.
var errLeft = errors.New("a caller left")

// push sends a draft until it is known what became of it. mine tells that this very state
// is now the root; otherwise now is what was read, and the tag that the draft was for is
// gone: the draft has landed, by an earlier send, or never will.
func (r *Root) push(x *round, p *patience, base *snapshot, d *draft) (now *snapshot, mine bool, err error) {
	next, copied := r.markCopy(base.state, d)
	next, objects, err := r.spill(next, base.state.version)
	if err != nil {
		return nil, false, err
	}
	body, err := EncodeRoot(next)
	if err != nil {
		return nil, false, err
	}
	if err := r.writePages(x.ctx, objects); err != nil {
		return nil, false, err
	}
	if !r.markSent(d.in) {
		return nil, false, errLeft
	}
	for {
		sent := r.host.Mono()
		tag, err := r.cell.Swap(x.ctx, RootKey, body, base.tag)
		if err == nil {
			r.turns.win(r.host.Mono(), r.host.Mono()-sent)
			now, err := r.landed(x, next, tag, d, body, copied)
			return now, true, err
		}
		if !errors.Is(err, errkind.Throttled) {
			if !errors.Is(err, errkind.Conflict) {
				r.stats.unclear.Add(1)
			}
			now, err := r.readPatiently(x.ctx, p)
			if err != nil {
				return nil, false, err
			}
			if now.tag != base.tag {
				return now, false, nil
			}
		}
		// Not applied, or not yet: the same bytes under the same condition can land once
		// at most, however often they are sent.
		if err := p.pause(x.ctx, err); err != nil {
			return nil, false, err
		}
	}
}

// landed publishes a state that the cell took, and answers the callers whose Edits are in
// it.
func (r *Root) landed(x *round, next *State, tag string, d *draft, body []byte, copied bool) (*snapshot, error) {
	now, err := r.publish(next, tag)
	if err != nil {
		return nil, err
	}
	r.stats.commits.Add(1)
	r.stats.edits.Add(int64(len(d.in)))
	r.stats.bytes.Add(int64(len(body)))
	if copied {
		// For repair only, so a failure is no failure of the commit; before the answers,
		// so that nothing runs when nobody waits.
		ctx, cancel := r.host.WithTimeout(x.ctx, copyTimeout)
		_, _ = r.cell.Swap(ctx, HistoryKey(next.version), body, "")
		cancel()
	}
	for _, q := range d.in {
		q.answer(now.state, nil)
	}
	return now, nil
}

// copyTimeout bounds what a copy under meta/history may cost a commit.
const copyTimeout = 2 * time.Second

// declaredEvery is the time between two copies of which the second has what people declared
// since: that is seldom, and nothing but the root knows it.
const declaredEvery = time.Second

// markCopy decides whether this version is kept as a copy, by the time since the last one.
func (r *Root) markCopy(base *State, d *draft) (next *State, copied bool) {
	if r.o.HistoryEvery <= 0 {
		return d.next, false
	}
	millis, declared := int64(0), false
	for _, q := range d.in {
		millis = max(millis, q.edit.Millis)
		declared = declared || slices.ContainsFunc(q.edit.Changes, declares)
	}
	since := millis - base.copiedMillis
	// The last copy may be by a clock that is ahead.
	if since < r.o.HistoryEvery.Milliseconds() && (!declared || max(since, -since) < declaredEvery.Milliseconds()) {
		return d.next, false
	}
	s := *d.next
	s.copiedMillis = max(millis, base.copiedMillis+1)
	return &s, true
}

// declares reports whether a change is about what there is to be: collections and shards.
func declares(c Change) bool {
	switch c.(type) {
	case CreateCollection, ReshapeCollection, AlterCollection, DropCollection, AddShards, RemoveShard, SetShardZones:
		return true
	}
	return false
}

// markSent notes that the Edits of these requests may take effect from now on. It refuses
// when one of the callers has left: what is not sent yet is never sent for it.
func (r *Root) markSent(in []*request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.ContainsFunc(in, func(q *request) bool { return q.left }) {
		return false
	}
	for _, q := range in {
		q.sent = true
	}
	return true
}

// settle looks for the Edits of a draft, made on base, in a later state. One that is not
// there was not applied and never will be, since the tag of base is gone; unless now is so
// much later that it no longer knows.
func (r *Root) settle(base, now *snapshot, in []*request) {
	for _, q := range in {
		if _, ok := now.state.HasOp(q.edit.Op); ok {
			q.answer(now.state, nil)
			continue
		}
		if !now.state.KnowsOpsSince(base.state.version) {
			r.stats.unknown.Add(1)
			q.answer(nil, fmt.Errorf("commit edit %x: %w: root went from version %d to %d, which no longer names the Edits in between",
				q.edit.Op, errkind.UnknownOutcome, base.state.version, now.state.version))
			continue
		}
		r.mu.Lock()
		q.sent = false
		r.mu.Unlock()
	}
}

// patience is what is left of a round's attempts, and how long the next wait is.
type patience struct {
	r    *Root
	left int
	wait time.Duration
}

// pause waits before another attempt. cause is why there must be one. Errors: Throttled
// with the cause when the attempts are used up, the context's cause.
func (p *patience) pause(ctx context.Context, cause error) error {
	if p.left--; p.left < 0 {
		return fmt.Errorf("%w: gave up after %d attempts: %w", errkind.Throttled, p.r.o.Attempts, cause)
	}
	d := p.r.host.Jitter(p.wait)
	p.wait = min(2*p.wait, pauseMax)
	return p.r.host.Sleep(ctx, d)
}

// readPatiently reads the root, again after errors that can pass.
func (r *Root) readPatiently(ctx context.Context, p *patience) (*snapshot, error) {
	for {
		now, _, err := r.read(ctx)
		switch {
		case err == nil:
			return now, nil
		case errors.Is(err, errkind.NotFound), errors.Is(err, errkind.Corrupt), errors.Is(err, errkind.Invalid):
			return nil, err
		}
		if err := p.pause(ctx, err); err != nil {
			return nil, err
		}
	}
}

// putPage creates a page object, until it is known to be there. Its name is fresh, so an
// object under it can only be from an attempt of our own.
func (r *Root) putPage(ctx context.Context, o pageWrite) error {
	p := &patience{r: r, left: r.o.Attempts, wait: pauseMin}
	for {
		_, err := o.cell.Swap(ctx, o.key, o.object, "")
		if errors.Is(err, errkind.Conflict) {
			var there []byte
			if there, _, err = o.cell.Load(ctx, o.key, ""); err == nil && !bytes.Equal(there, o.object) {
				return fmt.Errorf("write page %s: %w: another object has this name", o.key, errkind.Corrupt)
			}
		}
		if err == nil {
			r.stats.pagesWritten.Add(1)
			r.stats.bytes.Add(int64(len(o.object)))
			return nil
		}
		if err := p.pause(ctx, err); err != nil {
			return fmt.Errorf("write page %s: %w", o.key, err)
		}
	}
}
