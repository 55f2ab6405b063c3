package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
)

// A scrub of a clean store says so, and its state file ends empty; one of a store without a
// root has exit code 3, and neither it nor init takes the store for an empty one.
func TestScrubByCommand(t *testing.T) {
	store, state := newStore(t), filepath.Join(t.TempDir(), "scrub.json")
	if out := ok(t, "scrub", "--store", store, "--state", state); !strings.Contains(out, "clean") {
		t.Errorf("scrub: %s", out)
	}
	if text, err := os.ReadFile(state); err != nil || !strings.Contains(string(text), `"after": ""`) {
		t.Errorf("state %s, %v", text, err)
	}
	b := bucketOf(t, store)
	if _, err := b.Put(t.Context(), manifest.WALKey("shard01", 1, 0), []byte("some log"), bucket.IfAbsent); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), manifest.RootKey); err != nil {
		t.Fatal(err)
	}
	out, code, err := granary(t, "scrub", "--store", store, "-o", "json")
	var r struct {
		Problems []struct{ Rule, Object string }
	}
	if json.Unmarshal([]byte(out), &r) != nil || code != codePartial || len(r.Problems) != 1 || r.Problems[0].Object != manifest.RootKey {
		t.Errorf("exit code %d, %v: %s", code, err, out)
	}
	for _, args := range []string{"fsck --store " + store, "init --store " + store, "status --store " + store, "local --mongo 127.0.0.1:0 --admin= --store " + store} {
		if out, code, err := granary(t, strings.Fields(args)...); code == 0 || !strings.Contains(out+err.Error(), "granary repair") {
			t.Errorf("granary %s: %s %v", args, out, err)
		}
	}
	if err := os.WriteFile(state, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := granary(t, "scrub", "--store", store, "--state", state); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("a state that is none: %v", err)
	}
}
