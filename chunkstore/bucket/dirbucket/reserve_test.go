package dirbucket

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

func TestAReservedDirectoryNamesItsHolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if _, err := Reserve(dir, "process 0", true); err == nil {
		t.Fatal("reserved what is no bucket")
	}
	if _, err := Open(dir, host.System(), nil); err != nil {
		t.Fatal(err)
	}
	release, err := Reserve(dir, "process 1", true)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Reserve(dir, "process 2", false)
	if !errors.Is(err, errkind.Conflict) || !strings.Contains(err.Error(), "in use by process 1") {
		t.Fatalf("a second reservation: %v", err)
	}
	release()
	release, err = Reserve(dir, "3", true)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Reserve(dir, "4", true)
	if err == nil || !strings.Contains(err.Error(), "in use by 3:") {
		t.Fatalf("the note of the one before is left: %v", err)
	}
	release()
	first, err := Reserve(dir, "5", false)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Reserve(dir, "6", false)
	if err != nil {
		t.Fatal(err)
	}
	first()
	if _, err := Reserve(dir, "7", true); err == nil || !strings.Contains(err.Error(), "in use by 6:") {
		t.Fatalf("alone beside another: %v", err)
	}
	second()
}
