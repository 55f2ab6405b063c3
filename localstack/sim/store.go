package sim

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// Store is the one bucket of a simulated cluster. It keeps what was ever written to the
// WAL, so that a check at the end can tell which operations reached the log, and shows
// every new root to a checker before anyone else sees it.
type Store struct {
	bus   *Bus
	world *Node // the store's own node: steps of requests that are under way
	inner bucket.Bucket
	fault Faults

	// onRoot sees each new body of the root in order, onWAL who put a log object, onPut whatever is
	// written, onDelete what is about to be deleted; all run inside a step.
	onRoot   func(body []byte)
	onWAL    func(n *Node)
	onPut    func(key string, body []byte)
	onDelete func(key string)

	mu     sync.Mutex
	wal    map[string][]byte // every WAL object ever created
	nextID int
	late   sync.WaitGroup
}

// Faults are the chances of each fault per request, in 1/1000, and the latency range.
type Faults struct {
	LostBefore, LostAfter, Late, Twice, Throttled int
	LateMax                                       time.Duration
	LatencyMin, LatencyMax                        time.Duration
	// SlowRoot is the chance that the answer to a write of the root takes up to SlowMax.
	SlowRoot int
	SlowMax  time.Duration
	// Off stops all faults: the quiet time at the end, in which progress is required.
	Off bool
}

// NewStore makes a store over inner, which must not block.
func NewStore(b *Bus, world *Node, inner bucket.Bucket, f Faults) *Store {
	return &Store{bus: b, world: world, inner: inner, fault: f, wal: map[string][]byte{}}
}

// For is the store as one process sees it.
func (s *Store) For(n *Node) bucket.Bucket { return &nodeStore{s: s, n: n} }

// WAL returns every WAL object that was ever created, also those deleted since.
func (s *Store) WAL() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wal
}

// fate is what the seed decided for one request.
type fate struct {
	lostBefore, lostAfter, late, twice, throttled bool
	lateBy, latency, slow                         time.Duration
}

// draw decides a request's fate; it runs inside a step.
func (s *Store) draw(key string, write bool) fate {
	f := s.fault
	var r fate
	r.latency = f.LatencyMin
	if span := f.LatencyMax - f.LatencyMin; span > 0 {
		r.latency += time.Duration(s.bus.rng.Int64N(int64(span)))
	}
	if f.Off {
		return r
	}
	hit := func(perMille int) bool { return perMille > 0 && s.bus.rng.IntN(1000) < perMille }
	r.lostBefore = hit(f.LostBefore)
	r.lostAfter = hit(f.LostAfter)
	r.throttled = hit(f.Throttled)
	if write && key == "meta/root" && hit(f.SlowRoot) {
		r.slow = time.Duration(s.bus.rng.Int64N(int64(f.SlowMax)))
	}
	if write {
		r.late = hit(f.Late)
		r.twice = hit(f.Twice)
		if r.late || r.twice {
			r.lateBy = time.Duration(s.bus.rng.Int64N(int64(f.LateMax) + 1))
		}
	}
	return r
}

// number gives each request a name in the trace.
func (s *Store) number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	return s.nextID
}

// later applies a write after a while, whoever sent it may be long dead.
func (s *Store) later(label string, d time.Duration, do func()) {
	s.late.Add(1)
	go func() {
		defer s.late.Done()
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			_ = s.bus.Step(s.world, label, do)
		case <-s.world.ctx.Done():
		}
	}()
}

// written notes the effects that checks look at; it runs inside a step.
func (s *Store) written(n *Node, key string, body []byte) {
	whole := key
	key = keyOf(key)
	isWAL := strings.HasPrefix(key, "wal/")
	s.mu.Lock()
	if isWAL {
		if _, ok := s.wal[key]; !ok {
			s.wal[key] = body
		}
	}
	s.mu.Unlock()
	if key == "meta/root" && s.onRoot != nil {
		s.onRoot(body)
	}
	if isWAL && s.onWAL != nil {
		s.onWAL(n)
	}
	if s.onPut != nil {
		s.onPut(whole, body)
	}
}

