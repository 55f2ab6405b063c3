package buckettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

func roundTrip(s *s) {
	tag := s.put("meta/root", "hello", bucket.IfAbsent)
	s.holds("meta/root", "hello", tag)
	if s.b.String() == "" {
		s.Fatal("String is empty")
	}
}

func sizes(s *s) {
	for _, n := range []int{0, 1, 23, 24, 25, 4095, 4096, 65536, 1<<20 + 1, 9 << 20} {
		key, body := fmt.Sprintf("seg/size/%d", n), string(pattern(n, uint64(n)))
		s.holds(key, body, s.put(key, body, bucket.IfAbsent))
	}
}

// copies: the store keeps no reference to a caller's body, nor a caller to the store's.
func copies(s *s) {
	body := []byte("abc")
	if _, err := s.b.Put(s.ctx, "k", body, bucket.Condition{}); err != nil {
		s.Fatal(err)
	}
	body[0] = 'X'
	s.get("k", bucket.GetOptions{}).Body[1] = 'X'
	s.get("k", bucket.GetOptions{Offset: 2, Length: 1}).Body[0] = 'X'
	if got := s.get("k", bucket.GetOptions{}).Body; string(got) != "abc" {
		s.Fatalf("the object changed to %q", got)
	}
}

func missing(s *s) {
	s.put("a/b/c", "x", bucket.IfAbsent)
	for _, key := range []string{"b", "a/b/d", "a/b/cc", "a/x/c"} {
		s.gone(key)
	}
	_, err := s.b.Get(s.ctx, "b", bucket.GetOptions{Offset: 5, Length: 5, IfNoneMatch: "t"})
	s.is(err, errkind.NotFound)
	s.gone("a/b") // a component is no object
}

func createOnce(s *s) {
	tag := s.put("k", "one", bucket.IfAbsent)
	s.refuse("k", bucket.IfAbsent, errkind.Conflict)
	s.holds("k", "one", tag)
	if err := s.b.Delete(s.ctx, "k"); err != nil {
		s.Fatal(err)
	}
	s.holds("k", "two", s.put("k", "two", bucket.IfAbsent))
}

func swap(s *s) {
	one := s.put("k", "one", bucket.IfAbsent)
	two := s.put("k", "two", bucket.IfMatch(one))
	s.refuse("k", bucket.IfMatch(one), errkind.Conflict)
	s.refuse("k", bucket.IfMatch("no such tag"), errkind.Conflict)
	s.holds("k", "two", two)
	s.holds("k", "", s.put("k", "", bucket.IfMatch(two)))
}

func swapMissing(s *s) {
	tag := s.put("k", "one", bucket.IfAbsent)
	if err := s.b.Delete(s.ctx, "k"); err != nil {
		s.Fatal(err)
	}
	s.refuse("k", bucket.IfMatch(tag), errkind.Conflict, errkind.NotFound)
	s.gone("k")
	s.refuse("never/was", bucket.IfMatch(tag), errkind.Conflict, errkind.NotFound)
	s.gone("never/was")
}

func replace(s *s) {
	old := s.put("k", "a longer first body", bucket.Condition{})
	tag := s.put("k", "short", bucket.Condition{})
	s.holds("k", "short", tag)
	s.refuse("k", bucket.IfMatch(old), errkind.Conflict)
}

// tags: the same bytes twice are two versions, else a swap could not tell that someone else
// went there and back.
func tags(s *s) {
	first := s.put("k", "same", bucket.IfAbsent)
	second := s.put("k", "same", bucket.IfMatch(first))
	if first == second {
		s.Skip("this store's tags follow the bytes (an ETag may): every body of ours has a nonce")
	}
	s.refuse("k", bucket.IfMatch(first), errkind.Conflict)
}

func notModified(s *s) {
	tag := s.put("k", "body", bucket.IfAbsent)
	_, err := s.b.Get(s.ctx, "k", bucket.GetOptions{IfNoneMatch: tag})
	s.is(err, errkind.NotModified)
	_, err = s.b.Get(s.ctx, "k", bucket.GetOptions{IfNoneMatch: tag, Offset: 1, Length: 2})
	s.is(err, errkind.NotModified)
	next := s.put("k", "body2", bucket.IfMatch(tag))
	o := s.get("k", bucket.GetOptions{IfNoneMatch: tag})
	if string(o.Body) != "body2" || o.Tag != next {
		s.Fatalf("got %q with tag %s", o.Body, o.Tag)
	}
}

