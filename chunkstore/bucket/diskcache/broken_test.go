package diskcache

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// clock is the machine's, moved forward by hand.
type clock struct {
	host.Host
	ahead atomic.Int64
}

func (c *clock) Mono() time.Duration { return c.Host.Mono() + time.Duration(c.ahead.Load()) }

func (c *clock) host() host.Host { return host.Host{Clock: c, Rand: c.Rand} }

// brokenFS fails as it is told.
type brokenFS struct {
	FS
	fail    func(verb, path string) error // nil: never
	torn    atomic.Int64                  // > 0: a file keeps so many bytes of what was written
	lockAll bool                          // every lock is free
}

func (b *brokenFS) err(verb, path string) error {
	if b.fail == nil {
		return nil
	}
	if err := b.fail(verb, path); err != nil {
		return &fs.PathError{Op: verb, Path: path, Err: err}
	}
	return nil
}

func (b *brokenFS) MkdirAll(dir string) error {
	if err := b.err("mkdir", dir); err != nil {
		return err
	}
	return b.FS.MkdirAll(dir)
}

func (b *brokenFS) ReadDir(dir string) ([]fs.DirEntry, error) {
	if err := b.err("readdir", dir); err != nil {
		return nil, err
	}
	return b.FS.ReadDir(dir)
}

func (b *brokenFS) Open(path string) (File, error) {
	if err := b.err("open", path); err != nil {
		return nil, err
	}
	f, err := b.FS.Open(path)
	return &brokenFile{File: f, b: b, path: path}, err
}

func (b *brokenFS) Create(path string) (File, error) {
	if err := b.err("create", path); err != nil {
		return nil, err
	}
	f, err := b.FS.Create(path)
	return &brokenFile{File: f, b: b, path: path, left: b.torn.Load()}, err
}

func (b *brokenFS) Rename(from, to string) error {
	if err := b.err("rename", to); err != nil {
		return err
	}
	return b.FS.Rename(from, to)
}

func (b *brokenFS) Lock(path string) (io.Closer, error) {
	if err := b.err("lock", path); err != nil {
		return nil, err
	}
	if b.lockAll {
		return io.NopCloser(nil), nil
	}
	return b.FS.Lock(path)
}

type brokenFile struct {
	File
	b    *brokenFS
	path string
	left int64
}

func (f *brokenFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.b.err("read", f.path); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *brokenFile) Write(p []byte) (int, error) {
	if err := f.b.err("write", f.path); err != nil {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	}
	if f.b.torn.Load() > 0 { // says that all is well, and a power cut comes
		keep := min(f.left, int64(len(p)))
		f.left -= keep
		_, err := f.File.Write(p[:keep])
		return len(p), err
	}
	return f.File.Write(p)
}

func (f *brokenFile) Close() error {
	err := f.File.Close()
	if e := f.b.err("close", f.path); e != nil {
		return e
	}
	return err
}

// However a write fails, reads go on, nothing is left behind, and after a minute writes are
// tried again; one warning is given.
func TestFailedWritesAreDoneWithout(t *testing.T) {
	t.Parallel()
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO, syscall.EROFS, syscall.EMFILE} {
		for _, verb := range []string{"mkdir", "create", "write", "close", "rename"} {
			t.Run(fmt.Sprintf("%s/%d", verb, errno), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 0)
				w.put("seg/a", 100_000)
				w.put("seg/b", 100_000)
				var tries atomic.Int64
				var mended atomic.Bool
				w.fs.fail = func(v, _ string) error {
					if v == verb && !mended.Load() {
						tries.Add(1)
						return errno
					}
					return nil
				}
				for range 3 {
					w.kept("seg/a", 0, 50_000)
					w.kept("seg/b", 0, 0)
				}
				if s := w.cache.Stats(); tries.Load() != 1 || s.WriteErrors != 1 || s.Entries != 0 || len(w.files()) != 0 {
					t.Errorf("%d tries, %+v, files %v", tries.Load(), s, w.files())
				}
				mended.Store(true)
				w.clock.ahead.Add(int64(pauseAfter) + 1)
				w.kept("seg/a", 0, 50_000)
				if w.get("seg/a", 0, 50_000) != 0 {
					t.Error("nothing is kept after the disk was mended")
				}
				if n := strings.Count(w.log.String(), "level=WARN"); n != 1 {
					t.Errorf("%d warnings: %s", n, w.log.String())
				}
			})
		}
	}
}

