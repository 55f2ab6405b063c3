package main

import (
	"strings"
	"testing"
)

// A snapshot, a backup of it and one of now, and a cluster made of a backup, all by commands.
func TestBackupAndRestoreByCommands(t *testing.T) {
	store, backups, restored := newStore(t), "dir:"+t.TempDir(), "dir:"+t.TempDir()
	if out := ok(t, "snapshot", "create", "monday", "--keep", "1h", "--store", store); !strings.Contains(out, "Timestamp(0, 2)") {
		t.Errorf("created: %s", out)
	}
	if out := ok(t, "snapshot", "list", "--store", store, "-o", "json"); !strings.Contains(out, `"monday"`) {
		t.Errorf("listed: %s", out)
	}
	if out := ok(t, "backup", "--store", store, "--to", backups, "--snapshot", "monday", "--dry-run"); !strings.Contains(out, "nothing was copied") {
		t.Errorf("dry run: %s", out)
	}
	ok(t, "backup", "--store", store, "--to", backups, "--snapshot", "monday", "--name", "one")
	ok(t, "backup", "--store", store, "--to", backups, "--name", "two")
	if out := ok(t, "backup", "--to", backups, "--list"); !strings.Contains(out, "one") || !strings.Contains(out, "two") {
		t.Errorf("backups: %s", out)
	}
	ok(t, "restore", "--from", backups, "--name", "two", "--store", restored)
	if out := ok(t, "fsck", "--deep", "--store", restored); !strings.Contains(out, "clean") {
		t.Errorf("fsck: %s", out)
	}
	if out := ok(t, "snapshot", "list", "--store", restored, "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("snapshots of the restored: %s", out)
	}
	if out := ok(t, "backup", "prune", "--to", backups, "--keep", "1", "--dry-run"); !strings.Contains(out, "would be removed: one") {
		t.Errorf("dry prune: %s", out)
	}
	if out := ok(t, "backup", "prune", "--to", backups, "--keep", "1"); !strings.Contains(out, "1 backups stay, 1 removed") {
		t.Errorf("prune: %s", out)
	}
	ok(t, "restore", "--from", backups, "--name", "two", "--store", "dir:"+t.TempDir())
	if out := ok(t, "restore", "--all", "--replace", "--from", backups, "--name", "two", "--store", store, "-o", "json"); !strings.Contains(out, `"collections": []`) {
		t.Errorf("restored in place: %s", out)
	}
	if out := ok(t, "undrop", "--list", "--store", store, "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("dropped: %s", out)
	}
	ok(t, "snapshot", "drop", "monday", "--store", store)
	for _, c := range []struct{ args, want string }{
		{"snapshot drop monday --store " + store, "granary snapshot list"},
		{"snapshot create --store " + store, "takes the name of a snapshot"},
		{"undrop --store " + store, "DATABASE.COLLECTION"},
		{"undrop --ns a.b --as c --store " + store, "DATABASE.COLLECTION"},
		{"undrop --ns a.b --store " + store, "no snapshot has a.b"},
		{"backup --store " + store, `"to" not set`},
		{"backup --store " + store + " --to " + backups + " --name two", "two"},
		{"backup prune --to " + backups, "--keep 7"},
		{"backup prune --keep 1", `"to" not set`},
		{"backup prune --keep 1 --to " + store, "only a store of backups alone is pruned"},
		{"backup --store " + store + " --to " + backups + " --name ../x", "letters, digits"},
		{"backup --store " + store + " --to " + backups + " --dry-run", "granary snapshot create"},
		{"backup --store " + store + " --to " + backups + " --snapshot none", "granary snapshot list"},
		{"restore --from " + backups + " --name three --store " + restored + "2", "--list"},
		{"restore --from " + backups + " --name two --store " + restored, "holds a cluster already"},
		{"restore --store " + store, "--from STORE --name BACKUP, or --at SNAPSHOT or TIME"},
		{"restore --store " + store + " --from " + backups, "--name BACKUP go together"},
		{"restore --store " + store + " --at s", "or --all"},
		{"restore --store " + store + " --at s --all", "granary snapshot create s"},
		{"restore --store " + store + " --at 2020-01-01T00:00:00Z --all", "granary history --keep 24h"},
		{"restore --store " + store + " --at s --all --as a.b", "--as goes with --ns"},
		{"restore --store " + store + " --from " + backups + " --name two --ns a.b", "a.b is not in it"},
	} {
		if _, code, err := granary(t, strings.Fields(c.args)...); code == 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("granary %s: %v, want %q", c.args, err, c.want)
		}
	}
}
