package manifest_test

import (
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestBoundsInsideAValue: a bound with the _id is read where a collection has the switch and the
// key does not have the _id itself, and sorts behind all bounds of lower values.
func TestBoundsInsideAValue(t *testing.T) {
	doc := func(d bson.D) bson.Raw {
		b, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	k := func(v any) bson.E { return bson.E{Key: "k", Value: v} }
	id := func(v any) bson.E { return bson.E{Key: "_id", Value: v} }
	plain := manifest.Collection{Database: "db", Name: "c", Key: shardkey.Pattern{Fields: []shardkey.Field{{Path: "k"}}}}
	within := plain.WithSplitWithinKey(1000)
	if _, _, err := plain.Bound(doc(bson.D{k(5), id(1)})); err == nil {
		t.Error("a bound with _id was read without the switch")
	}
	inside, full, err := within.Bound(doc(bson.D{k(5), id(1)}))
	if err != nil || !within.WithinKey(full) {
		t.Fatalf("%v, %v", full, err)
	}
	whole, full, err := within.Bound(doc(bson.D{k(5)}))
	if err != nil || within.WithinKey(full) || string(whole) >= string(inside) || !strings.HasPrefix(string(inside), string(whole)) {
		t.Errorf("%x, %v, %v: is not below %x", whole, full, err, inside)
	}
	if r, err := within.Bounds(doc(bson.D{k(bson.MinKey{})}), doc(bson.D{k(5), id(1)})); err != nil || r.Min != nil || string(r.Max) != string(inside) {
		t.Errorf("%v, %v", r, err)
	}
	for _, pair := range [][2]bson.D{
		{{k(bson.MaxKey{})}, {k(5), id(1)}}, {{k(5), id(1)}, {k(bson.MinKey{})}}, {{k(5), id(1)}, {k(5)}}, {{k(5), id(1)}, {k(5), id(1)}}, {{k(5), id(bson.A{})}, {k(6)}},
	} {
		if r, err := within.Bounds(doc(pair[0]), doc(pair[1])); err == nil {
			t.Errorf("%v was read as %v", pair, r)
		}
	}
	const hour = 3600_000
	if plain.CutsWithinKey(1e12) || within.CutsWithinKey(hour) || !within.CutsWithinKey(1000+hour) {
		t.Error("values are cut an hour after the switch, not before, and without it never")
	}
	if fresh := plain.WithSplitWithinKey(0); !fresh.CutsWithinKey(1) {
		t.Error("a new collection waits")
	}
	byID := manifest.Collection{SplitWithinKey: true, Key: shardkey.Pattern{Fields: []shardkey.Field{{Path: "_id"}}}}
	if byID.CutsWithinKey(1e12) {
		t.Error("a value that is one document is cut")
	}
}
