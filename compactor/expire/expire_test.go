package expire

import (
	"errors"
	"math"
	"testing"

	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// planned are the references that leave at a time, by the last byte of their segments' names.
func planned(s *manifest.State, now int64) (names []byte) {
	for _, x := range Plan(s, now) {
		for _, r := range x.Refs {
			names = append(names, r.Segment.Random[15])
		}
	}
	return names
}

// A reference leaves a minute after the last of its rows expired, never while an older one may
// have versions of its rows, and never when one of its rows has no date, or the dates are of
// another index.
func TestWhatLeavesAndWhen(t *testing.T) {
	t.Parallel()
	spec := bson.Raw(bsoncore.NewDocumentBuilder().
		AppendDocument("key", bsoncore.NewDocumentBuilder().AppendInt32("at", 1).Build()).
		AppendString("name", "at_1").AppendInt32(expiry.Field, 10).Build())
	rule := expiry.Of(&manifest.Collection{Indexes: []manifest.Index{{Name: "at_1", Spec: spec}}})
	var dates expiry.Dates
	dates.Add(rule, bson.Raw(bsoncore.NewDocumentBuilder().AppendDateTime("at", 5000).Build()))
	of := dates.Bounds().Of

	s := manifesttest.New(t, "a")
	s = manifesttest.Apply(t, s, "create db.c chunks=a")
	s = manifesttest.Apply(t, s, "claim a epoch=0 holder=p1")
	coll := *s.Collections()[0]
	with := coll
	with.Indexes = []manifest.Index{{Name: "at_1", Spec: spec}}
	var chunk *manifest.Chunk
	for c := range s.Chunks(coll.ID) {
		chunk = c
	}
	ref := func(name byte, min, max string, seq manifest.Seq, d manifest.DateBounds) manifest.SegmentRef {
		r := manifest.SegmentRef{
			Segment: manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "a", Epoch: 1}},
			MinKey:  []byte(min), MaxKey: []byte(max), MinSeq: seq, MaxSeq: seq, Rows: 1, Bytes: 1, Size: 1, Dates: d,
		}
		r.Segment.Random[15] = name
		return r
	}
	refs := []manifest.SegmentRef{
		ref(1, "a", "c", 1, manifest.DateBounds{Of: of, Min: 0, Max: 5000}),
		ref(2, "b", "d", 2, manifest.DateBounds{Of: of, Min: 0, Max: 1000}), // over 1
		ref(3, "e", "f", 3, manifest.DateBounds{Of: of, Min: 0, Max: math.MaxInt64}),
		ref(4, "e", "g", 4, manifest.DateBounds{Of: of, Min: 0, Max: 1}), // over 3
		ref(5, "m", "n", 5, manifest.DateBounds{Of: of + 1, Min: 0, Max: 1}),
		ref(6, "p", "q", 6, manifest.DateBounds{}),
		ref(7, "r", "s", 7, manifest.DateBounds{Of: of, Min: 1, Max: 2000}),
	}
	s, err := manifest.Apply(s, manifest.Edit{Op: manifesttest.Nonce(90), Changes: []manifest.Change{
		manifest.AlterCollection{Was: coll, Now: with},
		manifest.Flush{Shard: "a", Epoch: 1, Snapshot: manifest.Position{Epoch: 1, Next: 1}, Complete: true, Chunks: []manifest.FlushedChunk{{
			At: chunk.At(), Added: manifest.Added{Refs: refs, RowsDelta: 7},
		}}},
	}}, manifesttest.Nonce(91))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		now  int64
		want string
	}{{71_999, ""}, {72_000, "\x07"}, {74_999, "\x07"}, {75_000, "\x01\x02\x07"}, {1 << 50, "\x01\x02\x07"}} {
		if got := planned(s, x.now); string(got) != x.want {
			t.Errorf("at %d %v leave, want %v", x.now, got, []byte(x.want))
		}
	}
	for _, x := range Plan(s, 1<<50) {
		next, err := manifest.Apply(s, manifest.Edit{Op: manifesttest.Nonce(92), Changes: []manifest.Change{x}}, manifesttest.Nonce(93))
		if err != nil {
			t.Fatal(err)
		}
		if left := planned(next, 1<<50); left != nil {
			t.Errorf("%v are left over", left)
		}
	}
}