// A file that cannot be read is a miss, and is not tried again.
func TestFailedReadsAreMisses(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"open", "read"} {
		w := newWorld(t, 0)
		for _, size := range []int{50_000, 400_000} {
			key := fmt.Sprintf("seg/%d", size)
			w.put(key, size)
			w.kept(key, 0, 0)
			w.fs.fail = func(v, _ string) error {
				if v == verb {
					return syscall.EIO
				}
				return nil
			}
			if w.get(key, 0, 0) != 1 {
				t.Errorf("%s of %d bytes: no request", verb, size)
			}
			w.cache.Sync()
			w.fs.fail = nil
			if w.get(key, 0, 0) != 0 {
				t.Errorf("%s of %d bytes: not kept again", verb, size)
			}
		}
		if s := w.cache.Stats(); s.ReadErrors != 2 {
			t.Errorf("%+v", s)
		}
	}
}

// Whatever happened to a file, its bytes are never served: every flipped bit is found, in the
// header and in the pieces that are read, as is every missing end. The file is removed.
func TestDamageIsFound(t *testing.T) {
	t.Parallel()
	for _, size := range []int{300, 3*pieceSize + 100, 200_000} {
		w := newWorld(t, 0)
		w.put("seg/a", size)
		w.kept("seg/a", 0, 0)
		path := w.files()[0]
		good, err := os.ReadFile(path)
		w.must(err)
		found := int64(0)
		damaged := func(what string, body []byte) {
			t.Helper()
			w.must(os.WriteFile(path, body, 0o600))
			if w.get("seg/a", 0, 0) != 1 {
				t.Fatalf("%s: no request", what)
			}
			w.cache.Sync()
			if found++; w.cache.Stats().Corrupt != found {
				t.Fatalf("%s: %+v", what, w.cache.Stats())
			}
			if again, err := os.ReadFile(path); err != nil || !bytes.Equal(good, again) {
				t.Fatalf("%s: the file was not replaced: %v", what, err)
			}
		}
		step := max(len(good)/200, 1)
		for at := 0; at < len(good); at += step {
			bad := bytes.Clone(good)
			bad[at] ^= 1 << (at % 8)
			damaged(fmt.Sprintf("bit %d of byte %d", at%8, at), bad)
		}
		for n := 0; n < len(good); n += max(len(good)/20, 1) {
			damaged(fmt.Sprintf("cut to %d", n), good[:n])
		}
		damaged("zeros", make([]byte, len(good)))
	}
}

// Files that were given one another's names, or come from another cluster's cache, are not
// taken for what their names say.
func TestSwappedFilesAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	for _, key := range []string{"seg/a", "seg/b"} {
		w.put(key, 5000)
		w.kept(key, 0, 0)
	}
	files := w.files()
	a, err := os.ReadFile(files[0])
	w.must(err)
	b, err := os.ReadFile(files[1])
	w.must(err)
	w.must(os.WriteFile(files[0], b, 0o600))
	w.must(os.WriteFile(files[1], a, 0o600))
	for _, key := range []string{"seg/a", "seg/b"} {
		if w.get(key, 0, 0) != 1 {
			t.Errorf("%s: no request", key)
		}
	}
	w.cache.Sync()
	w.must(w.cache.Close())
	other := named{membucket.New(), "mem:other"}
	_, err = other.Put(ctx, "seg/a", noise("x", 5000), bucket.Condition{})
	w.must(err)
	c, err := Open(other, host.System(), w.dir, nil)
	w.must(err)
	obj, err := c.Get(ctx, "seg/a", bucket.GetOptions{})
	if err != nil || !bytes.Equal(obj.Body, noise("x", 5000)) {
		t.Errorf("%d bytes, %v", len(obj.Body), err)
	}
	w.must(c.Close())
	w.open(0)
	if w.get("seg/a", 0, 0) != 0 {
		t.Error("the other cluster's start cost this one its cache")
	}
}

type named struct {
	bucket.Bucket
	name string
}

func (n named) String() string { return n.name }

// A power cut leaves files that are not what was written: none is served.
func TestTornFilesAreFound(t *testing.T) {
	t.Parallel()
	for _, keep := range []int64{1, 10, 80, 5000, 70_000} {
		w := newWorld(t, 0)
		w.put("seg/a", 80_000)
		w.fs.torn.Store(keep)
		w.kept("seg/a", 0, 0)
		w.restart(0)
		w.fs.torn.Store(0)
		if w.get("seg/a", 0, 0) != 1 || w.cache.Stats().Corrupt != 1 {
			t.Errorf("%d bytes are left: %+v", keep, w.cache.Stats())
		}
	}
}

