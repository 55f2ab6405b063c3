package dirbucket_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/dirbucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"go.uber.org/goleak"
)

// The tests of this file run the test binary again as other processes on one directory. A
// child gets its part in the environment and prints a line for each thing that the store
// acknowledged to it.

const (
	envPart = "GRANARY_TEST_PART"
	envDir  = "GRANARY_TEST_DIR"
	envN    = "GRANARY_TEST_N"
)

func TestMain(m *testing.M) {
	part := os.Getenv(envPart)
	if part == "" {
		goleak.VerifyTestMain(m)
		return
	}
	b, err := dirbucket.Open(os.Getenv(envDir), host.System(), nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	n, _ := strconv.Atoi(os.Getenv(envN))
	if err := parts[part](b, n); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

var parts = map[string]func(*dirbucket.Bucket, int) error{
	"count": partCount, "create": partCreate, "write": partWrite, "full": partFull, "nofile": partNoFile,
}

func child(t *testing.T, part, dir string, n int) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envPart+"="+part, envDir+"="+dir, envN+"="+strconv.Itoa(n))
	return cmd
}

// several runs n children of one part to their end and returns what each printed.
func several(t *testing.T, n int, part, dir string, arg int) []string {
	t.Helper()
	out := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		cmd := child(t, part, dir, arg)
		wg.Go(func() {
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil {
				t.Errorf("child: %v: %s", err, &stderr)
			}
			out[i] = stdout.String()
		})
	}
	wg.Wait()
	return out
}

// bg is the context of a child, which ends with its process.
func bg() context.Context { return context.Background() }

func scale(t *testing.T, long, short int) int {
	if testing.Short() {
		return short
	}
	return long
}

// Processes count together in one object by compare-and-swap: not one step is lost.
func TestProcessesNeverLoseASwap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, dir, nil)
	put(t, b, "meta/root", []byte("0"), bucket.IfAbsent)
	const processes = 4
	steps := scale(t, 50, 15)
	several(t, processes, "count", dir, steps)
	o, err := b.Get(t.Context(), "meta/root", bucket.GetOptions{})
	if err != nil || string(o.Body) != strconv.Itoa(processes*steps) {
		t.Errorf("counted to %s, want %d; %v", o.Body, processes*steps, err)
	}
}

func partCount(b *dirbucket.Bucket, n int) error {
	ctx := bg()
	for done := 0; done < n; {
		o, err := b.Get(ctx, "meta/root", bucket.GetOptions{})
		if err != nil {
			return err
		}
		now, err := strconv.Atoi(string(o.Body))
		if err != nil {
			return err
		}
		_, err = b.Put(ctx, "meta/root", []byte(strconv.Itoa(now+1)), bucket.IfMatch(o.Tag))
		if err == nil {
			done++
		} else if !errors.Is(err, errkind.Conflict) {
			return err
		}
	}
	return nil
}

// Processes create the same keys, in a directory that does not exist at the start: each key
// has one winner, and its body.
func TestOneProcessWinsEachCreate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/fresh"
	keys := scale(t, 100, 20)
	winner := map[string]string{}
	for _, out := range several(t, 4, "create", dir, keys) {
		for line := range strings.Lines(out) {
			key, body, _ := strings.Cut(strings.TrimSpace(line), " ")
			if winner[key] != "" {
				t.Errorf("%s was won twice", key)
			}
			winner[key] = body
		}
	}
	b := open(t, dir, nil)
	for i := range keys {
		key := fmt.Sprintf("wal/s/1/%d", i)
		o, err := b.Get(t.Context(), key, bucket.GetOptions{})
		if err != nil || winner[key] == "" || string(o.Body) != winner[key] {
			t.Errorf("%s: %q, won by %q, %v", key, o.Body, winner[key], err)
		}
	}
}

func partCreate(b *dirbucket.Bucket, n int) error {
	for i := range n {
		key, body := fmt.Sprintf("wal/s/1/%d", i), strconv.Itoa(os.Getpid())
		_, err := b.Put(bg(), key, []byte(body), bucket.IfAbsent)
		if err == nil {
			fmt.Println(key, body)
		} else if !errors.Is(err, errkind.Conflict) {
			return err
		}
	}
	return nil
}

