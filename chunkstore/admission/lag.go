package admission

import (
	"math"
	"runtime/metrics"
	"time"
)

// RuntimeLag makes a measure of the lag: how long goroutines of this process that were ready
// have waited for a processor since it was last asked, on average. Use it for one Gate.
//
// A sleep that ends late would say less: the runtime lets who wakes from one go first.
func RuntimeLag() func() time.Duration {
	sample := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	var seen []uint64
	return func() time.Duration {
		metrics.Read(sample)
		if sample[0].Value.Kind() != metrics.KindFloat64Histogram {
			return 0
		}
		h := sample[0].Value.Float64Histogram()
		if len(seen) != len(h.Counts) {
			seen = make([]uint64, len(h.Counts))
		}
		lag := mean(h.Counts, seen, h.Buckets)
		copy(seen, h.Counts)
		return lag
	}
}

// mean is about the mean of what was counted since before. Bucket i is between edges i and i+1.
func mean(now, before []uint64, edges []float64) time.Duration {
	n, sum := 0.0, 0.0
	for i := range now {
		c := float64(now[i] - before[i])
		low, high := edges[i], edges[i+1]
		switch {
		case math.IsInf(low, -1):
			low = 0
		case math.IsInf(high, 1):
			high = low
		}
		n += c
		sum += c * (low + high) / 2
	}
	if n == 0 {
		return 0
	}
	return time.Duration(sum / n * float64(time.Second))
}
