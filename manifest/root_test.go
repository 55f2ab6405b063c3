package manifest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// TestLoadsShareOneGetSentAfterThem: calls share a GET, but never one that was sent before
// they began; sentAt is the moment of the send.
func TestLoadsShareOneGetSentAfterThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{MemCell: cluster(t, "a"), before: func(string, string) { time.Sleep(time.Second) }}
		h := manifesttest.Host(1)
		r := manifest.NewRoot(g, h, nil)
		start := h.Mono()
		sent := make([]time.Duration, 4)
		var all sync.WaitGroup
		read := func(i int) {
			all.Go(func() {
				_, at, err := r.Load(t.Context())
				if err != nil {
					t.Error(err)
				}
				sent[i] = at - start
			})
		}
		read(0)
		time.Sleep(time.Second / 2)
		read(1)
		read(2)
		time.Sleep(time.Second)
		read(3)
		all.Wait()
		want := []time.Duration{0, time.Second, time.Second, 2 * time.Second}
		if !slices.Equal(sent, want) {
			t.Errorf("GETs were sent at %v, expected %v", sent, want)
		}
		if n := len(g.Requests("load", manifest.RootKey)); n != 3 {
			t.Errorf("%d GETs, expected 3", n)
		}
		if st := r.Stats(); st.Loads != 3 || st.NotModified != 2 {
			t.Errorf("stats %+v", st)
		}
	})
}

// TestLoadGoesOnWithoutThoseWhoLeft: one of two callers leaves, the other gets the answer;
// when all leave a GET that was not sent yet is never sent.
func TestLoadGoesOnWithoutThoseWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{MemCell: cluster(t, "a"), before: func(string, string) { time.Sleep(10 * time.Second) }}
		r := manifest.NewRoot(g, manifesttest.Host(1), nil)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		errs := make([]error, 3)
		var all sync.WaitGroup
		for i, ctx := range []context.Context{short, t.Context(), short} {
			if i == 2 {
				synctest.Wait() // the first GET is on its way: this one waits for the second
			}
			all.Go(func() { _, _, errs[i] = r.Load(ctx) })
		}
		all.Wait()
		if !errors.Is(errs[0], context.DeadlineExceeded) || errs[1] != nil || !errors.Is(errs[2], context.DeadlineExceeded) {
			t.Errorf("got %v", errs)
		}
		if n := len(g.Requests("load", manifest.RootKey)); n != 1 {
			t.Errorf("%d GETs, expected 1", n)
		}
	})
}

// TestRootNeverGoesBack: an answer older than one that was seen is read again; a store that
// insists is an error, as is another body of the same version, or another cluster.
func TestRootNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell := cluster(t, "a")
		first := cell.Object(manifest.RootKey)
		r := manifest.NewRoot(cell, manifesttest.Host(1), nil)
		other := manifest.NewRoot(cell, manifesttest.Host(2), nil)
		for i := range 3 {
			if _, err := other.Commit(t.Context(), edit(fmt.Sprint(i), put("x"))); err != nil {
				t.Fatal(err)
			}
		}
		load(t, r)
		if _, err := other.Commit(t.Context(), edit("last", put("x"))); err != nil {
			t.Fatal(err)
		}
		// The next answer comes from two versions before.
		stale := 2
		cell.Put(manifest.RootKey, cell.Object(manifest.RootKey))
		cell.Fault = func(manifesttest.Request) manifesttest.Fault {
			if stale--; stale >= 0 {
				return manifesttest.Fault{Kind: manifesttest.LostBefore}
			}
			return manifesttest.Fault{}
		}
		if _, _, err := r.Load(t.Context()); err == nil {
			t.Error("a lost load succeeded")
		}
		cell.Fault = nil
		if s := load(t, r); s.Version() != 5 {
			t.Errorf("version %d", s.Version())
		}
		again := cell.Object(manifest.RootKey)
		cell.Put(manifest.RootKey, first)
		if _, _, err := r.Load(t.Context()); !errors.Is(err, errkind.Corrupt) || !strings.Contains(err.Error(), "put back") {
			t.Errorf("root put back: %v", err)
		}
		if s := r.State(); s.Version() != 5 {
			t.Errorf("state went back to %d", s.Version())
		}
		cell.Put(manifest.RootKey, nil)
		other = manifest.NewRoot(cell, manifesttest.Host(8), nil)
		s, err := manifest.Create(t.Context(), cell, manifesttest.Host(8), manifest.InitOptions{Shards: []manifest.ShardID{"b"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.Load(t.Context()); !errors.Is(err, errkind.Corrupt) || !strings.Contains(err.Error(), "cluster id") {
			t.Errorf("another cluster: %v", err)
		}
		load(t, other)
		// The same version with another nonce.
		twin, err := manifest.Apply(s, edit("twin", put("x")), [16]byte{1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Commit(t.Context(), edit("one", put("x"))); err != nil {
			t.Fatal(err)
		}
		body, err := manifest.EncodeRoot(twin)
		if err != nil {
			t.Fatal(err)
		}
		cell.Put(manifest.RootKey, body)
		if _, _, err := other.Load(t.Context()); !errors.Is(err, errkind.Corrupt) || !strings.Contains(err.Error(), "nonce") {
			t.Errorf("twin: %v", err)
		}
		cell.Put(manifest.RootKey, again)
	})
}

// TestStaleAnswersAreIgnored: with a third of the loads answered from the version before, a
// root still goes forward only.
func TestStaleAnswersAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell := cluster(t, "a")
		r := manifest.NewRoot(cell, manifesttest.Host(1), nil)
		other := manifest.NewRoot(cell, manifesttest.Host(2), nil)
		load(t, other)
		loads := 0
		cell.Fault = func(q manifesttest.Request) manifesttest.Fault {
			if q.Verb == "load" {
				loads++
				if loads%3 == 2 {
					return manifesttest.Fault{Kind: manifesttest.Stale}
				}
			}
			return manifesttest.Fault{}
		}
		last := manifest.Version(0)
		for i := range 40 {
			if _, err := other.Commit(t.Context(), edit(fmt.Sprint(i), put("x"))); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				s := load(t, r)
				if s.Version() < last {
					t.Fatalf("went from %d to %d", last, s.Version())
				}
				last = s.Version()
			}
		}
		if r.Stats().Stale == 0 {
			t.Error("no answer was stale")
		}
	})
}

