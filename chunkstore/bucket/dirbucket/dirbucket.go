// Package dirbucket is a bucket in a directory: the store of `granary local`. Several
// processes of one machine may open the same directory at the same time.
//
// # Layout
//
//	DIR/.granary/format      "granary directory bucket 1\n"; another text is refused
//	DIR/.granary/lock/00-3f  lock files; a key's is chosen by a hash of the key
//	DIR/.granary/tmp/        files being written
//	DIR/meta/root            an object: one file for a key, one directory for a component
//
// A file holds the body and a trailer of 24 bytes: the magic "GRNOBJ1\n" and 16 random
// bytes, which are the tag. Body and tag are read from one open file, and a file is never
// changed once it has its name, so that a Get is never a mix of two versions. Components
// are lower-case letters, digits and "-_."; every other byte, and a leading '.', is written
// as %XX, so that no key leaves the directory, meets a hidden file, or differs from another
// key only by what some file systems ignore (case, Unicode form).
//
// # Writes
//
//	write body and trailer to a nameless file -> fsync
//	  create:   link(2) to the name      of any number of racers one wins, others see EEXIST
//	  replace:  take the key's lock, compare the tag, rename(2) over the name, unlock
//	fsync the directory
//
// A crash of the process at any point leaves the old object, or the new one, and perhaps a
// file under tmp, which a later Open sweeps when it is older than an hour. Power loss after
// an acknowledged Put loses nothing: file and name are synced. A name is visible for the
// moment before its directory is synced; therefore a Put that answers Conflict syncs the
// directory first, and who resolves an unknown outcome never trusts what a power loss could
// take back.
//
// Nothing is half done when the disk is full: the Put fails with Throttled before the name
// exists. A failed fsync is UnknownOutcome.
//
// Locks are flock(2): the kernel drops them with the process. They are held for a compare
// and a rename, not for an fsync. A Put that cannot get its lock (its holder is stopped) is
// Throttled when its context ends.
package dirbucket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

const (
	hidden     = ".granary"
	formatText = "granary directory bucket 1\n"
	// tempAge is how old a file under tmp is before Open takes its writer for dead.
	tempAge = time.Hour
)

// Options of Open; nil is none of them.
type Options struct {
	// NoSync leaves out every fsync: tests and benchmarks only. A crash of the process still
	// loses nothing, a crash of the machine may lose and tear objects.
	NoSync bool
}

// Bucket is an open directory.
type Bucket struct {
	path   string
	host   host.Host
	noSync bool
	locks  locks
	dirs   dirs
	// nameless says that the file system has O_TMPFILE: found out at Open.
	nameless bool
}

var _ bucket.Bucket = (*Bucket)(nil)

// Open opens the bucket in the directory path, and makes it when the directory is missing
// or empty. Errors: Invalid when the directory holds something else or another format.
func Open(path string, h host.Host, o *Options) (*Bucket, error) {
	if o == nil {
		o = &Options{}
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open dir:%s: %w", path, err)
	}
	b := &Bucket{path: abs, host: h, noSync: o.NoSync}
	b.locks.init(filepath.Join(abs, hidden, "lock"))
	b.dirs.init(abs, o.NoSync)
	if err := b.claim(); err != nil {
		return nil, fmt.Errorf("open dir:%s: %w", path, err)
	}
	b.sweep()
	b.nameless = b.canNameless()
	return b, nil
}

// claim makes sure that the directory is a bucket of this format. Two processes may do so
// at once: each step is one that the other may have done.
func (b *Bucket) claim() error {
	if err := b.dirs.makeRoot(); err != nil {
		return err
	}
	if err := b.refuseForeign(); err != nil {
		return err
	}
	for _, d := range []string{"lock", "tmp"} {
		if err := os.MkdirAll(filepath.Join(b.path, hidden, d), 0o700); err != nil {
			return err
		}
	}
	name := filepath.Join(b.path, hidden, "format")
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return b.writeFormat(name)
	}
	if err != nil {
		return err
	}
	if string(text) != formatText {
		return fmt.Errorf("%s says %.60q, this program knows %q: use the version that made it: %w",
			name, text, formatText, errkind.Invalid)
	}
	return nil
}

func (b *Bucket) refuseForeign() error {
	if _, err := os.Lstat(filepath.Join(b.path, hidden)); err == nil {
		return nil
	}
	entries, err := os.ReadDir(b.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != hidden {
			return fmt.Errorf("the directory is not empty (it has %q) and is no bucket: name a new or empty directory: %w",
				e.Name(), errkind.Invalid)
		}
	}
	return nil
}

// writeFormat links a finished, synced file to its name, so that no reader finds half of it.
func (b *Bucket) writeFormat(name string) error {
	f, err := b.write([]byte(formatText), nil, false)
	if err != nil {
		return err
	}
	defer f.close()
	if err := f.link(name); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return b.dirs.sync(filepath.Join(b.path, hidden))
}

// sweep removes what dead writers left. It is a courtesy: errors are ignored, and a live
// writer whose file is taken away answers Throttled.
func (b *Bucket) sweep() {
	tmp := filepath.Join(b.path, hidden, "tmp")
	entries, err := os.ReadDir(tmp)
	if err != nil {
		return
	}
	for _, e := range entries {
		if i, err := e.Info(); err == nil && b.host.Wall().Sub(i.ModTime()) > tempAge {
			_ = os.Remove(filepath.Join(tmp, e.Name()))
		}
	}
}

func (b *Bucket) tempName() string {
	return filepath.Join(b.path, hidden, "tmp", fmt.Sprintf("%x", b.host.ID16()))
}

// String is "dir:" and the absolute path.
func (b *Bucket) String() string { return "dir:" + b.path }

// Close closes the lock files and directories that were kept open.
func (b *Bucket) Close() error {
	b.dirs.close()
	b.locks.close()
	return nil
}

// Get implements bucket.Bucket. It reads no more than the range and the trailer. Errors
// also: Corrupt when the file is not one that this package wrote.
func (b *Bucket) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	f, err := b.openObject(ctx, "get", key)
	if err != nil {
		return bucket.Object{}, err
	}
	defer f.close()
	return f.read(o)
}

// Head implements bucket.Bucket. Errors also: Corrupt.
func (b *Bucket) Head(ctx context.Context, key string) (bucket.Attrs, error) {
	f, err := b.openObject(ctx, "head", key)
	if err != nil {
		return bucket.Attrs{}, err
	}
	defer f.close()
	return f.attrs()
}
