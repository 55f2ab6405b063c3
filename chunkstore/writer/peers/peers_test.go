package peers

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Processes that start at the same moment find one another, and none has everything.
func TestProcessesThatStartTogetherShare(t *testing.T) {
	t.Parallel()
	inWorld(t, 6, func(t *testing.T, w *world) {
		for _, a := range []string{"a:1", "b:1", "c:1"} {
			w.start(a)
		}
		took := w.until("an even share", 20*time.Second, w.eachHolds(2, "a:1", "b:1", "c:1"))
		t.Logf("even after %v", took)
	})
}

// A process alone takes all shards; one that comes later is given its share, without a
// takeover.
func TestTheLateComerIsGivenItsShare(t *testing.T) {
	t.Parallel()
	inWorld(t, 4, func(t *testing.T, w *world) {
		w.start("a:1")
		w.until("one process has all", 5*time.Second, w.eachHolds(4, "a:1"))
		w.start("b:1")
		w.until("an even share", 20*time.Second, w.eachHolds(2, "a:1", "b:1"))
		for _, s := range w.state().Shards() {
			if len(s.OpenEpochs) > 0 {
				t.Errorf("shard %s was taken over, not handed over", s.ID)
			}
		}
		time.Sleep(time.Minute)
		if w.held("a:1") != 2 || w.state().Shards()[0].Epoch > 2 {
			t.Errorf("shards wander without need: %s", w.holders())
		}
	})
}

// After a kill the shards are served again as soon as the lease allows, spread over those
// that live.
func TestTheShardsOfAKilledProcessAreSpread(t *testing.T) {
	t.Parallel()
	inWorld(t, 6, func(t *testing.T, w *world) {
		procs := map[string]*proc{}
		for _, a := range []string{"a:1", "b:1", "c:1"} {
			procs[a] = w.start(a)
		}
		w.until("an even share", 20*time.Second, w.eachHolds(2, "a:1", "b:1", "c:1"))
		procs["b:1"].kill(w)
		took := w.until("the two others have three each", 8*time.Second, w.eachHolds(3, "a:1", "c:1"))
		t.Logf("served %v after the kill", took)
		if took < lease || took > lease+1500*time.Millisecond {
			t.Errorf("served %v after the kill, with a lease of %v", took, lease)
		}
	})
}

// A process that is stopped and answers nothing is gone after three pings; one that wakes up
// sees that, and gets a share again.
func TestASilentProcessIsTakenOver(t *testing.T) {
	t.Parallel()
	inWorld(t, 2, func(t *testing.T, w *world) {
		a, b := w.start("a:1"), w.start("b:1")
		w.until("an even share", 20*time.Second, w.eachHolds(1, "a:1", "b:1"))
		w.mu.Lock()
		b.stuck, b.stopped = true, true
		w.mu.Unlock()
		took := w.until("a has both", 12*time.Second, func() bool { return w.held("a:1") == 2 })
		t.Logf("claimed %v after the silence began", took)
		w.mu.Lock()
		b.stuck, b.stopped = false, false
		w.mu.Unlock()
		w.until("an even share again", 20*time.Second, w.eachHolds(1, "a:1", "b:1"))
		_ = a
	})
}

// Two processes that reach the store and not one another take their shards from each other
// ever more seldom, and share them again when they hear of one another.
func TestProcessesThatAreCutOffFromOneAnotherCalmDown(t *testing.T) {
	t.Parallel()
	inWorld(t, 2, func(t *testing.T, w *world) {
		a, b := w.start("a:1"), w.start("b:1")
		w.until("an even share", 20*time.Second, w.eachHolds(1, "a:1", "b:1"))
		claims := func() (n manifest.Epoch) {
			for _, s := range w.state().Shards() {
				n += s.Epoch
			}
			return n
		}
		apart := func(yes bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			a.stuck, b.stuck = yes, yes
		}
		apart(true)
		before := claims()
		time.Sleep(10 * time.Minute)
		first := claims() - before
		time.Sleep(20 * time.Minute)
		second := claims() - before - first
		t.Logf("%d claims in 10 minutes, %d in the next 20", first, second)
		if first > 30 || second > 40 {
			t.Errorf("%d claims in 10 minutes, %d in the next 20", first, second)
		}
		apart(false)
		w.until("an even share again", 30*time.Second, w.eachHolds(1, "a:1", "b:1"))
	})
}

