package fsck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestCrashedClusterIsClean(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, deep := range []bool{false, true} {
			r, err := w.fsck(deep, nil)
			w.must(err)
			want := &Report{Version: w.state().Version(), Collections: 1, Chunks: 3, Segments: 2, WALObjects: 4, WALRecords: 4, Problems: []Problem{}}
			if deep {
				want.Rows = 12
			}
			if diff := cmp.Diff(want, r, cmpopts.IgnoreFields(Report{}, "Bytes")); diff != "" || r.Bytes == 0 {
				t.Errorf("deep %v: %d bytes, -want +got:\n%s", deep, r.Bytes, diff)
			}
		}
	})
}

// A cluster is clean after each step of its life: a takeover, a move, a split, an orderly
// end.
func TestLivingClusterIsClean(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		clean := func(step string) {
			t.Helper()
			r, err := w.fsck(true, nil)
			w.must(err)
			if len(r.Problems) > 0 {
				t.Errorf("after %s: %v", step, r.Problems)
			}
		}
		p := w.process("two", "a", "b")
		clean("a takeover")
		w.insert("g", "z")
		clean("more writes")
		w.commit(manifest.Split{Chunk: w.chunk(1).At(), Points: []manifest.Bound{bound("c", false)}})
		clean("a split")
		w.insert("bb")
		w.collect()
		clean("a collection")
		w.must(p.Close(t.Context()))
		clean("an orderly end")
		if _, err := w.fsck(true, nil); err != nil {
			t.Error(err)
		}
	})
}

