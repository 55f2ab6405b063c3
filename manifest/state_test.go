package manifest_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// TestScenarios runs the scenarios of manifesttest on the package they are about.
func TestScenarios(t *testing.T) {
	manifesttest.Run(t, "manifesttest/testdata/*.txt", false)
}

// TestLookups finds what is there, and nothing else.
func TestLookups(t *testing.T) {
	t.Parallel()
	s := sample(t)
	if s.Collection(99) != nil || s.CollectionByName("db", "none") != nil || s.Shard("none") != nil || s.ChunkOf(99, []byte("a")) != nil || s.NumChunks(99) != 0 {
		t.Error("found what is not there")
	}
	if c := s.CollectionByName("db", "c"); c == nil || s.Collection(c.ID) != c || c.Namespace() != "db.c" {
		t.Error("db.c is not found by name and id")
	}
	if got := s.Databases(); !slices.Equal(got, []string{"db"}) {
		t.Errorf("databases %v", got)
	}
	if _, ok := s.Token("app", "b1"); !ok {
		t.Error("token app/b1 is not found")
	}
	if _, ok := s.Token("app", "b9"); ok {
		t.Error("token app/b9 is found")
	}
	if _, ok := s.Job(manifest.JobID{}); ok {
		t.Error("job 0 is found")
	}
	if n := s.Nonce(); n == [16]byte{} {
		t.Error("no nonce")
	}
	for key, want := range map[string]string{"": "[-inf,g)", "a": "[-inf,g)", "g": "[g,j)", "izz": "[g,j)", "j": "[j,p)", "z": "[p,+inf)"} {
		c := s.ChunkOf(1, []byte(key))
		if got := fmt.Sprintf("[%s,%s)", or(c.Range.Min, "-inf"), or(c.Range.Max, "+inf")); got != want {
			t.Errorf("%q is in %s, expected %s", key, got, want)
		}
	}
	for _, c := range []struct{ min, max, want string }{
		{"", "", "-inf g j p"}, {"", "g", "-inf"}, {"g", "h", "g"}, {"h", "k", "g j"}, {"z", "", "p"}, {"k", "h", ""}, {"i", "j", "g"},
	} {
		var got []string
		for k := range s.ChunksIn(1, shardkey.Range{Min: []byte(c.min), Max: []byte(c.max)}) {
			got = append(got, or(k.Range.Min, "-inf"))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("chunks in [%s,%s): %v, expected %s", c.min, c.max, got, c.want)
		}
	}
	all := 0
	for c := range s.AllChunks() {
		if s.ChunkAt(c.At()) != c {
			t.Errorf("chunk %d is not found as named", c.ID)
		}
		all++
	}
	if all != s.NumChunks(1)+s.NumChunks(2) {
		t.Errorf("%d chunks", all)
	}
	for range s.AllChunks() {
		break
	}
	for range s.ChunksIn(1, shardkey.Range{}) {
		break
	}
	orphan := &manifest.Chunk{Shard: "none", OwnFloor: manifest.Position{Epoch: 1}}
	if s.EffectiveFloor(orphan) != orphan.OwnFloor {
		t.Error("floor of a chunk without a shard")
	}
}

func or(b []byte, empty string) string {
	if len(b) == 0 {
		return empty
	}
	return string(b)
}

// TestLongKeysAreShortenedOutwards: a row key of a megabyte does not ride in the root; what
// is kept still bounds the rows and lies inside the clip.
func TestLongKeysAreShortenedOutwards(t *testing.T) {
	t.Parallel()
	s := manifesttest.New(t, "a")
	s = manifesttest.Apply(t, s, "create db.c chunks=a,m,a\nclaim a epoch=0 holder=p")
	flush := func(s *manifest.State, next uint64, min, max string) *manifest.SegmentRef {
		c := s.ChunkOf(1, []byte("a"))
		f := manifest.Flush{Shard: "a", Epoch: 1, Snapshot: manifest.Position{Epoch: 1, Next: next}, Chunks: []manifest.FlushedChunk{{At: c.At(), Added: manifest.Added{
			Refs: []manifest.SegmentRef{{
				Segment: manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "a", Epoch: 1}},
				MinKey:  []byte(min), MaxKey: []byte(max), MinSeq: 1, MaxSeq: 2, Rows: 2, Clip: c.Range,
			}},
		}}}}
		n, err := manifest.Apply(s, edit("flush", f), [16]byte{1})
		if err != nil {
			t.Fatal(err)
		}
		if err := manifest.Validate(n); err != nil {
			t.Error(err)
		}
		return &n.ChunkOf(1, []byte("a")).Refs[0]
	}
	long := strings.Repeat("k", 1<<20)
	r := flush(s, 1, long, long+"z")
	if len(r.MinKey) > 300 || len(r.MaxKey) > 300 || string(r.MinKey) > long || bytes.Compare(r.MaxKey, []byte(long+"z")) < 0 {
		t.Errorf("keys of %d and %d bytes", len(r.MinKey), len(r.MaxKey))
	}
	// Where the clip leaves no room the key stays: the chunk begins inside it, or ends
	// right after it.
	point := strings.Repeat("k", 400)
	s2, err := manifest.Apply(s, edit("split", manifest.Split{Chunk: s.ChunkOf(1, nil).At(), Points: []manifest.Bound{{Key: []byte(point), BSON: manifesttest.Bound("k", false).BSON}}}), [16]byte{2})
	if err != nil {
		t.Fatal(err)
	}
	if r := flush(s2, 1, "a", point[:399]); string(r.MaxKey) != point[:399] {
		t.Errorf("max key of %d bytes", len(r.MaxKey))
	}
}

