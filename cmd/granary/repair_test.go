package main

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
)

// A root that is lost is made again by command: first said, then refused while its holder is
// there, then done; a second repair finds nothing.
func TestRepairByCommand(t *testing.T) {
	store := newStore(t)
	if out := ok(t, "repair", "--store", store); !strings.Contains(out, "nothing is lost") {
		t.Errorf("a whole store: %s", out)
	}
	b := bucketOf(t, store)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := host.System()
	root := manifest.NewRoot(bucket.NewCell(b), h, &manifest.RootOptions{HistoryEvery: 1})
	if _, err := root.Commit(t.Context(), manifest.Edit{Op: h.ID16(), Millis: h.Wall().UnixMilli(), Changes: []manifest.Change{
		manifest.Claim{Shard: "shard01", Holder: "somebody", Address: l.Addr().String(), LeaseMillis: 100},
	}}); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), manifest.RootKey); err != nil {
		t.Fatal(err)
	}
	out, code, err := granary(t, "repair", "--store", store, "-o", "json")
	var r struct {
		DryRun     bool
		Root, Copy string
	}
	if json.Unmarshal([]byte(out), &r) != nil || code != codePartial || !strings.Contains(err.Error(), "--yes") || !r.DryRun || r.Root == "" || r.Copy != manifest.HistoryKey(2) {
		t.Errorf("dry: exit code %d, %v: %s", code, err, out)
	}
	if _, code, err := granary(t, "repair", "--store", store, "--yes"); code != codeFailed || !strings.Contains(err.Error(), "--fence") {
		t.Errorf("beside its holder: exit code %d, %v", code, err)
	}
	if out := ok(t, "repair", "--store", store, "--yes", "--fence"); !strings.Contains(out, "it is made again from "+manifest.HistoryKey(2)) {
		t.Errorf("repaired: %s", out)
	}
	if out := ok(t, "repair", "--store", store); !strings.Contains(out, "nothing is lost") {
		t.Errorf("again: %s", out)
	}
	if out := ok(t, "fsck", "--deep", "--store", store); !strings.Contains(out, "clean") {
		t.Errorf("fsck: %s", out)
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"repair --yes --dry-run --store " + store, codeUsage, "one of them"},
		{"repair --store dir:" + t.TempDir(), codeFailed, "granary init"},
	} {
		if _, code, err := granary(t, strings.Fields(c.args)...); code != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("granary %s: exit code %d, %v", c.args, code, err)
		}
	}
}
