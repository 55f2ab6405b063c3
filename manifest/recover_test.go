package manifest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// claimed is a state with a held and b free, and the chunks of db.c on a.
func claimed(t *testing.T) *manifest.State {
	t.Helper()
	r := manifest.NewRoot(cluster(t, "a", "b"), manifesttest.Host(3), nil)
	for i, line := range []string{"create db.c chunks=a,m,a", "claim a epoch=0 holder=p1", "flush a epoch=1 snap=1,3 c1{seg=01 keys=a..d seq=1..3 rows=3 delta=3}", "pin 09"} {
		s, _, err := r.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		e, err := manifesttest.ParseEdit(s, line)
		if err != nil {
			t.Fatal(err)
		}
		e.Op = [16]byte{byte(i + 1)}
		if _, err := r.Commit(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	return r.State()
}

func ended(id manifest.ShardID, last manifest.Epoch, next uint64) manifest.EndedLog {
	return manifest.EndedLog{Shard: id, Last: last, End: manifest.Position{Epoch: last, Next: next}}
}

// A recovered root follows its copy as any later version would, knows no operation of the lost
// versions, and has every epoch that was sealed open, at an epoch above them.
func TestARecoveredRootFollowsItsCopy(t *testing.T) {
	kept := claimed(t)
	id := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "a", Epoch: 5}, Random: [16]byte{7}}
	var first *manifest.Chunk
	for c := range kept.AllChunks() {
		first = c
		break
	}
	x := manifest.Recovery{
		Seen: 50, Collection: 9, Holder: "repair", LeaseMillis: 7000, Gone: [][16]byte{kept.Pins()[0].ID},
		Logs: []manifest.EndedLog{ended("a", 4, 2), ended("b", 2, 0), ended("c", 6, 0)},
		Folded: []manifest.FoldedChunk{{At: first.At(), Added: manifest.Added{Refs: []manifest.SegmentRef{{
			Segment: id, Clip: first.Range, MinKey: first.Refs[0].MinKey, MaxKey: first.Refs[0].MaxKey, MinSeq: 9, MaxSeq: 12, Rows: 2, Size: 100, TailOffset: 50, TailLength: 50,
		}}, Unsure: true}}},
	}
	s, err := manifest.Recover(kept, x, [16]byte{1}, [16]byte{2})
	if err != nil {
		t.Fatal(err)
	}
	if err := manifest.ValidateStep(kept, s); err != nil {
		t.Error(err)
	}
	a, b := s.Shard("a"), s.Shard("b")
	if a.Epoch != 5 || a.Status != manifest.ShardHeld || a.LeaseMillis != 7000 || len(a.OpenEpochs) != 4 || a.Floor != kept.Shard("a").Floor {
		t.Errorf("a: %+v", a)
	}
	if b.Epoch != 3 || len(b.OpenEpochs) != 2 || len(s.Retired()) != 1 || s.Retired()[0].Epoch != 7 {
		t.Errorf("b: %+v, retired %+v", b, s.Retired())
	}
	c := s.ChunkOf(first.Collection, first.Range.Min)
	if len(c.Refs) != 2 || c.MaxSeq != 12 || c.OwnFloor != x.Logs[0].End || !c.RowsEstimated {
		t.Errorf("the folded chunk: %+v", c)
	}
	if s.Version() < 1<<20 || s.KnowsOpsSince(60) || s.NextCollection() < 10 || len(s.Pins()) != 0 {
		t.Errorf("version %d, next collection %d", s.Version(), s.NextCollection())
	}
	x.Logs[0].Drained = true
	if s, err = manifest.Recover(kept, x, [16]byte{1}, [16]byte{2}); err != nil || s.Shard("a").Floor != x.Logs[0].End || len(s.Shard("a").OpenEpochs) != 0 {
		t.Errorf("drained: %+v, %v", s, err)
	}
	x.Folded = nil
	for _, logs := range [][]manifest.EndedLog{{ended("a", 4, 0)}, {ended("a", 0, 0), ended("b", 1, 0)}} {
		x.Logs = logs
		if _, err := manifest.Recover(kept, x, [16]byte{1}, [16]byte{2}); !errors.Is(err, errkind.Invalid) {
			t.Errorf("%v: %v", logs, err)
		}
	}
}

