package manifest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// farCell is a cell at the other end of a network: each request takes from low to twice low, half
// of it before its effect.
type farCell struct {
	manifest.Cell
	mu  sync.Mutex
	rng *rand.Rand
	low time.Duration
}

func (c *farCell) wait() {
	c.mu.Lock()
	d := c.low/2 + time.Duration(c.rng.Int64N(int64(c.low/2)))
	c.mu.Unlock()
	time.Sleep(d)
}

func (c *farCell) Load(ctx context.Context, key, known string) ([]byte, string, error) {
	c.wait()
	defer c.wait()
	return c.Cell.Load(ctx, key, known)
}

func (c *farCell) Swap(ctx context.Context, key string, body []byte, from string) (string, error) {
	c.wait()
	defer c.wait()
	return c.Cell.Swap(ctx, key, body, from)
}

// TestNobodyIsAlwaysOvertaken: three processes commit without an end, each on the state that it
// has just written; one that commits now and then, and so has to read first, must not wait for
// them to stop.
func TestNobodyIsAlwaysOvertaken(t *testing.T) {
	sizes := []int{1, 3, 6}
	if testing.Short() {
		sizes = sizes[:2]
	}
	for _, busy := range sizes {
		t.Run(fmt.Sprint(busy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const low = 10 * time.Millisecond
				cell := &farCell{Cell: cluster(t, "a"), rng: rand.New(rand.NewPCG(1, uint64(busy))), low: low}
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				var landed atomic.Int64
				for i := range busy {
					r := manifest.NewRoot(cell, manifesttest.Host(uint64(i+2)), nil)
					all.Go(func() {
						for n := 0; ctx.Err() == nil; n++ {
							if _, err := r.Commit(ctx, edit(fmt.Sprint("busy", i, n), put(fmt.Sprint(i)))); err == nil {
								landed.Add(1)
							}
						}
					})
				}
				r := manifest.NewRoot(cell, manifesttest.Host(1), nil)
				var took []time.Duration
				began := time.Now()
				for n := range 12 {
					start := time.Now()
					if _, err := r.Commit(t.Context(), edit(fmt.Sprint("seldom", n), put("x"))); err != nil {
						t.Fatal(err)
					}
					took = append(took, time.Since(start))
					time.Sleep(time.Second)
				}
				rate := float64(landed.Load()) / time.Since(began).Seconds()
				cancel()
				all.Wait()
				slices.Sort(took)
				t.Logf("p50 %v, longest %v; the others %.1f commits/s", took[len(took)/2], took[len(took)-1], rate)
				if took[len(took)-1] > 2*time.Second {
					t.Errorf("a commit took %v", took[len(took)-1])
				}
				if rate < 30 { // 67 are possible
					t.Errorf("%.1f commits/s of those who do nothing else", rate)
				}
			})
		})
	}
}