// damages break one thing each in the bucket; every one is reported with the rule, the
// object and the chunks at stake.
var damages = []struct {
	name   string
	deep   bool // only a deep check sees it
	damage func(w *world) (want []string)
	detail string // in the first problem
}{
	{"a missing segment", false, func(w *world) []string {
		w.remove(w.seg(1))
		return []string{RuleExists + " | " + w.seg(1) + " | db.c chunk 1", RuleExists + " | " + w.seg(1) + " | db.c chunk 2"}
	}, "not found"},
	{"a truncated segment", false, func(w *world) []string {
		w.put(w.seg(3), w.get(w.seg(3))[:100])
		return []string{RuleSegment + " | " + w.seg(3) + " | db.c chunk 3"}
	}, "corrupt"},
	{"an empty segment", false, func(w *world) []string {
		w.put(w.seg(3), nil)
		return []string{RuleSegment + " | " + w.seg(3) + " | db.c chunk 3"}
	}, "corrupt"},
	{"swapped segments", false, func(w *world) []string {
		one, two := w.get(w.seg(1)), w.get(w.seg(3))
		w.put(w.seg(1), two)
		w.put(w.seg(3), one)
		return []string{RuleSegment + " | " + w.seg(1) + " | db.c chunk 1", RuleSegment + " | " + w.seg(1) + " | db.c chunk 2", RuleSegment + " | " + w.seg(3) + " | db.c chunk 3"}
	}, "corrupt"},
	{"a flipped bit in a block that two chunks share", true, func(w *world) []string {
		w.put(w.seg(1), flip(w.get(w.seg(1)), 60))
		return []string{RuleSegment + " | " + w.seg(1) + " | db.c chunk 1", RuleSegment + " | " + w.seg(1) + " | db.c chunk 2"}
	}, "corrupt"},
	{"a wrong row count", true, func(w *world) []string {
		w.flush(good("e"), 5, nil)
		return []string{RuleCount + " |  | db.c chunk 1"}
	}, "the root says 9 live rows, the segments hold 5"},
	{"a row under another key", true, func(w *world) []string {
		w.flush([]row{{rowKey("e"), doc("f")}}, 1, nil)
		return []string{RuleRow + " |  | db.c chunk 1"}
	}, "the document's key is"},
	{"a document with a field twice", true, func(w *world) []string {
		d, err := bson.Marshal(bson.D{{Key: "_id", Value: "e"}, {Key: keyField, Value: "e"}, {Key: "x", Value: 1}, {Key: "x", Value: 2}})
		w.must(err)
		w.flush([]row{{rowKey("e"), d}}, 1, nil)
		return []string{RuleRow + " |  | db.c chunk 1"}
	}, "x"},
	{"a document without its key", true, func(w *world) []string {
		d, err := bson.Marshal(bson.D{{Key: keyField, Value: bson.A{1, 2}}})
		w.must(err)
		w.flush([]row{{rowKey("e"), d}}, 1, nil)
		return []string{RuleRow + " |  | db.c chunk 1"}
	}, "array"},
	{"many wrong rows", true, func(w *world) (want []string) {
		var rows []row
		for i := range 15 {
			rows = append(rows, row{rowKey(fmt.Sprintf("e%02d", i)), doc("f")})
		}
		w.flush(rows, 15, nil)
		for range 11 {
			want = append(want, RuleRow+" |  | db.c chunk 1")
		}
		return want
	}, "the document's key is"},
	{"a row below its reference", true, func(w *world) []string {
		key := w.flush(good("e", "f"), 2, func(r *manifest.SegmentRef) { r.MinKey = rowKey("f") })
		// A reader passes it over, so that it is missing in the count as well.
		return []string{RuleBounds + " | " + key + " | db.c chunk 1", RuleCount + " |  | db.c chunk 1"}
	}, "outside of keys"},
	{"a row newer than its reference", true, func(w *world) []string {
		key := w.flush(good("e", "f"), 2, func(r *manifest.SegmentRef) { r.MaxSeq = r.MinSeq })
		return []string{RuleBounds + " | " + key + " | db.c chunk 1", RuleSegment + " |  | db.c chunk 1"}
	}, "has seq"},
	{"a gap in the log", false, func(w *world) []string {
		w.remove(w.log("a", 1))
		return []string{RuleContiguous + " | " + w.log("a", 1) + " | "}
	}, "acknowledged writes are lost"},
	{"a gap at the floor", false, func(w *world) []string {
		w.remove(w.log("a", 0))
		return []string{RuleContiguous + " | " + w.log("a", 0) + " | "}
	}, "acknowledged writes are lost"},
	{"a log that ends before a chunk's floor", false, func(w *world) []string {
		s := w.state().Shard("a")
		w.commit(manifest.Flush{Shard: "a", Epoch: 1, Snapshot: manifest.Position{Epoch: 1, Next: s.Floor.Next + 3},
			Chunks: []manifest.FlushedChunk{{At: w.chunk(1).At()}}})
		w.remove(w.log("a", 2))
		return []string{RuleContiguous + " | " + w.log("a", 2) + " | "}
	}, "a chunk's floor is"},
	{"an object after a seal", false, func(w *world) []string {
		end, _, err := wal.Seal(context.Background(), w.mem, w.host, w.state().ClusterID(), "a", 1, w.state().Shard("a").Floor.Next, 2)
		w.must(err)
		return []string{RuleAfterSeal + " | " + w.append("a", 1, end+1) + " | "}
	}, "follows the seal"},
	{"records in an epoch that nobody replays", false, func(w *world) []string {
		return []string{RuleReplayed + " | " + w.append("a", 7, 0) + " | "}
	}, "epoch 7 is above the floor"},
	{"records of a free shard", false, func(w *world) []string {
		p := w.process("two", "a")
		w.must(p.Release(context.Background(), "a"))
		f := w.state().Shard("a").Floor
		return []string{RuleReplayed + " | " + w.append("a", f.Epoch, f.Next) + " | "}
	}, "not open"},
	{"a damaged log object", false, func(w *world) []string {
		w.put(w.log("b", 0), flip(w.get(w.log("b", 0)), 130))
		return []string{RuleLogWhole + " | " + w.log("b", 0) + " | "}
	}, "checksum"},
	{"a log object in the place of another", false, func(w *world) []string {
		w.put(w.log("b", 0), w.get(w.log("a", 0)))
		return []string{RuleLogPlace + " | " + w.log("b", 0) + " | "}
	}, "it says that it is wal/a/"},
	{"strange names in the log", false, func(w *world) []string {
		w.put("wal/a/readme", nil)
		return []string{RuleLogName + " | wal/a/readme | "}
	}, "GC leaves it"},
	{"the log of a shard that nobody knows", false, func(w *world) []string {
		return []string{RuleLogShard + " | " + w.append("zz", 1, 0) + " | "}
	}, "no root knows the shard"},
	{"a pin without its copy", false, func(w *world) []string {
		w.commit(manifest.AddPin{Pin: manifest.Pin{ID: [16]byte{9}, Name: "backup"}})
		return []string{RulePin + " | " + manifest.PinKey([16]byte{9}) + " | "}
	}, `pin "backup"`},
	{"a pin whose copy is damaged", false, func(w *world) []string {
		w.commit(manifest.AddPin{Pin: manifest.Pin{ID: [16]byte{9}, Name: "backup"}})
		w.put(manifest.PinKey([16]byte{9}), flip(w.get(manifest.RootKey), 40))
		return []string{RulePin + " | " + manifest.PinKey([16]byte{9}) + " | "}
	}, "GC stops"},
}

