package manifest_test

import (
	"errors"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// TestKeysComeBack turns names into object keys and back, and refuses what is none.
func TestKeysComeBack(t *testing.T) {
	t.Parallel()
	for _, id := range []manifest.SegmentID{
		{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "shard01", Epoch: 7}, Random: [16]byte{0xAB, 1}},
		{Creator: manifest.Creator{Kind: manifest.CreatorDirect, Shard: "a-b", Epoch: 0}},
		{Creator: manifest.Creator{Kind: manifest.CreatorJob, Job: [16]byte{1, 2, 3}}, Random: [16]byte{15: 9}},
	} {
		back, err := manifest.ParseSegmentKey(id.Key())
		if err != nil || back != id || id.String() != id.Key() {
			t.Errorf("%s came back as %v, %v", id.Key(), back, err)
		}
	}
	for _, key := range []string{
		"", "seg", "seg/ab/s.a.1", "wal/ab/s.a.1/ab000000000000000000000000000000",
		"seg/ac/s.a.1/ab000000000000000000000000000000", "seg/ab/s.a/ab000000000000000000000000000000",
		"seg/ab/j.12/ab000000000000000000000000000000", "seg/zz/s.a.1/zz000000000000000000000000000000",
		"seg/ab/s.a.x/ab000000000000000000000000000000", "seg/ab/x.a.1/ab000000000000000000000000000000",
	} {
		if id, err := manifest.ParseSegmentKey(key); !errors.Is(err, errkind.Invalid) {
			t.Errorf("%q reads as %v, %v", key, id, err)
		}
	}
	key := manifest.WALKey("a", 3, 12)
	if s, e, i, err := manifest.ParseWALKey(key); err != nil || s != "a" || e != 3 || i != 12 {
		t.Errorf("%s came back as %s %d %d, %v", key, s, e, i, err)
	}
	for _, key := range []string{"", "wal/a/3/12", "wal/a/x/00000000000000000012", key + "/1"} {
		if _, _, _, err := manifest.ParseWALKey(key); !errors.Is(err, errkind.Invalid) {
			t.Errorf("%q is a WAL key: %v", key, err)
		}
	}
}

// TestPositionsCompareAsPairs.
func TestPositionsCompareAsPairs(t *testing.T) {
	t.Parallel()
	p, q := manifest.Position{Epoch: 1, Next: 9}, manifest.Position{Epoch: 2, Next: 3}
	if !p.Less(q) || q.Less(p) || p.Less(p) || manifest.MaxPosition(p, q) != q || manifest.MaxPosition(q, p) != q {
		t.Error("order")
	}
	for _, c := range []struct {
		e    manifest.Epoch
		i    uint64
		want bool
	}{{1, 1000, true}, {2, 2, true}, {2, 3, false}, {3, 0, false}} {
		if q.Covers(c.e, c.i) != c.want {
			t.Errorf("%s covers (%d, %d): %v", q, c.e, c.i, !c.want)
		}
	}
}
