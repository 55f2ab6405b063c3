package dirbucket

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/granarydb/granary/manifest/errkind"
)

// staged is a finished, synced file that does not have its key's name yet: nameless
// (O_TMPFILE), or with a name under tmp.
type staged struct {
	f    *os.File
	temp string // "": nameless
}

// write stages a file of body and trailer. Creates want a nameless one, which saves the disk
// a third of the work; a rename needs one with a name. Errors: Throttled (nothing is left),
// UnknownOutcome when the sync failed.
func (b *Bucket) write(body, trailer []byte, nameless bool) (*staged, error) {
	s, err := b.stage(nameless)
	if err != nil {
		return nil, unwritten(err)
	}
	if _, err = s.f.Write(body); err == nil {
		_, err = s.f.Write(trailer)
	}
	if err != nil {
		s.close()
		return nil, unwritten(err)
	}
	if b.noSync {
		return s, nil
	}
	if err := s.f.Sync(); err != nil {
		s.close()
		if full(err) {
			return nil, fullDisk(err)
		}
		return nil, fmt.Errorf("%w: sync of the object: %w", errkind.UnknownOutcome, err)
	}
	return s, nil
}

func unwritten(err error) error {
	if full(err) {
		return fullDisk(err)
	}
	return fmt.Errorf("%w: %w", errkind.Throttled, err)
}

func (b *Bucket) stage(nameless bool) (*staged, error) {
	if nameless && b.nameless {
		f, err := openNameless(filepath.Join(b.path, hidden, "tmp"))
		if err != nil {
			return nil, err
		}
		return &staged{f: f}, nil
	}
	temp := b.tempName()
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &staged{f: f, temp: temp}, nil
}

// canNameless tries once whether the file system and /proc allow nameless files.
func (b *Bucket) canNameless() bool {
	f, err := openNameless(filepath.Join(b.path, hidden, "tmp"))
	if err != nil {
		return false
	}
	defer f.Close()
	name := b.tempName()
	defer os.Remove(name)
	return linkNameless(f, name) == nil
}

// link gives the file the name path, or fails with fs.ErrExist.
func (s *staged) link(path string) error {
	if s.temp == "" {
		return linkNameless(s.f, path)
	}
	return os.Link(s.temp, path)
}

// rename gives the file the name path, whatever has it now.
func (s *staged) rename(path string) error {
	if err := os.Rename(s.temp, path); err != nil {
		return err
	}
	s.temp = ""
	return nil
}

// close drops the file's other name, if it has one, and closes it.
func (s *staged) close() {
	if s.temp != "" {
		_ = os.Remove(s.temp)
	}
	s.f.Close()
}
