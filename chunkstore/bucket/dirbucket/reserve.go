package dirbucket

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/granarydb/granary/manifest/errkind"
)

// noteMax bounds what a reservation says about its holder.
const noteMax = 1024

// Reserve makes this process the only one on the machine that has the directory, which holds
// a bucket, reserved, until it calls release or ends, however it ends. A directory needs no reservation: it is
// for processes that want to know of one another, since they would take the same shards
// from each other. note says who we are, in words that tell the next one what to do, such
// as where we listen.
//
// Errors: Conflict with the note of the present holder; others of the file system.
func Reserve(dir, note string) (release func(), err error) {
	name := filepath.Join(dir, hidden, "reserved")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("reserve %s: %w", dir, err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		held, _ := io.ReadAll(io.LimitReader(f, noteMax))
		_ = f.Close()
		return nil, fmt.Errorf("%s is in use by %s: %w", dir, strings.TrimSpace(string(held)), errkind.Conflict)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt([]byte(note+"\n"), 0)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("reserve %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil // the kernel drops the lock with the file
}
