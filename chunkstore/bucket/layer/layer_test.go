package layer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
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

// Every layer, and the usual stack of them, is a bucket.
func TestConforms(t *testing.T) {
	h := host.System()
	for name, wrap := range map[string]func(bucket.Bucket) bucket.Bucket{
		"Retry": func(b bucket.Bucket) bucket.Bucket { return layer.Retry(b, h, nil) },
		"Hedge": func(b bucket.Bucket) bucket.Bucket { return layer.Hedge(b, h, nil) },
		"Limit": func(b bucket.Bucket) bucket.Bucket { return layer.Limit(b, 3) },
		"Pace": func(b bucket.Bucket) bucket.Bucket {
			return layer.NewPacer(h, func() layer.Rate { return layer.Rate{Requests: 1e6, Bytes: 1 << 40} }).Pace(b)
		},
		"Deadline": func(b bucket.Bucket) bucket.Bucket { return layer.Deadline(b, h, time.Minute) },
		"Metrics":  func(b bucket.Bucket) bucket.Bucket { return layer.Metrics(b) },
		"Cache":    func(b bucket.Bucket) bucket.Bucket { return layer.Cache(b, 64<<10) },
		"Stack": func(b bucket.Bucket) bucket.Bucket {
			b = layer.Deadline(layer.Metrics(b), h, time.Minute)
			return layer.Cache(layer.Retry(layer.Hedge(layer.Limit(b, 8), h, nil), h, nil), 32<<20)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			buckettest.Run(t, func(t *testing.T) bucket.Bucket {
				b := wrap(membucket.New())
				t.Cleanup(func() { b.Close() })
				return b
			})
		})
	}
}

func fill(t *testing.T, b bucket.Bucket, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if _, err := b.Put(t.Context(), k, []byte("body of "+k), bucket.IfAbsent); err != nil {
			t.Fatal(err)
		}
	}
}

// always is a plan with the same fault for the first n calls.
func always(n int, kind faultbucket.Kind) faultbucket.Plan {
	return func(c faultbucket.Call) faultbucket.Fault {
		if c.N <= n {
			return faultbucket.Fault{Kind: kind}
		}
		return faultbucket.Fault{}
	}
}

// verbs sends one request of each kind that Retry may send again.
func verbs(b bucket.Bucket) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"get":  func(ctx context.Context) error { _, err := b.Get(ctx, "k", bucket.GetOptions{}); return err },
		"head": func(ctx context.Context) error { _, err := b.Head(ctx, "k"); return err },
		"list": func(ctx context.Context) error { _, _, err := b.List(ctx, "", "", 0); return err },
		"put": func(ctx context.Context) error {
			_, err := b.Put(ctx, "k", nil, bucket.Condition{})
			return err
		},
		"delete": func(ctx context.Context) error { return b.Delete(ctx, "other") },
	}
}

func TestRetrySendsAgainUntilItSucceeds(t *testing.T) {
	for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Throttle} {
		synctest.Test(t, func(t *testing.T) {
			mem := membucket.New()
			fill(t, mem, "k")
			f := faultbucket.New(mem, host.System(), nil)
			for name, send := range verbs(layer.Retry(f, host.System(), nil)) {
				n := f.Calls()
				f.SetPlan(always(n+3, kind))
				start := time.Now()
				if err := send(t.Context()); err != nil {
					t.Errorf("%s after 3 x %s: %v", name, kind, err)
				}
				if got := f.Calls() - n; got != 4 {
					t.Errorf("%s: %d attempts", name, got)
				}
				// Waits of 50, 100 and 200 ms, each with at least half of it.
				if took := time.Since(start); took < 175*time.Millisecond || took > 350*time.Millisecond {
					t.Errorf("%s: took %s", name, took)
				}
			}
		})
	}
}

func TestRetryGivesUpAfterItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultbucket.New(membucket.New(), host.System(), always(1000, faultbucket.Throttle))
		o := &layer.RetryOptions{Attempts: 6, WaitMin: time.Second, WaitMax: 2 * time.Second}
		start := time.Now()
		_, err := layer.Retry(f, host.System(), o).Head(t.Context(), "k")
		if !errors.Is(err, errkind.Throttled) || f.Calls() != 6 {
			t.Fatalf("%v after %d calls", err, f.Calls())
		}
		if took := time.Since(start); took < 4500*time.Millisecond || took > 9*time.Second {
			t.Errorf("took %s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
		defer cancel()
		if _, err = layer.Retry(f, host.System(), o).Head(ctx, "k"); !errors.Is(err, errkind.Throttled) {
			t.Error(err)
		}
		if took := time.Since(start); f.Calls() > 8 || took > 11*time.Second {
			t.Errorf("went on after the end of its context: %d calls", f.Calls())
		}
	})
}

