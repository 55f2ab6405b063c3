package policy_test

import (
	"slices"
	"testing"

	"github.com/granarydb/granary/balancer/policy"
	"github.com/granarydb/granary/manifest"
)

// BenchmarkPlanOf100000Chunks plans for a cluster that is balanced, with all chunks asked.
func BenchmarkPlanOf100000Chunks(b *testing.B) {
	w := newWorld(b, "a", "b", "c", "d")
	for _, id := range []manifest.ShardID{"a", "b", "c", "d"} {
		w.claim(id)
	}
	w.create("db.c", manifest.Collection{Sharded: true}, slices.Repeat([]place{{shard: "a"}, {shard: "b"}, {shard: "c"}, {shard: "d"}}, 25000))
	w.in.Loads = map[manifest.ChunkID]policy.Load{}
	for c := range w.state.AllChunks() {
		w.in.Loads[c.ID] = policy.Load{Writes: 1}
	}
	for b.Loop() {
		w.plan()
	}
}
