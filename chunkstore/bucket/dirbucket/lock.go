package dirbucket

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// lockFiles bounds the lock files: keys share them, which costs a little waiting and nothing
// else, since a lock is held for microseconds and never two at once.
const lockFiles = 64

// How long one attempt waits for another process: from lockWaitMin, doubled to lockWaitMax.
// There is no blocking form of flock that ends with a context.
const (
	lockWaitMin = 50 * time.Microsecond
	lockWaitMax = 2 * time.Millisecond
)

// locks are the locks of a directory. Goroutines of this process exclude one another by a
// channel of capacity 1 (which a context can end the wait for), then the process excludes
// others by flock on the stripe's file.
type locks struct {
	dir     string
	stripes [lockFiles]stripe
}

type stripe struct {
	turn chan struct{}
	file *os.File // Owned by: whoever holds turn
}

func (l *locks) init(dir string) {
	l.dir = dir
	for i := range l.stripes {
		l.stripes[i].turn = make(chan struct{}, 1)
	}
}

func (l *locks) close() {
	for i := range l.stripes {
		s := &l.stripes[i]
		s.turn <- struct{}{}
		if s.file != nil {
			s.file.Close()
			s.file = nil
		}
		<-s.turn
	}
}

// with runs f while no one else, in any process, runs one for the same key. Errors: those
// of f; else f was not run: Throttled.
func (l *locks) with(ctx context.Context, h host.Host, key string, f func() error) error {
	sum := fnv.New32a()
	sum.Write([]byte(key))
	n := sum.Sum32() % lockFiles
	s := &l.stripes[n]
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil { // also when both came together
		return fmt.Errorf("lock: %w: %w", errkind.Throttled, context.Cause(ctx))
	}
	if s.file == nil {
		name := filepath.Join(l.dir, fmt.Sprintf("%02x", n))
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return fmt.Errorf("lock: %w: %w", errkind.Throttled, err)
		}
		s.file = file
	}
	if err := flock(ctx, h, s.file); err != nil {
		return fmt.Errorf("lock %s: %w: %w", s.file.Name(), errkind.Throttled, err)
	}
	defer func() { _ = syscall.Flock(int(s.file.Fd()), syscall.LOCK_UN) }()
	return f()
}

// flock tries until the context ends.
func flock(ctx context.Context, h host.Host, f *os.File) error {
	for wait := lockWaitMin; ; wait = min(2*wait, lockWaitMax) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if err := h.Sleep(ctx, h.Jitter(wait)); err != nil {
			return err
		}
	}
}
