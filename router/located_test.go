package router

import (
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// zonedState is db.c with the key {k: 1} and the zone EU from s to t, whose shard is eu, with a
// location of its own; the chunk before it is on a, and the one behind it on shard last.
func zonedState(t *testing.T, last manifest.ShardID) *manifest.State {
	t.Helper()
	s := manifesttest.New(t, "a")
	low, high := manifesttest.Bound("s", false), manifesttest.Bound("t", false)
	key := shardkey.Pattern{Fields: []shardkey.Field{{Path: "k"}}}
	of := func(b manifest.Bound) manifest.Bound {
		k, full, err := key.Bound(b.BSON)
		if err != nil {
			t.Fatal(err)
		}
		return manifest.Bound{Key: k, BSON: full}
	}
	low, high = of(low), of(high)
	next, err := manifest.Apply(s, manifest.Edit{Op: manifest.OpID{1}, Changes: []manifest.Change{
		manifest.AddShards{IDs: []manifest.ShardID{"eu"}, URL: "s3://eu"},
		manifest.SetShardZones{ID: "eu", Zones: []string{"EU"}},
		manifest.CreateCollection{
			Collection: manifest.Collection{
				UUID: [16]byte{1}, Database: "db", Name: "c", Sharded: true, Key: key,
				Zones: []manifest.ZoneRange{{Zone: "EU", Range: shardkey.Range{Min: low.Key, Max: high.Key}, MinBSON: low.BSON, MaxBSON: high.BSON}},
			},
			Chunks: []manifest.NewChunk{
				{Min: manifest.Bound{BSON: key.MinBSON()}, Max: low, Shard: "a"}, {Min: low, Max: high, Shard: "eu"},
				{Min: high, Max: manifest.Bound{BSON: key.MaxBSON()}, Shard: last},
			},
		},
	}}, [16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// What decides about a document is told: the zone and its bounds, or the nearest ones.
func TestPlaceOfSaysWhatDecides(t *testing.T) {
	t.Parallel()
	s := zonedState(t, "a")
	for k, want := range map[string][]string{
		"s":  {"EU", "eu", "s3://eu", "zone EU has the range"},
		"sz": {"EU", "eu", "s3://eu", "zone EU has the range"},
		"t":  {"", "a", "", "the range before ends at"},
		"b":  {"", "a", "", "the next one begins at"},
	} {
		doc, err := bson.Marshal(bson.D{{Key: "k", Value: k}, {Key: "x", Value: 1}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := PlaceOf(s, Namespace{"db", "c"}, doc)
		if err != nil || p.Zone != want[0] || string(p.Shard) != want[1] || p.Location != want[2] || !strings.Contains(p.Why, want[3]) || !p.Right() {
			t.Errorf("%s: %+v, %v", k, p, err)
		}
	}
	if _, err := PlaceOf(s, Namespace{"db", "none"}, bson.Raw{5, 0, 0, 0, 0}); err == nil {
		t.Error("a collection that is not there has a place")
	}
}

// What belongs to no zone is placed on shards of the cluster's own bucket, and a collection with
// documents elsewhere is not written anew.
func TestLocatedShardsAreForTheirZones(t *testing.T) {
	t.Parallel()
	s := zonedState(t, "a")
	if ids := emptiestFirst(s, ""); len(ids) != 1 || ids[0] != "a" {
		t.Errorf("without a zone: %v", ids)
	}
	if ids := emptiestFirst(s, "EU"); len(ids) != 1 || ids[0] != "eu" {
		t.Errorf("of EU: %v", ids)
	}
	c := s.CollectionByName("db", "c")
	if err := inOnePlace(s, c, nil); err == nil || !strings.Contains(err.Error(), "shard eu, in s3://eu") {
		t.Errorf("got %v", err)
	}
	other := *c
	other.ID = 99 // no chunks
	if err := inOnePlace(s, &other, c.Zones); err == nil || !strings.Contains(err.Error(), "zone EU") {
		t.Errorf("got %v", err)
	}
}