func TestDamageIsReported(t *testing.T) {
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				want := d.damage(w)
				for _, deep := range []bool{false, true} {
					r, err := w.fsck(deep, nil)
					w.must(err)
					var got []string
					for _, p := range r.Problems {
						got = append(got, text(p))
					}
					expect := want
					if d.deep && !deep {
						expect = nil
					}
					if diff := cmp.Diff(expect, got); diff != "" {
						t.Fatalf("deep %v, -want +got:\n%s\n%v", deep, diff, r.Problems)
					}
					if len(got) > 0 && !strings.Contains(r.Problems[0].Detail, d.detail) {
						t.Errorf("detail %q, want %q in it", r.Problems[0].Detail, d.detail)
					}
				}
			})
		})
	}
}

// What costs money and no data is counted, and is no problem.
func TestOrphansAreCounted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorJob}, Random: [16]byte{1}}.Key(), make([]byte, 77))
		w.commit(manifest.AddPin{Pin: manifest.Pin{ID: [16]byte{9}, Name: "backup"}})
		w.put(manifest.PinKey([16]byte{9}), w.get(manifest.RootKey))
		w.commit(manifest.DropCollection{ID: 1}) // its segments are GC's now, and the pin's
		for range 2 {
			r, err := w.fsck(true, nil)
			w.must(err)
			if r.Orphans != 1 || r.OrphanBytes != 77 || len(r.Problems) > 0 {
				t.Errorf("%+v", r)
			}
			w.commit(manifest.ForgetDropped{Segments: w.state().Dropped()}) // now only the pin's
		}
	})
}

// A shard that was removed leaves its log behind, below its floor.
func TestRemovedShardsAreClean(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.process("two", "a", "b")
		w.must(p.Close(t.Context()))
		w.commit(manifest.DropCollection{ID: 1}, manifest.RemoveShard{ID: "b"})
		r, err := w.fsck(true, nil)
		w.must(err)
		if len(r.Problems) > 0 {
			t.Errorf("%v", r.Problems)
		}
		key := w.append("b", 9, 0)
		if r, err = w.fsck(true, nil); err != nil || len(r.Problems) != 1 || text(r.Problems[0]) != RuleReplayed+" | "+key+" | " {
			t.Errorf("records of a removed shard: %v, %v", r.Problems, err)
		}
	})
}

// hooked runs do before the n-th request that begins with a word, such as "get seg/".
type hooked struct {
	bucket.Bucket
	word string
	n    int
	do   func()
}

func (h *hooked) hook(verb, key string) {
	if strings.HasPrefix(verb+" "+key, h.word) {
		if h.n--; h.n == 0 {
			h.do()
		}
	}
}

func (h *hooked) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	h.hook("get", key)
	return h.Bucket.Get(ctx, key, o)
}

func (h *hooked) List(ctx context.Context, prefix, after string, max int) ([]bucket.Attrs, bool, error) {
	h.hook("list", prefix)
	return h.Bucket.List(ctx, prefix, after, max)
}

