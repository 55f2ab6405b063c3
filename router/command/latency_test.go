package command

import (
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestLatencyBuckets: a duration is counted in the bucket whose lower bound is the highest at or
// below it, and the bounds ascend.
func TestLatencyBuckets(t *testing.T) {
	for i := 1; i < latencyBuckets; i++ {
		if lowerMicros(i) <= lowerMicros(i-1) {
			t.Errorf("bucket %d begins at %d, the one before at %d", i, lowerMicros(i), lowerMicros(i-1))
		}
		if got := latencyBucket(lowerMicros(i)); got != i {
			t.Errorf("%d µs are in bucket %d, want %d", lowerMicros(i), got, i)
		}
		if got := latencyBucket(lowerMicros(i) - 1); got != i-1 {
			t.Errorf("%d µs are in bucket %d, want %d", lowerMicros(i)-1, got, i-1)
		}
	}
	for micros, want := range map[int64]int64{0: 0, 1: 0, 2: 2, 3: 2, 2048: 2048, 3071: 2048, 3072: 3072, 5000: 4096, 1 << 62: lowerMicros(latencyBuckets - 1)} {
		if got := lowerMicros(latencyBucket(micros)); got != want {
			t.Errorf("%d µs are counted from %d on, want %d", micros, got, want)
		}
	}
}

// TestLatenciesAreBounded: collections beyond the bound are not counted, those within it are, by
// many at a time.
func TestLatenciesAreBounded(t *testing.T) {
	x := latencies{size: latencyMax - 1}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if l := x.of("db", []byte("a"), true); l != nil {
				l[readLatency].add(3 * time.Microsecond)
			}
		})
	}
	all.Wait()
	if x.of("db", []byte("b"), true) != nil {
		t.Error("one collection too many is counted")
	}
	b := build()
	x.of("db", []byte("a"), true)[readLatency].append(b, readLatency, true)
	got := bson.Raw(b.Build()).String()
	want := `{"reads": {"histogram": [{"micros": {"$numberLong":"2"},"count": {"$numberLong":"8"}}],"latency": {"$numberLong":"24"},"ops": {"$numberLong":"8"}}}`
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
