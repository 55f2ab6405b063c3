package diskcache

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// FS is what the cache asks of a file system, so that a test can have one that is full, slow,
// or forgets. Errors are those of package os; paths are its paths.
type FS interface {
	// MkdirAll makes a directory and those above it, for this user only.
	MkdirAll(dir string) error
	// ReadDir lists a directory.
	ReadDir(dir string) ([]fs.DirEntry, error)
	// Open opens a file for reading, Create a new one for writing: an existing one is an
	// error.
	Open(path string) (File, error)
	Create(path string) (File, error)
	// Rename replaces what has the name `to`, at once.
	Rename(from, to string) error
	Remove(path string) error
	// Lock takes a lock for this process that ends with it; ErrLocked when another has it.
	Lock(path string) (io.Closer, error)
}

// File is an open file.
type File interface {
	io.ReaderAt
	io.WriteCloser
}

// ErrLocked says that another process has the lock.
var ErrLocked = errors.New("locked by another process")

// OS is the machine's own file system.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) MkdirAll(dir string) error                 { return os.MkdirAll(dir, 0o700) }
func (osFS) ReadDir(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }
func (osFS) Rename(from, to string) error              { return os.Rename(from, to) }
func (osFS) Remove(path string) error                  { return os.Remove(path) }

func (osFS) Open(path string) (File, error) {
	return orNil(os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0))
}

func (osFS) Create(path string) (File, error) {
	return orNil(os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600))
}

// orNil keeps a nil *os.File from becoming a File that is not nil.
func orNil(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (osFS) Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, err
	}
	return f, nil
}