// Whatever happens in a running cluster while it is checked is no problem.
func TestChangesDuringACheckAreNoProblems(t *testing.T) {
	takeover := func(w *world) {
		w.process("two", "a", "b")
		w.insert("g", "z")
	}
	for _, c := range []struct {
		name string
		do   func(w *world)
	}{
		{"takeover", takeover},
		{"takeover and collection", func(w *world) {
			takeover(w)
			p := w.procs[len(w.procs)-1]
			w.must(p.Close(context.Background()))
			w.process("three", "a", "b")
			w.collect()
			for _, shard := range []manifest.ShardID{"a", "b"} { // also older epochs, and what no collector deletes
				for i := range uint64(20) {
					w.remove(manifest.WALKey(shard, 1, i))
				}
			}
			w.insert("x")
		}},
		{"compaction", func(w *world) {
			time.Sleep(manifest.ClockError + time.Hour) // the retry ids have expired, by every clock
			job := manifest.Job{ID: manifest.JobID{1}, Kind: "compact"}
			w.commit(manifest.RegisterJob{Job: job})
			for _, id := range []manifest.ChunkID{1, 2, 3} {
				c := w.chunk(id)
				w.commit(manifest.Compact{Job: job.ID, Chunk: c.At(), Inputs: c.Refs, Oldest: true, Rows: 0})
				w.remove(c.Refs[0].Segment.Key())
			}
		}},
		{"a shard more", func(w *world) {
			w.commit(manifest.AddShards{IDs: []manifest.ShardID{"c"}}, manifest.Claim{Shard: "c", Holder: "three"})
			w.append("c", 1, 0)
		}},
		{"a pin less", func(w *world) { w.commit(manifest.DropPin{ID: [16]byte{9}}) }},
	} {
		for _, word := range []string{"get seg/", "list wal/", "get wal/", "list seg/"} {
			for n := 1; n <= 6; n++ {
				t.Run(fmt.Sprintf("%s at %s %d", c.name, word, n), func(t *testing.T) {
					inWorld(t, func(t *testing.T, w *world) {
						if strings.Contains(c.name, "pin") {
							w.commit(manifest.AddPin{Pin: manifest.Pin{ID: [16]byte{9}}})
							word = "get meta/pin"
						}
						h := &hooked{Bucket: w.mem, word: word, n: n, do: func() { c.do(w) }}
						r, err := w.fsck(true, h)
						w.must(err)
						if len(r.Problems) > 0 && (h.n <= 0 || !strings.Contains(c.name, "pin")) {
							t.Errorf("%v", r.Problems)
						}
					})
				})
			}
		}
	}
}

// A check that cannot be finished says so, and what it could not do.
func TestUnfinishedCheckFails(t *testing.T) {
	for _, c := range []struct {
		verb layer.Verb
		key  string
		want string
	}{
		{layer.Get, "meta/root", "fsck: read root"},
		{layer.Get, "seg/", "fsck: seg/"},
		{layer.List, "wal/", "fsck: list wal/"},
		{layer.Get, "wal/", "fsck: read wal/"},
		{layer.List, "seg/", "fsck: list seg/"},
		{layer.Get, "meta/pin/", `fsck: pin "backup"`},
	} {
		inWorld(t, func(t *testing.T, w *world) {
			w.commit(manifest.AddPin{Pin: manifest.Pin{ID: [16]byte{9}, Name: "backup"}})
			w.put(manifest.PinKey([16]byte{9}), w.get(manifest.RootKey))
			b := faultbucket.New(w.mem, w.host, faultbucket.Rules(w.host, faultbucket.Rule{
				Verbs: []layer.Verb{c.verb}, Prefix: c.key, Fault: faultbucket.Fault{Kind: faultbucket.Throttle},
			}))
			if _, err := w.fsck(true, b); !errors.Is(err, faultbucket.ErrInjected) || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s %s fails: %v, want %q", c.verb, c.key, err, c.want)
			}
		})
	}
}

func TestProgressIsTold(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var told []string
		c := &Checker{Root: w.seen, Bucket: w.mem, Open: w.open, Progress: func(done, total int) { told = append(told, fmt.Sprintf("%d of %d", done, total)) }}
		_, err := c.Run(t.Context())
		w.must(err)
		if diff := cmp.Diff([]string{"1 of 3", "2 of 3", "3 of 3"}, told); diff != "" {
			t.Error(diff)
		}
	})
}
