package manifest_test

import (
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func rawOf(t *testing.T, d any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The collection's own size is before the cluster's, and a switch that is off anywhere is off.
func TestChunkSizeAndSwitches(t *testing.T) {
	base, err := manifest.Create(t.Context(), &manifesttest.MemCell{}, manifesttest.Host(1), manifest.InitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set := func(s *manifest.State, id string, body any) *manifest.State {
		t.Helper()
		next, err := manifest.Apply(s, manifest.Edit{Op: manifest.OpID{byte(s.Version())}, Changes: []manifest.Change{
			manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordSetting, ID: id, Body: rawOf(t, body)}},
		}}, [16]byte{byte(s.Version())})
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	for _, value := range []any{128, int64(128), 128.0} {
		s := set(base, "chunksize", bson.D{{Key: "value", Value: value}})
		if n := s.ChunkSize(&manifest.Collection{}); n != 128<<20 {
			t.Errorf("value %v: %d", value, n)
		}
		own := &manifest.Collection{Options: manifest.WithChunkSize(nil, 1<<21)}
		if n := s.ChunkSize(own); n != 1<<21 {
			t.Errorf("own size: %d", n)
		}
	}
	if n := base.ChunkSize(&manifest.Collection{Options: manifest.WithChunkSize(manifest.WithChunkSize(nil, 5), 0)}); n != manifest.ChunkSizeDefault {
		t.Errorf("nobody said: %d", n)
	}
	plain, off := &manifest.Collection{}, &manifest.Collection{Options: manifest.WithAutoMerge(manifest.WithAutoSplit(nil, false), false)}
	if !base.AutoSplit(plain) || !base.AutoMerge(plain) || base.AutoSplit(off) || base.AutoMerge(off) {
		t.Error("on unless the collection says no")
	}
	s := set(set(base, "autosplit", bson.D{{Key: "enabled", Value: false}}), "automerge", bson.D{{Key: "enabled", Value: false}})
	if s.AutoSplit(plain) || s.AutoMerge(plain) {
		t.Error("off when the cluster says no")
	}
	if o := manifest.WithAutoMerge(manifest.WithAutoSplit(off.Options, true), true); o != nil {
		t.Errorf("back as it was: %v", o)
	}
}
