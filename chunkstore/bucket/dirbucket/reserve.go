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

// Reserve reserves the directory, which holds a bucket, until release is called or the
// process ends, however it ends: for this process alone, or together with others that do not
// want it alone. The bucket needs no reservation: it is for processes that want to know of
// one another, since they would take the same shards from each other. note says who we are,
// in words that tell the next one what to do, such as where we listen.
//
// Errors: Conflict with the note of the present holder; others of the file system.
func Reserve(dir, note string, alone bool) (release func(), err error) {
	name := filepath.Join(dir, hidden, "reserved")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("reserve %s: %w", dir, err)
	}
	how := syscall.LOCK_SH
	if alone {
		how = syscall.LOCK_EX
	}
	err = syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
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
