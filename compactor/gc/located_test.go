package gc

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/places"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/manifesttest"
)

// TestSweepReachesOtherLocations: the log, the dropped segments and the replaced pages of a
// shard with a location of its own are deleted there, by the rules for all; what a pin needs,
// and what is not ours, stays.
func TestSweepReachesOtherLocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, mem: membucket.New(), host: manifesttest.Host(7)}
		eu := membucket.New()
		_, err := manifest.Create(t.Context(), bucket.NewCell(w.mem), w.host, manifest.InitOptions{Shards: []manifest.ShardID{"a"}})
		w.must(err)
		at := places.New(w.mem, func(context.Context, string) (bucket.Bucket, error) { return eu, nil }, w.host, nil)
		w.root = at.Root()
		w.must(at.Prepare(t.Context(), "mem:eu"))
		w.commit("add-shards eu url=mem:eu")
		w.commit("create db.c chunks=a,m,eu")
		w.commit("claim eu epoch=0 holder=p1", "register 05")
		w.commit("flush eu epoch=1 snap=1,2 complete c2{seg=01 keys=p..x seq=1..3 rows=3 delta=3 in=1}")
		pin, err := w.root.Pin(t.Context(), "kept", 0, 0)
		w.must(err)
		kept := w.root.State().Pages()
		w.commit("flush eu epoch=1 snap=1,3 complete c2{seg=02 keys=p..x seq=4..5 rows=2 in=1}")
		w.commit("compact 05 c2 in=01,02 oldest out={seg=03 keys=p..x seq=1..5 rows=3 in=1}")
		others := []string{"notes/of-somebody", "meta/page/readme", places.MarkKey}
		for _, key := range slices.Concat(others[:2], walKeys([]string{"eu/1/0", "eu/1/2", "eu/1/3"})) {
			_, err := eu.Put(t.Context(), key, []byte("x"), bucket.Condition{})
			w.must(err)
		}
		for i := range 3 {
			id := manifest.SegmentID{Random: [16]byte{15: byte(i + 1)}}
			for _, d := range w.root.State().Dropped() {
				if d.Segment.Random == id.Random {
					_, err := eu.Put(t.Context(), d.Segment.Key(), []byte("x"), bucket.Condition{})
					w.must(err)
				}
			}
		}
		time.Sleep(Courtesy + time.Second)
		sweeper := &Sweeper{Root: w.root, Bucket: w.mem, Open: at.Open, Host: w.host}
		if _, err := sweeper.Sweep(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		want := slices.Concat(others, walKeys([]string{"eu/1/3"}))
		for _, p := range append(kept, w.root.State().Pages()...) {
			if p.Location == 1 {
				want = append(want, p.Key())
			}
		}
		// What the pin shows stays: it is older than the compaction.
		for _, d := range w.root.State().Dropped() {
			want = append(want, d.Segment.Key())
		}
		compare(t, "with the pin", eu, want)
		w.must(w.root.Unpin(t.Context(), pin.ID, 0))
		for range 2 {
			if _, err := sweeper.Sweep(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		}
		want = slices.Concat(others, walKeys([]string{"eu/1/3"}))
		for _, p := range w.root.State().Pages() {
			want = append(want, p.Key())
		}
		compare(t, "without it", eu, want)
		// What was uploaded there, and whose creator is gone, goes as well.
		lost := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorJob, Job: manifest.JobID{9}}, Random: [16]byte{9}}
		_, err = eu.Put(t.Context(), lost.Key(), []byte("x"), bucket.Condition{})
		w.must(err)
		if o, err := sweeper.Orphans(t.Context(), false); err != nil || o.Deleted != 1 {
			t.Errorf("orphans %+v, %v", o, err)
		}
		compare(t, "without orphans", eu, want)
		if len(w.root.State().Dropped()) > 0 {
			t.Errorf("dropped segments %v are left", w.root.State().Dropped())
		}
	})
}

// compare fails when other objects than those wanted are in a bucket.
func compare(t *testing.T, when string, b bucket.Bucket, want []string) {
	t.Helper()
	list, _, err := b.List(t.Context(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range list {
		got = append(got, o.Key)
	}
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("%s there is\n%v\nexpected\n%v", when, fmt.Sprint(got), fmt.Sprint(want))
	}
}
