package diskcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/buckettest"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// world is a cache before a store that counts.
type world struct {
	t     failer
	dir   string
	inner bucket.Bucket
	store *layer.Metered
	cache *Cached
	fs    *brokenFS
	log   bytes.Buffer
	clock *clock
}

type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// newWorld opens a cache of a budget in a directory; 0: the default.
func newWorld(t *testing.T, budget int64) *world {
	w := &world{t: t, dir: t.TempDir(), inner: membucket.New(), fs: &brokenFS{FS: OS()}, clock: &clock{Host: host.System()}}
	w.open(budget)
	t.Cleanup(func() { w.must(w.cache.Close()) })
	return w
}

func (w *world) open(budget int64) {
	w.t.Helper()
	w.store = layer.Metrics(w.inner)
	c, err := Open(w.store, w.clock.host(), w.dir, &Options{BudgetBytes: budget, FS: w.fs, Log: slog.New(slog.NewTextHandler(&w.log, nil))})
	w.must(err)
	w.cache = c
}

// restart is the next process.
func (w *world) restart(budget int64) {
	w.t.Helper()
	w.must(w.cache.Close())
	w.open(budget)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// noise is n bytes that depend on the key.
func noise(key string, n int) []byte {
	var seed [32]byte
	copy(seed[:], key)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

// put stores n bytes of noise in the store, behind the cache.
func (w *world) put(key string, n int) {
	w.t.Helper()
	_, err := w.inner.Put(ctx, key, noise(key, n), bucket.Condition{})
	w.must(err)
}

// get asks for a range, compares it with the store's, and reports the requests that went there.
func (w *world) get(key string, off, length int64) (requests int64) {
	w.t.Helper()
	before := w.store.Snapshot()
	got, err := w.cache.Get(ctx, key, bucket.GetOptions{Offset: off, Length: length})
	w.must(err)
	want, err := w.inner.Get(ctx, key, bucket.GetOptions{Offset: off, Length: length})
	w.must(err)
	if !bytes.Equal(got.Body, want.Body) || got.Attrs != want.Attrs {
		w.t.Fatalf("%s %d+%d: %d bytes, %+v; want %d, %+v", key, off, length, len(got.Body), got.Attrs, len(want.Body), want.Attrs)
	}
	clear(got.Body) // the caller owns it
	return w.store.Snapshot().Sub(before).Total(layer.Get).Requests
}

// kept gets a range and waits until it is on disk.
func (w *world) kept(key string, off, length int64) {
	w.t.Helper()
	w.get(key, off, length)
	w.cache.Sync()
}

// files are the cache's files in the directory.
func (w *world) files() (paths []string) {
	w.must(filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "lock" {
			paths = append(paths, path)
		}
		return nil
	}))
	return paths
}

// The cache is a bucket like any other, also where it keeps everything.
func TestConforms(t *testing.T) {
	t.Parallel()
	for name, prefix := range map[string]string{"passing": "", "keeping": "seg/"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			buckettest.Run(t, func(t *testing.T) bucket.Bucket {
				c, err := Open(membucket.New(), host.System(), t.TempDir(), nil)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				return below{c, prefix}
			})
		})
	}
}

// below is a bucket under a prefix of another.
type below struct {
	bucket.Bucket
	prefix string
}

func (b below) key(key string) string {
	if key == "" || bucket.CheckKey(key) != nil {
		return key
	}
	if len(b.prefix)+len(key) > bucket.KeyBytesMax {
		return key
	}
	return b.prefix + key
}

func (b below) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	obj, err := b.Bucket.Get(ctx, b.key(key), o)
	obj.Key = strings.TrimPrefix(obj.Key, b.prefix)
	return obj, err
}

func (b below) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	a, err := b.Bucket.Head(ctx, b.key(key))
	a.Key = strings.TrimPrefix(a.Key, b.prefix)
	return a, err
}

func (b below) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	return b.Bucket.Put(ctx, b.key(key), body, c)
}