// Rows that expired leave at once, the retry ids of their segment later: until clocks agree that
// these have ended there is nothing to do, and a sweep that found something would commit it for
// nothing, again and again.
func TestRetryIDsOutliveTheirRowsOnce(t *testing.T) {
	t.Parallel()
	const retries = 100 // unix seconds
	s := manifesttest.New(t, "a")
	s = manifesttest.Apply(t, s, "create db.c chunks=a")
	s = manifesttest.Apply(t, s, "claim a epoch=0 holder=p1")
	coll := *s.Collections()[0]
	with := coll
	with.Indexes = []manifest.Index{{Name: "at_1", Spec: bson.Raw(bsoncore.NewDocumentBuilder().
		AppendDocument("key", bsoncore.NewDocumentBuilder().AppendInt32("at", 1).Build()).
		AppendString("name", "at_1").AppendInt32(expiry.Field, 10).Build())}}
	var dates expiry.Dates
	dates.Add(expiry.Of(&with), bson.Raw(bsoncore.NewDocumentBuilder().AppendDateTime("at", 5000).Build()))
	ref := manifest.SegmentRef{
		Segment: manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "a", Epoch: 1}, Random: [16]byte{15: 1}},
		MinKey:  []byte("a"), MaxKey: []byte("b"), MinSeq: 1, MaxSeq: 1, Rows: 1, Bytes: 1, Size: 1, Dates: dates.Bounds(), RetryUntil: retries,
	}
	apply := func(millis int64, changes ...manifest.Change) {
		t.Helper()
		next, err := manifest.Apply(s, manifest.Edit{Op: manifesttest.Nonce(100 + s.Version()), Millis: millis, Changes: changes}, manifesttest.Nonce(200+s.Version()))
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	var chunk *manifest.Chunk
	for c := range s.Chunks(coll.ID) {
		chunk = c
	}
	apply(1, manifest.AlterCollection{Was: coll, Now: with}, manifest.Flush{
		Shard: "a", Epoch: 1, Snapshot: manifest.Position{Epoch: 1, Next: 1}, Complete: true,
		Chunks: []manifest.FlushedChunk{{At: chunk.At(), Added: manifest.Added{Refs: []manifest.SegmentRef{ref}, RowsDelta: 1}}},
	})
	const early = 80_000 // ms: the rows expired a minute ago
	due := retries*1000 + manifest.ClockError.Milliseconds() + expiry.Grace.Milliseconds()
	plan := Plan(s, early)
	if len(plan) != 1 {
		t.Fatalf("%d changes are planned, want 1", len(plan))
	}
	apply(early, plan[0])
	for _, now := range []int64{early, 2 * retries * 1000, due - 1} {
		if left := planned(s, now); left != nil {
			t.Errorf("at %d %v leave, whose retry ids are in force", now, left)
		}
	}
	again := plan[0]
	for c := range s.Chunks(coll.ID) {
		again.Refs = c.Refs
	}
	if _, err := manifest.Apply(s, manifest.Edit{Op: manifesttest.Nonce(90), Millis: early, Changes: []manifest.Change{again}}, manifesttest.Nonce(91)); !errors.Is(err, errkind.Conflict) {
		t.Errorf("a change that changes nothing: %v, want Conflict", err)
	}
	if plan = Plan(s, due); len(plan) != 1 {
		t.Fatalf("%d changes are planned when all is over, want 1", len(plan))
	}
	apply(due, plan[0])
	for c := range s.Chunks(coll.ID) {
		if len(c.Refs) > 0 {
			t.Errorf("%d references are left", len(c.Refs))
		}
	}
}
