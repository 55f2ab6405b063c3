package manifest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// cluster makes a cell with a first root.
func cluster(t *testing.T, shards ...manifest.ShardID) *manifesttest.MemCell {
	t.Helper()
	cell := &manifesttest.MemCell{}
	if _, err := manifest.Create(t.Context(), cell, manifesttest.Host(99), manifest.InitOptions{Shards: shards}); err != nil {
		t.Fatal(err)
	}
	return cell
}

func load(t *testing.T, r *manifest.Root) *manifest.State {
	t.Helper()
	s, _, err := r.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// edit is an edit with an op of its own.
func edit(op string, changes ...manifest.Change) manifest.Edit {
	e := manifest.Edit{Changes: changes}
	copy(e.Op[:], op)
	return e
}

func put(id string) manifest.Change {
	return manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordSetting, ID: id, Body: manifesttest.Bound("v", false).BSON}}
}

// commit commits until the outcome is known: the same edit again after an unknown one.
func commit(ctx context.Context, r *manifest.Root, e manifest.Edit) (*manifest.State, error) {
	for {
		s, err := r.Commit(ctx, e)
		if !errors.Is(err, errkind.UnknownOutcome) && !errors.Is(err, errkind.Throttled) {
			return s, err
		}
	}
}

// gate is a cell that asks before each request.
type gate struct {
	*manifesttest.MemCell
	before func(verb, key string)
}

func (g *gate) Load(ctx context.Context, key, known string) ([]byte, string, error) {
	g.before("load", key)
	return g.MemCell.Load(ctx, key, known)
}

func (g *gate) Swap(ctx context.Context, key string, body []byte, from string) (string, error) {
	g.before("swap", key)
	return g.MemCell.Swap(ctx, key, body, from)
}

// TestWaitingEditsGoOutTogether holds one PUT up, and finds the edits that arrive meanwhile
// in a single one after it: in order, the misfit refused alone.
func TestWaitingEditsGoOutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		g := &gate{MemCell: cluster(t, "a"), before: func(verb, _ string) {
			if verb == "swap" {
				<-held
			}
		}}
		r := manifest.NewRoot(g, manifesttest.Host(1), nil)
		load(t, r)
		edits := []manifest.Edit{
			edit("first", put("first")),
			edit("1", manifest.Claim{Shard: "a", Holder: "p"}),
			edit("2", manifest.Claim{Shard: "a", Holder: "q"}), // too late
			edit("3", put("x")),
			edit("3", put("x")), // the same edit twice
			edit("4", manifest.Claim{Shard: "a", Epoch: 1, Holder: "q"}),
		}
		errs := make([]error, len(edits))
		states := make([]*manifest.State, len(edits))
		var all sync.WaitGroup
		for i, e := range edits {
			all.Go(func() { states[i], errs[i] = r.Commit(t.Context(), e) })
			synctest.Wait()
		}
		close(held)
		all.Wait()
		for i, err := range errs {
			if want := i == 2; errors.Is(err, errkind.Conflict) != want || err != nil && !want {
				t.Errorf("edit %d: %v", i, err)
			}
		}
		if n := len(g.Requests("swap", manifest.RootKey)); n != 3 { // create, the first, the others
			t.Errorf("%d PUTs of the root, expected 3", n)
		}
		s := r.State()
		if s.Version() != 3 || s.Shard("a").Epoch != 2 || states[5] != s {
			t.Errorf("ended with\n%s", manifesttest.Format(s))
		}
		for _, e := range edits[3:] {
			if v, ok := s.HasOp(e.Op); !ok || v != 3 {
				t.Errorf("op %x made version %d", e.Op, v)
			}
		}
	})
}

// TestConflictIsJudgedOnANewState: a cached state alone never refuses an edit.
func TestConflictIsJudgedOnANewState(t *testing.T) {
	cell := cluster(t, "a")
	a := manifest.NewRoot(cell, manifesttest.Host(1), nil)
	b := manifest.NewRoot(cell, manifesttest.Host(2), nil)
	load(t, a)
	if _, err := b.Commit(t.Context(), edit("1", manifest.Claim{Shard: "a", Holder: "p"})); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Commit(t.Context(), edit("2", manifest.Claim{Shard: "a", Epoch: 1, Holder: "q"})); err != nil {
		t.Errorf("on the new state the edit fits: %v", err)
	}
	_, err := b.Commit(t.Context(), edit("3", manifest.Claim{Shard: "a", Epoch: 1, Holder: "r"}))
	if !errors.Is(err, errkind.Conflict) || !strings.Contains(err.Error(), "epoch is 2, expected 1") {
		t.Errorf("got %v", err)
	}
	if _, err := a.Commit(t.Context(), edit("4", manifest.AddShards{IDs: []manifest.ShardID{"BAD"}})); !errors.Is(err, errkind.Invalid) {
		t.Errorf("got %v", err)
	}
	if _, err := a.Commit(t.Context(), manifest.Edit{}); !errors.Is(err, errkind.Invalid) {
		t.Errorf("an edit without an op: %v", err)
	}
	if _, err := a.Commit(t.Context(), edit("5", nil)); !errors.Is(err, errkind.Invalid) {
		t.Errorf("a nil change: %v", err)
	}
}

