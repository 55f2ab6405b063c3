package admission

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// enter requires a pass.
func enter(t *testing.T, g *Gate, left time.Duration) Pass {
	t.Helper()
	p, err := g.Enter(t.Context(), left)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// refused requires a refusal after so long, with words in its text.
func refused(t *testing.T, g *Gate, left, after time.Duration, words string) {
	t.Helper()
	start := time.Now()
	_, err := g.Enter(t.Context(), left)
	if !errors.Is(err, Overloaded) || !errors.Is(err, errkind.Throttled) || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "try again") {
		t.Fatalf("refusal %v", err)
	}
	if took := time.Since(start); took != after {
		t.Errorf("refused after %v, want %v", took, after)
	}
}

func TestGateBoundsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(host.System(), Settings{Name: "things", Most: 2, QueueMax: 1})
		first := enter(t, g, 0)
		second := enter(t, g, 0)
		refused(t, g, 0, 10*time.Millisecond, "none ended within 10ms")
		time.AfterFunc(5*time.Millisecond, func() { g.Leave(first) })
		third := enter(t, g, 0) // it waited
		g.Leave(second)
		g.Leave(third)
		if b := g.Bound(); b != (Bound{Name: "things", Limit: 2, Refused: 1}) {
			t.Errorf("%+v", b)
		}
		unblocked := enter(t, g, 0)
		g.Leave(unblocked)
	})
}

// Who waits goes in by its turn, and a queue that is full takes nobody.
func TestGateKeepsTheOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(host.System(), Settings{Most: 1, QueueMax: 3, WaitMax: time.Second})
		now := enter(t, g, 0)
		var order []int
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				p := enter(t, g, 0)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				g.Leave(p)
			})
			synctest.Wait()
		}
		refused(t, g, 0, 0, "3 wait")
		g.Leave(now)
		all.Wait()
		if order[0] != 0 || order[1] != 1 || order[2] != 2 {
			t.Errorf("order %v", order)
		}
	})
}

// A request whose time limit would be over before its turn and its end is refused at once, as
// is one that would wait longer than anybody may.
func TestGateRefusesWhatWouldComeTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(host.System(), Settings{Most: 10, WaitMax: 100 * time.Millisecond})
		for range 500 { // each takes 80 ms
			p := enter(t, g, 0)
			time.Sleep(80 * time.Millisecond)
			g.Leave(p)
		}
		for range 10 {
			defer g.Leave(enter(t, g, 0))
		}
		refused(t, g, 50*time.Millisecond, 0, "its time limit is 50ms") // 8 ms of wait, and 80 ms
		refused(t, g, 200*time.Millisecond, 100*time.Millisecond, "none ended")
		for range 11 {
			go func() { _, _ = g.Enter(context.Background(), 0) }()
		}
		synctest.Wait()
		refused(t, g, 0, 100*time.Millisecond, "none ended") // the 12th: 96 ms
		time.Sleep(time.Millisecond)                         // they are all gone
		for range 12 {
			go func() { _, _ = g.Enter(context.Background(), 0) }()
		}
		synctest.Wait()
		refused(t, g, 0, 0, "the most that it can do now")
		time.Sleep(time.Second)
	})
}

func TestGateGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(host.System(), Settings{Most: 1})
		p := enter(t, g, 0)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("the client has gone")
		time.AfterFunc(time.Millisecond, func() { cancel(gone) })
		if _, err := g.Enter(ctx, 0); !errors.Is(err, gone) {
			t.Error(err)
		}
		if b := g.Bound(); b.Waiting != 0 || b.Refused != 0 {
			t.Errorf("%+v", b)
		}
		g.Leave(p)
	})
}

// What continues is counted and never refused; who is not counted leaves nothing.
func TestGateLetsContinuationsPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(host.System(), Settings{Most: 1})
		first, more := enter(t, g, 0), g.Pass()
		if g.Bound().Used != 2 {
			t.Errorf("%+v", g.Bound())
		}
		g.Leave(first)
		refused(t, g, 0, 10*time.Millisecond, "under way")
		g.Leave(more)
		g.Leave(Pass{})
		if g.Bound().Used != 0 {
			t.Errorf("%+v", g.Bound())
		}
		var none *Gate
		none.Leave(enter(t, none, time.Nanosecond))
		none.Leave(none.Pass())
		if none.Bound() != (Bound{}) {
			t.Error("a nil gate has figures")
		}
	})
}

