package e2e

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"
)

// watch measures how long clients go without an acknowledgement.
type watch struct {
	clients int // how many there are

	watching sync.Mutex
	marks    []*mark
}

// mark is a moment from which on the clients are watched.
type mark struct {
	at      time.Time
	first   map[string]time.Duration // until the first acknowledgement of each client
	longest time.Duration            // the slowest operation that ended since
}

// served notes an operation of a client that was acknowledged now.
func (w *watch) served(client string, start time.Time) {
	now := time.Now()
	w.watching.Lock()
	defer w.watching.Unlock()
	for _, m := range w.marks {
		m.longest = max(m.longest, now.Sub(start))
		if _, ok := m.first[client]; !ok {
			m.first[client] = now.Sub(m.at)
		}
	}
}

// mark begins to watch.
func (w *watch) mark() *mark {
	m := &mark{at: time.Now(), first: map[string]time.Duration{}}
	w.watching.Lock()
	defer w.watching.Unlock()
	w.marks = append(w.marks, m)
	return m
}

// firstOf waits until some client was acknowledged something since a mark.
func (w *watch) firstOf(m *mark) time.Duration {
	for ; ; time.Sleep(time.Millisecond) {
		w.watching.Lock()
		for _, d := range m.first {
			w.watching.Unlock()
			return d
		}
		w.watching.Unlock()
	}
}

// settle waits until every client was acknowledged something since a mark, and ends it. It
// returns the time until the last of them was.
func (w *watch) settle(t testing.TB, m *mark) time.Duration {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !w.all(m); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a minute later only these %d of %d clients were acknowledged something: %v", len(m.first), w.clients, slices.Sorted(maps.Keys(m.first)))
		}
	}
	w.watching.Lock()
	defer w.watching.Unlock()
	w.marks = slices.DeleteFunc(w.marks, func(x *mark) bool { return x == m })
	longest := time.Duration(0)
	for _, d := range m.first {
		longest = max(longest, d)
	}
	return longest
}

func (w *watch) all(m *mark) bool {
	w.watching.Lock()
	defer w.watching.Unlock()
	return len(m.first) == w.clients
}

// quantiles prints p50 and p99 of what clients saw.
func quantiles(t testing.TB, what string, d []time.Duration) {
	t.Helper()
	if len(d) == 0 {
		t.Logf("%s: none", what)
		return
	}
	d = slices.Sorted(slices.Values(d))
	at := func(q float64) time.Duration { return d[min(len(d)-1, int(q*float64(len(d))))].Round(time.Millisecond) }
	t.Logf("%s: n %d, p50 %v, p99 %v, max %v", what, len(d), at(0.5), at(0.99), d[len(d)-1].Round(time.Millisecond))
}
