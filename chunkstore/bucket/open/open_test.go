package open_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

func TestURLsOpenTheirStores(t *testing.T) {
	dir := t.TempDir()
	for url, want := range map[string]string{
		"mem:":                "mem:",
		"dir:" + dir + "/a/b": "dir:" + dir + "/a/b",
		"dir://" + dir + "/c": "dir:" + dir + "/c",
	} {
		b, err := open.URL(t.Context(), url, host.System())
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != want {
			t.Errorf("%s opened %s", url, b)
		}
		if _, err := b.Put(t.Context(), "k", nil, bucket.IfAbsent); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An URL that opens nothing says what to type, and leaves nothing behind.
func TestBadURLsSayWhatToType(t *testing.T) {
	t.Chdir(t.TempDir())
	for url, hint := range map[string]string{
		"":               "it has no scheme",
		"./granary-data": "type dir:./granary-data",
		"dir:":           "type dir:./granary-data",
		"dir://relative": "type dir:relative",
		"mem:name":       "type mem:",
		"http://x":       "type s3://BUCKET/PREFIX?endpoint=http://HOST:PORT",
		"gs://bucket":    "type s3://BUCKET/PREFIX",
		"ftp:x":          `unknown scheme "ftp"`,
	} {
		_, err := open.URL(t.Context(), url, host.System())
		if !errors.Is(err, errkind.Invalid) {
			t.Errorf("%q: %v", url, err)
			continue
		}
		for _, part := range []string{hint, "dir:./granary-data", "mem:", "s3://BUCKET/PREFIX"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: the error lacks %q: %v", url, part, err)
			}
		}
	}
	if left, _ := os.ReadDir("."); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.WriteFile("notes.txt", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := open.URL(t.Context(), "dir:.", host.System())
	if !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "notes.txt") {
		t.Errorf("a directory with other things in it: %v", err)
	}
	if _, err := open.URL(t.Context(), "dir:"+filepath.Join("notes.txt", "x"), host.System()); err == nil {
		t.Error("opened below a file")
	}
}
