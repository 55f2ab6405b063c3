package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	for _, v := range os.Environ() { // the tests say what they mean
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "GRANARY_") || strings.HasPrefix(name, "AWS_") {
			_ = os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}

// buffer is written by a running command and read by the test.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// granary runs a command line in this process, and returns what it printed and its exit code.
func granary(t *testing.T, args ...string) (stdout string, code int, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // should it serve, it ends
	defer cancel()
	var out, log buffer
	err = start(ctx, &out, &log, args...)
	if err != nil {
		code = exitCode(err)
	}
	return out.String(), code, err
}

func start(ctx context.Context, out, log *buffer, args ...string) error {
	a := app()
	a.Writer, a.ErrWriter = out, log
	return a.Run(ctx, append([]string{"granary"}, args...))
}

// ok runs a command line that must succeed.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	out, code, err := granary(t, args...)
	if err != nil || code != 0 {
		t.Fatalf("granary %s: exit code %d: %v", strings.Join(args, " "), code, err)
	}
	return out
}

// newStore is a directory store with a cluster of three shards.
func newStore(t *testing.T) string {
	t.Helper()
	store := "dir:" + t.TempDir()
	ok(t, "init", "--store", store)
	return store
}

// bucketOf is the bucket behind a store, to look into or to break.
func bucketOf(t *testing.T, store string) bucket.Bucket {
	t.Helper()
	b, err := open.URL(t.Context(), store, host.System())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// Whoever types something wrong is told what to type instead, and scripts see exit code 2;
// what is right and cannot be done has exit code 1.
func TestErrorsSayWhatToType(t *testing.T) {
	empty := "dir:" + filepath.Join(t.TempDir(), "none")
	full := newStore(t)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"statu", 2, `no command "statu": granary help lists them`},
		{"help statu", 2, `no command "statu": granary help lists them`},
		{"fsck ./data", 2, `fsck takes flags only, and was given "./data": granary help fsck shows them`},
		{"--store x status", 2, "flags follow the command: granary help shows how"},
		{"status --stroe x", 2, "granary help status shows what it takes"},
		{"status --store", 2, "granary help status shows what it takes"},
		{"status -o xml", 2, "--output is one of table, json, yaml: granary help status"},
		{"local --log xml", 2, "--log is one of text, json: granary help local"},
		{"init --shards many", 2, "granary help init shows what it takes"},
		{"init --shards 0 --store mem:", 2, "1 to 99"},
		{"init --shards 100 --store mem:", 2, "1 to 99"},
		{"local --shards 0 --mongo 127.0.0.1:0 --admin= --store mem:", 2, "1 to 99"},
		{"local --lease 0s --store mem:", 2, "--lease 0s: more than 0"},
		{"local --cache-mb -1 --store mem:", 2, "--cache-mb -1: more than 0"},
		{"local --memtable-mb 0 --store mem:", 2, "--memtable-mb 0: more than 0"},

		{"init --store nowhere", 2, "for a directory type dir:nowhere"},
		{"status --store s3://bucket", 2, "add region=eu-central-1"},
		{"doctor --store ftp:x", 2, `unknown scheme "ftp"`},
		{"status --store dir:", 2, "type dir:./granary-data"},
		{"status --store mem:", 2, "dir:./granary-data"},
		{"fsck --store mem:", 2, "dir:./granary-data"},

		{"status --store " + empty, 1, "make one with: granary init --store " + empty},
		{"fsck --store " + empty, 1, "make one with: granary init --store " + empty},
		{"init --store " + full, 1, "granary status --store " + full + " shows it"},

		{"local --store mem: --mongo 0.0.0.0:27017", 2, "use 127.0.0.1, or say --insecure"},
		{"local --store mem: --mongo :27017", 2, "use 127.0.0.1, or say --insecure"},
		{"local --store mem: --mongo [::]:27017", 2, "use 127.0.0.1, or say --insecure"},
		{"local --store mem: --mongo db.example:27017", 2, "use 127.0.0.1, or say --insecure"},
		{"local --store mem: --admin 10.0.0.1:8081", 2, "--admin 10.0.0.1:8081 is not on this machine"},
		{"local --store mem: --mongo nonsense", 2, "an address is HOST:PORT, such as 127.0.0.1:27017"},
	} {
		out, code, err := granary(t, strings.Fields(c.args)...)
		if err == nil || code != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("granary %s: exit code %d, want %d; %v, want %q in it", c.args, code, c.code, err, c.want)
		}
		if out != "" {
			t.Errorf("granary %s printed %q", c.args, out)
		}
	}
	if _, err := os.Stat(strings.TrimPrefix(empty, "dir:")); err == nil {
		t.Error("looking at a store that does not exist made it")
	}
}

func TestHelpShowsEveryCommandWithAnExample(t *testing.T) {
	help := ok(t)
	for _, c := range app().Commands {
		if !strings.Contains(help, c.Name) {
			t.Errorf("granary does not list %s", c.Name)
		}
		if text := ok(t, "help", c.Name); c.Name != "version" && !strings.Contains(text, "granary "+c.Name) {
			t.Errorf("granary help %s shows no example:\n%s", c.Name, text)
		}
	}
}