// TestCommittedEditIsNotAppliedAgain commits the same edit through two roots.
func TestCommittedEditIsNotAppliedAgain(t *testing.T) {
	cell := cluster(t, "a")
	e := edit("1", manifest.Claim{Shard: "a", Holder: "p"})
	for seed := range uint64(3) {
		r := manifest.NewRoot(cell, manifesttest.Host(seed), nil)
		s, err := r.Commit(t.Context(), e)
		if err != nil || s.Shard("a").Epoch != 1 || s.Version() != 2 {
			t.Fatalf("commit %d: %v", seed, err)
		}
		if _, err := manifest.Apply(s, e, [16]byte{1}); !errors.Is(err, errkind.Conflict) {
			t.Errorf("apply of an edit that landed: %v", err)
		}
	}
}

// TestCallerLeaves: before its edit is sent a caller gets its context's cause and the edit
// is dropped; after that the outcome is unknown to it, while the others get theirs.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		g := &gate{MemCell: cluster(t, "a"), before: func(verb, _ string) {
			if verb == "swap" {
				<-held
			}
		}}
		r := manifest.NewRoot(g, manifesttest.Host(1), nil)
		load(t, r)
		gone := errors.New("gone home")
		sentCtx, leaveSent := context.WithCancelCause(t.Context())
		queuedCtx, leaveQueued := context.WithCancelCause(t.Context())
		errs := map[string]error{}
		var mu sync.Mutex
		var all sync.WaitGroup
		do := func(ctx context.Context, op string) {
			all.Go(func() {
				_, err := r.Commit(ctx, edit(op, put(op)))
				mu.Lock()
				errs[op] = err
				mu.Unlock()
			})
			synctest.Wait()
		}
		do(t.Context(), "blocker")
		// These two go out together, once the blocker is through.
		do(sentCtx, "sent")
		do(t.Context(), "stays")
		held <- struct{}{}
		synctest.Wait()
		do(queuedCtx, "queued")
		leaveSent(gone)
		leaveQueued(gone)
		synctest.Wait()
		close(held)
		all.Wait()
		if errs["blocker"] != nil || errs["stays"] != nil {
			t.Errorf("those who stayed: %v, %v", errs["blocker"], errs["stays"])
		}
		if err := errs["sent"]; !errors.Is(err, errkind.UnknownOutcome) || !errors.Is(err, gone) {
			t.Errorf("after the send: %v", err)
		}
		if err := errs["queued"]; errors.Is(err, errkind.UnknownOutcome) || !errors.Is(err, gone) {
			t.Errorf("before the send: %v", err)
		}
		s := load(t, r)
		if _, ok := s.Record(manifest.RecordSetting, "queued"); ok {
			t.Error("an edit landed whose caller was told that it was not sent")
		}
		if _, err := r.Commit(queuedCtx, edit("x", put("x"))); !errors.Is(err, gone) {
			t.Errorf("commit after the end: %v", err)
		}
		if _, _, err := r.Load(queuedCtx); !errors.Is(err, gone) {
			t.Errorf("load after the end: %v", err)
		}
	})
}

// TestNobodyWaitsNothingRuns: when the last caller leaves, an unclear commit is given up
// and no goroutine is left (the bubble would not end).
func TestNobodyWaitsNothingRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell := cluster(t, "a")
		cell.Fault = func(q manifesttest.Request) manifesttest.Fault {
			if q.Verb == "swap" {
				return manifesttest.Fault{Kind: manifesttest.LostBefore}
			}
			return manifesttest.Fault{}
		}
		r := manifest.NewRoot(cell, manifesttest.Host(1), nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := r.Commit(ctx, edit("1", put("x"))); !errors.Is(err, errkind.UnknownOutcome) {
			t.Errorf("got %v", err)
		}
		cell.Fault = func(manifesttest.Request) manifesttest.Fault { return manifesttest.Fault{Kind: manifesttest.Hang} }
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, _, err := r.Load(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("load without an answer: %v", err)
		}
	})
}

