package balancing_test

import (
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/manifesttest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestWindowsOpenByTheClockOfTheirZone looks at windows of a day and past midnight, in summer
// and in winter, and on the night in which the clock is put forward.
func TestWindowsOpenByTheClockOfTheirZone(t *testing.T) {
	for _, c := range []struct {
		start, stop, zone, now string
		open                   bool
		next                   string
	}{
		{"09:00", "17:00", "", "2026-01-10T08:59:00Z", false, "09:00 UTC"},
		{"09:00", "17:00", "", "2026-01-10T09:00:00Z", true, "09:00 UTC"},
		{"09:00", "17:00", "", "2026-01-10T17:00:00Z", false, "09:00 UTC"},
		{"23:00", "6:00", "Europe/Berlin", "2026-01-10T22:00:00Z", true, "23:00 Europe/Berlin"},
		{"23:00", "6:00", "Europe/Berlin", "2026-01-10T04:59:00Z", true, "23:00 Europe/Berlin"},
		{"23:00", "6:00", "Europe/Berlin", "2026-01-10T05:00:00Z", false, "23:00 Europe/Berlin"},
		{"23:00", "6:00", "Europe/Berlin", "2026-07-10T04:00:00Z", false, "23:00 Europe/Berlin"},
		{"02:30", "04:00", "Europe/Berlin", "2026-03-28T22:00:00Z", false, "03:30 Europe/Berlin"},
	} {
		w, err := balancing.NewWindow(c.start, c.stop, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		if now := at(t, c.now).UnixMilli(); w.Open(now) != c.open || w.Until(now) != c.next {
			t.Errorf("%s at %s: open %t, next %s; want %t, %s", w, c.now, w.Open(now), w.Until(now), c.open, c.next)
		}
	}
	for _, c := range [][3]string{{"9", "10:00", ""}, {"09:00", "25:00", ""}, {"09:00", "09:00", ""}, {"09:00", "10:00", "Mars/Base"}, {"09:00", "10:00", "Local"}} {
		if _, err := balancing.NewWindow(c[0], c[1], c[2]); err == nil || !strings.Contains(err.Error(), "invalid") {
			t.Errorf("%v: %v", c, err)
		}
	}
}

func apply(t *testing.T, s *manifest.State, changes ...manifest.Change) *manifest.State {
	t.Helper()
	v := byte(s.Version())
	next, err := manifest.Apply(s, manifest.Edit{Op: [16]byte{1, v}, Changes: changes}, [16]byte{2, v})
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// TestSettingsKeepWhatTheyDoNotKnow stops and starts, and finds the window and the words of
// others as they were.
func TestSettingsKeepWhatTheyDoNotKnow(t *testing.T) {
	s := manifesttest.New(t, "a")
	if got := balancing.Of(s); got.Stopped || got.Window != nil || got.Policy != balancing.BySize {
		t.Errorf("without a record: %+v", got)
	}
	body, _ := bson.Marshal(bson.M{"activeWindow": bson.M{"start": "01:00", "stop": "02:00"}, "timeZone": "Asia/Tokyo", "_waitForDelete": true})
	s = apply(t, s, manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordBalancer, ID: balancing.SettingsID, Body: body}})
	for _, stopped := range []bool{true, false} {
		s = apply(t, s, manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordBalancer, ID: balancing.SettingsID, Body: balancing.Switched(s, stopped, "me", 1000)}})
		got := balancing.Of(s)
		r, _ := s.Record(manifest.RecordBalancer, balancing.SettingsID)
		if got.Stopped != stopped || got.By != "me" || got.Window.String() != "from 01:00 to 02:00 Asia/Tokyo" || !r.Body.Lookup("_waitForDelete").Boolean() {
			t.Errorf("stopped %t: %+v, %v", stopped, got, r.Body)
		}
	}
}

// TestDrainOutlivesTheHolder begins a drain, loses it to a writer that frees and another that
// claims, and finds the change that marks the shard again; it ends, and it can be removed.
func TestDrainOutlivesTheHolder(t *testing.T) {
	s := manifesttest.New(t, "a", "b")
	s = apply(t, s, manifest.Claim{Shard: "a", Holder: "p"})
	s = apply(t, s, balancing.Drain{By: "me"}.Begin(s.Shard("a"))...)
	if s.Shard("a").Status != manifest.ShardDraining || len(balancing.Follow(s)) > 0 {
		t.Fatal("a does not drain")
	}
	s = apply(t, s, manifest.Free{Shard: "a", Epoch: 1, Snapshot: manifest.Position{Epoch: 1}})
	if len(balancing.Follow(s)) > 0 {
		t.Error("a free shard has no status to follow with")
	}
	s = apply(t, s, manifest.Claim{Shard: "a", Epoch: 1, Holder: "q"})
	s = apply(t, s, balancing.Follow(s)...)
	if d, yes := balancing.Draining(s, "a"); !yes || d.By != "me" || s.Shard("a").Status != manifest.ShardDraining {
		t.Errorf("%v %t %v", d, yes, s.Shard("a").Status)
	}
	ended := apply(t, s, balancing.EndDrain(s.Shard("a"))...)
	if _, yes := balancing.Draining(ended, "a"); yes || ended.Shard("a").Status != manifest.ShardHeld {
		t.Error("the drain did not end")
	}
	s = apply(t, s, balancing.Remove(s.Shard("a"))...)
	if _, yes := balancing.Draining(s, "a"); yes || s.Shard("a") != nil {
		t.Error("a is still there")
	}
}

// TestRoundsAreRecordedAsSeen: of two balancers that saw the same record one records its
// round.
func TestRoundsAreRecordedAsSeen(t *testing.T) {
	s := manifesttest.New(t, "a")
	_, seen := balancing.LastRound(s)
	mine, err := balancing.Round{Holder: "x", Rounds: 1, InRound: true}.Put(seen)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := balancing.Round{Holder: "y", Rounds: 1}.Put(seen)
	s = apply(t, s, mine)
	if _, err := manifest.Apply(s, manifest.Edit{Op: [16]byte{9}, Changes: []manifest.Change{other}}, [16]byte{9}); err == nil {
		t.Error("both began the round")
	}
	if r, _ := balancing.LastRound(s); r.Holder != "x" || !r.InRound {
		t.Errorf("%+v", r)
	}
}

// A wait that somebody with a clock far ahead of ours has recorded would never end.
func TestNobodyWaitsForAnotherClock(t *testing.T) {
	const now = 1_000_000_000
	for left, want := range map[time.Duration]bool{-time.Second: false, time.Second: true, balancing.WaitMax: true, 18 * time.Hour: false} {
		f := balancing.Failure{Until: balancing.Millis(now + left.Milliseconds())}
		if f.Waits(now) != want {
			t.Errorf("%v ahead of now: %v", left, !want)
		}
	}
}