// TestObserversComeFirst: observers see each newer state once, in order, before any caller.
func TestObserversComeFirst(t *testing.T) {
	cell := cluster(t, "a")
	var r *manifest.Root
	var seen, later []manifest.Version
	observe := func(s *manifest.State) {
		if now := r.State(); now != nil && now.Version() >= s.Version() {
			t.Errorf("version %d was shown before its observers were called", s.Version())
		}
		seen = append(seen, s.Version())
	}
	r = manifest.NewRoot(cell, manifesttest.Host(1), &manifest.RootOptions{Observe: observe})
	load(t, r)
	load(t, r)
	remove := r.AddObserver(func(s *manifest.State) { later = append(later, s.Version()) })
	for i := range 3 {
		s, err := r.Commit(t.Context(), edit(fmt.Sprint(i), put("x")))
		if err != nil {
			t.Fatal(err)
		}
		if seen[len(seen)-1] != s.Version() {
			t.Errorf("version %d came before its observers", s.Version())
		}
		if i == 1 {
			remove()
		}
	}
	if want := []manifest.Version{1, 2, 3, 4}; !slices.Equal(seen, want) {
		t.Errorf("observed %v, expected %v", seen, want)
	}
	if want := []manifest.Version{2, 3}; !slices.Equal(later, want) {
		t.Errorf("the second observer saw %v, expected %v", later, want)
	}
}

// TestAtLeast answers from what was seen, asks the store when that is too old, and says so
// when the store does not have the version either.
func TestAtLeast(t *testing.T) {
	cell := cluster(t, "a")
	r := manifest.NewRoot(cell, manifesttest.Host(1), nil)
	other := manifest.NewRoot(cell, manifesttest.Host(2), nil)
	if s, err := r.AtLeast(t.Context(), 1); err != nil || s.Version() != 1 {
		t.Fatalf("%v", err)
	}
	if _, err := other.Commit(t.Context(), edit("1", put("x"))); err != nil {
		t.Fatal(err)
	}
	if s, err := r.AtLeast(t.Context(), 1); err != nil || s.Version() != 1 || r.Stats().Loads != 1 {
		t.Errorf("version 1 is at hand: %v, %d loads", err, r.Stats().Loads)
	}
	if s, err := r.AtLeast(t.Context(), 2); err != nil || s.Version() != 2 {
		t.Errorf("version 2: %v", err)
	}
	if _, err := r.AtLeast(t.Context(), 3); !errors.Is(err, errkind.StaleVersion) {
		t.Errorf("version 3: %v", err)
	}
	cell.Put(manifest.RootKey, nil)
	if _, err := r.AtLeast(t.Context(), 3); !errors.Is(err, errkind.NotFound) {
		t.Errorf("without a root: %v", err)
	}
}

