// Package buckettest is the one conformance suite of buckets: every driver and every
// decorator runs it, and a new one is finished when it passes.
//
//	func TestConforms(t *testing.T) {
//		buckettest.Run(t, func(t *testing.T) bucket.Bucket { return membucket.New() })
//	}
//
// It shows each verb and condition, ranges at their edges, listing order and paging, odd
// keys, large bodies, the kinds of errors, contexts that end, and that of racing creates
// and swaps exactly one wins. BadStores are stores that lack one property each: Probe must
// refuse them.
package buckettest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// Open makes an empty bucket for one subtest. It registers its own clean-up.
type Open func(t *testing.T) bucket.Bucket

// Limit is something that some real stores cannot do and that the rest of the module can do
// without: a test of such a store says so, and the suite asks for what is left.
type Limit uint

const (
	// ControlKeys: control characters in keys, which the XML of a List cannot carry.
	ControlKeys Limit = iota
	// DeleteRaces: a Delete may be undone by a swap of the same key at the same moment, and
	// may make a create beside it, in a directory that it empties, fail with an unknown
	// outcome. What is swapped is never deleted, and such a create is sent again.
	DeleteRaces
)

// Run runs the suite, each test on its own bucket, in parallel; without what the store is
// known to be unable to do.
func Run(t *testing.T, open Open, without ...Limit) {
	for _, c := range []struct {
		name string
		run  func(*s)
	}{
		{"GetReturnsWhatWasPut", roundTrip},
		{"BodiesOfAllSizesComeBackWhole", sizes},
		{"BodiesAreCopied", copies},
		{"MissingKeysAreNotFound", missing},
		{"CreateIsRefusedWhenTheKeyExists", createOnce},
		{"SwapNeedsThePresentTag", swap},
		{"SwapOfAMissingKeyIsRefused", swapMissing},
		{"UnconditionalPutReplaces", replace},
		{"EveryVersionHasItsOwnTag", tags},
		{"ConditionalGetSparesTheBody", notModified},
		{"RangesAreExact", ranges},
		{"DeleteIsIdempotent", deletes},
		{"ListIsInByteOrder", listOrder},
		{"ListPagesMeetWithoutGap", listPages},
		{"ListKeepsToThePrefix", listPrefix},
		{"OddKeysAreKeptApart", oddKeys},
		{"BadKeysAreInvalid", badKeys},
		{"EndedContextsDoNothing", endedContext},
		{"OneOfManyCreatesWins", raceCreate},
		{"NoSwapIsLost", raceSwap},
		{"CreateAndDeleteRaceCleanly", raceDelete},
		{"ReadsAreNeverTorn", torn},
		{"AnySequenceMatchesAMap", model},
		{"ProbeAccepts", probe},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			c.run(&s{T: t, b: b, ctx: t.Context(), without: without})
		})
	}
}

// s is one subtest.
type s struct {
	*testing.T
	b   bucket.Bucket
	ctx context.Context

	without []Limit
}

func (s *s) lacks(l Limit) bool { return slices.Contains(s.without, l) }

func (s *s) put(key, body string, c bucket.Condition) bucket.Tag {
	s.Helper()
	tag, err := s.b.Put(s.ctx, key, []byte(body), c)
	if err != nil {
		s.Fatalf("put %s: %v", key, err)
	}
	if tag == "" {
		s.Fatalf("put %s: no tag", key)
	}
	return tag
}

func (s *s) refuse(key string, c bucket.Condition, kinds ...error) {
	s.Helper()
	_, err := s.b.Put(s.ctx, key, []byte("must not appear"), c)
	s.is(err, kinds...)
}

// is fails unless err is of one of the kinds.
func (s *s) is(err error, kinds ...error) {
	s.Helper()
	for _, k := range kinds {
		if errors.Is(err, k) {
			return
		}
	}
	s.Fatalf("got error %v, want one of %v", err, kinds)
}

func (s *s) get(key string, o bucket.GetOptions) bucket.Object {
	s.Helper()
	obj, err := s.b.Get(s.ctx, key, o)
	if err != nil {
		s.Fatalf("get %s %+v: %v", key, o, err)
	}
	return obj
}

// holds fails unless Get and Head show exactly this body and tag.
func (s *s) holds(key, body string, tag bucket.Tag) {
	s.Helper()
	o := s.get(key, bucket.GetOptions{})
	if string(o.Body) != body || o.Tag != tag || o.Key != key || o.Size != int64(len(body)) {
		s.Fatalf("get %s: %.40q with %+v, want %.40q with tag %s", key, o.Body, o.Attrs, body, tag)
	}
	a, err := s.b.Head(s.ctx, key)
	if err != nil || a != o.Attrs {
		s.Fatalf("head %s: %+v, %v; get said %+v", key, a, err, o.Attrs)
	}
}

func (s *s) gone(key string) {
	s.Helper()
	_, err := s.b.Get(s.ctx, key, bucket.GetOptions{})
	s.is(err, errkind.NotFound)
	_, err = s.b.Head(s.ctx, key)
	s.is(err, errkind.NotFound)
}

// keys lists everything under prefix, in pages of max.
func (s *s) keys(prefix string, max int) (keys []string) {
	s.Helper()
	after := ""
	for {
		page, more, err := s.b.List(s.ctx, prefix, after, max)
		if err != nil {
			s.Fatalf("list %q after %q: %v", prefix, after, err)
		}
		if max > 0 && len(page) > max {
			s.Fatalf("list %q: %d keys in a page of %d", prefix, len(page), max)
		}
		for _, a := range page {
			if a.Key <= after {
				s.Fatalf("list %q: %q after %q", prefix, a.Key, after)
			}
			after = a.Key
			keys = append(keys, a.Key)
		}
		if !more {
			return keys
		}
		if len(page) == 0 {
			s.Fatalf("list %q after %q: an empty page that says more", prefix, after)
		}
	}
}

// pattern is n bytes that differ everywhere, the same for the same seed.
func pattern(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = append(b, byte(r.Uint32()), byte(r.Uint32()))
	}
	return bytes.Clone(b[:n])
}
