package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var announces = regexp.MustCompile(`(?:a writer at |mongosh mongodb://)([^/\n]*)/?\n\nhealth and metrics: http://([^/]*)/readyz`)

// startProcess runs granary writer or granary router in this process; at is where it listens.
func startProcess(t *testing.T, args ...string) (l *local, at string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l = &local{t: t, cancel: cancel, done: make(chan error, 1)}
	go func() { l.done <- start(ctx, &l.out, &l.log, append(args, "--admin", "127.0.0.1:0")...) }()
	t.Cleanup(l.stop)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if m := announces.FindStringSubmatch(l.out.String()); m != nil {
			l.admin = m[2]
			return l, m[1]
		}
	}
	t.Fatalf("did not serve within a minute:\n%s", &l.log)
	return nil, ""
}

// startPair runs a router and a writer of two shards, with more flags for the writer, and returns
// their store and a client of the router.
func startPair(t *testing.T, more ...string) (store string, c *mongo.Client) {
	t.Helper()
	t.Setenv("GRANARY_SECRET", "a secret of enough characters")
	store = "dir:" + t.TempDir()
	_, at := startProcess(t, "router", "--store", store, "--new-shards", "2", "--mongo", "127.0.0.1:0")
	startProcess(t, append([]string{"writer", "--store", store, "--listen", "127.0.0.1:0", "--lease", "200ms", "--balancer=false"}, more...)...)
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return store, c
}

// Two writers share the shards, with a secret between them and a router; drivers write and
// read; status and metrics tell who holds what; a stopped writer hands over, and the last one
// frees.
func TestWritersAndRouterServeTogether(t *testing.T) {
	t.Setenv("GRANARY_SECRET", "a secret of enough characters")
	store := "dir:" + t.TempDir()
	router, mongoAt := startProcess(t, "router", "--store", store, "--new-shards", "2", "--mongo", "127.0.0.1:0")
	first, firstAt := startProcess(t, "writer", "--store", store, "--listen", "127.0.0.1:0", "--lease", "200ms")
	second, _ := startProcess(t, "writer", "--store", store, "--listen", "127.0.0.1:0", "--address", "", "--lease", "200ms")
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + mongoAt))
	if err != nil {
		t.Fatal(err)
	}
	docs := c.Database("shop").Collection("orders")
	for i := range 5 {
		if _, err := docs.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	s := statusUntil(t, store, func(s status) bool {
		return s.Shards[0].Phase == "serving" && s.Shards[1].Phase == "serving" && s.Shards[0].Address != s.Shards[1].Address
	})
	for _, sh := range s.Shards {
		if sh.Answers == nil || !*sh.Answers || sh.LeaseAge == nil || sh.Unflushed == nil || sh.State != "held" {
			t.Errorf("%+v", sh)
		}
	}
	if c := s.Compaction; c.Write == nil || *c.Write != 1 || c.Pending != 0 || c.Running == nil || c.Space != 1 {
		t.Errorf("%+v", c)
	}
	s = statusUntil(t, store, func(s status) bool {
		// A takeover, which a slow machine may see at any time, flushes what was in the log.
		_, err := docs.UpdateByID(t.Context(), 0, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		return err != nil || s.Shards[0].WALObjects+s.Shards[1].WALObjects > 0
	})
	if s.Shards[0].WALObjects+s.Shards[1].WALObjects == 0 {
		t.Error("no log above the floors after writes")
	}
	if out := ok(t, "status", "--store", store); !strings.Contains(out, firstAt) || !strings.Contains(out, "serving") {
		t.Errorf("status:\n%s", out)
	}
	shows(t, router, "granary_commands_total ", "granary_connections ", "granary_store_answer_age_seconds ", `granary_refused_total{reason="connections"} 0`)
	shows(t, first, "granary_epoch_changes_total ", `granary_bucket_cost_dollars_total{class="root",prices="S3 Standard, us-east-1",verb="get"}`,
		"granary_gc_deletions_total 0", "granary_compaction_pending 0", `granary_compaction_bytes_total{direction="written"} 0`, "granary_write_amplification 1",
		`granary_read_amplification{of="worst"} `, "granary_space_amplification 1", `granary_shard_lease_left_seconds{shard="shard0`)
	if code, body := second.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
	first.stop()
	if _, err := docs.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 5}}); err != nil {
		t.Error("after a writer stopped:", err)
	}
	if n, err := docs.CountDocuments(t.Context(), bson.D{}); n != 6 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
	if err := c.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	second.stop()
	router.stop()
	s = statusUntil(t, store, func(s status) bool { return s.Shards[0].State == "free" && s.Shards[1].State == "free" })
	if len(s.Takeovers) > 0 || s.Shards[0].WALObjects+s.Shards[1].WALObjects > 0 {
		t.Errorf("after stops in order: %+v", s)
	}
}