// The limit shrinks while there is lag, down to Least, and grows when there is none, up to Most;
// with few under way nobody measures.
func TestLimitFollowsTheLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		lag, asked := time.Duration(0), 0
		set := func(d time.Duration) (before int) {
			mu.Lock()
			defer mu.Unlock()
			lag, before, asked = d, asked, 0
			return before
		}
		g := New(host.System(), Settings{Most: 400, Least: 8, Lag: func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			asked++
			return lag
		}})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		var passes []Pass
		for range 8 {
			passes = append(passes, enter(t, g, 0))
		}
		time.Sleep(time.Minute)
		if n := set(0); n != 0 {
			t.Errorf("measured %d times with few under way", n)
		}
		for range 100 {
			passes = append(passes, enter(t, g, 0))
		}
		set(time.Second)
		time.Sleep(time.Second)
		if b := g.Bound(); b.Limit != 8 {
			t.Errorf("with lag: %+v", b)
		}
		for _, p := range passes[:101] {
			g.Leave(p)
		}
		passes = append(passes[101:], enter(t, g, 0)) // 8 again: that is always possible
		refused(t, g, 0, 0, "under way")
		set(0)
		time.Sleep(10 * time.Second)
		if b := g.Bound(); b.Limit != 400 {
			t.Errorf("without lag: %+v", b)
		}
		for _, p := range passes {
			g.Leave(p)
		}
		time.Sleep(time.Second)
		set(0)
		time.Sleep(time.Minute)
		if n := set(0); n > 1 {
			t.Errorf("measured %d times with nobody under way", n)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := New(host.System(), Settings{}).Run(t.Context()); err != nil {
			t.Error("a gate without a measure runs on")
		}
	})
}

func TestRuntimeLagIsTheMeanOfWaits(t *testing.T) {
	t.Parallel()
	edges := []float64{-1e9, 0.001, 0.003, 1e9}
	edges[0], edges[3] = -inf, inf
	if got := mean([]uint64{5, 3, 1}, []uint64{5, 1, 1}, edges); got != 2*time.Millisecond {
		t.Errorf("two of 1 to 3 ms: %v", got)
	}
	if got := mean([]uint64{1, 0, 1}, []uint64{0, 0, 0}, edges); got != 1750*time.Microsecond {
		t.Errorf("one below, one above: %v", got)
	}
	if got := mean([]uint64{1, 1, 1}, []uint64{1, 1, 1}, edges); got != 0 {
		t.Errorf("none: %v", got)
	}
	lag := RuntimeLag()
	for range 3 {
		if d := lag(); d < 0 || d > time.Minute {
			t.Errorf("this process: %v", d)
		}
	}
}

func TestRefusalsAreWhatDriversRetry(t *testing.T) {
	t.Parallel()
	e := MongoError(Refuse("%d things are too many", 7))
	if e.Code != mongoerr.ExceededTimeLimit || e.Message != "overloaded: 7 things are too many; try again after a pause" {
		t.Errorf("%+v", e)
	}
	if strings.Join(e.Labels, " ") != "SystemOverloadedError RetryableError NoWritesPerformed" {
		t.Errorf("labels %v", e.Labels)
	}
}

// What has not arrived yet is refused when its turn would come too late, as Enter would do, and
// takes no place when it would not.
func TestGateRefusesWhatIsStillOnItsWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(host.System(), Settings{Most: 1, QueueMax: 1, WaitMax: 10 * time.Millisecond})
		for range 100 { // each takes 8 ms
			p := enter(t, g, 0)
			time.Sleep(8 * time.Millisecond)
			g.Leave(p)
		}
		first := enter(t, g, 0)
		if err := g.Full(0); err != nil {
			t.Errorf("it may wait: %v", err)
		}
		if err := g.Full(12 * time.Millisecond); !errors.Is(err, Overloaded) {
			t.Errorf("it would take 16 ms, with 12 ms left: %v", err)
		}
		go func() {
			if p, err := g.Enter(context.Background(), 0); err == nil {
				g.Leave(p)
			}
		}()
		synctest.Wait()
		if err := g.Full(0); !errors.Is(err, Overloaded) {
			t.Errorf("somebody waits already: %v", err)
		}
		if b := g.Bound(); b.Used != 1 || b.Waiting != 1 || b.Refused != 2 {
			t.Errorf("%+v", b)
		}
		g.Leave(first)
		synctest.Wait()
		var none *Gate
		if err := errors.Join(g.Full(0), none.Full(time.Nanosecond)); err != nil {
			t.Error(err)
		}
	})
}
