package shardkey

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func TestBoundsAreCompleted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, bound, full, key string }{
		{`{"a": 1}`, `{"a": 5}`, `{"a": 5}`, "10c01400000000000000"},
		{`{"a": 1}`, `{"a": 5.0}`, `{"a": 5.0}`, "10c01400000000000000"},
		{`{"a": 1, "b": 1}`, `{"a": 5}`, `{"a": 5, "b": {"$minKey": 1}}`, "10c0140000000000000001"},
		{`{"a": 1, "b": 1}`, `{"a": {"$minKey": 1}}`, `{"a": {"$minKey": 1}, "b": {"$minKey": 1}}`, ""},
		{`{"a": 1, "b": 1}`, `{"a": {"$maxKey": 1}}`, `{"a": {"$maxKey": 1}, "b": {"$maxKey": 1}}`, ""},
		{`{"a": 1, "b": 1}`, `{"a": {"$maxKey": 1}, "b": {"$minKey": 1}}`, `{"a": {"$maxKey": 1}, "b": {"$minKey": 1}}`, "f001"},
		{`{"a": 1, "b": 1}`, `{"a": {"$minKey": 1}, "b": null}`, `{"a": {"$minKey": 1}, "b": null}`, "010a"},
		{`{"a": "hashed"}`, `{"a": {"$numberLong": "0"}}`, `{"a": {"$numberLong": "0"}}`, "108000000000000000"},
		{`{"a": "hashed", "b": 1}`, `{"a": {"$numberLong": "-1"}}`, `{"a": {"$numberLong": "-1"}, "b": {"$minKey": 1}}`, "107fffffffffffffff01"},
		{`{"a": 1, "b": "hashed"}`, `{"a": "x"}`, `{"a": "x", "b": {"$minKey": 1}}`, "2078000101"},
		{`{"a.b": 1}`, `{"a.b": "x"}`, `{"a.b": "x"}`, "20780001"},
	} {
		key, full, err := pattern(t, c.spec).Bound(ext(t, c.bound))
		if err != nil || fmt.Sprintf("%x", key) != c.key || !bytes.Equal(full, ext(t, c.full)) {
			t.Errorf("%s of %s: key %x, full %v, %v; want %s, %s", c.bound, c.spec, key, full, err, c.key, c.full)
		}
		again, fullAgain, err := pattern(t, c.spec).Bound(full)
		if err != nil || !bytes.Equal(again, key) || !bytes.Equal(fullAgain, full) {
			t.Errorf("%v of %s changes when read again: %x, %v, %v", full, c.spec, again, fullAgain, err)
		}
	}
}

func TestWrongBoundsAreRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, bound, reason string }{
		{`{"a": 1, "b": 1}`, `{}`, "empty"},
		{`{"a": 1, "b": 1}`, `{"b": 1}`, `where the key has "a"`},
		{`{"a": 1, "b": 1}`, `{"a": 1, "c": 1}`, `where the key has "b"`},
		{`{"a": 1}`, `{"a": 1, "_id": 1}`, "not in the key"},
		{`{"a": 1}`, `{"a": [1]}`, "array"},
		{`{"a": "hashed"}`, `{"a": "x"}`, "NumberLong"},
		{`{"a": "hashed"}`, `{"a": 5}`, "NumberLong"},
	} {
		_, _, err := pattern(t, c.spec).Bound(ext(t, c.bound))
		if !errors.Is(err, errkind.Invalid) || !strings.Contains(fmt.Sprint(err), c.reason) {
			t.Errorf("%s of %s: %v, want %s", c.bound, c.spec, err, c.reason)
		}
	}
	if _, _, err := pattern(t, `{"a": 1}`).Bound(bson.Raw{9, 0, 0, 0, 16, 'a', 0, 1, 0}); !errors.Is(err, errkind.Invalid) {
		t.Errorf("malformed bound: %v", err)
	}
}

func TestRangesOfBounds(t *testing.T) {
	t.Parallel()
	p := pattern(t, `{"a": 1, "b": 1}`)
	min, max := ext(t, `{"a": {"$minKey": 1}}`), ext(t, `{"a": {"$maxKey": 1}}`)
	r, fullMin, fullMax, err := p.Range(min, max)
	if err != nil || !r.Equal(Range{}) || !bytes.Equal(fullMin, p.MinBSON()) || !bytes.Equal(fullMax, p.MaxBSON()) {
		t.Errorf("everything: %v, %v, %v, %v", r, fullMin, fullMax, err)
	}
	five, six := ext(t, `{"a": 5}`), ext(t, `{"a": 6.0, "b": "x"}`)
	if r, _, _, err := p.Range(five, six); err != nil || len(r.Min) == 0 || len(r.Max) == 0 {
		t.Errorf("5 to 6: %v, %v", r, err)
	}
	for _, c := range [][2]bson.Raw{{five, five}, {six, five}, {five, min}, {max, five}, {max, max}, {min, min}, {max, min}, {five, ext(t, `{"x": 1}`)}, {ext(t, `{}`), five}} {
		if _, _, _, err := p.Range(c[0], c[1]); !errors.Is(err, errkind.Invalid) {
			t.Errorf("range of %v: %v", c, err)
		}
	}
}

