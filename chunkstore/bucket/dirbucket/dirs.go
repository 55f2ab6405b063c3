package dirbucket

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// openDirsMax bounds the directories that are kept open (file descriptors).
const openDirsMax = 256

// dirs makes names durable: fsync of the directory that got the name, and of every
// directory above it once.
//
// A directory whose own name is known to be durable is kept open. Open, because Delete
// removes empty directories and another process may make a new one of the same path, whose
// name is not durable: an open one keeps its inode from being used again, so that comparing
// inodes tells the two apart.
type dirs struct {
	root   string
	noSync bool
	mu     sync.Mutex // never held across a system call that waits for the disk
	open   map[string]*os.File
}

func (d *dirs) init(root string, noSync bool) {
	d.root, d.noSync, d.open = root, noSync, map[string]*os.File{}
}

func (d *dirs) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path, f := range d.open {
		f.Close()
		delete(d.open, path)
	}
}

// sync returns when the names in directory path, and the path to it, survive power loss.
func (d *dirs) sync(path string) error {
	if d.noSync {
		return nil
	}
	if f := d.known(path); f != nil {
		err := f.Sync()
		if !errors.Is(err, os.ErrClosed) { // closed: pushed out of the map meanwhile
			return err
		}
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && path != d.root {
		// Deleted and pruned by another meanwhile: what has to last is its absence.
		return d.sync(filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return err
	}
	if path != d.root {
		if err := d.sync(filepath.Dir(path)); err != nil {
			f.Close()
			return err
		}
	}
	d.keep(path, f)
	return nil
}

// makeRoot makes the bucket's own directory, durably.
func (d *dirs) makeRoot() error {
	var missing []string
	for p := d.root; ; p = filepath.Dir(p) {
		if _, err := os.Stat(p); err == nil || p == filepath.Dir(p) {
			break
		}
		missing = append(missing, p)
	}
	if err := os.MkdirAll(d.root, 0o700); err != nil || d.noSync {
		return err
	}
	for _, p := range missing {
		if err := syncOnce(filepath.Dir(p)); err != nil {
			return err
		}
	}
	return nil
}

func syncOnce(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// known returns the open directory when it is still the one that path names.
func (d *dirs) known(path string) *os.File {
	d.mu.Lock()
	f := d.open[path]
	d.mu.Unlock()
	if f == nil {
		return nil
	}
	now, err := os.Stat(path)
	if err != nil {
		return nil
	}
	kept, err := f.Stat()
	if err != nil || !os.SameFile(now, kept) {
		return nil
	}
	return f
}

func (d *dirs) keep(path string, f *os.File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.open[path]; old != nil {
		old.Close()
	} else if len(d.open) >= openDirsMax {
		for other, old := range d.open { // any one: the order only costs or saves an open
			old.Close()
			delete(d.open, other)
			break
		}
	}
	d.open[path] = f
}

// prune removes the directory path and those above it while they are empty. An error means
// that one was not, or that someone else was faster: there is nothing to do about either.
func (d *dirs) prune(path string) {
	for path != d.root && syscall.Rmdir(path) == nil {
		d.mu.Lock()
		if f := d.open[path]; f != nil {
			f.Close()
			delete(d.open, path)
		}
		d.mu.Unlock()
		path = filepath.Dir(path)
	}
}

// placeAttempts bounds how often a directory may be pruned away between its making and the
// naming of a file in it.
const placeAttempts = 20

// place runs name, which gives a file its name in dir, making dir when it is missing.
func (d *dirs) place(dir string, name func() error) error {
	var err error
	for range placeAttempts {
		if err = name(); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		err := os.MkdirAll(dir, 0o700)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return err // both of these: it was pruned again while MkdirAll looked at it
		}
	}
	return err
}