func TestInitMakesOneCluster(t *testing.T) {
	dir := t.TempDir()
	store := "dir:" + dir
	if out := ok(t, "init", "--store", store, "--dry-run"); !strings.Contains(out, "nothing was written") {
		t.Errorf("dry run: %q", out)
	}
	if _, code, err := granary(t, "status", "--store", store); code != 1 {
		t.Errorf("after a dry run: %v", err)
	}
	out := ok(t, "init", "--store", store, "--shards", "2")
	if !strings.Contains(out, "with 2 shards\nnext: granary local --store "+store+"\n") {
		t.Errorf("init: %q", out)
	}
	root := manifest.NewRoot(bucket.NewCell(bucketOf(t, store)), host.System(), nil)
	s, _, err := root.Load(t.Context())
	if err != nil || len(s.Shards()) != 2 || s.Shards()[0].ID != "shard01" {
		t.Errorf("%v, %v", s.Shards(), err)
	}
	if h := s.History(); len(h) == 0 || h[0].Millis == 0 {
		t.Errorf("the history does not say when: %v", h)
	}
}

func TestFlagsComeFromTheEnvironment(t *testing.T) {
	store := newStore(t)
	t.Setenv("GRANARY_STORE", store)
	t.Setenv("GRANARY_OUTPUT", "json")
	if out := ok(t, "status"); !json.Valid([]byte(out)) {
		t.Errorf("%q", out)
	}
}

// shape replaces the leaves of JSON by their types, and keeps names and order.
func shape(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	var of func(any) any
	of = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k := range v {
				v[k] = of(v[k])
			}
			return v
		case []any:
			if len(v) > 0 {
				return []any{of(v[0])}
			}
			return []any{}
		case string:
			return "string"
		case float64:
			return "number"
		case bool:
			return "bool"
		}
		return v
	}
	return of(v)
}

type object = map[string]any

// What scripts read of -o json stays as it is: a change here breaks them.
func TestJSONKeepsItsShape(t *testing.T) {
	store := newStore(t)
	for command, want := range map[string]object{
		"version": {"version": "string", "go": "string", "platform": "string"},
		"doctor":  {"store": "string", "safe": "bool", "probeMillis": "number", "cluster": "string"},
		"fsck": {
			"version": "number", "collections": "number", "chunks": "number", "segments": "number", "rows": "number", "bytes": "number",
			"walObjects": "number", "walRecords": "number", "orphans": "number", "orphanBytes": "number", "copies": "number", "problems": []any{},
		},
		"status": {
			"store": "string", "cluster": "string", "version": "number", "collections": []any{}, "takeovers": []any{}, "moves": []any{}, "copying": []any{}, "resharding": []any{},
			"alarms": []any{}, "hotTails": []any{},
			"compaction": object{
				"pending": "number", "pendingBytes": "number", "running": []any{},
				"readAmplification": "number", "readAmplificationMost": "number", "spaceAmplification": "number",
			},
			"shards": []any{object{
				"id": "string", "state": "string", "epoch": "number", "floor": "string", "openEpochs": "number",
				"walObjects": "number", "walBytes": "number", "chunks": "number", "rows": "number", "bytes": "number",
			}},
		},
	} {
		args := []string{command, "-o", "json"}
		if command != "version" {
			args = append(args, "--store", store)
		}
		if diff := cmp.Diff(any(want), shape(t, ok(t, args...))); diff != "" {
			t.Errorf("granary %s -o json, -want +got:\n%s", command, diff)
		}
	}
}

func TestTablesAreForPeople(t *testing.T) {
	store := newStore(t)
	for command, want := range map[string][]string{
		"version": {"granary "},
		"doctor":  {"safe     yes", "cluster  "},
		"fsck":    {"root version 1: 0 collections", "clean\n"},
		"status":  {"root version 1", "SHARD    STATE", "shard03  free", "COLLECTION"},
	} {
		args := []string{command}
		if command != "version" {
			args = append(args, "--store", store)
		}
		out := ok(t, args...)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("granary %s lacks %q:\n%s", command, w, out)
			}
		}
	}
}

// fsck prints each problem and has an exit code of its own, for scripts.
func TestFsckWithProblemsIsCodeThree(t *testing.T) {
	store := newStore(t)
	if _, err := bucketOf(t, store).Put(t.Context(), "wal/shard01/readme", nil, bucket.Condition{}); err != nil {
		t.Fatal(err)
	}
	out, code, err := granary(t, "fsck", "--store", store)
	if code != codePartial || err == nil || err.Error() != "1 problems" {
		t.Errorf("exit code %d, %v", code, err)
	}
	if !strings.Contains(out, "PROBLEM  log object has a log name\n  object wal/shard01/readme\n") || strings.Contains(out, "clean") {
		t.Errorf("printed %q", out)
	}
	out, code, _ = granary(t, "fsck", "--store", store, "-o", "json", "--deep")
	want := object{"rule": "string", "object": "string", "detail": "string"}
	if got := shape(t, out).(object)["problems"]; code != codePartial || !cmp.Equal(got, any([]any{want})) {
		t.Errorf("exit code %d, problems %v", code, got)
	}
}

// A root that cannot be read is an error of each command that needs it, never an empty
// cluster.
func TestDamagedRootIsSaid(t *testing.T) {
	store := newStore(t)
	if _, err := bucketOf(t, store).Put(t.Context(), manifest.RootKey, []byte("junk"), bucket.Condition{}); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"status"}, {"fsck"}, {"doctor"}, {"init"}, {"local", "--mongo", "127.0.0.1:0", "--admin", ""}} {
		out, code, err := granary(t, append(slices.Clone(args), "--store", store)...)
		want := codeFailed
		if args[0] == "fsck" {
			want = codePartial // it is a problem that was found
		}
		if code != want || err == nil || args[0] != "init" && !strings.Contains(out+err.Error(), "corrupt") {
			t.Errorf("granary %s: exit code %d, %v\n%s", args[0], code, err, out)
		}
	}
}
