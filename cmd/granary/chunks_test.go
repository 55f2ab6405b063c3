package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// did runs a command with -o json, and returns what it says it did.
func did(t *testing.T, args ...string) (d done) {
	t.Helper()
	if err := json.Unmarshal([]byte(ok(t, append(args, "-o", "json")...)), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// Chunks are cut, merged and moved from the command line, in a running cluster; --dry-run says the
// same and does nothing.
func TestChunksByHand(t *testing.T) {
	store, c := startPair(t)
	shard := bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}}
	if err := c.Database("admin").RunCommand(t.Context(), shard).Err(); err != nil {
		t.Fatal(err)
	}
	var docs []bson.D
	for i := range 100 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}})
	}
	orders := c.Database("shop").Collection("orders")
	if _, err := orders.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	statusUntil(t, store, func(s status) bool { return s.Shards[0].Phase == "serving" && s.Shards[1].Phase == "serving" })
	version := func() int {
		var s status
		if err := json.Unmarshal([]byte(ok(t, "status", "--store", store, "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		return int(s.Version)
	}
	on := []string{"--store", store, "--ns", "shop.orders"}
	run := func(verb string, args ...string) done {
		return did(t, append(append([]string{verb}, on...), args...)...)
	}

	points := filepath.Join(t.TempDir(), "points.json")
	var text strings.Builder
	for i := 10; i < 100; i += 10 {
		fmt.Fprintf(&text, `{"k": %d}`+"\n", i)
	}
	if err := os.WriteFile(points, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	before := version()
	if d := run("split", "--points", points, "--dry-run"); !d.DryRun || len(d.Points) != 9 || len(d.Chunks) != 1 || version() != before {
		t.Fatalf("dry run: %+v, root version %d after %d", d, version(), before)
	}
	if d := run("split", "--points", points); len(d.Points) != 9 || version() != before+1 {
		t.Fatalf("%+v, root version %d after %d: one commit", d, version(), before)
	}
	if d := run("split", "--points", points); len(d.Points) != 0 || d.Known != 9 || version() != before+1 {
		t.Fatalf("once more: %+v", d)
	}
	if d := run("split", "--at", `{"k": 15}`); len(d.Points) != 1 || strings.Join(strings.Fields(string(d.Points[0])), "") != `{"k":15}` {
		t.Fatalf("%+v", d)
	}

	owner := run("merge", "--bounds", `[{"k": 10}, {"k": 20}]`, "--dry-run").Chunks[0].Shard
	other := map[manifest.ShardID]string{"shard01": "shard02", "shard02": "shard01"}[owner]
	if d := run("merge", "--bounds", `[{"k": 10}, {"k": 20}]`); len(d.Chunks) != 2 {
		t.Fatalf("%+v", d)
	}
	if d := run("move", "--find", `{"k": 12}`, "--to", other, "--dry-run"); len(d.Chunks) != 1 || d.Chunks[0].Shard != owner {
		t.Fatalf("%+v", d)
	}
	if d := run("move", "--bounds", `[{"k": 12}, {"k": 35}]`, "--to", other); len(d.Chunks) != 3 {
		t.Fatalf("%+v", d)
	}
	if d := run("move", "--find", `{"k": 12}`, "--to", other); len(d.Chunks) != 0 {
		t.Fatalf("it is there already: %+v", d)
	}
	if out := ok(t, append([]string{"move", "--find", `{"k": 50}`, "--to", other, "--dry-run"}, on...)...); !strings.Contains(out, `would be moved: [{"k":50}, {"k":60}) of `+string(owner)+" to "+other) {
		t.Errorf("table: %s", out)
	}
	if n, err := orders.CountDocuments(t.Context(), bson.D{}); n != 100 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
	drop := append([]string{"drop-range", "--min", `{"k": 5}`, "--max", `{"k": 55}`, "-o", "json"}, on...)
	var d droppedRange
	for _, args := range [][]string{append(drop, "--dry-run"), drop} {
		if err := json.Unmarshal([]byte(ok(t, args...)), &d); err != nil || d.Chunks < 5 || d.DryRun && d.Rows != 50 {
			t.Errorf("%+v, %v", d, err)
		}
		if n, err := orders.CountDocuments(t.Context(), bson.D{}); err != nil || d.DryRun && n != 100 || !d.DryRun && n != 50 {
			t.Errorf("%d documents after %+v, %v", n, d, err)
		}
	}
	if out := ok(t, append([]string{"drop-range", "--min", `{"k": 5}`, "--max", `{"k": 55}`}, on...)...); !strings.HasPrefix(out, "dropped: 0 documents of shop.orders in") {
		t.Errorf("table: %s", out)
	}
	wantExplained(t, c.Database("shop"))
	for _, c := range []struct{ args, want string }{
		{`drop-range --min {"k":5} --max {"k":5}`, "is not below max"},
		{`merge --bounds [{"k":10},{"k":35}]`, "cannot merge chunks of shards"},
		{`merge --bounds [{"k":11},{"k":40}]`, "does not begin and end with chunks"},
		{`move --find {"k":1} --to nowhere`, "Shard nowhere not found"},
		{`split --ns shop.none --at {"k":1}`, "sh.shardCollection"},
	} {
		args := strings.Fields(c.args)
		if !strings.Contains(c.args, "--ns") {
			args = append(args, "--ns", "shop.orders")
		}
		if _, code, err := granary(t, append(args, "--store", store)...); code != 1 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("granary %s: %d, %v", c.args, code, err)
		}
	}
}

// wantExplained requires that explain tells of requests to other processes.
func wantExplained(t *testing.T, db *mongo.Database) {
	t.Helper()
	var x struct {
		Stats struct {
			Returned int `bson:"nReturned"`
			Requests int `bson:"shardRequests"`
			Stages   struct {
				Shards []bson.Raw `bson:"shards"`
			} `bson:"executionStages"`
		} `bson:"executionStats"`
	}
	find := bson.D{{Key: "find", Value: "orders"}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}}
	explain := bson.D{{Key: "explain", Value: find}, {Key: "verbosity", Value: "executionStats"}}
	err := db.RunCommand(t.Context(), explain).Decode(&x)
	if err != nil || x.Stats.Returned == 0 || x.Stats.Requests < 2 || len(x.Stats.Stages.Shards) != 2 {
		t.Errorf("explain: %+v, %v", x, err)
	}
}

// What cannot be meant is said at once, before the store is touched.
func TestChunkErrorsSayWhatToType(t *testing.T) {
	store := newStore(t)
	for _, c := range []struct{ args, want string }{
		{`split --ns shop.orders`, `--at '{"k": 1}' or --points FILE`},
		{`split --ns shop.orders --at {k:1}`, `a document is Extended JSON: {"k": 1}`},
		{`split --ns shop --at {"k":1}`, "DATABASE.COLLECTION"},
		{`split --ns shop.orders --points nofile`, "--points: open nofile"},
		{`split --ns shop.orders --points /dev/null`, "there is no document in it"},
		{`split --at {"k":1}`, `"ns" not set`},
		{`move --ns shop.orders --to shard01`, "--find"},
		{`move --ns shop.orders --find {"k":1}`, `"to" not set`},
		{`move --ns shop.orders --bounds [{"k":1}] --to shard01`, "--bounds: 1 documents"},
		{`drop-range --ns shop.orders --min {"k":1}`, `"max" not set`},
		{`drop-range --ns shop.orders --min 5 --max {"k":1}`, "a document is Extended JSON"},
		{`merge --ns shop.orders`, "--bounds"},
		{`merge --ns shop.orders --bounds [{"k":1},5]`, "a document is Extended JSON"},
	} {
		_, code, err := granary(t, append(strings.Fields(c.args), "--store", store)...)
		if err == nil || code != codeUsage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("granary %s: exit code %d, %v; want %q in it", c.args, code, err, c.want)
		}
	}
}

// Beside granary local commands ask that. A shard that nobody can be asked for is said at once.
func TestMovesNeedAWriter(t *testing.T) {
	store := newStore(t)
	l := startLocal(t, "--store", store)
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + l.mongo))
	if err != nil {
		t.Fatal(err)
	}
	shard := bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}}
	if err := c.Database("admin").RunCommand(t.Context(), shard).Err(); err != nil {
		t.Fatal(err)
	}
	_ = c.Disconnect(t.Context())
	move := []string{"move", "--store", store, "--ns", "shop.orders", "--find", `{"k": 1}`, "--to", "shard02"}
	ok(t, move...)
	if out := ok(t, "status", "--store", store); strings.Contains(out, "does not answer") {
		t.Errorf("status: %s", out)
	}
	move[len(move)-1] = "shard03"
	ok(t, "split", "--store", store, "--ns", "shop.orders", "--at", `{"k": 5}`)
	l.stop()
	if _, code, err := granary(t, move...); code != 1 || !strings.Contains(err.Error(), "start one with: granary writer") {
		t.Errorf("of a free shard: %d, %v", code, err)
	}
}
