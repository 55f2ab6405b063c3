package layer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// script is a store whose n-th Get takes as long, and fails, as the test says.
type script struct {
	bucket.Bucket
	step func(n int) (time.Duration, error)

	mu               sync.Mutex
	gets, begun, max int
}

func (s *script) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	s.mu.Lock()
	s.gets++
	s.begun++
	s.max = max(s.max, s.begun)
	takes, err := s.step(s.gets)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.begun--
	}()
	if e := host.System().Sleep(ctx, takes); e != nil {
		return bucket.Object{}, fmt.Errorf("get %s: %w", key, e)
	}
	if err != nil {
		return bucket.Object{}, err
	}
	return s.Bucket.Get(ctx, key, o)
}

// hedged makes a hedged script that has learned from n Gets of 10 ms each.
func hedged(t *testing.T, n int, o *layer.HedgeOptions) (*script, *layer.Hedged) {
	t.Helper()
	s := &script{Bucket: membucket.New(), step: func(int) (time.Duration, error) { return 10 * time.Millisecond, nil }}
	d := layer.Hedge(s, host.System(), o)
	fill(t, d, "meta/root", "seg/00/x")
	for range n {
		if _, err := d.Get(t.Context(), "meta/root", bucket.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.gets = 0
	return s, d
}

var errBroken = errors.New("connection broken")

// The first answer of two wins, an error that may pass is none, and no Get outlives the call.
func TestHedgedGetTakesTheFirstAnswer(t *testing.T) {
	const ms = time.Millisecond
	type get struct {
		takes time.Duration
		err   error
	}
	for name, c := range map[string]struct {
		first, second get
		took          time.Duration
		fromSecond    bool // took counts from the second Get
		sent          int
		err           error
	}{
		"in time":                        {first: get{5 * ms, nil}, took: 5 * ms, sent: 1},
		"broken in time":                 {first: get{5 * ms, errBroken}, took: 5 * ms, sent: 1, err: errBroken},
		"missing in time":                {first: get{5 * ms, errkind.NotFound}, took: 5 * ms, sent: 1, err: errkind.NotFound},
		"second wins":                    {first: get{time.Hour, nil}, second: get{10 * ms, nil}, took: 10 * ms, fromSecond: true, sent: 2},
		"first wins late":                {first: get{400 * ms, nil}, second: get{time.Hour, nil}, took: 400 * ms, sent: 2},
		"second breaks":                  {first: get{400 * ms, nil}, second: get{ms, errBroken}, took: 400 * ms, sent: 2},
		"first breaks late":              {first: get{400 * ms, errBroken}, second: get{500 * ms, nil}, took: 500 * ms, fromSecond: true, sent: 2},
		"second says missing":            {first: get{time.Hour, nil}, second: get{ms, errkind.NotFound}, took: ms, fromSecond: true, sent: 2, err: errkind.NotFound},
		"both break":                     {first: get{400 * ms, errBroken}, second: get{time.Second, errkind.Throttled}, took: time.Second, fromSecond: true, sent: 2, err: errBroken},
		"both break, the second earlier": {first: get{time.Second, errBroken}, second: get{ms, errkind.Throttled}, took: time.Second, sent: 2, err: errBroken},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, d := hedged(t, 50, nil)
				delay := d.Stats().Delay
				s.step = func(n int) (time.Duration, error) {
					if n == 1 {
						return c.first.takes, c.first.err
					}
					return c.second.takes, c.second.err
				}
				start := time.Now()
				_, err := d.Get(t.Context(), "meta/root", bucket.GetOptions{})
				took := time.Since(start)
				if !errors.Is(err, c.err) {
					t.Errorf("error %v, want %v", err, c.err)
				}
				want := c.took
				if c.fromSecond {
					want += delay
				}
				if took != want {
					t.Errorf("took %s, want %s (delay %s)", took, want, delay)
				}
				if s.gets != c.sent || s.begun != 0 {
					t.Errorf("%d Gets sent, want %d; %d still under way", s.gets, c.sent, s.begun)
				}
			})
		})
	}
}

