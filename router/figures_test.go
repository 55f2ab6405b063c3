package router

import (
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router/plan"
)

// TestALargeCollectionIsNotReadForAListing: chunks whose rows are an estimate are counted only
// while that reads little.
func TestALargeCollectionIsNotReadForAListing(t *testing.T) {
	t.Parallel()
	chunk := func(bytes, rows int64, estimated bool) plan.Target {
		return plan.Target{Chunk: &manifest.Chunk{Bytes: bytes, Rows: rows, RowsEstimated: estimated}}
	}
	groups := []plan.Group{
		{Shard: "shard02", Targets: []plan.Target{chunk(50<<20, 7, true), chunk(1<<40, 5, false)}},
		{Shard: "shard01", Targets: []plan.Target{chunk(10<<20, 3, true)}},
	}
	if n := uncounted(groups); n != 60<<20 || n > countedMax {
		t.Fatalf("%d bytes", n)
	}
	groups[1].Targets = append(groups[1].Targets, chunk(5<<20, 2, true))
	if n := uncounted(groups); n <= countedMax {
		t.Fatalf("%d bytes", n)
	}
	all := estimates(groups)
	if len(all) != 2 || all[0] != (ShardFigures{Shard: "shard01", Chunks: 2, Documents: 5, Estimated: true, Bytes: 15 << 20}) || all[1].Documents != 12 {
		t.Fatalf("%+v", all)
	}
}
