package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Documents as they are, and as they were at a snapshot, also of a collection that is no more.
func TestFindAndExport(t *testing.T) {
	store, c := startPair(t)
	docs := c.Database("shop").Collection("orders")
	var list []bson.D
	for i := range 250 { // more than a batch
		list = append(list, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: int64(i % 10)}})
	}
	if _, err := docs.InsertMany(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	ok(t, "snapshot", "create", "monday", "--store", store)
	if _, err := docs.UpdateByID(t.Context(), 3, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: "new"}}}}); err != nil {
		t.Fatal(err)
	}
	find := func(args ...string) string {
		return ok(t, append([]string{"find", "--store", store, "--ns", "shop.orders", "--filter", `{"_id": 3}`}, args...)...)
	}
	if out := find(); out != `{"_id":3,"n":"new"}`+"\n" {
		t.Errorf("now: %s", out)
	}
	if out := find("--at", "monday", "--projection", `{"_id": 0}`); out != `{"n":3}`+"\n" {
		t.Errorf("then: %s", out)
	}
	if out := ok(t, "find", "--store", store, "--ns", "shop.orders", "--sort", `{"_id": -1}`, "--limit", "2"); out != "{\"_id\":249,\"n\":9}\n{\"_id\":248,\"n\":8}\n" {
		t.Errorf("sorted: %s", out)
	}
	if err := docs.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "orders.jsonl")
	ok(t, "export", "--store", store, "--ns", "shop.orders", "--at", "monday", "--out", file)
	text, err := os.ReadFile(file)
	if want := `{"_id":{"$numberInt":"3"},"n":{"$numberLong":"3"}}` + "\n"; err != nil || strings.Count(string(text), "\n") != 250 || !strings.Contains(string(text), want) {
		t.Errorf("exported: %v, %d lines", err, strings.Count(string(text), "\n"))
	}
	alone := newStore(t) // nobody but commands commits here
	ok(t, "history", "--keep", "1h", "--store", alone)
	if out := ok(t, "history", "--keep", "1h", "--store", store, "--dry-run"); !strings.Contains(out, "nothing was changed; it would be: a moment every 10m0s") {
		t.Errorf("dry run: %s", out)
	}
	ok(t, "history", "--keep", "1h", "--store", store)
	if _, err := docs.InsertMany(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if err := docs.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(time.Second).UTC().Format(time.RFC3339)
	if out := find("--at", now); out != `{"_id":3,"n":3}`+"\n" {
		t.Errorf("at %s: %s", now, out)
	}
	if out := ok(t, "history", "--store", store); !strings.Contains(out, "kept for 1h0m0s") || !strings.Contains(out, "before drop of shop.orders") {
		t.Errorf("history: %s", out)
	}
	if out := ok(t, "undrop", "--ns", "shop.orders", "--store", store); !strings.Contains(out, "with 250 documents") {
		t.Errorf("undropped: %s", out)
	}
	ok(t, "history", "--off", "--store", store)
	if page, _, err := bucketOf(t, alone).List(t.Context(), manifest.HistoryPrefix, "", 0); err != nil || len(page) == 0 {
		t.Errorf("a command that commits leaves no copy of the root: %v", err)
	}
	for _, c := range []struct{ args, want string }{
		{"history --every 1h --store " + store, "--every goes with --keep"},
		{"history --keep 1s --store " + store, "1m0s is the least"},
		{"history --keep 1h --off --store " + store, "say one of them"},
		{"find --ns shop.orders --at 2020-01-01T00:00:00Z --store " + store, "the oldest moment is of"},
		{"find --store " + store, `"ns" not set`},
		{"find --ns shop.orders --at sunday --store " + store, ", monday"},
		{"export --ns shop.orders --at monday --out " + file + "/x --store " + store, "not a directory"},
		{"find --ns shop.orders --filter {a --store " + store, "--filter"},
		{`find --ns shop.orders --at monday --filter {"$nothing":1} --store ` + store, "BadValue"},
	} {
		if _, code, err := granary(t, strings.Fields(c.args)...); code == 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("granary %s: %v, want %q", c.args, err, c.want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
