package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/granarydb/granary/manifest/errkind"
)

func (p *probe) createOnce(ctx context.Context) error {
	key := p.key("create")
	if _, err := p.b.Get(ctx, key, GetOptions{}); !errors.Is(err, errkind.NotFound) {
		if err == nil {
			return p.lacks(ReadAfterDelete, "it returned an object for a key that was never written")
		}
		return p.failed("read of a missing key", err)
	}
	tag, err := p.b.Put(ctx, key, []byte("first"), IfAbsent)
	if err != nil {
		return p.failed("create", err)
	}
	_, err = p.b.Put(ctx, key, []byte("second"), IfAbsent)
	if err := p.refused(CreateOnce, err); err != nil {
		return err
	}
	return p.shows(ctx, key, []byte("first"), tag)
}

func (p *probe) swap(ctx context.Context) error {
	key := p.key("swap")
	old, err := p.b.Put(ctx, key, []byte("old"), IfAbsent)
	if err != nil {
		return p.failed("create", err)
	}
	tag, err := p.b.Put(ctx, key, []byte("new"), IfMatch(old))
	if errors.Is(err, errkind.Conflict) {
		return p.lacks(SwapPresent, "it refused one")
	}
	if err != nil {
		return p.failed("swap", err)
	}
	if tag == old {
		return p.lacks(SwapStale, "it gave two versions the same tag %s", tag)
	}
	_, err = p.b.Put(ctx, key, []byte("stale"), IfMatch(old))
	if err := p.refused(SwapStale, err); err != nil {
		return err
	}
	return p.shows(ctx, key, []byte("new"), tag)
}

func (p *probe) swapMissing(ctx context.Context) error {
	key := p.key("missing")
	tag, err := p.b.Put(ctx, key, []byte("x"), IfAbsent)
	if err != nil {
		return p.failed("create", err)
	}
	if err := p.b.Delete(ctx, key); err != nil {
		return p.failed("delete", err)
	}
	_, err = p.b.Put(ctx, key, []byte("back"), IfMatch(tag))
	if err := p.refused(SwapMissing, err); err != nil {
		return err
	}
	_, err = p.b.Get(ctx, key, GetOptions{})
	switch {
	case err == nil:
		return p.lacks(ReadAfterDelete, "it returned an object that was deleted")
	case !errors.Is(err, errkind.NotFound):
		return p.failed("read of a deleted key", err)
	}
	return nil
}

func (p *probe) ranges(ctx context.Context) error {
	key, body := p.key("range"), []byte("0123456789")
	if _, err := p.b.Put(ctx, key, body, IfAbsent); err != nil {
		return p.failed("create", err)
	}
	for _, r := range []struct {
		offset, length int64
		want           string
	}{{0, 1, "0"}, {3, 4, "3456"}, {9, 1, "9"}, {7, 0, "789"}, {8, 100, "89"}} {
		o, err := p.b.Get(ctx, key, GetOptions{Offset: r.offset, Length: r.length})
		switch {
		case errors.Is(err, errkind.Corrupt): // a driver that looks for itself
			return p.lacks(RangeReads, "of bytes %d+%d it sent others: %v", r.offset, r.length, err)
		case err != nil:
			return p.failed("read of a range", err)
		}
		if string(o.Body) != r.want || o.Size != int64(len(body)) {
			return p.lacks(RangeReads, "bytes %d+%d of %q came as %q of %d bytes", r.offset, r.length, body, o.Body, o.Size)
		}
	}
	return nil
}

func (p *probe) list(ctx context.Context) error {
	const n = 5
	var want []string
	for i := range n {
		want = append(want, p.key(fmt.Sprintf("list/%d", i)))
	}
	err := p.each(n, func(i int) error {
		_, err := p.b.Put(ctx, want[i], nil, IfAbsent)
		return err
	})
	if err != nil {
		return p.failed("create", err)
	}
	after := ""
	for len(want) > 0 {
		page, more, err := p.b.List(ctx, p.prefix+"list/", after, 2)
		if err != nil {
			return p.failed("list", err)
		}
		for i, a := range page {
			if i >= len(want) || a.Key != want[i] {
				return p.lacks(ListAfterWrite, "a page had %s where another key was due", a.Key)
			}
		}
		want = want[len(page):]
		if len(want) > 0 && (!more || len(page) == 0) {
			return p.lacks(ListAfterWrite, "%s was written and not listed", want[0])
		}
		if len(page) > 0 {
			after = page[len(page)-1].Key
		}
	}
	return nil
}