// shows requires lines of a process's /metrics.
func shows(t *testing.T, l *local, lines ...string) {
	t.Helper()
	_, metrics := l.get("/metrics")
	for _, want := range lines {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

func statusUntil(t *testing.T, store string, what func(status) bool) (s status) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		s = status{}
		if err := json.Unmarshal([]byte(ok(t, "status", "--store", store, "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		if what(s) {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %+v", s)
		}
	}
}

// Whoever starts processes wrongly is told what to type instead.
func TestWriterAndRouterErrorsSayWhatToType(t *testing.T) {
	store := newStore(t)
	prices := filepath.Join(t.TempDir(), "prices.json")
	if err := os.WriteFile(prices, []byte(`{"putPer100": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"writer --listen 0.0.0.0:0", 2, "export GRANARY_SECRET=$(openssl rand -hex 32), or say --insecure"},
		{"writer --listen nonsense", 2, "an address is HOST:PORT"},
		{"writer --listen 0.0.0.0:0 --insecure", 2, "say where others reach it, such as --address 10.0.0.7:"},
		{"writer --listen 127.0.0.1:0 --address nonsense", 2, "an address is HOST:PORT, such as 10.0.0.7:7017"},
		{"writer --listen 127.0.0.1:0 --shards shard09", 1, "the cluster has [shard01 shard02 shard03]"},
		{"writer --any --shards shard01", 2, "say one of them"},
		{"writer --new-shards 0", 2, "--new-shards 0: invalid: 1 to 99"},
		{"router --new-shards 100", 2, "--new-shards 100: invalid: 1 to 99"},
		{"router --mongo 0.0.0.0:0", 2, "use 127.0.0.1, or say --insecure"},
		{"router --prices " + prices, 2, "it is a JSON object such as"},
		{"router --prices /no/such/file", 2, "no such file"},
		{"router --mongo 127.0.0.1:0 --admin 10.0.0.1:1", 2, "--admin 10.0.0.1:1 is not on this machine"},
		{"writer --store mem:", 2, "name a directory, such as dir:./granary-data"},
		{"router --store mem:", 2, "name a directory, such as dir:./granary-data"},
	} {
		args := strings.Fields(c.args)
		if !strings.Contains(c.args, "--store") {
			args = append(args, "--store", store)
		}
		if !strings.Contains(c.args, "--admin") {
			args = append(args, "--admin", "")
		}
		_, code, err := granary(t, args...)
		if err == nil || code != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("granary %s: exit code %d, want %d; %v, want %q in it", c.args, code, c.code, err, c.want)
		}
	}
	t.Setenv("GRANARY_SECRET", "short")
	for _, command := range []string{"writer", "router", "status"} {
		if _, code, err := granary(t, command, "--store", store); code != 2 || !strings.Contains(err.Error(), "at least 16 are needed") {
			t.Errorf("%s with a short secret: %d, %v", command, code, err)
		}
	}
}

// A store that is not there fails a process at once with --wait 0s; otherwise it is waited
// for, which a stop ends.
func TestAStoreThatIsAwayIsWaitedFor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	store := "dir:" + filepath.Join(file, "data")
	if _, code, err := granary(t, "router", "--store", store, "--mongo", "127.0.0.1:0", "--admin", "", "--wait", "0s"); code != codeFailed || err == nil {
		t.Errorf("--wait 0s: exit code %d, %v", code, err)
	}
	if _, code, _ := granary(t, "writer", "--store", store, "--listen", "127.0.0.1:0", "--admin", "", "--wait", "300ms"); code != codeFailed {
		t.Errorf("--wait 300ms: exit code %d", code)
	}
	var out, log buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- start(ctx, &out, &log, "writer", "--store", store, "--listen", "127.0.0.1:0", "--admin", "")
	}()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(log.String(), "the store cannot be reached, waiting for it"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("log: %s", &log)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("a stop while waiting: %v", err)
	}
}

// A look every now and then: one JSON document a line, or YAML documents.
func TestStatusWatches(t *testing.T) {
	store := newStore(t)
	for format, between := range map[string]string{"json": "\n{", "yaml": "\n---\nstore:", "table": "\n\nstore "} {
		ctx, cancel := context.WithCancel(t.Context())
		var out, log buffer
		done := make(chan error, 1)
		go func() {
			done <- start(ctx, &out, &log, "status", "--store", store, "--watch", "--every", "10ms", "-o", format)
		}()
		for deadline := time.Now().Add(10 * time.Second); !strings.Contains(out.String(), between); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s printed %s", format, &out)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", format, err)
		}
	}
}

func TestYAMLHasTheFieldsOfJSON(t *testing.T) {
	yes, age := true, int64(7)
	s := status{
		Store: `dir:"odd"`, Version: 3, Collections: []collectionStatus{}, Takeovers: []takeoverStatus{{Version: 2, Shard: "shard01"}},
		Shards: []shardStatus{{ID: "shard01", State: "held", Answers: &yes, LeaseAge: &age}, {ID: "shard02", State: "free"}},
	}
	var b strings.Builder
	if err := printYAML(&b, s); err != nil {
		t.Fatal(err)
	}
	want := `store: "dir:\"odd\""
cluster: ""
version: 3
alarms: null
shards:
  - id: "shard01"
    state: "held"
    epoch: 0
    answers: true
    leaseAgeMillis: 7
    floor: ""
    openEpochs: 0
    walObjects: 0
    walBytes: 0
    chunks: 0
    rows: 0
    bytes: 0
  - id: "shard02"
    state: "free"
    epoch: 0
    floor: ""
    openEpochs: 0
    walObjects: 0
    walBytes: 0
    chunks: 0
    rows: 0
    bytes: 0
collections: []
takeovers:
  - version: 2
    at: ""
    shard: "shard01"
    epoch: 0
    holder: ""
moves: null
copying: null
resharding: null
compaction:
  running: null
  pending: 0
  pendingBytes: 0
  readAmplification: 0
  readAmplificationMost: 0
  spaceAmplification: 0
hotTails: null
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestCostsFollowThePriceTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prices.json")
	body := `{"name": "dear", "putPer1000": 5, "getPer1000": 1, "headPer1000": 2, "listPer1000": 3, "deletePer1000": 4, "readPerGB": 9, "writtenPerGB": 7}`
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := loadPrices(file)
	if err != nil || p.Name != "dear" {
		t.Fatalf("%+v, %v", p, err)
	}
	n := layer.Count{Requests: 2000, Bytes: 1e9}
	for v, want := range map[layer.Verb]float64{layer.Put: 17, layer.Get: 11, layer.Head: 4, layer.List: 6, layer.Delete: 8} {
		if got := p.Cost(v, n); got != want {
			t.Errorf("%s: %v, want %v", v, got, want)
		}
	}
	if p, err := loadPrices(""); err != nil || p.Cost(layer.Put, layer.Count{Requests: 1000}) != 0.005 {
		t.Errorf("S3 Standard: %+v, %v", p, err)
	}
}
