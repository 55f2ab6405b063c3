package localstack_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/granarydb/granary/chunkstore/backup"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/localstack"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// backUp makes a backup of a running stack, with writes and a split between the snapshot and
// the copy.
func backUp(t *testing.T, s *localstack.Stack, from, to bucket.Bucket, name string, meanwhile func()) backup.Result {
	t.Helper()
	ctx := t.Context()
	pin, err := s.Router.CreateSnapshot(ctx, name, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	meanwhile()
	plan, err := backup.Read(ctx, from, manifest.PinKey(pin.ID))
	if err != nil {
		t.Fatal(err)
	}
	r, err := (&backup.Copier{From: from, To: to}).Copy(ctx, plan)
	if err == nil {
		err = backup.Finish(ctx, to, name, plan)
	}
	if err == nil {
		err = s.Router.DropSnapshot(ctx, name, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// restore copies a backup into a new store and makes a cluster of it.
func restore(t *testing.T, from bucket.Bucket, name string) *membucket.Bucket {
	t.Helper()
	ctx, b := t.Context(), membucket.New()
	plan, err := backup.Open(ctx, from, name)
	if err == nil {
		_, err = (&backup.Copier{From: from, To: b}).Copy(ctx, plan)
	}
	if err == nil {
		_, err = backup.Restore(ctx, b, host.System(), plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Restore(ctx, b, host.System(), plan); !errors.Is(err, errkind.Conflict) {
		t.Errorf("restored over a cluster: %v", err)
	}
	c := &fsck.Checker{
		Root: manifest.NewRoot(bucket.NewCell(b), host.System(), nil), Bucket: b, Deep: true,
		Open: func(manifest.LocationID) (bucket.Bucket, error) { return b, nil },
	}
	report, err := c.Run(ctx)
	if err != nil || len(report.Problems) > 0 {
		t.Fatalf("fsck of what was restored: %v, %v", report, err)
	}
	return b
}

// TestABackupIsOneMomentElsewhere: each backup, restored, is what was acknowledged when its
// snapshot was made, whatever came later; and the second one copies what is new.
func TestABackupIsOneMomentElsewhere(t *testing.T) {
	t.Parallel()
	from, to := membucket.New(), membucket.New()
	s := open(t, from, localstack.Options{Shards: 2})
	defer s.Close(context.Background())
	points := bson.A{}
	for k := range 300 { // more than ride in the root
		points = append(points, bson.D{{Key: "c", Value: 10 * (k + 1)}})
	}
	do(t, s, "admin", bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "c", Value: 1}}}, {Key: "splitPoints", Value: points}})
	insert := func(first, n int) {
		var docs bson.A
		for i := first; i < first+n; i++ {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "c", Value: i}, {Key: "pad", Value: fmt.Sprint("some words about ", i)}})
		}
		do(t, s, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs}})
	}
	insert(0, 2000)
	one := backUp(t, s, from, to, "one", func() {
		insert(2000, 100)
		do(t, s, "shop", bson.D{{Key: "delete", Value: "orders"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "c", Value: bson.D{{Key: "$lt", Value: 500}}}}}, {Key: "limit", Value: 0}}}}})
		do(t, s, "admin", bson.D{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "c", Value: 1005}}}})
	})
	two := backUp(t, s, from, to, "two", func() {})
	if one.Copied != one.Objects || two.There == 0 || two.Copied == 0 {
		t.Errorf("the first copied %+v, the second %+v", one, two)
	}
	list, err := backup.List(t.Context(), to)
	if err != nil || len(list) != 2 || list[0].Name != "one" || list[1].Name != "two" {
		t.Errorf("backups %v, %v", list, err)
	}
	for name, want := range map[string]int64{"one": 2000, "two": 1600} {
		b := restore(t, to, name)
		r := open(t, b, localstack.Options{})
		if n := count(t, r); n != want {
			t.Errorf("backup %s has %d documents, want %d", name, n, want)
		}
		do(t, r, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: -1}, {Key: "c", Value: -1}}}}})
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// TestABackupThatIsDamagedSaysSo: a segment that lost bytes is found while it is copied.
func TestABackupThatIsDamagedSaysSo(t *testing.T) {
	t.Parallel()
	from, to := membucket.New(), membucket.New()
	s := open(t, from, localstack.Options{Shards: 1})
	defer s.Close(context.Background())
	do(t, s, "shop", bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}})
	backUp(t, s, from, to, "one", func() {})
	plan, err := backup.Open(t.Context(), to, "one")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range plan.Objects {
		if o.Size > 0 {
			if _, err := to.Put(t.Context(), o.Key, make([]byte, o.Size-1), bucket.Condition{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := (&backup.Copier{From: to, To: membucket.New()}).Copy(t.Context(), plan); !errors.Is(err, errkind.Corrupt) {
		t.Errorf("copied a damaged segment: %v", err)
	}
	if err := backup.CheckName("../x"); !errors.Is(err, errkind.Invalid) {
		t.Error("a name that is a path:", err)
	}
}
