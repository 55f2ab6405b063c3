package dirbucket

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// The trailer of a file: magic, then the tag's bytes.
const (
	magic       = "GRNOBJ1\n"
	tagLen      = 16
	trailerSize = len(magic) + tagLen
)

// object is an open file. Its size and bytes never change.
type object struct {
	f        *os.File
	key      string
	bodySize int64
	modified int64 // unix milliseconds
}

// openObject opens the object of a key for a read. Errors: NotFound, Invalid, Corrupt for a
// file that cannot be an object, and the context's when it ended before.
func (b *Bucket) openObject(ctx context.Context, verb, key string) (*object, error) {
	path, err := b.pathOf(key)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s %s: %w", verb, key, context.Cause(ctx))
	}
	o, err := openPath(path, key)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", verb, key, err)
	}
	return o, nil
}

func openPath(path, key string) (*object, error) {
	// O_NONBLOCK: a pipe that someone left under the name must not hang the open.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil, errkind.NotFound
		}
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = errkind.NotFound
	case !info.Mode().IsRegular() || info.Size() < int64(trailerSize):
		err = notOurs(path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &object{
		f: f, key: key,
		bodySize: info.Size() - int64(trailerSize), modified: info.ModTime().UnixMilli(),
	}, nil
}

func notOurs(path string) error {
	return fmt.Errorf("the file %s was not written by this store, or was damaged: %w", path, errkind.Corrupt)
}

func (o *object) close() { o.f.Close() }

// attrs reads the trailer.
func (o *object) attrs() (bucket.Attrs, error) {
	var t [trailerSize]byte
	if _, err := o.f.ReadAt(t[:], o.bodySize); err != nil {
		return bucket.Attrs{}, fmt.Errorf("read the tag of %s: %w", o.key, err)
	}
	return o.attrsFrom(t[:])
}

func (o *object) attrsFrom(trailer []byte) (bucket.Attrs, error) {
	if string(trailer[:len(magic)]) != magic {
		return bucket.Attrs{}, notOurs(o.f.Name())
	}
	tag := bucket.Tag(hex.EncodeToString(trailer[len(magic):]))
	return bucket.Attrs{Key: o.key, Size: o.bodySize, Tag: tag, ModifiedMillis: o.modified}, nil
}

// read answers a Get. A whole object is one read; for a range, or with a condition that may
// spare the body, the trailer comes first.
func (o *object) read(opt bucket.GetOptions) (bucket.Object, error) {
	if opt.Fresh = false; opt == (bucket.GetOptions{}) {
		return o.readAll()
	}
	attrs, err := o.attrs()
	if err != nil {
		return bucket.Object{}, err
	}
	if opt.IfNoneMatch == attrs.Tag {
		return bucket.Object{}, fmt.Errorf("get %s: %w", o.key, errkind.NotModified)
	}
	from, to, err := bucket.Slice(o.key, o.bodySize, opt.Offset, opt.Length)
	if err != nil {
		return bucket.Object{}, err
	}
	body := make([]byte, to-from)
	if _, err := o.f.ReadAt(body, from); err != nil {
		return bucket.Object{}, fmt.Errorf("get %s: %w", o.key, err)
	}
	return bucket.Object{Body: body, Attrs: attrs}, nil
}

func (o *object) readAll() (bucket.Object, error) {
	all := make([]byte, o.bodySize+int64(trailerSize))
	if _, err := o.f.ReadAt(all, 0); err != nil {
		return bucket.Object{}, fmt.Errorf("get %s: %w", o.key, err)
	}
	attrs, err := o.attrsFrom(all[o.bodySize:])
	return bucket.Object{Body: all[:o.bodySize:o.bodySize], Attrs: attrs}, err
}
