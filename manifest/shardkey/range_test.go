package shardkey

import (
	"testing"

	"pgregory.net/rapid"
)

// Ranges behave as the sets of keys they stand for, tried on all keys of up to two bytes
// from a small alphabet.
func TestRangesAreSetsOfKeys(t *testing.T) {
	t.Parallel()
	genKey := rapid.SliceOfN(rapid.ByteRange(1, 3), 0, 2)
	genRange := rapid.Custom(func(t *rapid.T) Range {
		return Range{genKey.Draw(t, "min"), genKey.Draw(t, "max")}
	})
	keys := [][]byte{{0}, {4}}
	for i := byte(1); i <= 3; i++ {
		keys = append(keys, []byte{i}, []byte{i, 0}, []byte{i, 4})
		for j := byte(1); j <= 3; j++ {
			keys = append(keys, []byte{i, j}, []byte{i, j, 0})
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := genRange.Draw(t, "a"), genRange.Draw(t, "b")
		both, overlap := a.Intersect(b)
		if overlap != a.Overlaps(b) || overlap && both.Empty() {
			t.Fatalf("%v and %v: intersect %v %v", a, b, both, overlap)
		}
		inA, inBoth, covered := 0, 0, true
		for _, k := range keys {
			if a.Contains(k) {
				inA++
			}
			if a.Contains(k) && b.Contains(k) {
				inBoth++
			}
			covered = covered && (a.Contains(k) || !b.Contains(k))
			if overlap && both.Contains(k) != (a.Contains(k) && b.Contains(k)) {
				t.Fatalf("%v and %v: %v contains %x: %v", a, b, both, k, both.Contains(k))
			}
		}
		if a.Empty() != (inA == 0) || overlap != (inBoth > 0) {
			t.Fatalf("%v: empty %v, overlaps %v %v; holds %d keys, shares %d", a, a.Empty(), b, overlap, inA, inBoth)
		}
		if a.Covers(b) && !covered || !a.Empty() && covered != a.Covers(b) {
			t.Fatalf("%v covers %v: %v, its keys %v", a, b, a.Covers(b), covered)
		}
	})
}

func TestRangeIsShownWithOpenEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r    Range
		want string
	}{
		{Range{}, "[-inf, +inf)"},
		{Range{Min: []byte{0x0A}}, "[0a, +inf)"},
		{Range{Max: []byte{0x10, 0xFF}}, "[-inf, 10ff)"},
	} {
		if got := c.r.String(); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	if PrefixEnd(nil) != nil {
		t.Error("everything has an end")
	}
}
