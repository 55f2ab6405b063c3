package dirbucket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/buckettest"
	"github.com/granarydb/granary/chunkstore/bucket/dirbucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

func open(t testing.TB, dir string, o *dirbucket.Options) *dirbucket.Bucket {
	t.Helper()
	b, err := dirbucket.Open(dir, host.System(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func put(t testing.TB, b bucket.Bucket, key string, body []byte, c bucket.Condition) bucket.Tag {
	t.Helper()
	tag, err := b.Put(t.Context(), key, body, c)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

func TestConforms(t *testing.T) {
	buckettest.Run(t, func(t *testing.T) bucket.Bucket { return open(t, t.TempDir(), nil) })
}

func TestConformsWithoutSync(t *testing.T) {
	buckettest.Run(t, func(t *testing.T) bucket.Bucket {
		return open(t, t.TempDir(), &dirbucket.Options{NoSync: true})
	})
}

func TestConformsWithoutNamelessFiles(t *testing.T) {
	buckettest.Run(t, func(t *testing.T) bucket.Bucket {
		return open(t, t.TempDir(), &dirbucket.Options{NoSync: true}).Named()
	})
}

// A second process (here: a second Open) sees the same objects and tags.
func TestObjectsOutliveTheBucket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "dir")
	one := open(t, dir, nil)
	tag := put(t, one, "meta/root", []byte("hello"), bucket.IfAbsent)
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	two := open(t, dir, nil)
	o, err := two.Get(t.Context(), "meta/root", bucket.GetOptions{})
	if err != nil || string(o.Body) != "hello" || o.Tag != tag || o.ModifiedMillis == 0 {
		t.Fatalf("%q %+v %v", o.Body, o.Attrs, err)
	}
	put(t, two, "meta/root", []byte("hello again"), bucket.IfMatch(tag))
	raw, err := os.ReadFile(filepath.Join(dir, "meta", "root"))
	if err != nil || !bytes.HasPrefix(raw, []byte("hello againGRNOBJ1\n")) || len(raw) != 11+24 {
		t.Errorf("the file is %q, %v", raw, err)
	}
}

func TestOpenRefusesWhatIsNoBucket(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := dirbucket.Open(file, host.System(), nil); err == nil {
		t.Error("opened a file")
	}
	if _, err := dirbucket.Open(filepath.Dir(file), host.System(), nil); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a directory with a file: %v", err)
	}
	future := t.TempDir()
	if err := os.Mkdir(filepath.Join(future, ".granary"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(future, ".granary", "format"), []byte("granary directory bucket 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := dirbucket.Open(future, host.System(), nil); !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "bucket 2") {
		t.Errorf("a later format: %v", err)
	}
}

// What dead writers left is swept when it is old; what may still be at work is not.
func TestOpenSweepsOldTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, nil)
	tmp := filepath.Join(dir, ".granary", "tmp")
	for name, age := range map[string]time.Duration{"old": 2 * time.Hour, "young": 30 * time.Minute} {
		path := filepath.Join(tmp, name)
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
	}
	open(t, dir, nil)
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) != 1 || left[0].Name() != "young" {
		t.Errorf("left: %v %v", left, err)
	}
}

// Puts leave nothing but the object, whether they win, lose or are refused.
func TestPutsLeaveNoTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir, nil)
	tag := put(t, b, "a/k", []byte("1"), bucket.IfAbsent)
	_, _ = b.Put(t.Context(), "a/k", []byte("2"), bucket.IfAbsent)
	put(t, b, "a/k", []byte("3"), bucket.IfMatch(tag))
	_, _ = b.Put(t.Context(), "a/k", []byte("4"), bucket.IfMatch(tag))
	_, _ = b.Put(t.Context(), "a", []byte("5"), bucket.Condition{})
	if left, err := os.ReadDir(filepath.Join(dir, ".granary", "tmp")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

func TestEmptyDirectoriesArePruned(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir, nil)
	put(t, b, "seg/00/s.a.1/x", nil, bucket.IfAbsent)
	put(t, b, "seg/00/s.a.2/x", nil, bucket.IfAbsent)
	if err := b.Delete(t.Context(), "seg/00/s.a.1/x"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "seg", "00")); err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
	if err := b.Delete(t.Context(), "seg/00/s.a.2/x"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
	put(t, b, "seg/00/s.a.2/x", nil, bucket.IfAbsent)
}

// A key and a key below it cannot coexist; the driver says so and keeps what it has.
func TestKeysAreNoComponentsOfOthers(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	put(t, b, "a/b", []byte("x"), bucket.IfAbsent)
	for _, key := range []string{"a", "a/b/c", "a/b/c/d"} {
		for _, c := range []bucket.Condition{{}, bucket.IfAbsent} {
			if _, err := b.Put(t.Context(), key, nil, c); !errors.Is(err, errkind.Invalid) {
				t.Errorf("%s under %+v: %v", key, c, err)
			}
		}
	}
	if o, err := b.Get(t.Context(), "a/b", bucket.GetOptions{}); err != nil || string(o.Body) != "x" {
		t.Error(o, err)
	}
}