// The rule that the protocol rests on: a conditional Put is sent exactly once.
func TestRetryNeverRepeatsAConditionalPut(t *testing.T) {
	for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Throttle, faultbucket.Late} {
		f := faultbucket.New(membucket.New(), host.System(), always(1000, kind))
		r := layer.Retry(f, host.System(), nil)
		for i, c := range []bucket.Condition{bucket.IfAbsent, bucket.IfMatch("1")} {
			if _, err := r.Put(t.Context(), "k", nil, c); !errors.Is(err, faultbucket.ErrInjected) {
				t.Error(err)
			}
			if f.Calls() != i+1 {
				t.Errorf("%s: %d calls", kind, f.Calls())
			}
		}
		f.Close()
	}
}

func TestRetryTakesFinalAnswers(t *testing.T) {
	m := layer.Metrics(membucket.New())
	fill(t, m, "k")
	r := layer.Retry(m, host.System(), nil)
	_, err := r.Head(t.Context(), "missing")
	if !errors.Is(err, errkind.NotFound) {
		t.Error(err)
	}
	_, err = r.Get(t.Context(), "k", bucket.GetOptions{Offset: 99})
	if !errors.Is(err, errkind.Invalid) {
		t.Error(err)
	}
	_, err = r.Get(t.Context(), "k", bucket.GetOptions{IfNoneMatch: "1"})
	if !errors.Is(err, errkind.NotModified) {
		t.Error(err)
	}
	if got := m.Snapshot().String(); got != "get other=2 head other=1 put other=1" {
		t.Error(got)
	}
}

func TestLimitBoundsWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membucket.New()
		fill(t, mem, "k")
		slow := faultbucket.New(mem, host.System(), func(faultbucket.Call) faultbucket.Fault {
			return faultbucket.Fault{Kind: faultbucket.Slow, Delay: time.Second}
		})
		l := layer.Limit(slow, 4)
		start := time.Now()
		var wg sync.WaitGroup
		for range 4 {
			for _, send := range verbs(l) {
				wg.Go(func() {
					if err := send(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait() // 20 requests of a second, four at a time
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestLimitLetsWaitersGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultbucket.New(membucket.New(), host.System(), always(1, faultbucket.Stuck))
		l := layer.Limit(f, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = l.Head(ctx, "holds the slot") })
		synctest.Wait()
		short, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		for name, send := range verbs(l) {
			err := send(short)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			if write := name == "put" || name == "delete"; errors.Is(err, errkind.Throttled) != write {
				t.Errorf("%s: %v", name, err)
			}
		}
		if f.Calls() != 1 {
			t.Errorf("%d calls", f.Calls())
		}
		wg.Wait()
	})
	defer func() {
		if recover() == nil {
			t.Error("a limit of 0 was accepted")
		}
	}()
	layer.Limit(membucket.New(), 0)
}

func TestDeadlineEndsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultbucket.New(membucket.New(), host.System(), always(1000, faultbucket.Stuck))
		d := layer.Deadline(f, host.System(), 10*time.Second)
		for name, send := range verbs(d) {
			start := time.Now()
			err := send(t.Context())
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 10*time.Second {
				t.Errorf("%s: %v after %s", name, err, time.Since(start))
			}
		}
		start := time.Now()
		_, err := d.Put(t.Context(), "k", make([]byte, 5<<20), bucket.IfAbsent)
		if !errors.Is(err, errkind.UnknownOutcome) || time.Since(start) != 15*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		start = time.Now()
		_, err = d.Get(t.Context(), "k", bucket.GetOptions{Length: 3 << 20})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 13*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

func TestMetricsCountByVerbAndClass(t *testing.T) {
	ctx, m := t.Context(), layer.Metrics(membucket.New())
	fill(t, m, "meta/root", "meta/page/1/a", "wal/s/1/0", "seg/00/x/y", "stage/t/1")
	before := m.Snapshot()
	_, _ = m.Get(ctx, "meta/root", bucket.GetOptions{})
	_, _ = m.Get(ctx, "seg/00/x/y", bucket.GetOptions{Offset: 1, Length: 4})
	_, _ = m.Get(ctx, "seg/00/x/none", bucket.GetOptions{})
	_, _ = m.Head(ctx, "wal/s/1/0")
	_, _ = m.Put(ctx, "wal/s/1/0", []byte("1234567"), bucket.IfAbsent)
	_, _, _ = m.List(ctx, "seg/", "", 0)
	_, _, _ = m.List(ctx, "meta/", "", 0)
	_ = m.Delete(ctx, "meta/page/1/a")
	d := m.Snapshot().Sub(before)
	want := "get root=1 get seg=2 head wal=1 put wal=1 delete page=1 list seg=1 list other=1"
	if d.String() != want {
		t.Errorf("got  %s\nwant %s", d, want)
	}
	for _, c := range []struct {
		got, want layer.Count
	}{
		{d.Of(layer.Get, layer.Segment), layer.Count{Requests: 2, Failed: 1, Bytes: 4}},
		{d.Of(layer.Put, layer.WAL), layer.Count{Requests: 1, Failed: 1, Bytes: 7}},
		{d.Total(layer.Get), layer.Count{Requests: 3, Failed: 1, Bytes: 4 + int64(len("body of meta/root"))}},
		{before.Total(layer.Put), layer.Count{Requests: 5, Bytes: 5*8 + 9 + 13 + 9 + 10 + 9}},
	} {
		if c.got != c.want {
			t.Errorf("got %+v, want %+v", c.got, c.want)
		}
	}
	if fmt.Sprint(layer.Verb(99), layer.Class(99)) != "invalid invalid" {
		t.Error("names of what is no verb or class")
	}
}

func TestCacheSparesReadsOfImmutableObjects(t *testing.T) {
	ctx, m := t.Context(), layer.Metrics(membucket.New())
	fill(t, m, "seg/00/x/y", "meta/page/1/a", "meta/root", "wal/s/1/0")
	c := layer.Cache(m, 1<<20)
	read := func(key string, o bucket.GetOptions) string {
		t.Helper()
		obj, err := c.Get(ctx, key, o)
		if err != nil {
			t.Fatal(err)
		}
		if obj.Key != key || obj.Tag == "" || obj.Size != int64(len("body of "+key)) {
			t.Errorf("attributes %+v", obj.Attrs)
		}
		got := string(obj.Body)
		clear(obj.Body) // it is the caller's
		return got
	}
	before := m.Snapshot()
	for range 3 {
		for _, o := range []bucket.GetOptions{{Offset: 1, Length: 3}, {Offset: 2}, {}, {Offset: 5, Length: 2}, {Length: 4}} {
			whole := "body of seg/00/x/y"
			want := whole[o.Offset:]
			if o.Length > 0 {
				want = want[:o.Length]
			}
			if got := read("seg/00/x/y", o); got != want {
				t.Errorf("%+v: %q, want %q", o, got, want)
			}
		}
		read("meta/page/1/a", bucket.GetOptions{})
		read("meta/root", bucket.GetOptions{})
		read("wal/s/1/0", bucket.GetOptions{})
	}
	if got := m.Snapshot().Sub(before).String(); got != "get root=3 get page=1 get wal=3 get seg=3" {
		t.Error(got)
	}
	tag, _ := c.Head(ctx, "seg/00/x/y")
	if _, err := c.Get(ctx, "seg/00/x/y", bucket.GetOptions{IfNoneMatch: tag.Tag}); !errors.Is(err, errkind.NotModified) {
		t.Error(err)
	}
	if _, err := c.Get(ctx, "seg/00/x/y", bucket.GetOptions{Offset: 99}); !errors.Is(err, errkind.Invalid) {
		t.Error(err)
	}
	if s := c.Stats(); s.Misses != 4 || s.Hits != 16 || s.Entries != 4 {
		t.Errorf("%+v", s)
	}
	if err := c.Delete(ctx, "seg/00/x/y"); err != nil {
		t.Error(err)
	}
	if _, err := c.Get(ctx, "seg/00/x/y", bucket.GetOptions{}); !errors.Is(err, errkind.NotFound) {
		t.Error(err)
	}
	if s := c.Stats(); s.Entries != 1 {
		t.Errorf("%+v", s)
	}
}

// The budget holds at every moment, what was not used for longest goes first, and an object
// that would push out the rest is not kept.
func TestCacheKeepsToItsBudget(t *testing.T) {
	ctx, m := t.Context(), layer.Metrics(membucket.New())
	const budget = 20_000
	c := layer.Cache(m, budget)
	for i := range 50 {
		body := make([]byte, 1000)
		if _, err := m.Put(ctx, fmt.Sprintf("seg/00/x/%d", i), body, bucket.IfAbsent); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Put(ctx, "seg/00/x/large", make([]byte, budget/2), bucket.IfAbsent); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		key := fmt.Sprintf("seg/00/x/%d", i%50)
		if i%3 == 0 {
			key = "seg/00/x/0" // in use all the time
		}
		if i%7 == 0 {
			key = "seg/00/x/large"
		}
		if _, err := c.Get(ctx, key, bucket.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if s := c.Stats(); s.Bytes > budget || s.Bytes < 0 {
			t.Fatalf("%+v", s)
		}
	}
	before := m.Snapshot()
	_, _ = c.Get(ctx, "seg/00/x/0", bucket.GetOptions{})
	_, _ = c.Get(ctx, "seg/00/x/large", bucket.GetOptions{})
	if got := m.Snapshot().Sub(before).String(); got != "get seg=1" {
		t.Error(got)
	}
}
