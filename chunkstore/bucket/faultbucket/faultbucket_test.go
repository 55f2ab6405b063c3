package faultbucket_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
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

func TestConformsWithoutFaults(t *testing.T) {
	buckettest.Run(t, func(t *testing.T) bucket.Bucket {
		b := faultbucket.New(membucket.New(), host.System(), nil)
		t.Cleanup(func() { b.Close() })
		return b
	})
}

// world is one store with one fault in front, holding "k" = "old".
type world struct {
	t   *testing.T
	mem *membucket.Bucket
	f   *faultbucket.Bucket
	tag bucket.Tag
}

func with(t *testing.T, fault faultbucket.Fault) *world {
	w := &world{t: t, mem: membucket.New()}
	w.f = faultbucket.New(w.mem, host.System(), faultbucket.FailAt(1, fault))
	var err error
	if w.tag, err = w.mem.Put(t.Context(), "k", []byte("old"), bucket.IfAbsent); err != nil {
		t.Fatal(err)
	}
	return w
}

// k is what the store behind the fault holds.
func (w *world) k() string {
	o, err := w.mem.Get(w.t.Context(), "k", bucket.GetOptions{})
	if errors.Is(err, errkind.NotFound) {
		return "nothing"
	}
	return string(o.Body)
}

// Each write under each fault: what the caller is told, what the store holds at that moment
// and after all delays.
func TestWritesFailInEveryWay(t *testing.T) {
	unknown, throttled := errkind.UnknownOutcome, errkind.Throttled
	for _, c := range []struct {
		fault      faultbucket.Kind
		err        error
		now, later string // after a swap from "old" to "new"
		del, gone  string // after a delete: now, later
	}{
		{faultbucket.None, nil, "new", "new", "nothing", "nothing"},
		{faultbucket.Before, unknown, "old", "old", "old", "old"},
		{faultbucket.After, unknown, "new", "new", "nothing", "nothing"},
		{faultbucket.Late, unknown, "old", "new", "old", "nothing"},
		{faultbucket.Twice, nil, "new", "new", "nothing", "nothing"},
		{faultbucket.Throttle, throttled, "old", "old", "old", "old"},
		{faultbucket.Slow, nil, "new", "new", "nothing", "nothing"},
		{faultbucket.Stuck, unknown, "old", "old", "old", "old"},
		{faultbucket.StuckAfter, unknown, "new", "new", "nothing", "nothing"},
		{faultbucket.StaleList, nil, "new", "new", "nothing", "nothing"},
		{faultbucket.Rot, nil, "new", "new", "nothing", "nothing"},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			run := func(write func(context.Context, *world) error, now, later string) {
				synctest.Test(t, func(t *testing.T) {
					w := with(t, faultbucket.Fault{Kind: c.fault, Delay: time.Minute})
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					err := write(ctx, w)
					if !errors.Is(err, c.err) || c.err != nil && !errors.Is(err, faultbucket.ErrInjected) {
						t.Errorf("told %v, want %v", err, c.err)
					}
					if got := w.k(); got != now {
						t.Errorf("holds %s, want %s", got, now)
					}
					w.f.Wait()
					if got := w.k(); got != later {
						t.Errorf("holds %s later, want %s", got, later)
					}
					if w.f.Injected(c.fault) != 1 {
						t.Error("not counted")
					}
				})
			}
			run(func(ctx context.Context, w *world) error {
				body := []byte("new")
				_, err := w.f.Put(ctx, "k", body, bucket.IfMatch(w.tag))
				clear(body) // the delayed effect has its own copy
				return err
			}, c.now, c.later)
			run(func(ctx context.Context, w *world) error { return w.f.Delete(ctx, "k") }, c.del, c.gone)
		})
	}
}

