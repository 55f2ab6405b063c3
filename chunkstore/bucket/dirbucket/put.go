package dirbucket

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// Put implements bucket.Bucket. Once the name is given nothing but a failed fsync of the
// directory can go wrong; all that fails before it is Throttled, with the cause, or
// UnknownOutcome when the disk failed to sync the bytes.
func (b *Bucket) Put(ctx context.Context, key string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	path, err := b.pathOf(key)
	if err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("put %s: %w: %w", key, errkind.Throttled, context.Cause(ctx))
	}
	tag, err := b.put(ctx, key, path, body, c)
	switch {
	case err == nil:
		return tag, nil
	case errors.Is(err, errkind.Conflict):
		// The winner may not have synced the name that was seen.
		if err := b.dirs.sync(filepath.Dir(path)); err != nil {
			return "", fmt.Errorf("put %s: %w: sync of the directory: %w", key, errkind.UnknownOutcome, err)
		}
	}
	return "", fmt.Errorf("put %s: %w", key, err)
}

func (b *Bucket) put(ctx context.Context, key, path string, body []byte, c bucket.Condition) (bucket.Tag, error) {
	// Looked at first only to spare the writing; what decides is the link or the lock.
	if err := holds(c, path, key); err != nil {
		return "", err
	}
	id := b.host.ID16()
	trailer := append([]byte(magic), id[:]...)
	f, err := b.write(body, trailer, c.Absent())
	if err != nil {
		return "", err
	}
	defer f.close()
	if ctx.Err() != nil {
		return "", fmt.Errorf("%w: %w", errkind.Throttled, context.Cause(ctx))
	}
	if c.Absent() {
		err = b.create(f, path)
	} else {
		err = b.locks.with(ctx, b.host, key, func() error { return b.replace(f, key, path, c) })
	}
	if err != nil {
		return "", err
	}
	if err := b.dirs.sync(filepath.Dir(path)); err != nil {
		return "", fmt.Errorf("%w: sync of the directory: %w", errkind.UnknownOutcome, err)
	}
	return bucket.Tag(hex.EncodeToString(id[:])), nil
}

// holds is nil when the condition holds at this moment, and Conflict when not.
func holds(c bucket.Condition, path, key string) error {
	switch {
	case c.Absent():
		if i, err := os.Lstat(path); err == nil && i.IsDir() {
			return keyIsDir(path)
		} else if err == nil {
			return errkind.Conflict
		}
	case c.Match() != "":
		o, err := openPath(path, key)
		if errors.Is(err, errkind.NotFound) {
			return errkind.Conflict
		}
		if err != nil {
			return unread(err)
		}
		defer o.close()
		a, err := o.attrs()
		if err != nil {
			return unread(err)
		}
		if a.Tag != c.Match() {
			return errkind.Conflict
		}
	}
	return nil
}

// unread is for a present version that cannot be read: nothing was done. Corrupt stays
// alone, since trying again is no cure.
func unread(err error) error {
	if errors.Is(err, errkind.Corrupt) {
		return err
	}
	return fmt.Errorf("%w: %w", errkind.Throttled, err)
}

// create gives the file its name unless the name is taken.
func (b *Bucket) create(f *staged, path string) error {
	err := b.dirs.place(filepath.Dir(path), func() error { return f.link(path) })
	if errors.Is(err, fs.ErrExist) {
		if i, e := os.Lstat(path); e == nil && i.IsDir() {
			return keyIsDir(path)
		}
		return errkind.Conflict
	}
	return unnamed(err, path)
}

// replace gives the file its name, taking it from the present one. Requires: the key's lock.
func (b *Bucket) replace(f *staged, key, path string, c bucket.Condition) error {
	if err := holds(c, path, key); err != nil {
		return err
	}
	if i, err := os.Lstat(path); err == nil && i.IsDir() {
		return keyIsDir(path)
	}
	return unnamed(b.dirs.place(filepath.Dir(path), func() error { return f.rename(path) }), path)
}

func keyIsDir(path string) error {
	return fmt.Errorf("other keys lie below it (in %s): a key is never a component of another: %w", path, errkind.Invalid)
}

// unnamed sorts the error of link(2), rename(2) or mkdir(2): those that are certain to have
// changed nothing are Throttled, others UnknownOutcome.
func unnamed(err error, path string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("a component of it is a key (see %s): a key is never a component of another: %w", path, errkind.Invalid)
	case full(err):
		return fullDisk(err)
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist),
		errors.Is(err, syscall.EMLINK), errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.ENAMETOOLONG):
		return fmt.Errorf("%w: %w", errkind.Throttled, err)
	}
	return fmt.Errorf("%w: %w", errkind.UnknownOutcome, err)
}

func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

func fullDisk(err error) error {
	return fmt.Errorf("%w: the disk is full, nothing was stored; free some space: %w", errkind.Throttled, err)
}

// Delete implements bucket.Bucket. It takes the key's lock, so that a compare-and-swap never
// brings back what was deleted between its compare and its rename.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	path, err := b.pathOf(key)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("delete %s: %w: %w", key, errkind.Throttled, context.Cause(ctx))
	}
	err = b.locks.with(ctx, b.host, key, func() error { return unlink(path) })
	if err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	if err := b.dirs.sync(filepath.Dir(path)); err != nil {
		return fmt.Errorf("delete %s: %w: sync of the directory: %w", key, errkind.UnknownOutcome, err)
	}
	b.dirs.prune(filepath.Dir(path))
	return nil
}

// unlink removes a file; a missing one, or a directory, is no object and no error.
func unlink(path string) error {
	if i, err := os.Lstat(path); err == nil && i.IsDir() {
		return nil
	}
	err := syscall.Unlink(path) // not os.Remove, which would remove a directory as well
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", errkind.Throttled, err)
	}
	return fmt.Errorf("%w: %w", errkind.UnknownOutcome, err)
}
