package manifest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/granarydb/granary/manifest/errkind"
)

// Cell is the little that the root needs from a bucket: registers with compare-and-swap.
// bucket.NewCell makes one. Tags are opaque and name one version of one object.
type Cell interface {
	// Load reads an object. Errors: NotFound; NotModified when known is not "" and is the
	// object's present tag.
	Load(ctx context.Context, key, known string) (body []byte, tag string, err error)
	// Swap writes an object if its present tag is from; from "" means that the object must
	// not exist. Errors: Conflict and Throttled when it was not written; anything else
	// means that it may have been, or may still be.
	Swap(ctx context.Context, key string, body []byte, from string) (tag string, err error)
}

// RootKey is the object that is the root.
const RootKey = "meta/root"

// PinPrefix is where the copies of pinned versions are.
const PinPrefix = "meta/pin/"

// PinKey is the object that keeps the root version of a pin: a copy, made after the commit
// that added the pin.
func PinKey(id [16]byte) string { return fmt.Sprintf("%s%x", PinPrefix, id) }

// HistoryPrefix is where the copies of the last versions of the root are, in order of version.
const HistoryPrefix = "meta/history/"

// HistoryKey is the object that keeps a copy of a root version for a while, to repair from.
func HistoryKey(v Version) string { return fmt.Sprintf("%s%020d", HistoryPrefix, uint64(v)) }

// ParseHistoryKey is the version of a copy by its key. Errors: Invalid for another key.
func ParseHistoryKey(key string) (Version, error) {
	v, err := strconv.ParseUint(strings.TrimPrefix(key, HistoryPrefix), 10, 64)
	if err != nil || HistoryKey(Version(v)) != key {
		return 0, fmt.Errorf("%q: %w: no copy of a root version has this name", key, errkind.Invalid)
	}
	return Version(v), nil
}

// fetchMax bounds the page requests that are under way at once.
const fetchMax = 16

// Copy reads a root version from an immutable copy, such as a pin, with its pages. Errors:
// NotFound when there is no such copy; Corrupt, naming the object, when it or one of its
// pages is damaged or missing.
func (r *Root) Copy(ctx context.Context, key string) (*State, error) {
	return readCopy(ctx, r.cell, r.o.Places, key)
}

// ReadCopy is Copy for who has no Root. Errors: also Invalid, when pages are elsewhere and places
// is nil.
func ReadCopy(ctx context.Context, c Cell, places Places, key string) (*State, error) {
	return readCopy(ctx, c, places, key)
}

func readCopy(ctx context.Context, c Cell, places Places, key string) (*State, error) {
	object, _, err := c.Load(ctx, key, "")
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	m, err := DecodeRoot(object)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	s, _, err := assemble(ctx, c, places, m, nil)
	if errors.Is(err, errkind.NotFound) {
		return nil, fmt.Errorf("read %s: %w: %v", key, errkind.Corrupt, err)
	}
	return s, err
}

// assemble fetches the pages that have lacks, and counts them. Errors: NotFound when a page
// does not exist, which is damage only if the root still refers to it.
func assemble(ctx context.Context, c Cell, places Places, m *Image, have *State) (s *State, pages int, err error) {
	refs := m.Missing(have)
	fetched := make([][]*Chunk, len(refs))
	err = parallel(len(refs), func(i int) (err error) {
		from, err := cellOf(c, places, m.s, refs[i].Location)
		if err == nil {
			fetched[i], err = fetchPage(ctx, from, m.s.cluster, refs[i])
		}
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	s, err = m.State(have, fetched)
	return s, len(refs), err
}

// cellOf is where the pages of a location are; own is the cluster's bucket. Errors: Invalid
// when this process was not told how to open others, those of opening it.
func cellOf(own Cell, places Places, s *State, id LocationID) (Cell, error) {
	if id == 0 {
		return own, nil
	}
	l, err := s.Location(id)
	if err != nil {
		return nil, err
	}
	if places == nil {
		return nil, fmt.Errorf("location %d, %s: %w: only what is in the cluster's own bucket can be read here", id, l.URL, errkind.Invalid)
	}
	c, err := places(l)
	if err != nil {
		return nil, fmt.Errorf("location %d, %s: %w", id, l.URL, err)
	}
	return c, nil
}

func fetchPage(ctx context.Context, c Cell, cluster ClusterID, ref PageRef) ([]*Chunk, error) {
	object, _, err := c.Load(ctx, ref.Key(), "")
	if err != nil {
		return nil, fmt.Errorf("page %s: %w", ref.Key(), err)
	}
	return DecodePage(cluster, ref, object)
}

// parallel runs do(0..n-1), at most fetchMax at a time, and returns the error of the lowest
// index that failed. After a failure no more are started.
func parallel(n int, do func(int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, fetchMax)
	var failed atomic.Bool
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		if failed.Load() {
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			if errs[i] = do(i); errs[i] != nil {
				failed.Store(true)
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