// The delay follows the store: up when it is slow, down when it is fast, within its bounds.
func TestHedgeLearnsTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := hedged(t, 500, nil)
		fast := d.Stats().Delay
		if fast < 5*time.Millisecond || fast > 12*time.Millisecond {
			t.Errorf("delay %s after answers of 10 ms", fast)
		}
		// One in ten takes 200 ms: the 95th of 100 is slow, the 90th is not.
		s.step = func(n int) (time.Duration, error) {
			if n%10 == 0 {
				return 200 * time.Millisecond, nil
			}
			return 10 * time.Millisecond, nil
		}
		for range 2000 {
			if _, err := d.Get(t.Context(), "meta/root", bucket.GetOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if slow := d.Stats().Delay; slow < 15*time.Millisecond || slow > 250*time.Millisecond {
			t.Errorf("delay %s when one in ten takes 200 ms", slow)
		}
		s.step = func(int) (time.Duration, error) { return time.Minute, nil }
		for range 40 {
			_, _ = d.Get(t.Context(), "meta/root", bucket.GetOptions{})
		}
		if slowest := d.Stats().Delay; slowest != 2*time.Second {
			t.Errorf("delay %s on a store that takes a minute", slowest)
		}
	})
}

// On a store that is slow altogether, second Gets are 5 of 100 and ten that were saved.
func TestHedgeKeepsToItsBudget(t *testing.T) {
	for _, pct := range []int{0, 10} {
		synctest.Test(t, func(t *testing.T) {
			s, d := hedged(t, 1000, &layer.HedgeOptions{Percent: pct, DelayMax: 20 * time.Millisecond})
			before := d.Stats().Sent
			s.step = func(int) (time.Duration, error) { return time.Second, nil }
			const n = 600
			for range n {
				if _, err := d.Get(t.Context(), "meta/root", bucket.GetOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if pct == 0 {
				pct = 5
			}
			sent := d.Stats().Sent - before
			if share := n * pct / 100; int(sent) < share || int(sent) > share+10 || s.gets != n+int(sent) || d.Stats().Won != 0 {
				t.Errorf("%d%%: %d second Gets of %d, %d requests, %+v", pct, sent, n, s.gets, d.Stats())
			}
		})
	}
}

// Only short reads are hedged: no whole segment, no long range, no write.
func TestHedgeLeavesLongReadsAndWritesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := hedged(t, 100, nil)
		s.step = func(int) (time.Duration, error) { return time.Second, nil }
		for _, o := range []bucket.GetOptions{{}, {Length: 1<<20 + 1}} {
			if _, err := d.Get(t.Context(), "seg/00/x", o); err != nil {
				t.Fatal(err)
			}
		}
		if s.gets != 2 {
			t.Errorf("%d requests for two long reads", s.gets)
		}
		if _, err := d.Get(t.Context(), "seg/00/x", bucket.GetOptions{Length: 4}); err != nil || s.gets != 4 {
			t.Errorf("%d requests after a short read, %v", s.gets, err)
		}
	})
}

// A caller that leaves ends the call, whose Gets end with it, and teaches nothing.
func TestHedgeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := hedged(t, 100, nil)
		s.step = func(int) (time.Duration, error) { return time.Hour, nil }
		for _, after := range []time.Duration{time.Millisecond, time.Minute} {
			before := d.Stats().Delay
			ctx, cancel := context.WithTimeout(t.Context(), after)
			start := time.Now()
			_, err := d.Get(ctx, "meta/root", bucket.GetOptions{})
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != after || s.begun != 0 {
				t.Errorf("after %s: %v, %d under way", time.Since(start), err, s.begun)
			}
			if after == time.Millisecond && d.Stats().Delay != before {
				t.Error("the end of a context changed the delay")
			}
		}
	})
}

// The same answers in the same order give the same second Gets.
func TestHedgeIsDeterministic(t *testing.T) {
	run := func() (out string) {
		synctest.Test(t, func(t *testing.T) {
			s, d := hedged(t, 50, &layer.HedgeOptions{DelayMin: time.Millisecond})
			s.step = func(n int) (time.Duration, error) { return time.Duration(n*n%97) * time.Millisecond, nil }
			for range 200 {
				_, _ = d.Get(t.Context(), "meta/root", bucket.GetOptions{})
				out += fmt.Sprintln(s.gets, d.Stats())
			}
		})
		return out
	}
	if a, b := run(), run(); a != b {
		t.Error("two runs differ")
	}
}
