package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// fragmented is a running cluster of two shards, of which nobody merges segments, with a
// collection that has rounds of them, each with newer versions of the same ten documents.
func fragmented(t *testing.T, rounds int) (store string, orders *mongo.Collection) {
	t.Helper()
	store, c := startPair(t, "--upkeep=false")
	orders = c.Database("shop").Collection("orders")
	for round := range rounds {
		for id := range 10 {
			if _, err := orders.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "round", Value: round}}}}, options.UpdateOne().SetUpsert(true)); err != nil {
				t.Fatal(err)
			}
		}
		name := fmt.Sprint("round", round) // it flushes
		ok(t, "snapshot", "create", name, "--store", store)
		ok(t, "snapshot", "drop", name, "--store", store)
	}
	return store, orders
}

// TestCompactingFromTheCommandLine shows what there is to merge, merges it, and leaves nothing.
func TestCompactingFromTheCommandLine(t *testing.T) {
	store, orders := fragmented(t, 5)
	with := func(args ...string) []string { return append(args, "--store", store) }
	d := into[compaction](t, with("compact", "--dry-run")...)
	if !d.DryRun || len(d.Jobs) != 1 || d.Merged != 0 || d.ReadMost != 5 || d.Space != 5 {
		t.Fatalf("%+v", d)
	}
	if j := d.Jobs[0]; j.Namespace != "shop.orders" || j.Why != "tiered" || len(j.Inputs) != 5 || j.Rows != 50 || j.Bytes == 0 || j.Writes == 0 || j.Writes > j.Bytes ||
		j.ReadBefore != 5 || j.ReadAfter != 1 || j.SpaceBefore != 5 || j.SpaceAfter != 1 || j.Write <= 0 || j.Write > 1 {
		t.Errorf("%+v", j)
	}
	if c := into[status](t, with("status")...).Compaction; c.Pending != 1 || c.PendingBytes != d.Jobs[0].Bytes || c.ReadMost != 5 || c.Space != 5 {
		t.Errorf("%+v", c)
	}
	if out := ok(t, with("compact", "--dry-run")...); !strings.Contains(out, "tiered: 5 segments of about one size") || !strings.Contains(out, "5 -> 1") {
		t.Error(out)
	}
	if d := into[compaction](t, with("compact", "--once", "--compact-mb-per-second", "4", "--compact-requests-per-second", "50")...); d.Merged != 1 || len(d.Jobs) > 0 || len(d.Running) > 0 || d.Space != 1 || d.BytesRead == 0 || d.BytesWritten == 0 {
		t.Errorf("%+v", d)
	}
	if out := ok(t, with("compact", "--once")...); !strings.HasPrefix(out, "merged: the segments of 0 chunks") || !strings.Contains(out, "nothing is to be merged") {
		t.Error(out)
	}
	if n, err := orders.CountDocuments(t.Context(), bson.D{{Key: "round", Value: 4}}); err != nil || n != 10 {
		t.Errorf("%d documents, %v", n, err)
	}
	if c := into[status](t, with("status")...).Compaction; c.Pending != 0 || c.Read >= 2 || c.Space != 1 || c.Flushed == nil || *c.Flushed == 0 {
		t.Errorf("%+v", c)
	}
	copyRoot(t, store)
	collects(t, store)
	for _, bad := range []string{"compact now", "gc now", "gc --courtesy 0s", "compact --once --compact-mb-per-second 0", "compact --store mem:"} {
		if _, code, err := granary(t, strings.Fields(bad)...); code != codeUsage {
			t.Errorf("granary %s: %d, %v", bad, code, err)
		}
	}
}

// copyRoot makes it as late as if the newest copy of the root were of now: one that is older than a
// merge keeps what the merge replaced.
func copyRoot(t *testing.T, store string) {
	t.Helper()
	b := bucketOf(t, store)
	root, err := b.Get(t.Context(), manifest.RootKey, bucket.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	image, err := manifest.DecodeRoot(root.Body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(t.Context(), manifest.HistoryKey(image.Version()), root.Body, bucket.Condition{}); err != nil {
		t.Fatal(err)
	}
}

// collects has gc show why what was replaced stays, and then delete it.
func collects(t *testing.T, store string) {
	t.Helper()
	with := func(args ...string) []string { return append(args, "--store", store) }
	d := into[collected](t, with("gc", "--dry-run")...)
	kept := 0
	for _, v := range d.Objects {
		if strings.HasPrefix(v.Key, "seg/") && !v.Delete && strings.Contains(v.Why, "nothing has referred to it since root version") && strings.Contains(v.Why, "it is kept for those that still read an older root") {
			kept++
		}
	}
	if !d.DryRun || kept != 5 || d.Kept != 5 || d.Segments != 6 || d.Orphans != 0 {
		t.Errorf("%+v", d)
	}
	if out := ok(t, with("gc", "--courtesy", "1ms", "--dry-run")...); !strings.Contains(out, "would be deleted  seg/") {
		t.Error(out)
	}
	if d := into[collected](t, with("gc", "--courtesy", "1ms")...); d.Deleted < 5 || d.Kept != 0 {
		t.Errorf("%+v", d)
	}
	if d := into[collected](t, with("gc", "--dry-run")...); d.Segments != 1 || len(d.Objects) != d.Deleted || d.Kept != 0 {
		t.Errorf("%+v", d)
	}
}

// TestCompactorsOfTheirOwn merge what a writer leaves alone, two at once, and end when told to.
func TestCompactorsOfTheirOwn(t *testing.T) {
	store, _ := fragmented(t, 4)
	var crew []*local
	for range 2 {
		ctx, cancel := context.WithCancel(context.Background())
		l := &local{t: t, cancel: cancel, done: make(chan error, 1)}
		go func() { l.done <- start(ctx, &l.out, &l.log, "compact", "--store", store, "--admin", "") }()
		crew = append(crew, l)
	}
	for began := time.Now(); len(into[compaction](t, "compact", "--dry-run", "--store", store).Jobs) > 0; time.Sleep(200 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("nothing was merged: %s%s", &crew[0].log, &crew[1].log)
		}
	}
	for _, l := range crew {
		l.cancel()
		if err := <-l.done; err != nil {
			t.Error(err)
		}
	}
	if d := into[compaction](t, "compact", "--dry-run", "--store", store); slices.ContainsFunc(d.Running, func(j jobLine) bool { return j.Kind == "compact" }) {
		t.Errorf("jobs are left: %+v", d.Running)
	}
}
