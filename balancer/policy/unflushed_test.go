package policy_test

import (
	"testing"

	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/manifest"
)

// TestBytesInMemoryCount: two shards have alike in segments, and one of them has much more in
// its memory. It gives chunks away until they are alike, as it would after a flush; while rates
// are not to be looked at (Calm) as well.
func TestBytesInMemoryCount(t *testing.T) {
	for _, calm := range []bool{false, true} {
		w := newWorld(t, "a", "b")
		w.claim("a")
		w.claim("b")
		const mb = 1 << 20
		var places []place
		for range 4 {
			places = append(places, place{shard: "a", bytes: 100 * mb}, place{shard: "b", bytes: 100 * mb})
		}
		w.create("db.c", manifest.Collection{Sharded: true}, places)
		if got := w.plan().Actions; len(got) > 0 {
			t.Fatalf("alike, and yet %v", got)
		}
		w.in.Loads, w.in.Calm = map[manifest.ChunkID]policy.Load{}, calm
		for c := range w.state.AllChunks() {
			if c.Shard == "a" {
				w.in.Loads[c.ID] = policy.Load{Unflushed: 120 * mb}
			}
		}
		got := w.plan().Actions
		if len(got) != 1 || got[0].Reason != policy.Size || got[0].From != "a" || got[0].Bytes != 220*mb {
			t.Errorf("calm %t: %v", calm, got)
		}
	}
}
