package wire

import (
	"sync/atomic"
	"time"
)

// TimesBounds are the upper bounds of the classes in Times; the last class has none.
var TimesBounds = [...]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
}

// Times counts durations by class.
type Times struct {
	// Counts are how many were not longer than a bound, and longer than the one before.
	Counts [len(TimesBounds) + 1]int64
	// Sum is all of them together.
	Sum time.Duration
}

// times is Times while they are counted.
type times struct {
	counts [len(TimesBounds) + 1]atomic.Int64
	sum    atomic.Int64
}

func (t *times) add(d time.Duration) {
	class := 0
	for class < len(TimesBounds) && d > TimesBounds[class] {
		class++
	}
	t.counts[class].Add(1)
	t.sum.Add(int64(d))
}

// read is a snapshot; what is counted meanwhile may be in a part of it.
func (t *times) read() (now Times) {
	for i := range t.counts {
		now.Counts[i] = t.counts[i].Load()
	}
	now.Sum = time.Duration(t.sum.Load())
	return now
}
