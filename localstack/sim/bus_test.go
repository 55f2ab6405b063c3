package sim

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
)

// TestSameSeedSameTrace runs ten processes that race for one key on a faulty store: two
// runs of one seed must take the same steps, and another seed others.
func TestSameSeedSameTrace(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) (steps, hash uint64) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			b := NewBus(seed)
			world := NewNode(ctx, b, "store", seed, 0, 0)
			store := NewStore(b, world, membucket.New(), Faults{LostBefore: 50, LostAfter: 50, Late: 50, Twice: 50, LateMax: time.Second, LatencyMin: time.Millisecond, LatencyMax: 20 * time.Millisecond})
			end := make(chan struct{})
			go func() { defer close(end); b.Run(ctx) }()
			done := make(chan struct{})
			for i := range 10 {
				n := NewNode(ctx, b, fmt.Sprint("n", i), seed, 0, float64(i)/1000)
				go func() {
					defer func() { done <- struct{}{} }()
					mine := store.For(n)
					for range 20 {
						obj, err := mine.Get(ctx, "k", bucket.GetOptions{})
						c := bucket.IfAbsent
						if err == nil {
							c = bucket.IfMatch(obj.Tag)
						}
						_, _ = mine.Put(ctx, "k", []byte(n.name), c)
						_ = n.Host().Sleep(ctx, n.Host().Jitter(10*time.Millisecond))
					}
				}()
			}
			for range 10 {
				<-done
			}
			store.late.Wait()
			cancel()
			<-end
			steps, hash = b.Trace()
		})
		return steps, hash
	}
	for seed := range uint64(10) {
		s1, h1 := run(seed)
		s2, h2 := run(seed)
		if s1 != s2 || h1 != h2 {
			t.Errorf("seed %d: %d steps, trace %x; again: %d steps, trace %x", seed, s1, h1, s2, h2)
		}
	}
	if _, a := run(1); true {
		if _, b := run(2); a == b {
			t.Error("two seeds took the same steps")
		}
	}
}