// Writers are killed at any moment. Whatever they were told is stored is there, whole; every
// object there is whole; and the next process can write.
func TestKilledWritersTearNothingAndLoseNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, dir, nil)
	acked := map[string]uint64{} // key -> the last body's seed
	r := rand.New(rand.NewPCG(7, 7))
	for round := range scale(t, 25, 6) {
		cmd := child(t, "write", dir, round)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(stdout)
		stop := 1 + r.IntN(12)
		for i := 0; ; i++ {
			line, err := lines.ReadString('\n')
			if err != nil {
				break
			}
			var key string
			var seed uint64
			if _, err := fmt.Sscan(line, &key, &seed); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			acked[key] = max(acked[key], seed)
			if i == stop {
				time.AfterFunc(time.Duration(r.IntN(3000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the child was not killed")
		}
	}
	for key, seed := range acked {
		o, err := b.Get(t.Context(), key, bucket.GetOptions{})
		if err != nil {
			t.Errorf("%s was acknowledged: %v", key, err)
			continue
		}
		// The last swap may have been stored and its line never printed.
		if got := whole(t, key, o.Body); got != seed && (got < seed || !strings.HasPrefix(key, "meta/")) {
			t.Errorf("%s: version %d was acknowledged, %d is there", key, seed, got)
		}
	}
	page, more, err := b.List(t.Context(), "", "", 0)
	for ; err == nil && len(page) > 0; page, more, err = b.List(t.Context(), "", page[len(page)-1].Key, 0) {
		for _, a := range page {
			o, err := b.Get(t.Context(), a.Key, bucket.GetOptions{})
			if err != nil || o.Attrs != a {
				t.Errorf("%s: %v", a.Key, err)
			}
			whole(t, a.Key, o.Body)
		}
		if !more {
			break
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// sealed is a body that shows whether it is whole: a seed, then what follows from it.
func sealed(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	body := binary.LittleEndian.AppendUint64(nil, seed)
	for range 1 + seed%9000 {
		body = binary.LittleEndian.AppendUint64(body, r.Uint64())
	}
	return body
}

func whole(t *testing.T, key string, body []byte) uint64 {
	t.Helper()
	if len(body) < 8 {
		t.Errorf("%s is torn: %d bytes", key, len(body))
		return 0
	}
	seed := binary.LittleEndian.Uint64(body)
	if !bytes.Equal(body, sealed(seed)) {
		t.Errorf("%s is torn: %d bytes", key, len(body))
	}
	return seed
}

// partWrite creates and swaps until it is killed.
func partWrite(b *dirbucket.Bucket, round int) error {
	tag, seed := bucket.Tag(""), uint64(round)*10_000
	if a, err := b.Head(bg(), "meta/root"); err == nil {
		tag = a.Tag
	}
	for i := 0; ; i++ {
		seed++
		key := fmt.Sprintf("wal/s/%d/%d", round, i)
		if _, err := b.Put(bg(), key, sealed(seed), bucket.IfAbsent); err != nil {
			return err
		}
		fmt.Println(key, seed)
		c := bucket.IfAbsent
		if tag != "" {
			c = bucket.IfMatch(tag)
		}
		var err error
		if tag, err = b.Put(bg(), "meta/root", sealed(seed), c); err != nil {
			return err
		}
		fmt.Println("meta/root", seed)
	}
}

// A process that may write no more than 64 KB to a file meets a full disk (EFBIG) in the
// middle of an object: it is told Throttled, and nothing half-written is to be seen.
func TestAFullDiskIsThrottledAndLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := child(t, "full", dir, 0)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b := open(t, dir, nil)
	page, _, err := b.List(t.Context(), "", "", 0)
	if err != nil || len(page) != 1 || page[0].Key != "small" {
		t.Errorf("%v %v", page, err)
	}
	if left, err := os.ReadDir(dir + "/.granary/tmp"); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

func partFull(b *dirbucket.Bucket, _ int) error {
	limit := syscall.Rlimit{Cur: 64 << 10, Max: 64 << 10}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	tag, err := b.Put(bg(), "small", make([]byte, 1000), bucket.IfAbsent)
	if err != nil {
		return err
	}
	for _, c := range []bucket.Condition{bucket.IfAbsent, {}, bucket.IfMatch(tag)} {
		key := "large"
		if c.Match() != "" {
			key = "small"
		}
		_, err := b.Put(bg(), key, make([]byte, 100<<10), c)
		if !errors.Is(err, errkind.Throttled) || !strings.Contains(err.Error(), "disk is full") {
			return fmt.Errorf("under %+v: %w", c, err)
		}
	}
	o, err := b.Get(bg(), "small", bucket.GetOptions{})
	if err != nil || o.Tag != tag {
		return fmt.Errorf("small changed: %+v %w", o.Attrs, err)
	}
	return nil
}

// A process that may open no further file: the object cannot be written, which is Throttled,
// or its directory cannot be synced, which is UnknownOutcome and the object is there.
func TestAFailedSyncOfTheNameIsUnknown(t *testing.T) {
	t.Parallel()
	cmd := child(t, "nofile", t.TempDir(), 0)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func partNoFile(b *dirbucket.Bucket, _ int) error {
	if _, err := b.Put(bg(), "a/first", nil, bucket.IfAbsent); err != nil {
		return err
	}
	next, err := syscall.Dup(0) // the lowest free descriptor
	if err != nil {
		return err
	}
	if err := syscall.Close(next); err != nil {
		return err
	}
	for _, c := range []struct {
		free      int
		key       string
		put, head error
	}{
		{0, "a/second", errkind.Throttled, errkind.NotFound},
		{1, "a/second", nil, nil}, // a/ is open already
		{1, "b/third", errkind.UnknownOutcome, nil},
		{0, "b/third", errkind.UnknownOutcome, nil}, // no Conflict before the name is durable
	} {
		if err := allowFiles(next + c.free); err != nil {
			return err
		}
		_, putErr := b.Put(bg(), c.key, nil, bucket.IfAbsent)
		if err := allowFiles(next + 100); err != nil {
			return err
		}
		_, headErr := b.Head(bg(), c.key)
		if !errors.Is(putErr, c.put) || !errors.Is(headErr, c.head) {
			return fmt.Errorf("%+v: put %v, then head %v", c, putErr, headErr)
		}
	}
	if _, err = b.Put(bg(), "b/third", nil, bucket.IfAbsent); !errors.Is(err, errkind.Conflict) {
		return fmt.Errorf("with files to open: %w", err)
	}
	return nil
}

func allowFiles(n int) error {
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(n), Max: 4096})
}

// A real file system without space.
func TestAFullFileSystemIsThrottledAndHeals(t *testing.T) {
	dir := t.TempDir()
	if err := mountTmpfs(dir); err != nil {
		t.Skipf("cannot mount a small tmpfs here: %v", err)
	}
	t.Cleanup(func() { _ = unmount(dir) })
	b := open(t, dir, nil)
	var n int
	for ; n < 200; n++ {
		_, err := b.Put(t.Context(), fmt.Sprintf("seg/%d", n), make([]byte, 32<<10), bucket.IfAbsent)
		if err == nil {
			continue
		}
		if !errors.Is(err, errkind.Throttled) || !strings.Contains(err.Error(), "free some space") {
			t.Fatal(err)
		}
		break
	}
	if n == 0 || n == 200 {
		t.Fatalf("%d objects fit into 1 MB", n)
	}
	if o, err := b.Get(t.Context(), "seg/0", bucket.GetOptions{}); err != nil || len(o.Body) != 32<<10 {
		t.Error("reads stopped as well:", err)
	}
	if _, err := b.Head(t.Context(), fmt.Sprintf("seg/%d", n)); !errors.Is(err, errkind.NotFound) {
		t.Error(err)
	}
	if err := b.Delete(t.Context(), "seg/0"); err != nil {
		t.Error(err)
	}
	put(t, b, fmt.Sprintf("seg/%d", n), make([]byte, 1000), bucket.IfAbsent)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
