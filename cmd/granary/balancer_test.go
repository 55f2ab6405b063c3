package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// into runs a command with -o json and reads what it prints.
func into[T any](t *testing.T, args ...string) (v T) {
	t.Helper()
	out := ok(t, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return v
}

// TestBalancingFromTheCommandLine stops the balancer, cuts a collection, looks at the plan,
// carries it out, starts the balancer and a process of its own, and drains a shard.
func TestBalancingFromTheCommandLine(t *testing.T) {
	t.Setenv("GRANARY_SECRET", "a secret of enough characters")
	store := "dir:" + t.TempDir()
	_, mongoAt := startProcess(t, "router", "--store", store, "--new-shards", "3", "--mongo", "127.0.0.1:0")
	startProcess(t, "writer", "--store", store, "--listen", "127.0.0.1:0", "--lease", "200ms")
	on := []string{"--store", store}
	with := func(args ...string) []string { return append(args, on...) }
	if out := ok(t, with("balancer", "stop", "--dry-run")...); out != "the balancer would be stopped\n" {
		t.Error(out)
	}
	if out := ok(t, with("balancer", "stop")...); out != "the balancer is stopped\n" {
		t.Error(out)
	}
	if s := into[balancerReport](t, with("balancer", "status")...); s.Mode != "off" || !strings.HasPrefix(s.Stopped, "by granary stop on ") {
		t.Errorf("%+v", s)
	}
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + mongoAt))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Disconnect(context.Background()) }()
	admin := func(cmd bson.D) bson.Raw {
		raw, err := c.Database("admin").RunCommand(t.Context(), cmd).Raw()
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	admin(bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	for i := range 8 {
		admin(bson.D{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "k", Value: i}}}})
	}
	statusUntil(t, store, func(s status) bool {
		return s.Shards[0].Phase == "serving" && s.Shards[1].Phase == "serving" && s.Shards[2].Phase == "serving"
	})
	if s := into[balancerReport](t, with("balancer", "status")...); s.Collections[0].Balanced || !strings.Contains(s.Collections[0].Why, "the balancer was stopped by granary stop on") {
		t.Errorf("%+v", s)
	}
	if d := into[balanced](t, with("balancer", "run")...); d.Moved != 0 {
		t.Errorf("a stopped balancer moved: %+v", d)
	}
	ok(t, with("balancer", "start")...)
	counts := func() map[string]int {
		n := map[string]int{}
		cur, err := c.Database("config").Collection("chunks").Find(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		var all []struct{ Shard string }
		if err := cur.All(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			n[x.Shard]++
		}
		return n
	}
	until := func(what string, so func(map[string]int) bool) {
		t.Helper()
		for start := time.Now(); !so(counts()); time.Sleep(100 * time.Millisecond) {
			if time.Since(start) > time.Minute {
				t.Fatalf("%s: %v", what, counts())
			}
		}
	}
	until("spread", func(n map[string]int) bool { return n["shard01"] == 3 && n["shard02"] == 3 && n["shard03"] == 3 })
	if out := ok(t, with("balancer", "run")...); !strings.HasPrefix(out, "moved: 0 chunks\n") || !strings.Contains(out, "balanced: below the threshold") {
		t.Error(out)
	}
	if d := into[drained](t, with("drain", "shard02", "--dry-run")...); d.Chunks != 3 || len(d.Why) != 1 || d.Why[0].Why != "being balanced: 3 chunks move (drain)" {
		t.Errorf("%+v", d)
	}
	if d := into[drained](t, with("drain", "shard02")...); d.State != "completed" || d.Chunks != 0 {
		t.Errorf("%+v", d)
	}
	if n := counts(); n["shard02"] != 0 || n["shard01"]+n["shard03"] != 9 {
		t.Errorf("%v", n)
	}
	for _, bad := range []struct{ args, want string }{
		{"drain shard02", "Shard shard02 not found"}, {"drain shard09 --dry-run", "no shard shard09"}, {"drain shard01 --cancel", "is not being emptied"},
	} {
		if _, code, err := granary(t, with(strings.Fields(bad.args)...)...); code != codeFailed || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("granary %s: %d, %v", bad.args, code, err)
		}
	}
	for _, bad := range []string{"drain", "drain a b", "balancer stop now", "balancer run --fast"} {
		if _, code, err := granary(t, with(strings.Fields(bad)...)...); code != codeUsage {
			t.Errorf("granary %s: %d, %v", bad, code, err)
		}
	}
}

// TestABalancerOfItsOwn spreads chunks whose writer takes no part in balancing.
func TestABalancerOfItsOwn(t *testing.T) {
	store, c := startPair(t)
	for _, cmd := range []bson.D{
		{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}},
		{{Key: "split", Value: "shop.orders"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 1}}}},
	} {
		if err := c.Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var out, log buffer
	done := make(chan error, 1)
	go func() { done <- start(ctx, &out, &log, "balancer", "--store", store, "--admin", "") }()
	for began := time.Now(); !strings.Contains(log.String(), "chunks were moved"); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("nothing moved: %s%s", &out, &log)
		}
	}
	if s := into[balancerReport](t, "balancer", "status", "--store", store); s.Mode != "full" || s.Rounds < 1 || !s.Collections[0].Balanced {
		t.Errorf("%+v", s)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
