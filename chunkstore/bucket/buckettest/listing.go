package buckettest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

func hostOf() host.Host { return host.System() }

// spread are keys whose byte order is not the order of a walk through directories by name:
// '-' and '.' sort before '/', digits and letters after it.
var spread = []string{
	"a", "a-", "a-b/c", "a.b", "a0", "aa/b", "b/a", "b-a", "b.a/x", "b/a-", "b/a0/c",
	"meta/page/1/x", "meta/page/10/x", "meta/page/2/x", "meta/root", "seg/00/s.a.1/ff", "seg/ff/j.a/00", "wal/s/1/2", "z",
}

func (s *s) fill(keys []string) []string {
	s.Helper()
	for _, k := range keys {
		s.put(k, "body of "+k, bucket.IfAbsent)
	}
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	return sorted
}

func listOrder(s *s) {
	if got := s.keys("", 0); len(got) != 0 {
		s.Fatalf("an empty bucket lists %v", got)
	}
	want := s.fill(spread)
	for _, max := range []int{0, 1, 2, 3, len(want) - 1, len(want), len(want) + 1, 100_000} {
		if d := cmp.Diff(want, s.keys("", max)); d != "" {
			s.Errorf("pages of %d (-want +got):\n%s", max, d)
		}
	}
	page, _, err := s.b.List(s.ctx, "meta/root", "", 0)
	if err != nil || len(page) != 1 {
		s.Fatal(page, err)
	}
	a, err := s.b.Head(s.ctx, "meta/root")
	if err != nil || page[0] != a {
		s.Fatalf("list says %+v, head %+v, %v", page[0], a, err)
	}
}

// listPages: from every starting point, key or not, the page begins with the next key.
func listPages(s *s) {
	want := s.fill(spread)
	for _, after := range append(slices.Clone(want), "", "\x00", "a/", "a/zzz", "b", "b/", "b/a~", "meta", "meta/page/1", "~", "zz") {
		i, exact := slices.BinarySearch(want, after)
		if exact {
			i++
		}
		for _, max := range []int{1, 3} {
			page, more, err := s.b.List(s.ctx, "", after, max)
			if err != nil {
				s.Fatal(err)
			}
			to := min(i+max, len(want))
			var got []string
			for _, a := range page {
				got = append(got, a.Key)
			}
			if !slices.Equal(got, want[i:to]) || more != (to < len(want)) {
				s.Errorf("after %q, %d: %v more=%v, want %v", after, max, got, more, want[i:to])
			}
		}
	}
}

func listPrefix(s *s) {
	want := s.fill(spread)
	for _, prefix := range []string{"a", "a-", "a/", "b", "b/", "b/a", "meta/", "meta/p", "meta/page/1", "meta/page/1/", "meta/root", "seg/", "x", "zz", "z/"} {
		var in []string
		for _, k := range want {
			if strings.HasPrefix(k, prefix) {
				in = append(in, k)
			}
		}
		for _, max := range []int{0, 1} {
			if d := cmp.Diff(in, s.keys(prefix, max)); d != "" {
				s.Errorf("prefix %q, pages of %d (-want +got):\n%s", prefix, max, d)
			}
		}
	}
	page, more, err := s.b.List(s.ctx, "b", "c", 0)
	if err != nil || len(page) > 0 || more {
		s.Errorf("after beyond the prefix: %v, %v, %v", page, more, err)
	}
	page, _, err = s.b.List(s.ctx, "b/", "a", 1)
	if err != nil || len(page) != 1 || page[0].Key != "b/a" {
		s.Errorf("after before the prefix: %v, %v", page, err)
	}
}

// oddKeys: keys that file systems like to mix up or to refuse are kept apart and listed.
func oddKeys(s *s) {
	keys := []string{
		"Case", "case", "%41", "A", "%", "%2", "%zz", "a b", "tab\there", "new\nline", "star*", "back\\slash",
		"colon:x", ".hidden", "..dots", "...", "trail.", "trail ", " lead", "q?x=1&y", "#hash", "'\"", "CON", "nul",
		"\u00e9", "e\u0301", "\u65e5\u672c/\u8a9e", "\U0001F33E", "~", "a+b",
		strings.Repeat("x", bucket.ComponentBytesMax),
		strings.Repeat("c/", 400) + "deep",
	}
	if !s.lacks(ControlKeys) {
		keys = append(keys, "\x01\x7f")
	}
	for i, k := range keys {
		keys[i] = "odd/" + k
	}
	want := s.fill(keys)
	for _, k := range want {
		if got := s.get(k, bucket.GetOptions{}).Body; string(got) != "body of "+k {
			s.Errorf("%q holds %.40q", k, got)
		}
	}
	if d := cmp.Diff(want, s.keys("odd/", 3)); d != "" {
		s.Errorf("listed (-want +got):\n%s", d)
	}
	for _, k := range want {
		if err := s.b.Delete(s.ctx, k); err != nil {
			s.Errorf("delete %q: %v", k, err)
		}
	}
	if left := s.keys("", 0); len(left) > 0 {
		s.Errorf("left: %q", left)
	}
}

func badKeys(s *s) {
	for _, k := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/.", "nul\x00", "\xff", "a/\xc3(",
		strings.Repeat("x", bucket.ComponentBytesMax+1), strings.Repeat("a/", bucket.KeyBytesMax/2) + "b",
	} {
		_, err := s.b.Get(s.ctx, k, bucket.GetOptions{})
		s.is(err, errkind.Invalid)
		_, err = s.b.Head(s.ctx, k)
		s.is(err, errkind.Invalid)
		s.refuse(k, bucket.Condition{}, errkind.Invalid)
		s.refuse(k, bucket.IfAbsent, errkind.Invalid)
		s.is(s.b.Delete(s.ctx, k), errkind.Invalid)
	}
	if got := s.keys("", 0); len(got) != 0 {
		s.Fatalf("a bad key was stored: %q", got)
	}
	if err := fmt.Sprint(bucket.CheckKey("a//b")); !strings.Contains(err, "empty component") {
		s.Errorf("the error does not name the rule: %s", err)
	}
}
