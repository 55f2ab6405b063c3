package plan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

const target = 1000

// field is a cluster with one sharded collection db.c under {k: 1}, cut at whole numbers, whose
// chunks have as many bytes as said.
type field struct {
	t  testing.TB
	s  *manifest.State
	op byte
}

func raw(t testing.TB, d bson.D) bson.Raw {
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (f *field) apply(changes ...manifest.Change) {
	f.t.Helper()
	f.op++
	next, err := manifest.Apply(f.s, manifest.Edit{Op: manifest.OpID{f.op, byte(f.s.Version()), byte(f.s.Version() >> 8)}, Changes: changes}, [16]byte{f.op})
	if err != nil {
		f.t.Fatal(err)
	}
	f.s = next
}

func (f *field) bound(n int) manifest.Bound {
	key, full, err := f.s.CollectionByName("db", "c").Key.Bound(raw(f.t, bson.D{{Key: "k", Value: n}}))
	if err != nil {
		f.t.Fatal(err)
	}
	return manifest.Bound{Key: key, BSON: full}
}

// sized makes the field; chunk i is on shards[i%len(shards)].
func sized(t testing.TB, shards []manifest.ShardID, sizes ...int64) *field {
	t.Helper()
	s, err := manifest.Create(t.Context(), &manifesttest.MemCell{}, manifesttest.Host(1), manifest.InitOptions{Shards: []manifest.ShardID{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	f := &field{t: t, s: s}
	key, err := shardkey.ParsePattern(raw(t, bson.D{{Key: "k", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	c := manifest.Collection{UUID: [16]byte{1}, Database: "db", Name: "c", Key: key, Sharded: true, Options: manifest.WithChunkSize(nil, target)}
	f.apply(manifest.CreateCollection{Collection: c, Chunks: []manifest.NewChunk{{Min: manifest.Bound{BSON: key.MinBSON()}, Max: manifest.Bound{BSON: key.MaxBSON()}, Shard: "a"}}})
	if len(sizes) > 1 {
		var points []manifest.Bound
		for i := 1; i < len(sizes); i++ {
			points = append(points, f.bound(i*1000))
		}
		f.apply(manifest.Split{Chunk: f.chunks()[0].At(), Points: points})
	}
	for i, chunk := range f.chunks() {
		f.fill(chunk, sizes[i])
		if to := shards[i%len(shards)]; to != "a" {
			f.apply(manifest.Move{Chunk: f.chunks()[i].At(), From: "a", To: to})
		}
	}
	return f
}

// fill gives a chunk a segment of that many bytes, by a direct commit.
func (f *field) fill(c *manifest.Chunk, size int64) {
	f.t.Helper()
	if size == 0 {
		return
	}
	low := append(slices.Clone(c.Range.Min), 0, 0)
	if len(c.Range.Min) == 0 {
		low = []byte{1}
	}
	high := append(slices.Clone(low), 0xFF)
	rows := uint64(max(size/10, 1))
	ref := manifest.SegmentRef{
		Segment: manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorDirect, Shard: c.Shard}, Random: [16]byte{f.op, byte(c.ID), byte(c.ID >> 8), 7}},
		Clip:    c.Range, MinKey: low, MaxKey: high, MinSeq: c.MaxSeq + 1, MaxSeq: c.MaxSeq + manifest.Seq(rows), Rows: rows, Bytes: uint64(size),
		Size: 2000, TailOffset: 1900, TailLength: 100,
	}
	f.apply(manifest.DirectCommit{Shard: c.Shard, Chunk: c.At(), MaxSeq: c.MaxSeq, Added: manifest.Added{Refs: []manifest.SegmentRef{ref}, RowsDelta: int64(rows), BytesDelta: size}})
}

func (f *field) chunks() []*manifest.Chunk {
	return slices.Collect(f.s.Chunks(f.s.CollectionByName("db", "c").ID))
}

func all(manifest.ShardID) bool { return true }

// show is a plan in short: kind, chunks by place, pieces.
func (f *field) show(p plan.Plan) (list []string) {
	place := make(map[manifest.ChunkID]int)
	for i, c := range f.chunks() {
		place[c.ID] = i
	}
	names := map[plan.Kind]string{plan.SplitBySize: "size", plan.SplitByLoad: "load", plan.SplitAhead: "ahead", plan.Merge: "merge"}
	for _, j := range p.Jobs {
		line := fmt.Sprint(names[j.Kind], " ", place[j.Chunks[0].ID])
		if j.Pieces > 0 {
			line += fmt.Sprint(" into ", j.Pieces)
		}
		list = append(list, line)
	}
	return list
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestWhatIsCutAndWhatIsMerged(t *testing.T) {
	a := []manifest.ShardID{"a"}
	f := sized(t, a, 1499, 1500, 5000, 600)
	want(t, "sizes", f.show(plan.Make(f.s, all, nil, 0, plan.Settings{})), "size 2 into 5", "size 1 into 2")
	chunks := f.chunks()
	want(t, "unflushed rows count", f.show(plan.Make(f.s, all, plan.Loads{chunks[0].ID: {UnflushedBytes: 1000}, chunks[3].ID: {UnflushedBytes: 899}}, 0, plan.Settings{})),
		"size 2 into 5", "size 0 into 3", "size 1 into 2")
	want(t, "not mine", f.show(plan.Make(f.s, func(manifest.ShardID) bool { return false }, nil, 0, plan.Settings{})))

	f = sized(t, a, 100, 200, 300, 100, 400, 99)
	want(t, "pairs of small ones", f.show(plan.Make(f.s, all, nil, 0, plan.Settings{})), "merge 4", "merge 2", "merge 0")
	chunks = f.chunks()
	busy := plan.Loads{chunks[0].ID: {Writes: 1000, Reads: 500}}
	want(t, "busy ones stay apart", f.show(plan.Make(f.s, all, busy, 0, plan.Settings{})), "merge 4", "merge 2")
	f = sized(t, []manifest.ShardID{"a", "b"}, 1, 1, 1)
	want(t, "of two shards", f.show(plan.Make(f.s, all, nil, 0, plan.Settings{})))
}

func TestLoadAndHotTails(t *testing.T) {
	f := sized(t, []manifest.ShardID{"a"}, 100, 800, 700)
	chunks := f.chunks()
	median := append(slices.Clone(chunks[1].Range.Min), 5)
	load := rpc.ChunkLoad{Reads: 4000, Writes: 1001, Median: median, Age: time.Minute}
	at := func(i int, l rpc.ChunkLoad) []string {
		return f.show(plan.Make(f.s, all, plan.Loads{chunks[i].ID: l}, 0, plan.Settings{}))
	}
	want(t, "load", at(1, load), "load 1")
	young := load
	young.Age = 59 * time.Second
	want(t, "young", at(1, young))
	aside := load
	aside.Median = chunks[2].Range.Min
	want(t, "a key of another", at(1, aside))
	tail := rpc.ChunkLoad{Inserts: 100, Writes: 100, TailShare: 0.9}
	want(t, "hot tail", at(1, tail), "ahead 1")
	want(t, "too small yet", at(2, tail))
	p := plan.Make(f.s, all, plan.Loads{chunks[2].ID: tail, chunks[0].ID: {Inserts: 20}}, 0, plan.Settings{})
	if len(p.HotTails) != 1 || p.HotTails[0].Chunk != chunks[2] || p.HotTails[0].Share < 0.8 {
		t.Errorf("%+v", p.HotTails)
	}
	p = plan.Make(f.s, all, plan.Loads{chunks[2].ID: tail, chunks[0].ID: {Inserts: 50}}, 0, plan.Settings{})
	if len(p.HotTails) != 0 {
		t.Errorf("a third goes elsewhere: %+v", p.HotTails)
	}
}

// What is said of chunks and collections is respected.
func TestSwitchesAndMarks(t *testing.T) {
	f := sized(t, []manifest.ShardID{"a"}, 5000, 10, 10)
	plain := f.s
	c := f.s.CollectionByName("db", "c")
	with := func(change func(*manifest.Collection)) []string {
		t.Helper()
		f.s = plain
		now := *c
		change(&now)
		f.apply(manifest.AlterCollection{Was: *c, Now: now})
		return f.show(plan.Make(f.s, all, nil, 100, plan.Settings{}))
	}
	want(t, "no split", with(func(c *manifest.Collection) { c.Options = manifest.WithAutoSplit(c.Options, false) }), "merge 1")
	want(t, "no merge", with(func(c *manifest.Collection) { c.Options = manifest.WithAutoMerge(c.Options, false) }), "size 0 into 5")
	want(t, "not balanced", with(func(c *manifest.Collection) { c.NoBalance = true }), "size 0 into 5")
	want(t, "larger target", with(func(c *manifest.Collection) { c.Options = manifest.WithChunkSize(c.Options, 5000) }), "merge 1")
	border := f.bound(2000)
	want(t, "border of a zone", with(func(c *manifest.Collection) {
		c.Zones = []manifest.ZoneRange{{Zone: "z", Range: shardkey.Range{Min: border.Key}, MinBSON: border.BSON, MaxBSON: c.Key.MaxBSON()}}
	}), "size 0 into 5")
	f.s = plain
	f.apply(manifest.MarkChunk{Chunk: f.chunks()[0].At(), Flags: manifest.ChunkIndivisible, Indivisible: manifest.Indivisible{Bytes: 3334}})
	want(t, "marked", f.show(plan.Make(f.s, all, nil, 100, plan.Settings{})), "merge 1")
	loads := plan.Loads{f.chunks()[0].ID: {UnflushedBytes: 2}}
	want(t, "grown by half", f.show(plan.Make(f.s, all, loads, 100, plan.Settings{})), "size 0 into 6", "merge 1")
	f.s = plain
	f.apply(manifest.Split{Chunk: f.chunks()[2].At(), Points: []manifest.Bound{f.bound(9999)}, ManualUntil: 200})
	want(t, "by hand", f.show(plan.Make(f.s, all, nil, 199, plan.Settings{})), "size 0 into 5")
	want(t, "by hand, long ago", f.show(plan.Make(f.s, all, nil, 200, plan.Settings{})), "size 0 into 5", "merge 1")
}

// Cutting and merging comes to an end, whatever the sizes are, when the data stays as it is:
// what was merged is not cut, and what was cut is not merged.
func TestCutsAndMergesNeverAlternate(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 4*target), 1, 12).Draw(rt, "sizes")
		f := sized(t, []manifest.ShardID{"a"}, sizes...)
		cut, merged := false, make(map[manifest.ChunkID]bool)
		for round := range 20 {
			p := plan.Make(f.s, all, nil, 0, plan.Settings{})
			if len(p.Jobs) == 0 {
				return
			}
			for _, j := range p.Jobs {
				switch c := j.Chunks[0]; {
				case j.Kind == plan.Merge:
					f.apply(manifest.Merge{Left: j.Chunks[0].At(), Right: j.Chunks[1].At()})
					merged[f.s.ChunkOf(c.Collection, c.Range.Min).ID] = true
					if cut && round > 8 {
						rt.Fatalf("round %d still merges", round)
					}
				case merged[c.ID]:
					rt.Fatalf("round %d cuts chunk %d, which was merged", round, c.ID)
				default:
					cut = true
					var points []manifest.Bound
					for i := 1; i < j.Pieces; i++ {
						points = append(points, f.within(c, i, j.Pieces))
					}
					f.apply(manifest.Split{Chunk: c.At(), Points: points})
				}
			}
		}
		rt.Fatal("it goes on and on")
	})
}

// within is the i-th of n-1 points inside the data that fill gave a chunk.
func (f *field) within(c *manifest.Chunk, i, n int) manifest.Bound {
	low := append(slices.Clone(c.Range.Min), 0, 0)
	if len(c.Range.Min) == 0 {
		low = []byte{1}
	}
	return manifest.Bound{Key: append(low, byte(i*200/n)), BSON: raw(f.t, bson.D{{Key: "k", Value: i}})}
}
