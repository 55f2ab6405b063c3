package main

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Beside running processes a collection comes back from a backup and from a snapshot, in the place of
// what has its name or under another, and not without being told to replace.
func TestRestoreIntoARunningCluster(t *testing.T) {
	store, c := startPair(t)
	backups := "dir:" + t.TempDir()
	docs := c.Database("shop").Collection("orders")
	var list []bson.D
	for i := range 1200 { // more than a batch
		list = append(list, bson.D{{Key: "_id", Value: i}, {Key: "v", Value: "right"}})
	}
	if _, err := docs.InsertMany(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	ok(t, "snapshot", "create", "monday", "--store", store)
	ok(t, "backup", "--store", store, "--to", backups, "--snapshot", "monday", "--name", "one")
	spoil := func() {
		t.Helper()
		if _, err := docs.UpdateMany(t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: "wrong"}}}}); err != nil {
			t.Fatal(err)
		}
	}
	right := func(collection string) int64 {
		t.Helper()
		n, err := c.Database("shop").Collection(collection).CountDocuments(t.Context(), bson.D{{Key: "v", Value: "right"}})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, from := range [][]string{{"--from", backups, "--name", "one"}, {"--at", "monday"}} {
		spoil()
		args := append([]string{"restore", "--ns", "shop.orders", "--store", store}, from...)
		if _, code, err := granary(t, args...); code == 0 || !strings.Contains(err.Error(), "--replace") {
			t.Errorf("%v: exit code %d, %v", args, code, err)
		}
		if out := ok(t, append(args, "--replace", "--dry-run")...); !strings.Contains(out, "nothing was written") || right("orders") != 0 {
			t.Errorf("%v, dry: %s", args, out)
		}
		as := "orders" + strings.TrimLeft(from[0], "-")
		ok(t, append(args, "--as", "shop."+as)...)
		if n, still := right(as), right("orders"); n != 1200 || still != 0 {
			t.Errorf("%v: %d documents beside it, %d in it", from, n, still)
		}
		if out := ok(t, append(args, "--replace")...); !strings.Contains(out, "1200") || right("orders") != 1200 {
			t.Errorf("%v: %s; %d documents are right", from, out, right("orders"))
		}
	}
	names, err := c.Database("shop").ListCollectionNames(t.Context(), bson.D{})
	if err != nil || len(names) != 3 {
		t.Errorf("collections %v, %v", names, err)
	}
}