// SIGTERM hands the shards over: they are served again at once, without a lease wait, and
// the process that comes back gets its share again.
func TestAStopHandsTheShardsOver(t *testing.T) {
	t.Parallel()
	inWorld(t, 3, func(t *testing.T, w *world) {
		procs := map[string]*proc{}
		for _, a := range []string{"a:1", "b:1", "c:1"} {
			procs[a] = w.start(a)
		}
		w.until("an even share", 20*time.Second, w.eachHolds(1, "a:1", "b:1", "c:1"))
		for _, a := range []string{"a:1", "b:1", "c:1", "a:1"} {
			procs[a].quit(w)
			if took := w.until("all are served", 5*time.Second, w.served); took > 50*time.Millisecond {
				t.Errorf("after %s stopped, %v passed until all was served", a, took)
			}
			procs[a] = w.start(a)
			time.Sleep(time.Second)
		}
		w.until("an even share", 30*time.Second, w.eachHolds(1, "a:1", "b:1", "c:1"))
		for _, s := range w.state().History() {
			if takeover, _ := s.Detail.Lookup("takeover").BooleanOK(); takeover {
				t.Errorf("a takeover in a rolling restart: %v", s.Detail)
			}
		}
	})
}

// The last process to stop frees its shards.
func TestTheLastOneFreesItsShards(t *testing.T) {
	t.Parallel()
	inWorld(t, 2, func(t *testing.T, w *world) {
		a := w.start("a:1")
		w.until("it has all", 5*time.Second, w.eachHolds(2, "a:1"))
		a.quit(w)
		if got := w.holders(); got != "- - " {
			t.Errorf("holders after the stop: %s", got)
		}
	})
}

// A process that was started for a shard gets it, also from one that works; one that was
// started for another never takes it.
func TestNamedShardsGoToTheirProcess(t *testing.T) {
	t.Parallel()
	inWorld(t, 3, func(t *testing.T, w *world) {
		w.start("a:1")
		w.until("it has all", 5*time.Second, w.eachHolds(3, "a:1"))
		b := w.start("b:1", "shard02")
		w.until("shard02 is b's", 10*time.Second, func() bool { return w.holders() == "a:1 b:1 a:1 " && w.served() })
		time.Sleep(30 * time.Second)
		if got := w.holders(); got != "a:1 b:1 a:1 " {
			t.Errorf("holders later: %s", got)
		}
		_, err := b.Claim(context.Background(), &rpc.ClaimRequest{Header: rpc.Header{Shard: "shard01"}})
		if !errors.Is(err, errkind.Conflict) {
			t.Errorf("a claim of another shard: %v", err)
		}
	})
}

// Everybody was killed and starts again, at the same addresses: nobody waits for the dead.
func TestAfterAKillOfEverybodyTheNextOnesServe(t *testing.T) {
	t.Parallel()
	inWorld(t, 3, func(t *testing.T, w *world) {
		addresses := []string{"a:1", "b:1", "c:1"}
		var procs []*proc
		for _, a := range addresses {
			procs = append(procs, w.start(a))
		}
		w.until("an even share", 20*time.Second, w.eachHolds(1, addresses...))
		for _, p := range procs {
			p.kill(w)
		}
		for _, a := range addresses {
			w.start(a)
		}
		took := w.until("all are served", 8*time.Second, w.served)
		t.Logf("served after %v", took)
	})
}

