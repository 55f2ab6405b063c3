package diskcache

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/granarydb/granary/manifest/errkind"
)

// slotsMax bounds the processes that use one directory at the same time.
const slotsMax = 64

// takeSlot takes the first slot of a directory that nobody holds. Errors: Throttled when all
// are held; those of the file system.
func takeSlot(fsys FS, dir string) (slot string, lock io.Closer, err error) {
	for i := range slotsMax {
		slot := filepath.Join(dir, fmt.Sprintf("cache-%02d", i))
		if err := fsys.MkdirAll(slot); err != nil {
			return "", nil, err
		}
		lock, err := fsys.Lock(filepath.Join(slot, "lock"))
		if !errors.Is(err, ErrLocked) {
			return slot, lock, err
		}
	}
	return "", nil, fmt.Errorf("%w: %d processes use it", errkind.Throttled, slotsMax)
}

// path is where a file is.
func (c *Cached) path(e *extent) string { return filepath.Join(c.dir, e.at.fan(), e.name()) }

const tempPrefix = "tmp-"

func (c *Cached) tempPath(e *extent) string {
	return filepath.Join(c.dir, e.at.fan(), fmt.Sprintf("%s%x", tempPrefix, c.host.ID16()))
}

// isTemp tells the names that tempPath makes.
func isTemp(name string) bool {
	hex, ok := strings.CutPrefix(name, tempPrefix)
	return ok && len(hex) == 32 && strings.Trim(hex, "0123456789abcdef") == ""
}

// adopt rebuilds the index from the names in the slot, oldest first, and removes what a
// process that was killed had not finished, and what passes the budget.
func (c *Cached) adopt() error {
	fans, err := c.fs.ReadDir(c.dir)
	if err != nil {
		return err
	}
	type aged struct {
		*extent
		bytes, time int64
	}
	var found []aged
	for _, fan := range fans {
		if !fan.IsDir() || len(fan.Name()) != 2 {
			continue
		}
		dir := filepath.Join(c.dir, fan.Name())
		list, err := c.fs.ReadDir(dir)
		if err != nil {
			c.warn("part of the disk cache cannot be listed", err)
			continue
		}
		for _, f := range list {
			if isTemp(f.Name()) {
				_ = c.fs.Remove(filepath.Join(dir, f.Name()))
			} else if e := parseName(f.Name()); e != nil && e.at.fan() == fan.Name() {
				if size, time, ok := regular(f); ok {
					found = append(found, aged{e, size, time})
				}
			}
		}
	}
	slices.SortStableFunc(found, func(a, b aged) int { return cmp.Compare(a.time, b.time) })
	for _, f := range found {
		c.removeFiles(c.index.add(f.extent, f.bytes, 0))
	}
	return nil
}

// regular is the size and the time of a file; not ok when it is none, or gone.
func regular(f fs.DirEntry) (bytes, time int64, ok bool) {
	if !f.Type().IsRegular() {
		return 0, 0, false
	}
	st, err := f.Info()
	if err != nil {
		return 0, 0, false
	}
	return st.Size(), st.ModTime().UnixNano(), true
}

func (c *Cached) removeFiles(gone []*extent) {
	for _, e := range gone {
		c.count.evicted.Add(1)
		_ = c.fs.Remove(c.path(e))
	}
}
