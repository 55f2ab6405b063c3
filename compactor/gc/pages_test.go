package gc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
)

// More segments than the list of the root holds are dropped at once: a pin from before
// tells of the rest, and they go with that, although the epoch that made them goes on.
func TestWhatTheListDoesNotHoldGoes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.copying()
		const segments = manifest.DroppedEntries + 500
		w.commit("create db.big chunks=a")
		big := w.state().CollectionByName("db", "big")
		var refs []manifest.SegmentRef
		for i := range segments {
			id := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "a", Epoch: 2}}
			id.Random[0], id.Random[1], id.Random[2] = 1, byte(i>>8), byte(i)
			refs = append(refs, manifest.SegmentRef{
				Segment: id, MinKey: []byte("a"), MaxKey: []byte("b"), MinSeq: manifest.Seq(i + 1), MaxSeq: manifest.Seq(i + 1),
				TailOffset: 1, TailLength: 1, Size: 10, Rows: 1, Bytes: 1,
			})
			w.put(id.Key())
		}
		for c := range w.state().Chunks(big.ID) {
			flush := manifest.Flush{Shard: "a", Epoch: 2, Snapshot: manifest.Position{Epoch: 2, Next: 9}, Complete: true, Chunks: []manifest.FlushedChunk{
				{At: c.At(), Added: manifest.Added{Refs: refs, MaxSeq: segments, RowsDelta: 1}},
			}}
			_, err := w.root.Commit(t.Context(), manifest.Edit{Op: w.host.ID16(), Changes: []manifest.Change{flush}, Millis: w.host.Wall().UnixMilli()})
			w.must(err)
		}
		now := w.host.Wall()
		_, err := w.root.Pin(t.Context(), "before drop of db.big", now.Add(time.Minute).Unix(), now.UnixMilli())
		w.must(err)
		w.commit("drop db.big")
		s := w.sweeper(w.mem)
		s.Root = w.root
		for range 4 {
			time.Sleep(10 * time.Minute)
			for left := true; left; {
				r, err := s.Sweep(t.Context(), false)
				w.must(err)
				left = r.Left
			}
		}
		page, _, err := w.mem.List(t.Context(), "seg/", "", 0)
		w.must(err)
		if len(page) > 5 {
			t.Errorf("%d segments are left", len(page))
		}
	})
}

// Pages that no root refers to go, in the cluster's own bucket, by the look for orphans: not those
// of a commit that may still come, of the newest copy, or of a pin.
func TestPagesOfOldRootsGo(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.root = manifest.NewRoot(bucket.NewCell(w.mem), w.host, &manifest.RootOptions{HistoryEvery: time.Minute, PageBudget: 1})
		pages := func() []string {
			keys, err := pageKeys(t.Context(), w.mem)
			w.must(err)
			return keys
		}
		flushed := 0
		flush := func(n int) {
			for range n {
				time.Sleep(2 * time.Minute)
				w.commit(fmt.Sprintf("flush a epoch=2 snap=2,%d complete c1{seg=%02x keys=a..d seq=%d..%d rows=1}", 10+flushed, 0x10+flushed, 20+flushed, 20+flushed))
				for _, id := range w.segments() {
					w.put(id.Key())
				}
				flushed++
			}
		}
		flush(3)
		pin, err := w.root.Pin(t.Context(), "p", 0, w.host.Wall().UnixMilli())
		w.must(err)
		flush(3)
		flush(2)
		all := pages()
		s := w.sweeper(w.mem)
		s.Root = w.root
		o, err := s.Orphans(t.Context(), true)
		w.must(err)
		if o.Pages == 0 || len(pages()) != len(all) {
			t.Errorf("of %d pages %d would go, %d are left by a dry look", len(all), o.Pages, len(pages()))
		}
		soon := fmt.Sprintf("meta/page/%020d/00000000000000aa", w.state().Version())
		w.put(soon) // by a commit that was planned on this root
		o, err = s.Orphans(t.Context(), false)
		w.must(err)
		left := pages()
		needed := map[string]bool{}
		past, err := w.root.Pinned(t.Context(), pin.Version)
		w.must(err)
		for _, p := range past.Pages() {
			needed[p.Key()] = true
		}
		for _, p := range w.state().Pages() {
			needed[p.Key()] = true
		}
		if o.Pages == 0 || len(needed) < 2 {
			t.Errorf("%d pages went of %d, %d are needed", o.Pages, len(all), len(needed))
		}
		for key := range needed {
			if !slices.Contains(left, key) {
				t.Errorf("%s is gone, and is needed", key)
			}
		}
		for _, key := range left {
			if !needed[key] && key != soon {
				t.Errorf("%s is there, and nothing refers to it", key)
			}
		}
	})
}