// TestCreateMakesOneRoot: of two creators one wins; an unclear outcome is found out.
func TestCreateMakesOneRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := manifest.InitOptions{
			Shards: []manifest.ShardID{"a"}, ClusterID: manifest.ClusterID{7},
			Records: []manifest.Record{{Kind: manifest.RecordSetting, ID: "lease", Body: manifesttest.Bound("5s", false).BSON}},
		}
		for kind := manifesttest.NoFault; kind <= manifesttest.Throttle; kind++ {
			for n := range 2 {
				cell := &manifesttest.MemCell{Fault: func(q manifesttest.Request) manifesttest.Fault {
					if q.N <= n {
						return manifesttest.Fault{Kind: kind, After: 1}
					}
					return manifesttest.Fault{}
				}}
				s, err := manifest.Create(t.Context(), cell, manifesttest.Host(1), options)
				if err != nil || s.Version() != 1 || s.ClusterID() != options.ClusterID || len(s.Records(manifest.RecordSetting)) != 1 {
					t.Fatalf("fault %d: %v", kind, err)
				}
				if err := manifest.Validate(s); err != nil {
					t.Error(err)
				}
				if _, err := manifest.Create(t.Context(), cell, manifesttest.Host(2), options); !errors.Is(err, errkind.Conflict) {
					t.Errorf("second create: %v", err)
				}
			}
		}
		options.Shards = append(options.Shards, "NOT A NAME")
		if _, err := manifest.Create(t.Context(), &manifesttest.MemCell{}, manifesttest.Host(1), options); !errors.Is(err, errkind.Invalid) {
			t.Errorf("bad name: %v", err)
		}
		dead := &manifesttest.MemCell{Fault: func(manifesttest.Request) manifesttest.Fault {
			return manifesttest.Fault{Kind: manifesttest.LostBefore}
		}}
		if _, err := manifest.Create(t.Context(), dead, manifesttest.Host(1), manifest.InitOptions{}); !errors.Is(err, errkind.UnknownOutcome) {
			t.Errorf("no answer: %v", err)
		}
	})
}

// TestWhatIsDeclaredIsCopiedSoon: what people declare is in a copy at once, but for what comes
// within a second of another, also by clocks that disagree; and that is one PUT.
func TestWhatIsDeclaredIsCopiedSoon(t *testing.T) {
	cell := cluster(t, "a")
	r := manifest.NewRoot(cell, manifesttest.Host(1), &manifest.RootOptions{HistoryEvery: time.Minute})
	copies := 0
	for i, x := range []struct {
		change manifest.Change
		millis int64
		copied bool
	}{
		{put("one"), 1_000_000, true},
		{put("two"), 1_010_000, false},
		{manifest.AddShards{IDs: []manifest.ShardID{"b"}}, 1_020_000, true},
		{manifest.AddShards{IDs: []manifest.ShardID{"c"}}, 1_020_500, false},
		{manifest.AddShards{IDs: []manifest.ShardID{"d"}}, 1_021_000, true},
		{manifest.AddShards{IDs: []manifest.ShardID{"e"}}, 500_000, true},
		{put("three"), 1_030_000, false},
	} {
		e := edit(fmt.Sprint(i), x.change)
		e.Millis = x.millis
		s, err := r.Commit(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		if x.copied {
			copies++
		}
		_, err = manifest.ReadCopy(t.Context(), cell, nil, manifest.HistoryKey(s.Version()))
		if (err == nil) != x.copied {
			t.Errorf("commit %d: %v", i, err)
		}
		if keys := cell.Keys("meta/history/"); len(keys) != copies {
			t.Errorf("commit %d: copies %v", i, keys)
		}
	}
}

// TestCopiesAreKeptOnceInAWhile: with HistoryEvery commits leave copies that can be read.
func TestCopiesAreKeptOnceInAWhile(t *testing.T) {
	cell := cluster(t, "a")
	r := manifest.NewRoot(cell, manifesttest.Host(1), &manifest.RootOptions{HistoryEvery: time.Minute})
	for i := range 10 {
		e := edit(fmt.Sprint(i), put(fmt.Sprint(i)))
		e.Millis = 1_000_000 + int64(i)*20_000
		if _, err := r.Commit(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	keys := cell.Keys("meta/history/")
	if len(keys) != 4 { // at 0, 60, 120 and 180 seconds
		t.Errorf("copies %v", keys)
	}
	s, err := manifest.ReadCopy(t.Context(), cell, nil, manifest.HistoryKey(5))
	if err != nil || s.Version() != 5 {
		t.Errorf("copy: %v", err)
	}
	if _, err := manifest.ReadCopy(t.Context(), cell, nil, manifest.HistoryKey(6)); !errors.Is(err, errkind.NotFound) {
		t.Errorf("no copy: %v", err)
	}
	cell.Put(manifest.PinKey([16]byte{1}), []byte("junk"))
	if _, err := manifest.ReadCopy(t.Context(), cell, nil, manifest.PinKey([16]byte{1})); !errors.Is(err, errkind.Corrupt) {
		t.Errorf("junk: %v", err)
	}
}