func (b below) Delete(ctx context.Context, key string) error {
	return b.Bucket.Delete(ctx, b.key(key))
}

func (b below) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	if after != "" {
		after = b.prefix + after
	}
	page, more, err := b.Bucket.List(ctx, b.prefix+prefix, after, max)
	for i := range page {
		page[i].Key = strings.TrimPrefix(page[i].Key, b.prefix)
	}
	return page, more, err
}

// What was read is there again, also its parts and ranges that several files make up, and
// after a restart; of what is there in part, only the rest is fetched.
func TestSecondReadIsFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	const size = 1 << 20
	w.put("seg/a", size)
	w.put("meta/page/p", 5000)
	step := func(what string, key string, off, length, want int64) {
		t.Helper()
		got := w.get(key, off, length)
		w.cache.Sync()
		if got != want {
			t.Errorf("%s: %d requests, want %d", what, got, want)
		}
	}
	step("a range", "seg/a", 100_000, 200_000, 1)
	step("again", "seg/a", 100_000, 200_000, 0)
	step("a part", "seg/a", 150_001, 3, 0)
	step("its last byte", "seg/a", 299_999, 1, 0)
	step("the next range", "seg/a", 300_000, 50_000, 1)
	step("both", "seg/a", 100_000, 250_000, 0)
	step("across both", "seg/a", 290_000, 20_000, 0)
	step("further", "seg/a", 500_000, 10_000, 1)
	before := w.store.Snapshot()
	step("with a gap", "seg/a", 200_000, 305_000, 1)
	if n := w.store.Snapshot().Sub(before).Total(layer.Get).Bytes; n != 150_000 {
		t.Errorf("the gap of 150000 bytes took %d", n)
	}
	step("the gap", "seg/a", 200_000, 305_000, 0)
	step("to the end is not known", "seg/a", 990_000, 0, 1)
	step("now it is a range", "seg/a", 990_000, size-990_000, 0)
	step("beyond the end", "seg/a", 990_000, size, 0)
	step("a page", "meta/page/p", 0, 0, 1)
	step("a page again", "meta/page/p", 0, 0, 0)
	step("a part of it", "meta/page/p", 4000, 5000, 0)
	w.restart(0)
	step("after a restart", "seg/a", 100_000, 405_000, 0)
	step("a page after a restart", "meta/page/p", 0, 0, 0)
	step("all of it", "seg/a", 0, size, 1)
	step("any of it", "seg/a", 7, size-7, 0)
	if s := w.cache.Stats(); s.Entries != 3 || s.Bytes < size || s.Hits == 0 || s.Corrupt+s.ReadErrors+s.WriteErrors+s.Vanished != 0 {
		t.Errorf("%+v", s)
	}
}

// What changes, and what has no place, is never kept.
func TestOnlyImmutableObjectsAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 100_000)
	for _, key := range []string{"meta/root", "wal/s/1/1", "other"} {
		w.put(key, 100)
		w.kept(key, 0, 0)
		if w.get(key, 0, 0) != 1 {
			t.Errorf("%s was kept", key)
		}
	}
	w.put("seg/large", 20_000)
	w.kept("seg/large", 0, 0)
	w.put("seg/empty", 0)
	w.kept("seg/empty", 0, 0)
	if n := w.files(); n != nil {
		t.Errorf("files %v", n)
	}
}

// A conditional Get is answered as the store would, and a deleted object is not kept.
func TestTagsAndDeletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.put("seg/a", 1000)
	w.kept("seg/a", 0, 0)
	obj, err := w.cache.Get(ctx, "seg/a", bucket.GetOptions{})
	w.must(err)
	if _, err := w.cache.Get(ctx, "seg/a", bucket.GetOptions{IfNoneMatch: obj.Tag}); !errors.Is(err, errkind.NotModified) {
		t.Errorf("%v", err)
	}
	if _, err := w.cache.Get(ctx, "seg/a", bucket.GetOptions{Offset: 1000, Length: 1}); !errors.Is(err, errkind.Invalid) {
		t.Errorf("%v", err)
	}
	w.must(w.cache.Delete(ctx, "seg/a"))
	if _, err := w.cache.Get(ctx, "seg/a", bucket.GetOptions{}); !errors.Is(err, errkind.NotFound) {
		t.Errorf("%v", err)
	}
	if n := w.files(); n != nil {
		t.Errorf("files %v", n)
	}
}

