package layer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/host"
)

// HedgeOptions bound Hedge; zero fields mean the default beside them.
type HedgeOptions struct {
	Percent  int           // 5: at most so many second Gets in a hundred Gets
	DelayMin time.Duration // 5 ms: no second Get is sent earlier
	DelayMax time.Duration // 2 s: nor later, if the budget has one left
}

// Where the delay begins, what it learns from, and what the budget can save up.
const (
	delayStart  = 100 * time.Millisecond
	hedgeSaved  = 10      // second Gets that quiet times can save for loud ones
	hedgeLength = 1 << 20 // bytes; a longer range takes its time for another reason
	percent     = 100
)

// Hedged is a bucket that asks twice when the first answer is late.
type Hedged struct {
	bucket.Bucket
	host host.Host
	o    HedgeOptions

	mu     sync.Mutex // never held across a request
	delay  time.Duration
	budget int // in hundredths of a Get

	sent, won atomic.Int64
}

// Hedge sends a Get a second time when its answer has not come after a delay that about 95
// of 100 answers keep, and returns whichever answer comes first. On object stores one request
// in some hundred takes many times as long as the rest, for reasons that the next one does
// not meet.
//
// Only Gets are hedged: a write that runs twice is two writes. A second Get of the same key
// is a read within the same call, so that both answers are as fresh as one would be. Ranges
// beyond 1 MiB and whole segments go through as they are: they are slow because they are
// long.
//
// The delay is learned: each answer in time makes it 1 % shorter, each late one 19 % longer,
// which is in balance when one in twenty is late. The budget is Percent of the Gets, with at
// most ten saved up, so that a store which is slow altogether is not asked for more. Both
// depend on the order of answers alone, not on chance.
//
// The Get whose answer was not needed is cancelled, and waited for: drivers return at once.
// An error that may pass counts as an answer only when the other Get has failed as well.
func Hedge(b bucket.Bucket, h host.Host, o *HedgeOptions) *Hedged {
	d := &Hedged{Bucket: b, host: h, o: HedgeOptions{Percent: 5, DelayMin: 5 * time.Millisecond, DelayMax: 2 * time.Second}}
	if o != nil {
		if o.Percent > 0 {
			d.o.Percent = o.Percent
		}
		if o.DelayMin > 0 {
			d.o.DelayMin = o.DelayMin
		}
		if o.DelayMax > 0 {
			d.o.DelayMax = o.DelayMax
		}
	}
	d.delay = min(max(delayStart, d.o.DelayMin), d.o.DelayMax)
	return d
}

// HedgeStats says what hedging did.
type HedgeStats struct {
	Sent  int64         // second Gets
	Won   int64         // of them, those whose answer came first
	Delay time.Duration // after which one would be sent now
}

// Stats reads the counters.
func (d *Hedged) Stats() HedgeStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return HedgeStats{Sent: d.sent.Load(), Won: d.won.Load(), Delay: d.delay}
}

// short reports whether an answer is expected to be short.
func short(key string, o bucket.GetOptions) bool {
	if o.Length == 0 {
		return ClassOf(key) != Segment
	}
	return o.Length > 0 && o.Length <= hedgeLength
}

// reading is one of the Gets of a call.
type reading struct {
	obj    bucket.Object
	err    error
	second bool
}

func (r reading) answers() bool { return r.err == nil || final(r.err) }

// Get implements bucket.Bucket.
func (d *Hedged) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	if ctx.Err() != nil || !short(key, o) {
		return d.Bucket.Get(ctx, key, o)
	}
	delay := d.begin()
	both, cancel := context.WithCancel(ctx)
	answers := make(chan reading, 2)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	send := func(second bool) {
		wg.Go(func() {
			obj, err := d.Bucket.Get(both, key, o)
			answers <- reading{obj, err, second}
		})
	}
	send(false)
	first, inTime := d.within(ctx, delay, answers)
	if inTime {
		d.learn(first.answers(), false)
		return first.obj, first.err
	}
	d.learn(ctx.Err() == nil, true)
	if ctx.Err() != nil || !d.afford() {
		first = <-answers
		return first.obj, first.err
	}
	send(true)
	return d.better(answers)
}

// within waits for an answer, but not longer than delay. When both come at once the answer
// counts, so that it makes no difference which of the two select saw.
func (d *Hedged) within(ctx context.Context, delay time.Duration, answers <-chan reading) (reading, bool) {
	wait, stop := d.host.WithTimeout(ctx, delay)
	defer stop()
	select {
	case r := <-answers:
		return r, true
	case <-wait.Done():
	}
	select {
	case r := <-answers:
		return r, true
	default:
		return reading{}, false
	}
}

// better is the first answer of two Gets that is one, else the first Get's error.
func (d *Hedged) better(answers <-chan reading) (bucket.Object, error) {
	r := <-answers
	if !r.answers() {
		if other := <-answers; other.answers() || r.second {
			r = other
		}
	}
	if r.second && r.answers() {
		d.won.Add(1)
	}
	return r.obj, r.err
}

// begin adds a Get's share to the budget and tells the delay.
func (d *Hedged) begin() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.budget = min(d.budget+d.o.Percent, hedgeSaved*percent)
	return d.delay
}

// afford takes a second Get out of the budget.
func (d *Hedged) afford() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.budget < percent {
		return false
	}
	d.budget -= percent
	d.sent.Add(1)
	return true
}

// learn moves the delay towards what 95 of 100 answers keep. Errors that may pass teach
// nothing: a refused connection is fast.
func (d *Hedged) learn(counts, late bool) {
	if !counts {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if late {
		d.delay += d.delay * 19 / 100
	} else {
		d.delay -= d.delay / 100
	}
	d.delay = min(max(d.delay, d.o.DelayMin), d.o.DelayMax)
}

var _ bucket.Bucket = (*Hedged)(nil)
