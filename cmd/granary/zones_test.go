package main

import (
	"strings"
	"testing"
)

// A shard with a bucket of its own, what is told of it, and what is refused, by commands.
func TestZonesByCommands(t *testing.T) {
	store, eu := newStore(t), "dir:"+t.TempDir()
	if out := ok(t, "zones", "add-shard", "eu01", "--location", eu, "--zone", "EU", "--store", store); !strings.Contains(out, "eu01 is added") {
		t.Errorf("added: %s", out)
	}
	ok(t, "zones", "add-shard", "eu01", "--location", eu, "--store", store) // again
	if out := ok(t, "zones", "list", "--store", store, "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("listed: %s", out)
	}
	if out := ok(t, "zones", "audit", "--store", store); !strings.Contains(out, "all of it is where it may be") {
		t.Errorf("audit: %s", out)
	}
	if out := ok(t, "fsck", "--store", store); !strings.Contains(out, "clean") {
		t.Errorf("fsck: %s", out)
	}
	for _, c := range []struct{ args, want string }{
		{"backup --store " + store + " --to dir:" + t.TempDir() + " --name one", "eu01 is in " + eu},
		{"zones add-shard --store " + store, "takes the name of one shard"},
		{"zones add-shard eu02 --location mem: --store " + store, "another one in every process"},
		{"zones add-shard eu02 --location dir:eu --store " + store, "type dir:/PATH"},
		{"zones add-shard eu02 --location " + store + " --store " + store, "own bucket of a cluster"},
		{"zones add-shard eu01 --location " + eu + "2 --store " + store, "a shard stays where it was added"},
		{"zones explain shop.users --store " + store, "a collection and a document"},
		{"zones explain shop {} --store " + store, "DATABASE.COLLECTION"},
		{"zones explain shop.users {} --store " + store, "not found"},
		{"zones explain shop.users {}{} --store " + store, "one document"},
	} {
		if _, code, err := granary(t, strings.Fields(c.args)...); code == 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("granary %s: %v, want %q", c.args, err, c.want)
		}
	}
}