// The files never take more than the budget; what is read again stays longer than what is
// not; the budget of a new start holds for what is there.
func TestBudgetHolds(t *testing.T) {
	t.Parallel()
	const budget = 40 * 12288 // of files of 10000 bytes and a header
	w := newWorld(t, budget)
	for i := range 120 {
		key := fmt.Sprintf("seg/%d", i)
		w.put(key, 10_000)
		w.kept(key, 0, 0)
		w.get("seg/0", 0, 0)
		if s := w.cache.Stats(); s.Bytes > budget {
			t.Fatalf("%d bytes", s.Bytes)
		}
	}
	if w.get("seg/0", 0, 0) != 0 {
		t.Error("what was read all the time is gone")
	}
	if s := w.cache.Stats(); int64(len(w.files())) != s.Entries || s.Entries < 36 || s.Evicted == 0 {
		t.Errorf("%d files, %+v", len(w.files()), s)
	}
	w.cache.index.entries = 20
	w.put("seg/more", 10)
	w.kept("seg/more", 0, 0)
	if n := len(w.files()); n != 20 {
		t.Errorf("%d files, want 20", n)
	}
	w.restart(budget / 4)
	if n := len(w.files()); n > 10 || n == 0 || w.get("seg/more", 0, 0) != 0 {
		t.Errorf("%d files", n)
	}
}

// Any reads, restarts and deletions of files give the bytes of the store.
func TestAnyReadsGiveTheBytesOfTheStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		w := &world{t: t, dir: filepath.Join(dir, fmt.Sprint(run)), inner: membucket.New(), fs: &brokenFS{FS: OS()}, clock: &clock{Host: host.System()}}
		budget := rapid.SampledFrom([]int64{200_000, 4 << 20}).Draw(t, "budget")
		w.open(budget)
		defer func() { _ = w.cache.Close() }()
		sizes := []int64{1, 5000, 40_000, 150_000}
		for i, n := range sizes {
			w.put(fmt.Sprintf("seg/%d", i), int(n))
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			switch rapid.IntRange(0, 20).Draw(t, "step") {
			case 0:
				w.restart(budget)
			case 1:
				if files := w.files(); len(files) > 0 {
					_ = os.Remove(files[rapid.IntRange(0, len(files)-1).Draw(t, "file")])
				}
			default:
				i := rapid.IntRange(0, len(sizes)-1).Draw(t, "object")
				off := rapid.Int64Range(0, sizes[i]-1).Draw(t, "off")
				w.get(fmt.Sprintf("seg/%d", i), off, rapid.Int64Range(0, sizes[i]-off+2).Draw(t, "length"))
				if rapid.Bool().Draw(t, "sync") {
					w.cache.Sync()
				}
			}
		}
	})
}

// Many goroutines read through one cache that is far too small.
func TestConcurrentReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 300_000)
	const size = 60_000
	for i := range 20 {
		w.put(fmt.Sprintf("seg/%d", i), size)
	}
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(g)))
			for range 100 {
				key := fmt.Sprintf("seg/%d", rnd.IntN(20))
				off := rnd.Int64N(size)
				n := 1 + rnd.Int64N(size-off)
				obj, err := w.cache.Get(ctx, key, bucket.GetOptions{Offset: off, Length: n})
				if err != nil || !bytes.Equal(obj.Body, noise(key, size)[off:off+n]) {
					t.Errorf("%s %d+%d: %d bytes, %v", key, off, n, len(obj.Body), err)
				}
			}
		})
	}
	wait.Wait()
	if s := w.cache.Stats(); s.Corrupt != 0 || s.ReadErrors != 0 || s.Hits == 0 {
		t.Errorf("%+v", s)
	}
}
