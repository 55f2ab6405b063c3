package dirbucket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// What a failed naming of a file says about its effect.
func TestErrorsOfNamingAreSorted(t *testing.T) {
	for _, c := range []struct{ err, want error }{
		{syscall.ENOSPC, errkind.Throttled}, {syscall.EDQUOT, errkind.Throttled},
		{syscall.EROFS, errkind.Throttled}, {syscall.EACCES, errkind.Throttled},
		{syscall.EMLINK, errkind.Throttled}, {fs.ErrNotExist, errkind.Throttled},
		{syscall.ENOTDIR, errkind.Invalid}, {syscall.EIO, errkind.UnknownOutcome},
	} {
		err := unnamed(&os.LinkError{Op: "link", Err: c.err}, "p")
		if !errors.Is(err, c.want) {
			t.Errorf("%v became %v", c.err, err)
		}
	}
	if unnamed(nil, "p") != nil {
		t.Error("success failed")
	}
	for _, c := range []struct{ err, want error }{
		{syscall.ENOSPC, errkind.Throttled}, {syscall.EMFILE, errkind.Throttled},
	} {
		if err := unwritten(c.err); !errors.Is(err, c.want) || !errors.Is(err, c.err) {
			t.Errorf("%v became %v", c.err, err)
		}
	}
	for _, err := range []error{errkind.Corrupt, syscall.EIO} {
		if got := unread(err); errors.Is(got, errkind.Throttled) == errors.Is(err, errkind.Corrupt) {
			t.Errorf("%v became %v", err, got)
		}
	}
}

func TestEscapedNamesComeBack(t *testing.T) {
	for _, part := range []string{"a", "A", ".a", "a.", "..a", "%", "%41", "a b", "\u00e9", "\xff", "CON"} {
		name := escape(part)
		got, ok := unescape(name)
		if !ok || got != part {
			t.Errorf("%q -> %q -> %q, %v", part, name, got, ok)
		}
		for i := range len(name) {
			if c := name[i]; !plain(c) && c != '%' && (c < 'A' || c > 'F') || name[0] == '.' {
				t.Errorf("%q -> %q", part, name)
			}
		}
	}
	for _, name := range []string{"", ".", "..", ".x", "A", "%", "%4", "%4g", "%61", "%c3", "a b", "%2e", "x%2E"} {
		if part, ok := unescape(name); ok {
			t.Errorf("%q was taken for %q", name, part)
		}
	}
}

// A directory that was removed and made again under the same path is not taken for the one
// whose name is known to be durable.
func TestRemadeDirectoriesAreSyncedAgain(t *testing.T) {
	root := t.TempDir()
	var d dirs
	d.init(root, false)
	defer d.close()
	dir := filepath.Join(root, "a", "b")
	made := func() {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	made()
	if err := d.sync(dir); err != nil || d.known(dir) == nil || d.known(root) == nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := d.sync(dir); err != nil { // gone: the one above is synced
		t.Error(err)
	}
	made()
	if d.known(dir) != nil {
		t.Error("the new directory passes for the old one")
	}
	if err := d.sync(dir); err != nil || d.known(dir) == nil {
		t.Error(err)
	}
	d.prune(dir)
	if _, err := os.Stat(root); err != nil || d.open[dir] != nil {
		t.Error("prune:", err)
	}
}

// The number of directories that are kept open is bounded.
func TestOpenDirectoriesAreBounded(t *testing.T) {
	b, err := Open(t.TempDir(), host.System(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for i := range openDirsMax + 20 {
		dir := filepath.Join(b.path, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := b.dirs.sync(dir); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.dirs.open); n > openDirsMax {
		t.Errorf("%d are open", n)
	}
}