// TestAlterChangesEachField: each of the fields that can change, and each is a precondition.
func TestAlterChangesEachField(t *testing.T) {
	t.Parallel()
	s := sample(t)
	was := *s.CollectionByName("db", "c")
	body := manifesttest.Bound("x", false).BSON
	for field, change := range map[string]func(*manifest.Collection){
		"options":        func(c *manifest.Collection) { c.Options = body },
		"indexes":        func(c *manifest.Collection) { c.Indexes = []manifest.Index{{Name: "x_1", Spec: body}} },
		"noBalance":      func(c *manifest.Collection) { c.NoBalance = !c.NoBalance },
		"splitWithinKey": func(c *manifest.Collection) { c.SplitWithinKey = true },
		"zones":          func(c *manifest.Collection) { c.Zones = nil },
	} {
		now := was
		change(&now)
		next, err := manifest.Apply(s, edit(field, manifest.AlterCollection{Was: was, Now: now}), [16]byte{1})
		if err != nil {
			t.Fatalf("%s: %v", field, err)
		}
		manifesttest.Check(t, s, next)
		if _, err := manifest.Apply(next, edit(field+"2", manifest.AlterCollection{Was: was, Now: now}), [16]byte{2}); err == nil || !strings.Contains(err.Error(), field+" changed") {
			t.Errorf("%s: planned on another collection: %v", field, err)
		}
	}
}

// TestListsAreBounded: old history and candidates for GC make room, recent ops too.
func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	s := manifesttest.New(t, "a")
	for i := range manifest.RecentOps + 10 {
		e := manifest.Edit{Op: manifest.OpID{byte(i), byte(i >> 8), 1}, Changes: []manifest.Change{
			manifest.AddShards{IDs: []manifest.ShardID{"x"}}, manifest.RemoveShard{ID: "x"},
		}}
		next, err := manifest.Apply(s, e, [16]byte{byte(i), byte(i >> 8), 2})
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	if err := manifest.Validate(s); err != nil {
		t.Error(err)
	}
	if h := s.History(); len(h) != manifest.HistoryEntries || h[len(h)-1].Version != s.Version() {
		t.Errorf("%d history entries", len(h))
	}
	if s.KnowsOpsSince(1) || !s.KnowsOpsSince(s.Version()-manifest.RecentOps) {
		t.Error("what the recent ops cover")
	}
	// A collection of 5000 segments is dropped.
	s = manifesttest.Apply(t, s, "create db.c chunks=a\nclaim a epoch=0 holder=p")
	c := s.ChunkOf(1, nil)
	var a manifest.Added
	for i := range manifest.DroppedEntries + 100 {
		a.Refs = append(a.Refs, manifest.SegmentRef{Segment: manifest.SegmentID{
			Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "a", Epoch: 1},
			Random:  [16]byte{byte(i), byte(i >> 8)},
		}, MinKey: []byte("a"), MaxKey: []byte("b"), MinSeq: 1, MaxSeq: 1, Rows: 1})
	}
	next, err := manifest.Apply(s, edit("fill", manifest.Flush{Shard: "a", Epoch: 1, Snapshot: manifest.Position{Epoch: 1, Next: 1}, Chunks: []manifest.FlushedChunk{{At: c.At(), Added: a}}}), [16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	next = manifesttest.Apply(t, next, "drop db.c")
	if d := next.Dropped(); len(d) != manifest.DroppedEntries || d[len(d)-1].Segment != a.Refs[len(a.Refs)-1].Segment {
		t.Errorf("%d candidates", len(d))
	}
}

// TestChangedChunksOfWholeCollections: collections that came, went, or are in one of the
// states only; nil states; and a reader that stops.
func TestChangedChunksOfWholeCollections(t *testing.T) {
	t.Parallel()
	s := sample(t)
	without := manifesttest.Apply(t, s, "drop db.c")
	other := manifesttest.Apply(t, without, "create db.z chunks=a,m,b")
	for _, c := range []struct {
		was, now   *manifest.State
		came, went int
	}{{nil, s, 5, 0}, {s, nil, 0, 5}, {s, without, 0, 4}, {s, other, 2, 4}, {other, s, 4, 2}, {s, s, 0, 0}, {nil, nil, 0, 0}} {
		came, went := 0, 0
		for a, b := range manifest.ChangedChunks(c.was, c.now) {
			if a == nil {
				came++
			}
			if b == nil {
				went++
			}
		}
		if came != c.came || went != c.went {
			t.Errorf("%d came and %d went, expected %d and %d", came, went, c.came, c.went)
		}
	}
	for range manifest.ChangedChunks(s, other) {
		break
	}
	// A chunk that changed in place comes as a pair.
	moved := manifesttest.Apply(t, s, "claim c epoch=0 holder=p")
	moved = manifesttest.Apply(t, moved, "move c1 from=a@2 to=c@1 promise=1,4")
	pairs := 0
	for a, b := range manifest.ChangedChunks(s, moved) {
		if a == nil || b == nil || a.ID != b.ID || b.Shard != "c" {
			t.Errorf("changed %v, %v", a, b)
		}
		pairs++
	}
	if pairs != 1 {
		t.Errorf("%d changed", pairs)
	}
}

// TestKindsHaveNames.
func TestKindsHaveNames(t *testing.T) {
	t.Parallel()
	if got := fmt.Sprint(manifest.RecordAPIKey, manifest.RecordKind(77)); got != "apiKey record kind 77" {
		t.Error(got)
	}
}