// A delayed write keeps its condition, whatever happened in between.
func TestLateWritesKeepTheirCondition(t *testing.T) {
	for _, kind := range []faultbucket.Kind{faultbucket.Late, faultbucket.Twice} {
		synctest.Test(t, func(t *testing.T) {
			w := with(t, faultbucket.Fault{Kind: kind, Delay: time.Minute})
			_, _ = w.f.Put(t.Context(), "k", []byte("late"), bucket.IfMatch(w.tag))
			if _, err := w.mem.Put(t.Context(), "k", []byte("between"), bucket.Condition{}); err != nil {
				t.Fatal(err)
			}
			w.f.Wait()
			if got := w.k(); got != "between" {
				t.Errorf("%s: a swap came late and won: %s", kind, got)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			w := with(t, faultbucket.Fault{Kind: kind, Delay: time.Minute})
			_, _ = w.f.Put(t.Context(), "free", []byte("late"), bucket.IfAbsent)
			if err := w.mem.Delete(t.Context(), "free"); err != nil {
				t.Fatal(err)
			}
			w.f.Wait()
			if _, err := w.mem.Head(t.Context(), "free"); err != nil {
				t.Errorf("%s: a create that came late found the key free and did not take it: %v", kind, err)
			}
		})
	}
}

func TestCloseCancelsDelayedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := with(t, faultbucket.Fault{Kind: faultbucket.Late, Delay: time.Hour})
		start := time.Now()
		_, _ = w.f.Put(t.Context(), "k", []byte("late"), bucket.Condition{})
		var wg sync.WaitGroup
		w.f.SetPlan(func(faultbucket.Call) faultbucket.Fault { return faultbucket.Fault{Kind: faultbucket.Stuck} })
		wg.Go(func() {
			if _, err := w.f.Head(context.Background(), "k"); !errors.Is(err, faultbucket.ErrInjected) {
				t.Error(err)
			}
		})
		synctest.Wait()
		if err := w.f.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if w.k() != "old" || time.Since(start) != 0 {
			t.Errorf("%s after %s", w.k(), time.Since(start))
		}
	})
}

func TestReadsFailInEveryWay(t *testing.T) {
	for _, kind := range []faultbucket.Kind{faultbucket.Before, faultbucket.After, faultbucket.Late, faultbucket.Throttle, faultbucket.Stuck, faultbucket.StuckAfter} {
		synctest.Test(t, func(t *testing.T) {
			for _, read := range []func(context.Context, *world) error{
				func(ctx context.Context, w *world) error {
					_, err := w.f.Get(ctx, "k", bucket.GetOptions{})
					return err
				},
				func(ctx context.Context, w *world) error { _, err := w.f.Head(ctx, "k"); return err },
				func(ctx context.Context, w *world) error { _, _, err := w.f.List(ctx, "", "", 0); return err },
			} {
				w := with(t, faultbucket.Fault{Kind: kind})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				err := read(ctx, w)
				if !errors.Is(err, faultbucket.ErrInjected) || errors.Is(err, errkind.UnknownOutcome) {
					t.Errorf("%s: %v", kind, err)
				}
				if errors.Is(err, context.DeadlineExceeded) != (kind == faultbucket.Stuck || kind == faultbucket.StuckAfter) {
					t.Errorf("%s: %v", kind, err)
				}
				cancel()
				if err := read(t.Context(), w); err != nil {
					t.Errorf("after %s: %v", kind, err)
				}
				w.f.Close()
			}
		})
	}
}

