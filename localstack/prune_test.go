package localstack_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/granarydb/granary/chunkstore/backup"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestPruningLeavesWhatTheOthersNeed: after a prune each backup that stayed can be restored, what
// only the others needed is gone, and so is what a backup that died had copied.
func TestPruningLeavesWhatTheOthersNeed(t *testing.T) {
	t.Parallel()
	ctx, from, to := t.Context(), membucket.New(), membucket.New()
	s := open(t, from, localstack.Options{Shards: 1, UpkeepEvery: -1})
	defer s.Close(context.Background())
	for i := range 4 {
		if i == 3 { // nothing of what was before is in the last
			do(t, s, "shop", bson.D{{Key: "drop", Value: "orders"}})
		}
		do(t, s, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: i}}}}})
		backUp(t, s, from, to, fmt.Sprint("b", i), func() {})
	}
	list, err := backup.List(ctx, to)
	if err != nil || len(list) != 4 {
		t.Fatalf("%v, %v", list, err)
	}
	dead := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorJob}, Random: [16]byte{1}}.Key()
	if _, err := to.Put(ctx, dead, []byte("a part of a backup that died"), bucket.IfAbsent); err != nil {
		t.Fatal(err)
	}
	now := list[3].Millis + 1
	if err := backup.Begin(ctx, to, "b4"); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Prune(ctx, to, backup.Retention{Keep: 2}, now, false, false); !errors.Is(err, errkind.Conflict) {
		t.Errorf("beside a backup: %v", err)
	}
	if err := backup.End(ctx, to, "b4"); err != nil {
		t.Fatal(err)
	}
	dry, err := backup.Prune(ctx, to, backup.Retention{Keep: 2}, now, true, false)
	if err != nil || len(dry.Gone) != 2 || dry.Objects != 1 { // b2 has all that b0 and b1 have
		t.Errorf("dry: %+v, %v", dry, err)
	}
	if p, err := backup.Prune(ctx, to, backup.Retention{Keep: 2}, now, false, false); err != nil || p.Objects != dry.Objects {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := backup.Prune(ctx, to, backup.Retention{Keep: 1}, now, false, false); err != nil || p.Objects != 3 {
		t.Errorf("%+v, %v", p, err)
	}
	if list, err := backup.List(ctx, to); err != nil || len(list) != 1 || list[0].Name != "b3" {
		t.Errorf("%v, %v", list, err)
	}
	r := open(t, restore(t, to, "b3"), localstack.Options{})
	if n := count(t, r); n != 1 {
		t.Errorf("%d documents, want 1", n)
	}
	if err := r.Close(context.Background()); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		store bucket.Bucket
		keep  backup.Retention
	}{"nothing would be left": {to, backup.Retention{MaxAgeMillis: 1}}, "a cluster lives there": {from, backup.Retention{Keep: 1}}} {
		if _, err := backup.Prune(ctx, c.store, c.keep, now+1000, false, false); !errors.Is(err, errkind.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAPruneHoldsBackupsOff: one that died does so until it is taken over.
func TestAPruneHoldsBackupsOff(t *testing.T) {
	t.Parallel()
	ctx, to := t.Context(), membucket.New()
	if _, err := to.Put(ctx, "meta/underway/prune", nil, bucket.IfAbsent); err != nil {
		t.Fatal(err)
	}
	if err := backup.Begin(ctx, to, "b"); !errors.Is(err, errkind.Conflict) {
		t.Errorf("beside a prune: %v", err)
	}
	if _, err := backup.Prune(ctx, to, backup.Retention{Keep: 1}, 0, false, true); err != nil {
		t.Error(err)
	}
	if err := backup.Begin(ctx, to, "b"); err != nil {
		t.Error(err)
	}
}
