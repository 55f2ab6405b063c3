package manifest_test

import (
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// The pace of compactions is what the setting says, never less than the least; without one, and
// where it says nothing that makes sense, nobody said.
func TestCompactionPaceIsASetting(t *testing.T) {
	base, err := manifest.Create(t.Context(), &manifesttest.MemCell{}, manifesttest.Host(1), manifest.InitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		body            bson.D
		bytes, requests int64
	}{
		{bson.D{{Key: "bytesPerSecond", Value: int64(5 << 20)}, {Key: "requestsPerSecond", Value: 20.0}}, 5 << 20, 20},
		{bson.D{{Key: "bytesPerSecond", Value: 7}}, manifest.CompactionBytesMin, 0},
		{bson.D{{Key: "bytesPerSecond", Value: "much"}, {Key: "requestsPerSecond", Value: -1}}, 0, 0},
		{nil, 0, 0},
	} {
		s := base
		if x.body != nil {
			s, err = manifest.Apply(base, manifest.Edit{Op: manifest.OpID{1}, Changes: []manifest.Change{
				manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordSetting, ID: "compaction", Body: rawOf(t, x.body)}},
			}}, [16]byte{1})
			if err != nil {
				t.Fatal(err)
			}
		}
		if bytes, requests := s.CompactionPace(); bytes != x.bytes || requests != x.requests {
			t.Errorf("%v: %d, %d", x.body, bytes, requests)
		}
	}
}
