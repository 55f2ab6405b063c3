package manifest

import (
	"bytes"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestReshapingMarkComesAndGoes marks collections with and without options of their own, and
// takes the mark back: the options are as before.
func TestReshapingMarkComesAndGoes(t *testing.T) {
	t.Parallel()
	given, err := bson.Marshal(bson.D{{Key: "requireShardKey", Value: true}, {Key: "size", Value: 3}})
	if err != nil {
		t.Fatal(err)
	}
	for _, options := range []bson.Raw{nil, given} {
		c := Collection{Options: options}
		if c.Reshaping() {
			t.Errorf("%v is marked from the start", options)
		}
		first := c.WithReshaping([16]byte{1})
		second := first.WithReshaping([16]byte{2})
		if !first.Reshaping() || !second.Reshaping() || bytes.Equal(first.Options, second.Options) {
			t.Errorf("marked: %v, then %v", first.Options, second.Options)
		}
		if plain := second.WithoutReshaping(); plain.Reshaping() || !bytes.Equal(plain.Options, options) {
			t.Errorf("unmarked: %v, want %v", plain.Options, options)
		}
	}
}

func TestJobsSayOnWhichChunksTheyWork(t *testing.T) {
	ids := []ChunkID{3, 1 << 40, 7}
	if got := (Job{Detail: ChunksDetail(ids)}).Chunks(); !slices.Equal(got, ids) {
		t.Errorf("%v", got)
	}
	for _, d := range []bson.Raw{nil, JobDetail(5, "a.b")} {
		if got := (Job{Detail: d}).Chunks(); len(got) > 0 {
			t.Errorf("%v of %v", got, d)
		}
	}
}
