package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// local is granary local in this process, on ports of its own.
type local struct {
	t        *testing.T
	out, log buffer
	cancel   context.CancelFunc
	done     chan error
	mongo    string
	admin    string
}

var listens = regexp.MustCompile(`mongosh mongodb://([^/]*)/\n\nhealth and metrics: http://([^/]*)/readyz`)

func startLocal(t *testing.T, args ...string) *local {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &local{t: t, cancel: cancel, done: make(chan error, 1)}
	args = append([]string{"local", "--mongo", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--lease", "50ms"}, args...)
	go func() { l.done <- start(ctx, &l.out, &l.log, args...) }()
	t.Cleanup(l.stop)
	deadline := time.Now().Add(time.Minute)
	for {
		if m := listens.FindStringSubmatch(l.out.String()); m != nil {
			l.mongo, l.admin = m[1], m[2]
			return l
		}
		select {
		case err := <-l.done:
			l.done <- err
			t.Fatalf("ended before it served: %v\n%s", err, &l.log)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("did not serve within a minute:\n%s", &l.log)
		}
	}
}

// stop is SIGTERM.
func (l *local) stop() {
	l.cancel()
	if err := <-l.done; err != nil {
		l.t.Errorf("after a stop: %v\n%s", err, &l.log)
	}
	l.done <- nil
}

func (l *local) get(path string) (status int, body string) {
	l.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get("http://" + l.admin + path)
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// One process serves drivers, health and metrics; after a stop everything is in segments,
// nobody holds a shard, and the store is clean.
func TestLocalServesAndStopsInOrder(t *testing.T) {
	store := "dir:" + t.TempDir()
	l := startLocal(t, "--store", store, "--shards", "2", "--verbose")
	if status, body := l.get("/livez"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("/livez: %d %q", status, body)
	}
	if status, body := l.get("/readyz"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("/readyz: %d %q", status, body)
	}
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + l.mongo))
	if err != nil {
		t.Fatal(err)
	}
	docs := c.Database("shop").Collection("orders")
	if _, err := docs.InsertMany(t.Context(), []bson.D{{{Key: "_id", Value: 1}}, {{Key: "_id", Value: 2}}}); err != nil {
		t.Fatal(err)
	}
	_, metrics := l.get("/metrics")
	for _, want := range []string{
		`granary_bucket_requests_total{class="wal",verb="put"} `, "granary_root_version ", `granary_shard_serving{shard="shard02"} 1`,
		`granary_shard_records_total{shard="shard01"} `, "granary_memtable_limit_bytes ", "go_goroutines ",
		`granary_operations_total{ns="shop.orders",op="insert",shards="one"} 2`, `granary_targeted_share{ns="shop.orders"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if status, _ := l.get("/debug/pprof/cmdline"); status != http.StatusOK {
		t.Errorf("pprof: %d", status)
	}
	if err := c.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.stop()

	var s status
	if err := json.Unmarshal([]byte(ok(t, "status", "--store", store, "-o", "json")), &s); err != nil {
		t.Fatal(err)
	}
	for _, sh := range s.Shards {
		if sh.State != "free" || sh.Epoch != 1 || sh.Open != 0 {
			t.Errorf("shard after a stop: %+v", sh)
		}
	}
	if len(s.Shards) != 2 || len(s.Collections) != 1 || s.Collections[0].Namespace != "shop.orders" || s.Collections[0].Rows != 2 {
		t.Errorf("%+v", s)
	}
	if out := ok(t, "status", "--store", store); !strings.Contains(out, `shop.orders  {"_id": 1}`) && !strings.Contains(out, "shop.orders") {
		t.Errorf("status:\n%s", out)
	}
	if out := ok(t, "fsck", "--deep", "--store", store); !strings.HasSuffix(out, "clean\n") {
		t.Errorf("fsck:\n%s", out)
	}
}

// Two on one port: the second says which flag, and what to give it.
func TestTakenPortsAreSaid(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	_, code, err := granary(t, "local", "--store", "mem:", "--mongo", addr, "--admin", "")
	if code != codeFailed || err == nil || !strings.Contains(err.Error(), "another address: granary local --mongo 127.0.0.1:27018") {
		t.Errorf("--mongo: exit code %d, %v", code, err)
	}
	_, code, err = granary(t, "local", "--store", "mem:", "--mongo", "127.0.0.1:0", "--admin", addr)
	if code != codeFailed || err == nil || !strings.Contains(err.Error(), "none: --admin ''") {
		t.Errorf("--admin: exit code %d, %v", code, err)
	}
}

// A loopback address needs no more; another one needs --insecure. (The context has ended,
// so that nothing is served.)
func TestInsecureIsForOtherAddresses(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, args := range [][]string{
		{"--mongo", "127.0.0.1:0"}, {"--mongo", "localhost:0"}, {"--mongo", "0.0.0.0:0", "--insecure"},
	} {
		var out, log buffer
		if err := start(ended, &out, &log, append([]string{"local", "--store", "mem:", "--admin", ""}, args...)...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestLogsAreJSONWhenAskedFor(t *testing.T) {
	l := startLocal(t, "--store", "mem:", "--log", "json")
	l.stop()
	for line := range bytes.Lines([]byte(l.log.String())) {
		if !json.Valid(line) {
			t.Errorf("no JSON: %s", line)
		}
	}
	if !strings.Contains(l.log.String(), "stopping: draining") {
		t.Errorf("log: %s", &l.log)
	}
}