// The directory can be deleted at any time.
func TestDirectoryMayBeDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.put("seg/a", 100_000)
	w.put("seg/b", 1000)
	w.kept("seg/a", 0, 50_000)
	w.kept("seg/b", 0, 0)
	w.must(os.RemoveAll(w.dir))
	if w.get("seg/a", 0, 60_000) != 1 || w.get("seg/b", 0, 0) != 1 {
		t.Error("a file that is not there was served")
	}
	w.cache.Sync()
	if w.get("seg/a", 0, 60_000) != 0 || w.get("seg/b", 0, 0) != 0 {
		t.Error("nothing is kept any more")
	}
	if s := w.cache.Stats(); s.Vanished != 2 || s.WriteErrors != 0 || s.ReadErrors != 0 {
		t.Errorf("%+v", s)
	}
}

// Files that the cache did not make stay where they are, also under names like its own;
// what it left half written goes.
func TestForeignFilesStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.put("seg/a", 1000)
	w.kept("seg/a", 0, 0)
	ours := w.files()[0]
	fan := filepath.Dir(ours)
	var foreign []string
	for _, path := range []string{
		filepath.Join(w.dir, "notes.txt"), filepath.Join(filepath.Dir(fan), "README"), filepath.Join(fan, "tmp-mine"),
		filepath.Join(fan, "x.w1"), filepath.Join(fan, strings.Repeat("ab", 16)+"-0-10.r1"), // of another fan
		filepath.Join(fan, filepath.Base(fan)+strings.Repeat("0", 30)+"-0-010.r1"), filepath.Join(fan, filepath.Base(fan)+strings.Repeat("0", 30)+"-0-0.r1"),
	} {
		w.must(os.WriteFile(path, []byte("mine"), 0o600))
		foreign = append(foreign, path)
	}
	link := filepath.Join(fan, filepath.Base(fan)+strings.Repeat("0", 30)+"-0-4.r1")
	w.must(os.Symlink(foreign[0], link))
	w.must(os.Mkdir(filepath.Join(fan, filepath.Base(fan)+strings.Repeat("0", 30)+"-0-5.r1"), 0o700))
	temp := filepath.Join(fan, "tmp-"+strings.Repeat("0f", 16))
	w.must(os.WriteFile(temp, []byte("half"), 0o600))
	w.restart(8192)
	w.put("seg/b", 900)
	w.kept("seg/b", 0, 0)
	if n, _ := w.cache.index.usage(); n > 2 {
		t.Errorf("%d entries", n)
	}
	for _, path := range append(foreign, link) {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(temp); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file is still there: %v", err)
	}
}

// Processes side by side have a slot each; the next one takes over the slot, and the files,
// of one that ended.
func TestProcessesHaveSlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.put("seg/a", 1000)
	w.kept("seg/a", 0, 0)
	second, err := Open(w.inner, host.System(), w.dir, nil)
	w.must(err)
	if second.dir == w.cache.dir || second.Stats().Entries != 0 {
		t.Errorf("both use %s", second.dir)
	}
	w.restart(0)
	if w.get("seg/a", 0, 0) != 0 {
		t.Error("the slot was lost")
	}
	w.must(second.Close())
	full := &brokenFS{FS: OS(), fail: func(verb, _ string) error {
		if verb == "lock" {
			return ErrLocked
		}
		return nil
	}}
	if _, err := Open(w.inner, host.System(), w.dir, &Options{FS: full}); !errors.Is(err, errkind.Throttled) {
		t.Errorf("%v", err)
	}
}