// A bound at a row has the row above it and every lower shard key below it, reads back from
// its BSON, and is the same bound for every row with that shard key.
func TestBoundOfARowCutsRightBelowIt(t *testing.T) {
	t.Parallel()
	patterns := []Pattern{pattern(t, `{"a": 1, "b": 1}`), pattern(t, `{"a": "hashed", "b": 1}`), pattern(t, `{"b": 1, "a": "hashed"}`), pattern(t, `{"a": 1, "_id": 1}`)}
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom(patterns).Draw(t, "pattern")
		row, other := genRow(t, p), genRow(t, p)
		bound, full, err := p.BoundOf(row)
		if err != nil {
			return // all MinKey or all MaxKey
		}
		key, err := p.AppendKey(nil, row)
		if err != nil || bytes.Compare(bound, key) > 0 {
			t.Fatalf("bound %x of row %x, %v", bound, key, err)
		}
		again, fullAgain, err := p.Bound(full)
		if err != nil || !bytes.Equal(again, bound) || !bytes.Equal(fullAgain, full) {
			t.Fatalf("%v reads back as %x, %v, %v; want %x", full, again, fullAgain, err, bound)
		}
		otherKey, _ := p.AppendKey(nil, other)
		otherShardKey, _ := p.AppendShardKey(nil, other)
		if (bytes.Compare(otherKey, bound) >= 0) != (bytes.Compare(otherShardKey, bound) >= 0) {
			t.Fatalf("bound %x separates row %x from its shard key", bound, otherKey)
		}
	})
}

func TestBoundOfARowAtTheEndIsRefused(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{`{"_id": 1, "a": {"$minKey": 1}}`, `{"_id": 1, "a": {"$maxKey": 1}}`} {
		if _, _, err := pattern(t, `{"a": 1}`).BoundOf(ext(t, doc)); !errors.Is(err, errkind.Invalid) {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

// The cut points of a new hashed collection are those of MongoDB.
func TestHashedInitialPointsAreEven(t *testing.T) {
	t.Parallel()
	p := pattern(t, `{"a": "hashed", "b": 1}`)
	for n, want := range map[int][]int64{
		0: nil, 1: nil,
		2: {0},
		3: {-3074457345618258602, 3074457345618258602},
		4: {-4611686018427387902, 0, 4611686018427387902},
		5: {-5534023222112865483, -1844674407370955161, 1844674407370955161, 5534023222112865483},
	} {
		var got []int64
		for _, b := range HashedInitialPoints(p, n) {
			got = append(got, b.BSON.Lookup("a").Int64())
			if b.BSON.Lookup("b").Type != bson.TypeMinKey {
				t.Errorf("%v: field behind the hashed one", b.BSON)
			}
			if key, _, err := p.Bound(b.BSON); err != nil || !bytes.Equal(key, b.Key) {
				t.Errorf("%v: key %x, want %x, %v", b.BSON, b.Key, key, err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d parts: %v, want %v", n, got, want)
		}
	}
	points := HashedInitialPoints(p, 10_000)
	if len(points) != 9999 || !slices.IsSortedFunc(points, func(a, b Bound) int { return bytes.Compare(a.Key, b.Key) }) {
		t.Errorf("10,000 parts have %d points, or not in order", len(points))
	}
}

func TestHashedInitialPointsWithinAPrefix(t *testing.T) {
	t.Parallel()
	p := pattern(t, `{"region": 1, "a": "hashed"}`)
	eu := rawOf(t, "eu")
	points := HashedInitialPoints(p, 3, eu)
	if len(points) != 2 || !bytes.HasPrefix(points[0].Key, encode(eu)) || bytes.Compare(points[0].Key, points[1].Key) >= 0 {
		t.Errorf("points within eu: %v", points)
	}
	if HashedInitialPoints(p, 3) != nil || HashedInitialPoints(pattern(t, `{"a": 1}`), 3) != nil || HashedInitialPoints(p, 3, rawOf(t, bson.A{})) != nil {
		t.Error("points where there can be none")
	}
}

func ExamplePattern_Bound() {
	spec, _ := bson.Marshal(bson.D{{Key: "region", Value: 1}, {Key: "customer", Value: 1}})
	p, _ := ParsePattern(spec)
	eu, _ := bson.Marshal(bson.D{{Key: "region", Value: "eu"}})
	key, full, _ := p.Bound(eu)
	fmt.Printf("%x %v\n", key, full)
	// Output:
	// 206575000101 {"region": "eu","customer": {"$minKey":1}}
}

func ExampleHashedInitialPoints() {
	p := Pattern{Fields: []Field{{Path: "_id", Hashed: true}}}
	for _, b := range HashedInitialPoints(p, 4) {
		fmt.Printf("%x %v\n", b.Key, b.BSON)
	}
	// Output:
	// 104000000000000002 {"_id": {"$numberLong":"-4611686018427387902"}}
	// 108000000000000000 {"_id": {"$numberLong":"0"}}
	// 10bffffffffffffffe {"_id": {"$numberLong":"4611686018427387902"}}
}