// nodeStore is the bucket of one process.
type nodeStore struct {
	s *Store
	n *Node
}

var _ bucket.Bucket = (*nodeStore)(nil)

// request is the life of one request: sent by a step of the process, applied by a step of
// the store, answered by a step of the process; any of the three may be lost.
func request[T any](ctx context.Context, b *nodeStore, verb, key string, write bool, do func() (T, error)) (T, error) {
	type answer struct {
		val T
		err error
	}
	var zero T
	var f fate
	var id int
	err := b.n.bus.Step(b.n, "send "+verb+" "+key, func() {
		f = b.s.draw(key, write)
		id = b.s.number()
	})
	if err != nil {
		return zero, err
	}
	if f.throttled {
		return zero, fmt.Errorf("%s %s: slow down: %w", verb, key, errkind.Throttled)
	}
	lost := func(why string) error {
		kind := errkind.UnknownOutcome
		if !write {
			kind = errkind.Throttled
		}
		return fmt.Errorf("%s %s: %s: %w", verb, key, why, kind)
	}
	label := fmt.Sprintf("apply %s %s #%d", verb, key, id)
	done := make(chan answer, 1)
	b.s.late.Add(1)
	go func() {
		defer b.s.late.Done()
		time.Sleep(f.latency / 2)
		switch {
		case f.lostBefore:
			time.Sleep(f.latency)
			done <- answer{err: lost("connection reset")}
			return
		case f.late:
			b.s.later(label, f.lateBy, func() { _, _ = do() })
			time.Sleep(f.latency)
			done <- answer{err: lost("timeout")}
			return
		}
		var a answer
		if err := b.n.bus.Step(b.s.world, label, func() { a.val, a.err = do() }); err != nil {
			a.err = err
		}
		if f.twice {
			b.s.later(label+" again", f.lateBy, func() { _, _ = do() })
		}
		time.Sleep(f.latency/2 + f.slow)
		if f.lostAfter {
			a = answer{err: lost("connection reset")}
		}
		done <- a
	}()
	a, why := awaited(ctx, b.n, done)
	if why != nil {
		a.err = lost(why.Error())
	}
	if err := b.n.bus.Step(b.n, fmt.Sprintf("reply %s %s #%d", verb, key, id), func() {}); err != nil {
		return zero, err
	}
	return a.val, a.err
}

func (b *nodeStore) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	return request(ctx, b, "get", key, false, func() (bucket.Object, error) {
		return b.s.inner.Get(context.Background(), key, o)
	})
}

func (b *nodeStore) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	return request(ctx, b, "head", key, false, func() (bucket.Attrs, error) {
		return b.s.inner.Head(context.Background(), key)
	})
}

func (b *nodeStore) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	body = append([]byte(nil), body...) // the caller may reuse its slice while a late one flies
	return request(ctx, b, "put", key, true, func() (bucket.Tag, error) {
		tag, err := b.s.inner.Put(context.Background(), key, body, c)
		if err == nil {
			b.s.written(b.n, key, body)
		}
		return tag, err
	})
}

func (b *nodeStore) Delete(ctx context.Context, key string) error {
	_, err := request(ctx, b, "delete", key, true, func() (struct{}, error) {
		b.s.onDelete(key)
		return struct{}{}, b.s.inner.Delete(context.Background(), key)
	})
	return err
}

type listing struct {
	page []bucket.Attrs
	more bool
}

func (b *nodeStore) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	l, err := request(ctx, b, "list", prefix, false, func() (l listing, err error) {
		l.page, l.more, err = b.s.inner.List(context.Background(), prefix, after, max)
		return l, err
	})
	return l.page, l.more, err
}

func (b *nodeStore) String() string { return "sim:" + b.n.name }
func (b *nodeStore) Close() error   { return nil }
