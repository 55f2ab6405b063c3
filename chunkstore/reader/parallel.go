package reader

import (
	"sync"
	"sync/atomic"
)

// parallel bounds the segments that one read opens at once, and the GETs that one GetMany has
// under way.
const parallel = 16

// inParallel calls do(0) to do(n-1), at most parallel at a time, and waits for all. It returns
// the error of the lowest index, so that the outcome does not depend on the scheduler.
func inParallel(n int, do func(i int) error) error {
	if n == 1 {
		return do(0)
	}
	var next atomic.Int64
	var wait sync.WaitGroup
	errs := make([]error, n)
	for range min(n, parallel) {
		wait.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[i] = do(i)
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