// TestAttemptsAreBounded: a store that never gives a clear answer ends a commit with
// UnknownOutcome, one that takes nothing with Throttled, and a root that is gone or damaged
// ends it at once.
func TestAttemptsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell := cluster(t, "a")
		all := manifesttest.Fault{}
		only := ""
		cell.Fault = func(q manifesttest.Request) manifesttest.Fault {
			if only == "" || q.Verb == only {
				return all
			}
			return manifesttest.Fault{}
		}
		r := manifest.NewRoot(cell, manifesttest.Host(1), &manifest.RootOptions{Attempts: 5})
		check := func(what string, fault manifesttest.FaultKind, verb string, want ...error) {
			t.Helper()
			all.Kind, only = fault, verb
			_, err := r.Commit(t.Context(), edit(what, put("x")))
			for _, w := range want {
				if !errors.Is(err, w) {
					t.Errorf("%s: got %v, expected %v", what, err, w)
				}
			}
		}
		check("no read", manifesttest.LostBefore, "load", errkind.Throttled)
		load0 := manifesttest.Fault{}
		all = load0
		load(t, r)
		check("no swap", manifesttest.LostBefore, "swap", errkind.UnknownOutcome)
		check("throttled swap", manifesttest.Throttle, "swap", errkind.UnknownOutcome)
		all = load0
		body := cell.Object(manifest.RootKey)
		body[len(body)-1] ^= 1
		cell.Put(manifest.RootKey, body)
		check("damaged", manifesttest.NoFault, "", errkind.UnknownOutcome, errkind.Corrupt)
		cell.Put(manifest.RootKey, nil)
		fresh := manifest.NewRoot(cell, manifesttest.Host(1), nil)
		if _, err := fresh.Commit(t.Context(), edit("none", put("x"))); !errors.Is(err, errkind.NotFound) || errors.Is(err, errkind.UnknownOutcome) {
			t.Errorf("no root: %v", err)
		}
	})
}

// TestBackgroundEditsArePaced: edits nobody waits for start one commit in a while, unless a
// foreground one takes them along.
func TestBackgroundEditsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = 10 * time.Second
		cell := cluster(t, "a")
		r := manifest.NewRoot(cell, manifesttest.Host(1), &manifest.RootOptions{BackgroundEvery: every})
		start := time.Now()
		var all sync.WaitGroup
		took := make([]time.Duration, 4)
		background := func(i int) {
			all.Go(func() {
				e := edit(fmt.Sprint("background", i), put(fmt.Sprint(i)))
				e.Background = true
				if _, err := r.Commit(t.Context(), e); err != nil {
					t.Error(err)
				}
				took[i] = time.Since(start)
			})
			synctest.Wait()
		}
		background(0) // at once
		background(1) // after the pause
		background(2) // with 1
		time.Sleep(every + every/2)
		background(3) // would wait until 2*every, but somebody is in a hurry
		time.Sleep(every / 4)
		if _, err := r.Commit(t.Context(), edit("now", put("now"))); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		want := []time.Duration{0, every, every, every * 7 / 4}
		for i := range took {
			if took[i] != want[i] {
				t.Errorf("edit %d landed after %v, expected %v", i, took[i], want[i])
			}
		}
		if n := r.Stats().Commits; n != 3 {
			t.Errorf("%d commits, expected 3", n)
		}
		// A caller that leaves the wait leaves nothing behind.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		e := edit("left", put("left"))
		e.Background = true
		if _, err := r.Commit(ctx, e); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// TestOutcomeBeyondMemoryIsUnknown: when the root has moved on so far that it no longer
// names the edits in between, absence proves nothing.
func TestOutcomeBeyondMemoryIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell := cluster(t, "a")
		other := manifest.NewRoot(cell, manifesttest.Host(2), nil)
		busy := false
		g := &gate{MemCell: cell}
		g.before = func(verb, _ string) {
			if verb != "load" || !busy {
				return
			}
			busy = false
			for i := range manifest.RecentOps + 1 {
				if _, err := other.Commit(t.Context(), edit(fmt.Sprint("other", i), put("x"))); err != nil {
					t.Error(err)
				}
			}
		}
		r := manifest.NewRoot(g, manifesttest.Host(1), nil)
		load(t, r)
		busy = true
		lost := false
		cell.Fault = func(q manifesttest.Request) manifesttest.Fault {
			if q.Verb == "swap" && !lost {
				lost = true
				return manifesttest.Fault{Kind: manifesttest.LostBefore}
			}
			return manifesttest.Fault{}
		}
		_, err := r.Commit(t.Context(), edit("mine", put("mine")))
		if !errors.Is(err, errkind.UnknownOutcome) {
			t.Errorf("got %v", err)
		}
		if s := other.State(); s.KnowsOpsSince(1) || !s.KnowsOpsSince(2) {
			t.Errorf("version %d knows the ops since 1: %v, since 2: %v", s.Version(), s.KnowsOpsSince(1), s.KnowsOpsSince(2))
		}
	})
}

// TestOlderReleaseDoesNotWrite: a root that asks for a newer writer can be read, not
// changed.
func TestOlderReleaseDoesNotWrite(t *testing.T) {
	cell := cluster(t, "a")
	cell.Put(manifest.RootKey, manifest.RewriteFormat(cell.Object(manifest.RootKey), manifest.FormatVersion, manifest.FormatVersion+1))
	r := manifest.NewRoot(cell, manifesttest.Host(1), nil)
	load(t, r)
	if _, err := r.Commit(t.Context(), edit("1", put("x"))); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "1.1") {
		t.Errorf("commit: %v", err)
	}
	cell.Put(manifest.RootKey, manifest.RewriteFormat(cell.Object(manifest.RootKey), manifest.FormatVersion+1, manifest.FormatVersion+1))
	if _, _, err := manifest.NewRoot(cell, manifesttest.Host(1), nil).Load(t.Context()); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "1.1") {
		t.Errorf("load: %v", err)
	}
}