func TestBodiesAreSpoiled(t *testing.T) {
	for pick := range uint64(24) {
		w := with(t, faultbucket.Fault{Kind: faultbucket.Rot, Pick: pick})
		o, err := w.f.Get(t.Context(), "k", bucket.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		flipped := 0
		for i := range o.Body {
			flipped += bits.OnesCount8(o.Body[i] ^ "old"[i])
		}
		if flipped != 1 || w.k() != "old" {
			t.Errorf("pick %d: %q, stored %q", pick, o.Body, w.k())
		}
		w = with(t, faultbucket.Fault{Kind: faultbucket.Truncate, Pick: pick})
		o, err = w.f.Get(t.Context(), "k", bucket.GetOptions{})
		if err != nil || len(o.Body) != int(pick%3) || o.Size != 3 {
			t.Errorf("pick %d: %q %v", pick, o.Body, err)
		}
	}
	w := with(t, faultbucket.Fault{})
	if _, err := w.f.Put(t.Context(), "k", nil, bucket.Condition{}); err != nil {
		t.Fatal(err)
	}
	w.f.SetPlan(func(faultbucket.Call) faultbucket.Fault { return faultbucket.Fault{Kind: faultbucket.Rot} })
	if o, err := w.f.Get(t.Context(), "k", bucket.GetOptions{}); err != nil || len(o.Body) != 0 {
		t.Error(o, err)
	}
}

func TestOldTagIsTheOneBefore(t *testing.T) {
	f := faultbucket.New(membucket.New(), host.System(), nil)
	defer f.Close()
	get := func() bucket.Tag {
		o, err := f.Get(t.Context(), "k", bucket.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o.Tag
	}
	put := func() bucket.Tag {
		tag, err := f.Put(t.Context(), "k", nil, bucket.Condition{})
		if err != nil {
			t.Fatal(err)
		}
		return tag
	}
	first := put()
	old := func(faultbucket.Call) faultbucket.Fault { return faultbucket.Fault{Kind: faultbucket.OldTag} }
	f.SetPlan(old)
	if got := get(); got != first {
		t.Errorf("the only tag is %s, got %s", first, got)
	}
	second := put()
	if got := get(); got != first {
		t.Errorf("got %s, want %s before %s", got, first, second)
	}
}

func TestStaleListsForgetAndRemember(t *testing.T) {
	ctx := t.Context()
	f := faultbucket.New(membucket.New(), host.System(), nil)
	defer f.Close()
	for i := range 5 {
		if _, err := f.Put(ctx, fmt.Sprintf("a/%d", i), nil, bucket.IfAbsent); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Delete(ctx, "a/1"); err != nil {
		t.Fatal(err)
	}
	_ = f.Delete(ctx, "never was")
	list := func(pick uint64, after string, max int) (keys string) {
		f.SetPlan(func(faultbucket.Call) faultbucket.Fault {
			return faultbucket.Fault{Kind: faultbucket.StaleList, Pick: pick}
		})
		page, _, err := f.List(ctx, "a/", after, max)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range page {
			keys += a.Key[2:]
		}
		return keys
	}
	for _, c := range []struct {
		pick  uint64
		after string
		max   int
		want  string
	}{
		{0b1, "", 0, "01234"}, {0, "", 0, "01234"}, // the delete is not seen
		{0b10, "", 0, "023"}, {0b11, "", 0, "0123"}, {0b110, "", 0, "02"},
		{0b1, "a/1", 0, "234"}, {0b1, "", 1, "0"}, {0b1, "", 2, "012"},
	} {
		if got := list(c.pick, c.after, c.max); got != c.want {
			t.Errorf("pick %b after %q max %d: %s, want %s", c.pick, c.after, c.max, got, c.want)
		}
	}
}

// counter is a seeded source of chance.
type counter struct{ n uint64 }

func (c *counter) Uint64() uint64 { c.n++; return c.n * 0x9e3779b97f4a7c15 }

func TestRulesFilterByVerbPrefixCountAndChance(t *testing.T) {
	before := faultbucket.Fault{Kind: faultbucket.Before, Pick: 1}
	run := func(r faultbucket.Rule) (hits string) {
		plan := faultbucket.Rules(&counter{}, r, faultbucket.Rule{Prefix: "seg/", Fault: faultbucket.Fault{Kind: faultbucket.Slow}})
		for i := range 6 {
			for _, v := range []layer.Verb{layer.Put, layer.Get} {
				if plan(faultbucket.Call{N: i, Verb: v, Key: "wal/s/1/0"}).Kind == before.Kind {
					hits += fmt.Sprintf("%s%d ", v, i)
				}
			}
		}
		if f := plan(faultbucket.Call{Verb: layer.List, Key: "seg/"}); f.Kind != before.Kind && (f.Kind != faultbucket.Slow || f.Pick == 0) {
			t.Errorf("the second rule: %+v", f)
		}
		return hits
	}
	for _, c := range []struct {
		rule faultbucket.Rule
		want string
	}{
		{faultbucket.Rule{Fault: before, Verbs: []layer.Verb{layer.Put}, From: 2, To: 3}, "put1 put2 "},
		{faultbucket.Rule{Fault: before, Prefix: "wal/", From: 11}, "put5 get5 "},
		{faultbucket.Rule{Fault: before, Prefix: "wal/x"}, ""},
		{faultbucket.Rule{Fault: before, Prefix: "wal/", To: 1}, "put0 "},
	} {
		if got := run(c.rule); got != c.want {
			t.Errorf("%+v: %q, want %q", c.rule, got, c.want)
		}
	}
	half := run(faultbucket.Rule{Fault: before, Prefix: "wal/", OneIn: 2})
	if half == "" || half == run(faultbucket.Rule{Fault: before, Prefix: "wal/"}) {
		t.Errorf("by chance: %q", half)
	}
	if again := run(faultbucket.Rule{Fault: before, Prefix: "wal/", OneIn: 2}); again != half {
		t.Errorf("the same chance gave %q, then %q", half, again)
	}
}

func TestDiskFullRefusesPutsOnly(t *testing.T) {
	w := with(t, faultbucket.Fault{Kind: faultbucket.DiskFull})
	if _, err := w.f.Put(t.Context(), "new", nil, bucket.IfAbsent); !errors.Is(err, errkind.Throttled) {
		t.Error(err)
	}
	w = with(t, faultbucket.Fault{Kind: faultbucket.DiskFull})
	if _, err := w.f.Get(t.Context(), "k", bucket.GetOptions{}); err != nil {
		t.Error(err)
	}
	if w.f.String() != "mem:" || fmt.Sprint(faultbucket.Kind(99)) != "invalid" {
		t.Error("names")
	}
}