// Two processes in one slot, as when someone deletes the lock file, serve right bytes while
// each evicts, replaces and removes what the other wrote.
func TestTwoProcessesInOneSlotServeRightBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 150_000)
	w.must(w.cache.Close())
	w.fs.lockAll = true
	w.open(150_000)
	second, err := Open(w.store, host.System(), w.dir, &Options{BudgetBytes: 100_000, FS: w.fs})
	w.must(err)
	defer second.Close()
	for i := range 10 {
		w.put(fmt.Sprintf("seg/%d", i), 10_000)
	}
	first := w.cache
	for i := range 400 {
		w.cache = []*Cached{first, second}[i%2]
		key := fmt.Sprintf("seg/%d", i*7%10)
		w.get(key, int64(i*13%5000), 4000)
		w.get(key, 0, 0)
		if i%5 == 0 {
			w.cache.Sync()
		}
	}
	w.cache = first
	for _, c := range []*Cached{first, second} {
		if s := c.Stats(); s.Corrupt+s.ReadErrors+s.WriteErrors != 0 || s.Hits == 0 {
			t.Errorf("%+v", s)
		}
	}
}

// A directory that cannot be used is said at once, and so is a budget that is none.
func TestUnusableDirectoriesAreRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b := membucket.New()
	if _, err := Open(b, host.System(), file, nil); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("%v", err)
	}
	if _, err := Open(b, host.System(), t.TempDir(), &Options{BudgetBytes: -1}); !errors.Is(err, errkind.Invalid) {
		t.Errorf("%v", err)
	}
	for _, verb := range []string{"lock", "readdir"} {
		broken := &brokenFS{FS: OS(), fail: func(v, _ string) error {
			if v == verb {
				return syscall.EACCES
			}
			return nil
		}}
		if _, err := Open(b, host.System(), t.TempDir(), &Options{FS: broken}); !errors.Is(err, syscall.EACCES) {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// An answer of the store that is cut short is passed on, and not kept.
func TestShortAnswersAreNotKept(t *testing.T) {
	t.Parallel()
	inner := membucket.New()
	_, err := inner.Put(ctx, "seg/a", noise("a", 10_000), bucket.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	bad := faultbucket.New(inner, host.System(), func(c faultbucket.Call) (f faultbucket.Fault) {
		if c.Verb == layer.Get && c.N <= 2 {
			f.Kind, f.Pick = faultbucket.Truncate, 7
		}
		return f
	})
	c, err := Open(bad, host.System(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 2 {
		obj, err := c.Get(ctx, "seg/a", bucket.GetOptions{Length: int64(i) * 5000})
		if err == nil && len(obj.Body) >= 5000 {
			t.Fatalf("%d bytes", len(obj.Body))
		}
		c.Sync()
	}
	if n := c.Stats().Entries; n != 0 {
		t.Errorf("%d files", n)
	}
}

// What waits to be written is bounded; what finds no room is not kept.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	block := make(chan struct{})
	w.fs.fail = func(verb, _ string) error {
		if verb == "create" {
			<-block
		}
		return nil
	}
	const size = 6 << 20
	for i := range 8 {
		w.put(fmt.Sprintf("seg/%d", i), size)
		w.get(fmt.Sprintf("seg/%d", i), 0, 0)
	}
	if n := w.cache.keep.bytes.Load(); n > queueBytes || n < queueBytes-size {
		t.Errorf("%d bytes wait", n)
	}
	close(block)
	w.cache.Sync()
	if s := w.cache.Stats(); s.Written != 5 || s.Skipped != 3 {
		t.Errorf("%+v", s)
	}
}

// What was wrong already when it came from the store, though as long as it should be, is kept and
// served like anything else, since only a reader can see it; when one asks again with Fresh, all
// of it goes, and the right bytes take its place.
func TestWhatCameWrongGoesWhenAReaderSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	key, n := "seg/a", 2*pieceSize+100
	wrong := noise(key, n)
	wrong[pieceSize+7] ^= 4
	_, err := w.inner.Put(ctx, key, wrong, bucket.Condition{})
	w.must(err)
	w.kept(key, 0, 0)
	w.kept(key, 10, 300)
	w.put(key, n) // the store gives the right ones from now on
	read := func(o bucket.GetOptions) bool {
		got, err := w.cache.Get(ctx, key, o)
		w.must(err)
		w.cache.Sync()
		return bytes.Equal(got.Body, noise(key, n))
	}
	if read(bucket.GetOptions{}) {
		t.Fatal("what is kept is not what came")
	}
	if !read(bucket.GetOptions{Fresh: true}) || !read(bucket.GetOptions{}) {
		t.Error("a reader said that it was wrong, and gets it still")
	}
	if n := w.get(key, pieceSize, 200); n != 0 {
		t.Errorf("%d requests for what is kept again", n)
	}
	w.restart(0)
	if !read(bucket.GetOptions{}) {
		t.Error("the next process gets what was wrong")
	}
}
