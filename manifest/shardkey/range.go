package shardkey

import (
	"bytes"
	"encoding/hex"
)

// Range is a half-open byte range [Min, Max) of keys. Empty Min is below every key, empty
// Max above every key: the first and the last chunk of a collection are unbounded, so that
// a field that holds a real MinKey or MaxKey still has a chunk.
//
// Min and Max are cut points, not row keys: usually the shard-key part of a key without the
// _id, so that a cut never separates rows of one shard-key value.
type Range struct{ Min, Max []byte }

// Contains tells whether key lies in r.
func (r Range) Contains(key []byte) bool {
	return bytes.Compare(r.Min, key) <= 0 && (len(r.Max) == 0 || bytes.Compare(key, r.Max) < 0)
}

// Empty tells whether no key lies in r.
func (r Range) Empty() bool {
	return len(r.Max) != 0 && bytes.Compare(r.Min, r.Max) >= 0
}

// Equal tells whether both ranges have the same ends.
func (r Range) Equal(o Range) bool {
	return bytes.Equal(r.Min, o.Min) && bytes.Equal(r.Max, o.Max)
}

// Overlaps tells whether some key may lie in both.
func (r Range) Overlaps(o Range) bool {
	_, ok := r.Intersect(o)
	return ok
}

// Intersect is the part that r and o share; false when there is none. The result aliases
// the bytes of r and o.
func (r Range) Intersect(o Range) (Range, bool) {
	x := r
	if CompareMin(o.Min, x.Min) > 0 {
		x.Min = o.Min
	}
	if CompareMax(o.Max, x.Max) < 0 {
		x.Max = o.Max
	}
	if x.Empty() || r.Empty() || o.Empty() {
		return Range{}, false
	}
	return x, true
}

// Covers tells whether every key of o lies in r.
func (r Range) Covers(o Range) bool {
	return o.Empty() || CompareMin(r.Min, o.Min) <= 0 && CompareMax(o.Max, r.Max) <= 0
}

// CompareMin orders two lower ends: the empty one is the lowest.
func CompareMin(a, b []byte) int { return bytes.Compare(a, b) }

// CompareMax orders two upper ends: the empty one is the highest.
func CompareMax(a, b []byte) int {
	switch {
	case len(a) == 0 && len(b) == 0:
		return 0
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return bytes.Compare(a, b)
}

// String is "[min, max)" in hexadecimal, with -inf and +inf for the open ends.
func (r Range) String() string {
	return "[" + openEnd(r.Min, "-inf") + ", " + openEnd(r.Max, "+inf") + ")"
}

func openEnd(key []byte, open string) string {
	if len(key) == 0 {
		return open
	}
	return hex.EncodeToString(key)
}

// PrefixEnd is a byte string above every key that starts with prefix and below every other
// key that is above them: prefix followed by FF, which starts no value. An empty prefix
// gives nil, the open end of a Range.
func PrefixEnd(prefix []byte) []byte {
	if len(prefix) == 0 {
		return nil
	}
	end := make([]byte, len(prefix)+1)
	copy(end, prefix)
	end[len(prefix)] = 0xFF
	return end
}
