package layer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Rate is how much background work may ask of stores in a second; 0: as much as it likes.
type Rate struct {
	Requests int64
	Bytes    int64 // of bodies, sent and received together
}

// paceSlack is how far ahead of its rate work may be before it waits: many short waits would
// cost more than they spare.
const paceSlack = 100 * time.Millisecond

// Pacer keeps background work at a rate, over all the buckets that it paces. A request pays
// when it is sent, and for what it received when that is there: the next one waits until both
// are paid. So a large body goes out at once, and is followed by a pause.
type Pacer struct {
	host host.Host
	rate func() Rate

	mu   sync.Mutex
	free time.Duration // when (Mono) all is paid
}

// NewPacer makes a Pacer. rate is asked at every request.
func NewPacer(h host.Host, rate func() Rate) *Pacer { return &Pacer{host: h, rate: rate} }

// Pace is b at the Pacer's rate. Waiting ends with the context; a Put or Delete that was not
// sent then is Throttled.
func (p *Pacer) Pace(b bucket.Bucket) bucket.Bucket { return paced{b, p} }

// pay books what was spent, and tells how long to wait for what was spent before.
func (p *Pacer) pay(requests, bytes int64) (wait time.Duration) {
	rate, cost := p.rate(), time.Duration(0)
	if rate.Requests > 0 {
		cost += time.Duration(float64(requests) / float64(rate.Requests) * float64(time.Second))
	}
	if rate.Bytes > 0 {
		cost = max(cost, time.Duration(float64(bytes)/float64(rate.Bytes)*float64(time.Second)))
	}
	now := p.host.Mono()
	p.mu.Lock()
	defer p.mu.Unlock()
	start := max(p.free, now)
	p.free = start + cost
	return start - now
}

// enter waits for a request's turn.
func (p *Pacer) enter(ctx context.Context, verb, key string, bytes int) error {
	wait := p.pay(1, int64(bytes))
	if wait < paceSlack {
		return nil
	}
	if err := p.host.Sleep(ctx, wait); err != nil {
		return fmt.Errorf("%s %s: waiting for the turn of background work: %w", verb, key, err)
	}
	return nil
}

type paced struct {
	b bucket.Bucket
	p *Pacer
}

func (x paced) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	if err := x.p.enter(ctx, "get", key, 0); err != nil {
		return bucket.Object{}, err
	}
	obj, err := x.b.Get(ctx, key, o)
	x.p.pay(0, int64(len(obj.Body)))
	return obj, err
}

func (x paced) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	if err := x.p.enter(ctx, "head", key, 0); err != nil {
		return bucket.Attrs{}, err
	}
	return x.b.Head(ctx, key)
}

func (x paced) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	if err := x.p.enter(ctx, "put", key, len(body)); err != nil {
		return "", fmt.Errorf("%w: %w", errkind.Throttled, err)
	}
	return x.b.Put(ctx, key, body, c)
}

func (x paced) Delete(ctx context.Context, key string) error {
	if err := x.p.enter(ctx, "delete", key, 0); err != nil {
		return fmt.Errorf("%w: %w", errkind.Throttled, err)
	}
	return x.b.Delete(ctx, key)
}

func (x paced) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	if err := x.p.enter(ctx, "list", prefix, 0); err != nil {
		return nil, false, err
	}
	return x.b.List(ctx, prefix, after, max)
}

func (x paced) String() string { return x.b.String() }

func (x paced) Close() error { return x.b.Close() }
