package main

import (
	"encoding/json"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A collection is resharded and put back from the command line, in a running cluster; --dry-run
// says what it will cost and does nothing.
func TestReshardFromTheCommandLine(t *testing.T) {
	store, c := startPair(t)
	shard := bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}}
	if err := c.Database("admin").RunCommand(t.Context(), shard).Err(); err != nil {
		t.Fatal(err)
	}
	var docs []bson.D
	for i := range 200 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "x", Value: 200 - i}})
	}
	orders := c.Database("shop").Collection("orders")
	if _, err := orders.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	run := func(verb string, args ...string) (d reshardDone) {
		t.Helper()
		text := ok(t, append([]string{"reshard", verb, "--store", store, "--ns", "shop.orders", "-o", "json"}, args...)...)
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(text, err)
		}
		return d
	}
	status := func() (s shownReshards) {
		t.Helper()
		if err := json.Unmarshal([]byte(ok(t, "reshard", "status", "--store", store, "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	key := func(d reshardDone) string { return strings.Join(strings.Fields(string(d.Key)), "") }
	if d := run("start", "--key", `{"x": 1}`, "--dry-run"); !d.DryRun || d.Cost == nil || d.Cost.Puts < 5 || d.Cost.Dollars <= 0 || len(status().Undoable) != 0 {
		t.Fatalf("%+v", d)
	}
	if d := run("start", "--key", `{"x": 1}`, "--chunks", "3"); key(d) != `{"x":1}` || d.Documents != 200 || d.SecondsToUndo < 80_000 {
		t.Fatalf("%+v", d)
	}
	if s := status(); len(s.Running) != 0 || len(s.Undoable) != 1 || !s.Undoable[0].Unwritten || s.Undoable[0].Key != "{ x: 1 }" {
		t.Errorf("%+v", s)
	}
	if d := run("undo", "--dry-run"); !d.DryRun || !d.Restored || key(d) != `{"k":1}` {
		t.Errorf("%+v", d)
	}
	if d := run("undo"); !d.Restored || key(d) != `{"k":1}` || d.Documents != 200 {
		t.Errorf("%+v", d)
	}
	if n, err := orders.CountDocuments(t.Context(), bson.D{{Key: "x", Value: bson.D{{Key: "$gt", Value: 100}}}}); n != 100 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
	for wrong, text := range map[string][]string{
		"nothing is kept of shop.orders": {"undo", "--ns", "shop.orders"},
		"in-progress":                    {"abort", "--ns", "shop.orders"},
		"DATABASE.COLLECTION":            {"abort", "--ns", "orders"},
		"there is no collection shop.no": {"start", "--ns", "shop.no", "--key", `{"x": 1}`, "--dry-run"},
		"shard key":                      {"start", "--ns", "shop.orders", "--key", `{"x": 7}`},
	} {
		if _, code, err := granary(t, append(append([]string{"reshard"}, text...), "--store", store)...); code == 0 || err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%v: exit code %d, %v", text, code, err)
		}
	}
}