func TestComponentsThatGrowTooLongAreInvalid(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	key := strings.Repeat("\u65e5", 80) // 240 bytes, 720 as a file name
	_, err := b.Put(t.Context(), key, nil, bucket.IfAbsent)
	if !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), "take three") {
		t.Error(err)
	}
}

// Files that someone else put there are never taken for objects: those with our kind of
// name are Corrupt (a scan fails closed), others are not seen.
func TestForeignFilesAreNotObjects(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir, nil)
	put(t, b, "seg/a", []byte("x"), bucket.IfAbsent)
	for _, name := range []string{".DS_Store", "Thumbs.db", "%zz", "%4", "%61"} {
		if err := os.WriteFile(filepath.Join(dir, "seg", name), []byte("not an object at all, by far"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	page, _, err := b.List(t.Context(), "", "", 0)
	if err != nil || len(page) != 1 {
		t.Errorf("%v %v", page, err)
	}
	for name, content := range map[string]string{"short": "abc", "long": strings.Repeat("long", 20)} {
		path := filepath.Join(dir, "seg", name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Get(t.Context(), "seg/"+name, bucket.GetOptions{}); !errors.Is(err, errkind.Corrupt) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := b.Head(t.Context(), "seg/"+name); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := b.Put(t.Context(), "seg/"+name, nil, bucket.IfMatch("t")); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := b.List(t.Context(), "seg/", "", 0); !errors.Is(err, errkind.Corrupt) {
			t.Errorf("list with %s: %v", name, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	pipe := filepath.Join(dir, "seg", "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), "seg/pipe", bucket.GetOptions{}); !errors.Is(err, errkind.Corrupt) {
		t.Errorf("a pipe: %v", err)
	}
}

// A process that is stopped while it holds the lock holds up nobody beyond their context,
// and what they are told is certain: nothing was done.
func TestALockThatIsNotReleasedIsThrottled(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir, nil)
	tag := put(t, b, "meta/root", []byte("x"), bucket.IfAbsent)
	for i := range 64 {
		f, err := os.OpenFile(filepath.Join(dir, ".granary", "lock", fmt.Sprintf("%02x", i)), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := b.Put(ctx, "meta/root", []byte("y"), bucket.IfMatch(tag))
	if !errors.Is(err, errkind.Throttled) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := b.Delete(ctx, "meta/root"); !errors.Is(err, errkind.Throttled) {
		t.Error(err)
	}
	if o, err := b.Get(t.Context(), "meta/root", bucket.GetOptions{}); err != nil || o.Tag != tag {
		t.Error(o, err)
	}
	put(t, b, "wal/s/1/0", nil, bucket.IfAbsent) // creates need no lock
}

func BenchmarkPut(bm *testing.B) {
	for _, o := range []dirbucket.Options{{}, {NoSync: true}} {
		for _, size := range []int{4 << 10, 256 << 10} {
			for _, shards := range []int{1, 4} {
				bm.Run(fmt.Sprintf("create/nosync=%v/%dKB/shards=%d", o.NoSync, size>>10, shards), func(bm *testing.B) {
					b := open(bm, bm.TempDir(), &o)
					body := make([]byte, size)
					bm.SetBytes(int64(size))
					var n [64]int
					next := make(chan int, shards)
					for i := range shards {
						next <- i
					}
					bm.SetParallelism((shards + 1) / 2)
					bm.RunParallel(func(p *testing.PB) {
						shard := <-next
						for p.Next() {
							key := fmt.Sprintf("wal/s%d/1/%020d", shard, n[shard])
							n[shard]++
							put(bm, b, key, body, bucket.IfAbsent)
						}
						next <- shard
					})
				})
			}
		}
		bm.Run(fmt.Sprintf("swap/nosync=%v/4KB", o.NoSync), func(bm *testing.B) {
			b := open(bm, bm.TempDir(), &o)
			body := make([]byte, 4<<10)
			tag := put(bm, b, "meta/root", body, bucket.IfAbsent)
			for bm.Loop() {
				tag = put(bm, b, "meta/root", body, bucket.IfMatch(tag))
			}
		})
	}
}

func BenchmarkGet(bm *testing.B) {
	b := open(bm, bm.TempDir(), nil)
	tag := put(bm, b, "k", make([]byte, 64<<10), bucket.IfAbsent)
	for name, o := range map[string]bucket.GetOptions{
		"64KB": {}, "range4KB": {Offset: 4 << 10, Length: 4 << 10}, "notmodified": {IfNoneMatch: tag},
	} {
		bm.Run(name, func(bm *testing.B) {
			for bm.Loop() {
				_, _ = b.Get(bm.Context(), "k", o)
			}
		})
	}
}
