package reader

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/errkind"
)

// spread is a chunk of 4 segments of 50 blocks each, and 200 of their keys, out of order.
func spread(w *world) (keys [][]byte) {
	w.block = 4 << 10
	for i := range 4 {
		w.add(noisy(i*200, 200, 900)...)
	}
	for _, k := range rand.New(rand.NewPCG(1, 2)).Perm(800)[:200] {
		keys = append(keys, key(k))
	}
	return keys
}

// A list of keys waits for the tails once, and for the blocks as often as sixteen at a time
// need; every block is read once, several with one GET where they adjoin, and nothing again.
func TestGetManyReadsEachBlockOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		list := spread(w)
		for _, c := range []struct {
			what         string
			list         [][]byte
			gets, rounds int
		}{
			{"200 of 800 rows", list, 4 + 64, 1 + 4},
			{"one row", list[:1], 2, 2},
			{"one row many times", [][]byte{list[0], list[0], list[0]}, 2, 2},
			{"none", nil, 0, 0},
			{"rows that are not there", [][]byte{[]byte("k00001x"), []byte("k00300x")}, 2, 1},
		} {
			w.store = w.open(slow{w.bucket, latency})
			begin := time.Now()
			read := func() {
				for i, f := range w.store.GetMany(ctx, w.view, c.list) {
					if f.Err != nil || f.Live != (len(c.list[i]) == len(key(0))) {
						t.Errorf("%s: %s: %v %v", c.what, c.list[i], f.Live, f.Err)
					}
				}
			}
			n := w.spent(read)
			rounds := int(time.Since(begin) / latency)
			t.Logf("%s: %d GETs, waited for %d", c.what, n, rounds)
			if n > c.gets || rounds > c.rounds {
				t.Errorf("%s: %d GETs, waited for %d; want %d and %d", c.what, n, rounds, c.gets, c.rounds)
			}
			if again := w.spent(read); again != 0 {
				t.Errorf("%s again: %d GETs", c.what, again)
			}
		}
	})
}

// A segment that is missing or damaged is the error of the keys that it may hold; others are
// found.
func TestGetManyFailsKeyByKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	list := spread(w)
	gone := w.view.Chunk.Refs[1].Segment.Key()
	w.must(w.inner.Delete(ctx, gone))
	rotten := w.view.Chunk.Refs[2].Segment
	o, err := w.inner.Get(ctx, rotten.Key(), bucket.GetOptions{})
	w.must(err)
	o.Body[100] ^= 1 // in its first block
	w.upload(rotten, o.Body)
	failed := map[error]int{}
	for i, f := range w.store.GetMany(ctx, w.view, append(list, key(400), key(401))) {
		row, live, err := w.store.Get(ctx, w.view, append(list, key(400), key(401))[i])
		for _, kind := range []error{nil, errkind.NotFound, errkind.Corrupt} {
			if errors.Is(f.Err, kind) != errors.Is(err, kind) {
				t.Errorf("key %d: %v, alone %v", i, f.Err, err)
			} else if errors.Is(err, kind) {
				failed[kind]++
			}
		}
		if f.Live != live || string(f.Row.Doc) != string(row.Doc) {
			t.Errorf("key %d differs", i)
		}
	}
	if failed[nil] == 0 || failed[errkind.NotFound] == 0 || failed[errkind.Corrupt] < 2 {
		t.Errorf("%v", failed)
	}
}