// A router's Finder has a killed holder's shard, or a free one, claimed by a process that
// lives, and leaves a holder that works alone.
func TestTheFinderAsksALiveWriter(t *testing.T) {
	t.Parallel()
	inWorld(t, 2, func(t *testing.T, w *world) {
		a := w.start("a:1")
		w.until("it has all", 5*time.Second, w.eachHolds(2, "a:1"))
		b := w.start("b:1", "shard07") // takes nothing of what there is
		time.Sleep(2 * time.Second)
		root := manifest.NewRoot(bucket.NewCell(w.mem), host.System(), nil)
		f := NewFinder(root, w, host.System(), slog.New(slog.NewTextHandler(io.Discard, nil)))
		if err := f.Claim(t.Context(), "shard01"); err != nil || w.held("a:1") != 2 {
			t.Errorf("with a holder that works: %v, %s", err, w.holders())
		}
		c := w.start("c:1", "shard01")
		w.until("shard01 is c's", 10*time.Second, func() bool { return w.held("c:1") == 1 && w.served() })
		_ = f.Claim(t.Context(), "shard01") // so that it knows all three
		a.stop()                            // its watch, not its answers
		c.kill(w)
		if err := f.Claim(t.Context(), "shard01"); err != nil {
			t.Fatal(err)
		}
		if got := w.holders(); got != "a:1 a:1 " || !w.served() {
			t.Errorf("after a kill: %s", got)
		}
		if err := f.Claim(t.Context(), "shard09"); !errors.Is(err, errkind.Invalid) {
			t.Errorf("no such shard: %v", err)
		}
		_ = b
	})
}

// Who answers, if only that it does not know us, is not gone.
func TestAnotherSecretIsNoSilence(t *testing.T) {
	t.Parallel()
	inWorld(t, 1, func(t *testing.T, w *world) {
		a := w.start("a:1")
		w.until("a has it", 5*time.Second, w.eachHolds(1, "a:1"))
		w.mu.Lock()
		a.rude = true
		w.mu.Unlock()
		w.start("b:1")
		time.Sleep(time.Minute)
		if got := w.holders(); got != "a:1 " {
			t.Errorf("holders: %s", got)
		}
	})
}

// A holder without an address cannot be asked: it is as good as gone after three tries.
func TestAHolderWithoutAnAddressIsTakenOver(t *testing.T) {
	t.Parallel()
	inWorld(t, 1, func(t *testing.T, w *world) {
		_, err := manifest.NewRoot(bucket.NewCell(w.mem), host.System(), nil).Commit(t.Context(), manifest.Edit{
			Op: host.System().ID16(), Changes: []manifest.Change{manifest.Claim{Shard: "shard01", Holder: "local", LeaseMillis: 1000}},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.start("a:1")
		took := w.until("a has it", 10*time.Second, w.eachHolds(1, "a:1"))
		if took < silentFor+time.Second {
			t.Errorf("taken after %v", took)
		}
	})
}

// A process that is leaving takes nothing, and its peers give it nothing.
func TestALeavingProcessTakesNothing(t *testing.T) {
	t.Parallel()
	inWorld(t, 2, func(t *testing.T, w *world) {
		a, b := w.start("a:1"), w.start("b:1")
		w.until("an even share", 20*time.Second, w.eachHolds(1, "a:1", "b:1"))
		b.stop()
		b.Leave(t.Context())
		w.until("a has both", 2*time.Second, w.eachHolds(2, "a:1"))
		_, err := b.Claim(t.Context(), &rpc.ClaimRequest{Header: rpc.Header{Shard: "shard01"}})
		if !errors.Is(err, errkind.Conflict) {
			t.Errorf("a claim: %v", err)
		}
		time.Sleep(30 * time.Second)
		if w.held("a:1") != 2 {
			t.Errorf("later: %s", w.holders())
		}
		if _, err := a.Claim(t.Context(), &rpc.ClaimRequest{Header: rpc.Header{Shard: "shard07"}}); !errors.Is(err, errkind.Invalid) {
			t.Errorf("a claim of no shard: %v", err)
		}
	})
}

// A router without any writer says so, now and then, and what to type.
func TestAMissingWriterIsSaidNowAndThen(t *testing.T) {
	t.Parallel()
	inWorld(t, 1, func(t *testing.T, w *world) {
		var log strings.Builder
		f := NewFinder(manifest.NewRoot(bucket.NewCell(w.mem), host.System(), nil), w, host.System(), slog.New(slog.NewTextHandler(&log, nil)))
		for range 25 {
			if err := f.Claim(t.Context(), "shard01"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := strings.Count(log.String(), "granary writer --any"); n != 3 {
			t.Errorf("said %d times in 25 s:\n%s", n, &log)
		}
	})
}
