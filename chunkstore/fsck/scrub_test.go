package fsck

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

func (w *world) checker() *Checker {
	return &Checker{Root: manifest.NewRoot(w.cell(), w.host, nil), Bucket: w.mem, Open: w.open}
}

// stakes are the documents that the first problem of a rule names.
func stakes(r *Report, rule string) (list []string) {
	for _, p := range r.Problems {
		if p.Rule == rule {
			for _, k := range p.AtStake {
				list = append(list, k.String())
			}
			break
		}
	}
	return list
}

const (
	range1 = `db.c from {"k":{"$minKey":1}} up to {"k":"h"} (chunk 1 of a)`
	range2 = `db.c from {"k":"h"} up to {"k":"p"} (chunk 2 of a)`
)

// What is at stake is told as documents: of one chunk for its segment, of every chunk of the
// shard for a log object, but for those whose floor is above it.
func TestProblemsNameTheDocumentsAtStake(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		lost := w.log("a", 1)
		w.remove(lost)
		r, err := w.fsck(false, nil)
		w.must(err)
		if diff := cmp.Diff([]string{range1, range2}, stakes(r, RuleContiguous)); diff != "" {
			t.Error(diff)
		}
		s := w.state().Shard("a")
		w.commit(manifest.Flush{Shard: "a", Epoch: 1, Snapshot: manifest.Position{Epoch: 1, Next: s.Floor.Next + 3},
			Chunks: []manifest.FlushedChunk{{At: w.chunk(1).At()}}})
		r, err = w.fsck(false, nil)
		w.must(err)
		if diff := cmp.Diff([]string{range2}, stakes(r, RuleContiguous)); diff != "" {
			t.Error(diff)
		}
		w.remove(w.seg(1))
		r, err = w.fsck(true, nil)
		w.must(err)
		if diff := cmp.Diff([]string{range1}, stakes(r, RuleExists)); diff != "" {
			t.Error(diff)
		}
	})
}

// A store whose root is lost or damaged is never an empty one: that is the problem, with the way
// out. One that never held a cluster has no problem, and no report.
func TestALostRootIsAProblem(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		root := w.get(manifest.RootKey)
		for _, damage := range []func(){
			func() { w.put(manifest.RootKey, flip(root, len(root)-5)) },
			func() { w.put(manifest.RootKey, nil) },
			func() { w.remove(manifest.RootKey) },
		} {
			damage()
			r, err := w.checker().Run(t.Context())
			if err != nil || len(r.Problems) != 1 || r.Problems[0].Rule != RuleRoot || !strings.Contains(r.Problems[0].Detail, "granary repair") {
				t.Errorf("%v, %v", r, err)
			}
		}
		for _, s := range []manifest.ShardID{"a", "b"} {
			for i := range uint64(30) {
				w.remove(manifest.WALKey(s, 1, i))
			}
		}
		page, _, err := w.mem.List(t.Context(), "seg/", "", 0)
		w.must(err)
		for _, o := range page {
			if r, err := w.checker().Run(t.Context()); err != nil || len(r.Problems) != 1 {
				t.Errorf("with %s: %v, %v", o.Key, r, err)
			}
			w.remove(o.Key)
		}
		if _, err := w.checker().Run(t.Context()); !errors.Is(err, errkind.NotFound) {
			t.Errorf("an empty store: %v", err)
		}
	})
}

// What only a snapshot keeps is looked at as well, and so are the copies of the root.
func TestPinsAndCopiesAreRead(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(manifest.HistoryKey(1), w.get(manifest.RootKey))
		w.put(manifest.HistoryKey(2), flip(w.get(manifest.RootKey), 40))
		w.commit(manifest.AddPin{Pin: manifest.Pin{ID: [16]byte{9}, Name: "monday"}})
		w.put(manifest.PinKey([16]byte{9}), w.get(manifest.RootKey))
		lost := w.seg(3)
		w.commit(manifest.DropCollection{ID: 1})
		r, err := w.fsck(true, nil)
		w.must(err)
		if r.Copies != 2 || len(r.Problems) != 1 || r.Problems[0].Rule != RuleCopy || r.Problems[0].Object != manifest.HistoryKey(2) {
			t.Errorf("%+v", r)
		}
		w.put(lost, flip(w.get(lost), 60))
		r, err = w.fsck(true, nil)
		w.must(err)
		if len(r.Problems) != 2 || text(r.Problems[0]) != RulePinned+" | "+lost+" | db.c chunk 3" || !strings.Contains(r.Problems[0].Detail, "monday") {
			t.Errorf("%+v", r.Problems)
		}
	})
}

// A scrub that is ended after any segment goes on there, reads no segment twice, and reports
// what the rounds before it found.
func TestAScrubGoesOnWhereItWas(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(w.seg(1), flip(w.get(w.seg(1)), 60))
		w.put(w.seg(3), flip(w.get(w.seg(3)), 60))
		whole, err := w.checker().Scrub(t.Context(), Mark{}, func(Mark) error { return nil })
		w.must(err)
		if len(whole.Problems) != 3 || whole.Segments != 2 || whole.WALRecords != 4 {
			t.Errorf("%+v", whole)
		}
		stop := errors.New("stopped")
		var mark Mark
		_, err = w.checker().Scrub(t.Context(), mark, func(m Mark) error { mark = m; return stop })
		if !errors.Is(err, stop) || mark.Segments != 1 || len(mark.Problems) == 0 {
			t.Fatalf("%v, %+v", err, mark)
		}
		m := layer.Metrics(w.mem)
		rest, err := (&Checker{Root: manifest.NewRoot(w.cell(), w.host, nil), Bucket: m, Open: func(manifest.LocationID) (b bucketOf, err error) { return m, nil }}).
			Scrub(t.Context(), mark, func(Mark) error { return nil })
		w.must(err)
		if diff := cmp.Diff(whole, rest); diff != "" {
			t.Errorf("-whole +in two parts:\n%s", diff)
		}
		if n := m.Snapshot().Of(layer.Get, layer.Segment).Requests; n > 4 { // one segment's
			t.Errorf("%d reads of segments", n)
		}
		mark.Cluster = "another"
		if _, err := w.checker().Scrub(t.Context(), mark, nil); !errors.Is(err, errkind.Invalid) {
			t.Errorf("the mark of another cluster: %v", err)
		}
	})
}

// Paced reads take the time that their bytes are worth.
func TestAPacedScrubTakesItsTime(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		c := w.checker()
		slow := layer.NewPacer(w.host, func() layer.Rate { return layer.Rate{Bytes: 100} }).Pace(w.mem)
		c.Bucket, c.Open = slow, func(manifest.LocationID) (bucketOf, error) { return slow, nil }
		began := time.Now()
		r, err := c.Scrub(context.Background(), Mark{}, func(Mark) error { return nil })
		w.must(err)
		if took := time.Since(began); took < time.Duration(r.Bytes)*10*time.Millisecond || took > 5*time.Minute {
			t.Errorf("%d bytes in %v", r.Bytes, took)
		}
	})
}
