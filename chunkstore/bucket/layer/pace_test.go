package layer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// What is paced takes as long as its rate says, by requests or by bytes, whichever is more, over
// all buckets together; a rate that changes counts from the next request on.
func TestPaceKeepsTheRate(t *testing.T) {
	body := make([]byte, 1000)
	for _, x := range []struct {
		name string
		rate layer.Rate
		want time.Duration // for 100 Puts and as many Gets of a thousand bytes
	}{
		{"nothing", layer.Rate{}, 0},
		{"requests", layer.Rate{Requests: 20}, 10 * time.Second},
		{"bytes", layer.Rate{Bytes: 10_000}, 20 * time.Second},
		{"the slower", layer.Rate{Requests: 1000, Bytes: 10_000}, 20 * time.Second},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rate := x.rate
				p := layer.NewPacer(host.System(), func() layer.Rate { return rate })
				mem := membucket.New()
				a, b := p.Pace(mem), p.Pace(mem)
				start := time.Now()
				for range 100 {
					if _, err := a.Put(t.Context(), "seg/x", body, bucket.Condition{}); err != nil {
						t.Fatal(err)
					}
					if _, err := b.Get(t.Context(), "seg/x", bucket.GetOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				took := time.Since(start)
				if took > x.want || took < x.want-300*time.Millisecond {
					t.Errorf("took %v, want about %v", took, x.want)
				}
				rate = layer.Rate{}
				time.Sleep(time.Second)
				start = time.Now()
				for range 100 {
					if _, err := a.Head(t.Context(), "seg/x"); err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(start); took > 0 {
					t.Errorf("without a rate: %v", took)
				}
			})
		})
	}
}

// Whoever waits for its turn leaves when its context ends, and nothing was sent.
func TestPaceLetsWaitersGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := layer.Metrics(membucket.New())
		b := layer.NewPacer(host.System(), func() layer.Rate { return layer.Rate{Bytes: 1} }).Pace(mem)
		if _, err := b.Put(t.Context(), "seg/x", make([]byte, 3600), bucket.Condition{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := b.Put(ctx, "seg/y", nil, bucket.Condition{}); !errors.Is(err, errkind.Throttled) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if _, err := b.Get(ctx, "seg/x", bucket.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if got := mem.Snapshot().String(); got != "put seg=1" {
			t.Errorf("sent: %s", got)
		}
	})
}