// A recovered root is put where there is none, or in the place of what was found there, and of
// nothing else.
func TestARecoveredRootReplacesWhatWasFound(t *testing.T) {
	cell, h := cluster(t, "a"), manifesttest.Host(4)
	object, tag, err := cell.Load(t.Context(), manifest.RootKey, "")
	if err != nil {
		t.Fatal(err)
	}
	cell.Put(manifest.HistoryKey(1), object)
	kept, err := manifest.ReadCopy(t.Context(), cell, nil, manifest.HistoryKey(1))
	if err != nil {
		t.Fatal(err)
	}
	s, err := manifest.Recover(kept, manifest.Recovery{Logs: []manifest.EndedLog{ended("a", 1, 0)}, Holder: "repair"}, [16]byte{1}, h.ID16())
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"", "another"} {
		if err := manifest.PutRecovered(t.Context(), cell, nil, h, s, from); !errors.Is(err, errkind.Conflict) {
			t.Errorf("from %q: %v", from, err)
		}
	}
	if err := manifest.PutRecovered(t.Context(), cell, nil, h, s, tag); err != nil {
		t.Error(err)
	}
	if now := load(t, manifest.NewRoot(cell, h, nil)); now.Version() != s.Version() {
		t.Errorf("version %d", now.Version())
	}
}

// A page that became an object is made again from a copy in which it still rode in the root.
func TestAPageIsMadeAgainFromACopy(t *testing.T) {
	cell := cluster(t, "a")
	copying := manifest.NewRoot(cell, manifesttest.Host(1), &manifest.RootOptions{PageBudget: 1 << 20, HistoryEvery: time.Minute})
	e := edit("create", manyChunks(500))
	e.Millis = 100_000
	if _, err := copying.Commit(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	spilling := manifest.NewRoot(cell, manifesttest.Host(2), &manifest.RootOptions{PageBudget: 1})
	s, err := spilling.Commit(t.Context(), edit("spill", put("x")))
	if err != nil || len(s.Pages()) == 0 {
		t.Fatalf("%v", err)
	}
	object, _, err := cell.Load(t.Context(), manifest.HistoryKey(2), "")
	if err != nil {
		t.Fatal(err)
	}
	image, err := manifest.DecodeRoot(object)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range s.Pages() {
		again, err := image.RemakePage(page)
		if err != nil || again == nil {
			t.Fatalf("%s: %v", page.Key(), err)
		}
		if chunks, err := manifest.DecodePage(s.ClusterID(), page, again); err != nil || len(chunks) != page.Chunks {
			t.Errorf("%s: %v", page.Key(), err)
		}
	}
}

// A reference whose segment is lost leaves its chunk, and is no candidate for GC; one that is not
// there is refused.
func TestALostSegmentIsForsaken(t *testing.T) {
	s := claimed(t)
	var c *manifest.Chunk
	for c = range s.AllChunks() {
		break
	}
	e := edit("f", manifest.Forsake{Chunk: c.At(), Refs: c.Refs})
	next, err := manifest.Apply(s, e, [16]byte{3})
	if err != nil {
		t.Fatal(err)
	}
	if n := next.ChunkOf(c.Collection, c.Range.Min); len(n.Refs) != 0 || n.Rows != 0 || !n.RowsEstimated || len(next.Dropped()) != 0 || n.MaxSeq != c.MaxSeq {
		t.Errorf("%+v", n)
	}
	if _, err := manifest.Apply(next, edit("g", e.Changes...), [16]byte{4}); !errors.Is(err, errkind.Conflict) {
		t.Errorf("again: %v", err)
	}
	if _, err := manifest.Apply(next, edit("h", manifest.Forsake{Chunk: c.At()}), [16]byte{4}); !errors.Is(err, errkind.Invalid) {
		t.Errorf("nothing: %v", err)
	}
}
