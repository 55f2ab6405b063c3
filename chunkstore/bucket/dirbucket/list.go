package dirbucket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// PageMax is the most keys in one List page, as on S3.
const PageMax = 1000

// List implements bucket.Bucket. Every page reads again the names of the directories on the
// way, and opens the files it returns for their tags.
func (b *Bucket) List(ctx context.Context, prefix, after string, max int) (page []bucket.Attrs, more bool, err error) {
	if max <= 0 || max > PageMax {
		max = PageMax
	}
	w := walk{ctx: ctx, prefix: prefix, after: after, max: max}
	if err := w.dir(b.path, ""); err != nil && !errors.Is(err, errPageFull) {
		return nil, false, fmt.Errorf("list %s: %w", prefix, err)
	}
	return w.page, w.more, nil
}

// errPageFull ends the walk.
var errPageFull = errors.New("page full")

type walk struct {
	ctx           context.Context
	prefix, after string
	max           int
	page          []bucket.Attrs
	more          bool
}

// dir visits the directory at path, whose keys all begin with base ("" or "a/b/"), in the
// byte order of keys.
func (w *walk) dir(path, base string) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) && base != "" {
		return nil // pruned meanwhile: its last key was deleted
	}
	if err != nil {
		return err
	}
	for _, e := range w.wanted(entries, base) {
		child := filepath.Join(path, e.file)
		if strings.HasSuffix(e.key, "/") {
			err = w.dir(child, e.key)
		} else {
			err = w.object(child, e.key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// entry is a name in a directory; the key of a directory ends with '/'.
type entry struct{ key, file string }

// wanted are the entries that can hold keys of the page, sorted. A directory sorts with the
// '/' that follows it in every key below: "a-b" comes before "a/b".
func (w *walk) wanted(entries []fs.DirEntry, base string) []entry {
	out := make([]entry, 0, len(entries))
	for _, d := range entries {
		part, ok := unescape(d.Name())
		if !ok {
			continue
		}
		e := entry{key: base + part, file: d.Name()}
		if d.IsDir() {
			e.key += "/"
			inPrefix := strings.HasPrefix(e.key, w.prefix) || strings.HasPrefix(w.prefix, e.key)
			if !inPrefix || e.key <= w.after && !strings.HasPrefix(w.after, e.key) {
				continue
			}
		} else if !strings.HasPrefix(e.key, w.prefix) || e.key <= w.after {
			continue
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	return out
}

func (w *walk) object(path, key string) error {
	if len(w.page) == w.max {
		w.more = true
		return errPageFull
	}
	o, err := openPath(path, key)
	if errors.Is(err, errkind.NotFound) {
		return nil // deleted meanwhile
	}
	if err != nil {
		return err
	}
	defer o.close()
	a, err := o.attrs()
	if err != nil {
		return err
	}
	w.page = append(w.page, a)
	return nil
}