// readAfterWrite makes chains of swaps side by side, each link read back: a store with
// replicas or caches that lag shows an old link sooner or later.
func (p *probe) readAfterWrite(ctx context.Context) error {
	return p.each(probeRounds, func(chain int) error {
		key, cond := p.key(fmt.Sprintf("chain/%d", chain)), IfAbsent
		for link := range 5 {
			body := fmt.Appendf(nil, "chain %d link %d", chain, link)
			tag, err := p.b.Put(ctx, key, body, cond)
			if err != nil {
				return p.failed("swap", err)
			}
			if err := p.shows(ctx, key, body, tag); err != nil {
				return err
			}
			cond = IfMatch(tag)
		}
		return nil
	})
}

// wholeReads overwrites an object while others read it: each version is one byte all over, so
// that a mixture shows.
func (p *probe) wholeReads(ctx context.Context) error {
	const readers, writes, readsMax, size = 4, 6, 40, 64 << 10
	key := p.key("whole")
	version := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, size) }
	tag, err := p.b.Put(ctx, key, version(0), IfAbsent)
	if err != nil {
		return p.failed("create", err)
	}
	var written atomic.Bool
	return p.each(1+readers, func(n int) error {
		if n == 0 {
			defer written.Store(true)
			for i := range writes {
				if tag, err = p.b.Put(ctx, key, version(1+i), IfMatch(tag)); err != nil {
					return p.failed("swap", err)
				}
			}
			return nil
		}
		// As long as there are writes there are reads beside them; a write that is stuck has enough.
		for i, last := 0, false; !last && i < readsMax; i++ {
			last = written.Load()
			o, err := p.b.Get(ctx, key, GetOptions{})
			if err != nil {
				return p.failed("read", err)
			}
			if len(o.Body) != size || bytes.Count(o.Body, o.Body[:1]) != size {
				return p.lacks(WholeReads, "a read returned %d bytes of more than one version", len(o.Body))
			}
			runtime.Gosched() // a store in memory is faster than the writer gets its turn
		}
		return nil
	})
}

func (p *probe) raceCreate(ctx context.Context) error {
	for round := range probeRounds {
		if _, err := p.race(ctx, AtomicCreate, p.key(fmt.Sprintf("race/%d", round)), round, IfAbsent); err != nil {
			return err
		}
	}
	return nil
}

func (p *probe) raceSwap(ctx context.Context) error {
	key := p.key("swaprace")
	tag, err := p.b.Put(ctx, key, nil, IfAbsent)
	if err != nil {
		return p.failed("create", err)
	}
	for round := range probeRounds {
		if tag, err = p.race(ctx, AtomicSwap, key, round, IfMatch(tag)); err != nil {
			return err
		}
	}
	return nil
}

// race lets probeRacers put different bodies under one condition, and returns the tag that
// the key has after it. Whose outcome is unknown may have won, so that only two certain
// winners, or a body of no winner, are proof.
func (p *probe) race(ctx context.Context, prop Property, key string, round int, cond Condition) (Tag, error) {
	body := func(i int) []byte { return fmt.Appendf(nil, "round %d racer %d", round, i) }
	var mu sync.Mutex
	var winners []int
	var tag Tag
	var unknown, throttled error
	err := p.each(probeRacers, func(i int) error {
		t, err := p.b.Put(ctx, key, body(i), cond)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			winners, tag = append(winners, i), t
		case errors.Is(err, errkind.UnknownOutcome):
			unknown = err
		case errors.Is(err, errkind.Throttled):
			throttled = err
		case !errors.Is(err, errkind.Conflict):
			return p.failed("race", err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	switch {
	case len(winners) > 1:
		return "", p.lacks(prop, "%d of %d won", len(winners), probeRacers)
	case len(winners) == 1 && unknown == nil:
		return tag, p.shows(ctx, key, body(winners[0]), tag)
	case unknown == nil && throttled != nil:
		return "", p.failed("race", throttled)
	case unknown == nil:
		return "", p.lacks(prop, "none of %d won", probeRacers)
	}
	o, err := p.b.Get(ctx, key, GetOptions{})
	if err != nil {
		return "", p.failed("read after a race", err)
	}
	return o.Tag, nil
}
