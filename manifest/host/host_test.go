package host

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

type halves struct{}

func (halves) Uint64() uint64 { return 0 } // the shortest wait that Jitter draws: a half

// What finds nothing to do is done ever more seldom; what finds something, soon again.
func TestRepeatSlowsDownWhileThereIsNothingToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var at []time.Duration
		Host{Clock: System().Clock, Rand: halves{}}.Repeat(ctx, 2*time.Second, 10*time.Second, func() bool {
			if at = append(at, time.Since(began)); len(at) == 7 {
				cancel()
			}
			return len(at) == 5
		})
		want := []time.Duration{1, 3, 7, 12, 17, 18, 20}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(at, want) {
			t.Errorf("done at %v, want %v", at, want)
		}
	})
}