func ranges(s *s) {
	const n = 10_000
	body := pattern(n, 1)
	tag := s.put("k", string(body), bucket.IfAbsent)
	for _, c := range []struct{ offset, length, from, to int64 }{
		{0, 0, 0, n}, {0, 1, 0, 1}, {0, n, 0, n}, {0, n + 1, 0, n}, {0, 1 << 60, 0, n},
		{1, 0, 1, n}, {1, 1, 1, 2}, {4095, 2, 4095, 4097}, {n - 1, 0, n - 1, n},
		{n - 1, 1, n - 1, n}, {n - 1, 9, n - 1, n}, {n - 24, 24, n - 24, n}, {5, n, 5, n},
	} {
		o := s.get("k", bucket.GetOptions{Offset: c.offset, Length: c.length})
		if !bytes.Equal(o.Body, body[c.from:c.to]) {
			s.Errorf("range %d+%d: %d bytes, want [%d,%d)", c.offset, c.length, len(o.Body), c.from, c.to)
		}
		if o.Size != n || o.Tag != tag {
			s.Errorf("range %d+%d: attributes %+v", c.offset, c.length, o.Attrs)
		}
	}
	for _, o := range []bucket.GetOptions{{Offset: n}, {Offset: n, Length: 1}, {Offset: n + 1}, {Offset: 1 << 60}, {Offset: -1}, {Length: -1}} {
		_, err := s.b.Get(s.ctx, "k", o)
		s.is(err, errkind.Invalid)
	}
	s.put("empty", "", bucket.IfAbsent)
	if o := s.get("empty", bucket.GetOptions{}); len(o.Body) != 0 {
		s.Fatalf("%d bytes of an empty object", len(o.Body))
	}
	_, err := s.b.Get(s.ctx, "empty", bucket.GetOptions{Offset: 1})
	s.is(err, errkind.Invalid)
}

func deletes(s *s) {
	s.put("a/b", "x", bucket.IfAbsent)
	s.put("a/c", "y", bucket.IfAbsent)
	for range 2 {
		if err := s.b.Delete(s.ctx, "a/b"); err != nil {
			s.Fatal(err)
		}
		s.gone("a/b")
	}
	for _, key := range []string{"never/was", "a", "a/c/d"} {
		if err := s.b.Delete(s.ctx, key); err != nil {
			s.Fatalf("delete of a missing key: %v", err)
		}
	}
	if o := s.get("a/c", bucket.GetOptions{}); string(o.Body) != "y" {
		s.Fatal("another key was touched")
	}
}

// endedContext: a verb whose context ended before the call fails with the context's error,
// and a write says that nothing was done.
func endedContext(s *s) {
	tag := s.put("k", "x", bucket.IfAbsent)
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	_, err := s.b.Get(ctx, "k", bucket.GetOptions{})
	s.is(err, context.Canceled)
	_, err = s.b.Head(ctx, "k")
	s.is(err, context.Canceled)
	_, _, err = s.b.List(ctx, "", "", 0)
	s.is(err, context.Canceled)
	for _, c := range []bucket.Condition{{}, bucket.IfAbsent, bucket.IfMatch(tag)} {
		_, err = s.b.Put(ctx, "k", []byte("y"), c)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, errkind.Throttled) && !errors.Is(err, errkind.Conflict) {
			s.Fatalf("put: %v", err)
		}
	}
	_, err = s.b.Put(ctx, "new", []byte("y"), bucket.IfAbsent)
	s.is(err, context.Canceled)
	s.is(s.b.Delete(ctx, "k"), context.Canceled)
	s.holds("k", "x", tag)
	s.gone("new")
}

func probe(s *s) {
	if err := bucket.Probe(s.ctx, s.b, hostOf()); err != nil {
		s.Fatal(err)
	}
	if left := s.keys("meta/probe/", 0); len(left) > 0 {
		s.Fatalf("left behind: %v", left)
	}
}
