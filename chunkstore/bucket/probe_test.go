package bucket_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/buckettest"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every store that lacks a property is refused, by the property's name, within two seconds,
// and nothing of the probe stays behind.
func TestProbeRefusesBadStores(t *testing.T) {
	for _, bad := range buckettest.BadStores() {
		t.Run(bad.Name, func(t *testing.T) {
			t.Parallel()
			b := bad.Open(host.System())
			start := time.Now()
			err := bucket.Probe(t.Context(), b, host.System())
			var unsafe *bucket.Unsafe
			if !errors.As(err, &unsafe) {
				t.Fatalf("not refused: %v", err)
			}
			if unsafe.Property != bad.Property {
				t.Errorf("blamed %q, want %q: %v", unsafe.Property.Name, bad.Property.Name, err)
			}
			for _, part := range []string{bad.Property.Name, bad.Property.Cost, b.String()} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the message lacks %q: %v", part, err)
				}
			}
			if !errors.Is(err, errkind.Invalid) {
				t.Errorf("not Invalid: %v", err)
			}
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("took %s", took)
			}
			if left, _, _ := b.List(t.Context(), "meta/", "", 2); len(left) > 1 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestProbeTakesAboutFiveHundredRequests(t *testing.T) {
	m := layer.Metrics(membucket.New())
	if err := bucket.Probe(t.Context(), m, host.System()); err != nil {
		t.Fatal(err)
	}
	var n int64
	for _, v := range []layer.Verb{layer.Get, layer.Head, layer.Put, layer.Delete, layer.List} {
		n += m.Snapshot().Total(v).Requests
	}
	if n < 400 || n > 700 { // how many reads fit beside the overwrites depends on the machine
		t.Errorf("%d requests: %s", n, m.Snapshot())
	}
}

// A store that fails at its n-th request, whatever n is, is never called unsafe for it: the
// failure is reported as one, or does not matter. (Most requests are one of twenty racers:
// every third n meets each kind of step.)
func TestProbeTellsFailuresFromVerdicts(t *testing.T) {
	stride := 3
	if testing.Short() {
		stride = 29
	}
	for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Throttle, faultbucket.DiskFull} {
		for n := 1; ; n += stride {
			f := faultbucket.New(membucket.New(), host.System(), faultbucket.FailAt(n, faultbucket.Fault{Kind: kind}))
			err := bucket.Probe(t.Context(), f, host.System())
			var unsafe *bucket.Unsafe
			if errors.As(err, &unsafe) {
				t.Fatalf("%s at %d: %v", kind, n, err)
			}
			f.Close()
			if f.Injected(kind) == 0 {
				break
			}
		}
	}
}

func TestProbeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := faultbucket.New(membucket.New(), host.System(), func(c faultbucket.Call) faultbucket.Fault {
		if c.N == 20 {
			cancel()
			return faultbucket.Fault{Kind: faultbucket.Stuck}
		}
		return faultbucket.Fault{}
	})
	defer f.Close()
	if err := bucket.Probe(ctx, f, host.System()); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if left, _, _ := f.List(t.Context(), "", "", 0); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
