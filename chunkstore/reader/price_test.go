package reader

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest/shardkey"
)

// A point read with S segments that may hold the key costs S tails and one block, then
// nothing; only the filters of the other segments are asked.
func TestPointReadCostsOneTailPerSegmentAndOneBlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 4 { // segment i has the keys that are i mod 4, oldest first
		rows := run(0, 0, 1, "")
		for k := i; k < 200; k += 4 {
			rows = append(rows, put(k, 1, "v"))
		}
		w.add(rows...)
	}
	read := func(k int, found bool) func() {
		return func() {
			if _, ok := w.get(k); ok != found {
				t.Fatalf("get %d: %v", k, ok)
			}
		}
	}
	for _, c := range []struct {
		what       string
		k          int
		found      bool
		cold, warm int
	}{
		{"in the newest", 103, true, 5, 0},
		{"in the oldest", 100, true, 5, 0},
		{"outside of two segments' bounds", 1, true, 3, 0},
		{"outside of all", 200, false, 0, 0},
	} {
		w.cool()
		if n := w.spent(read(c.k, c.found)); n != c.cold {
			t.Errorf("%s: cold %d GETs, want %d", c.what, n, c.cold)
		}
		if n := w.spent(read(c.k, c.found)); n != c.warm {
			t.Errorf("%s: warm %d GETs, want %d", c.what, n, c.warm)
		}
	}
}

// A segment that is small is fetched as a whole: a cold point read is one GET for each segment
// that may hold the key, in one round trip. With more than a few of them it is the tails alone.
func TestSmallSegmentsAreFetchedAsAWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ segments, cold int }{{1, 1}, {wholeMax, wholeMax}, {wholeMax + 1, wholeMax + 2}} {
		w := newWorld(t)
		w.store.whole = wholeBytes
		for i := range c.segments {
			rows := run(0, 0, 1, "")
			for k := i; k < 200; k += c.segments {
				rows = append(rows, put(k, 1, "v"))
			}
			w.add(rows...)
		}
		k := 10 * c.segments // in the oldest
		read := func() {
			if _, ok := w.get(k); !ok {
				t.Fatalf("get %d: not there", k)
			}
		}
		if n := w.spent(read); n != c.cold {
			t.Errorf("%d segments: cold %d GETs, want %d", c.segments, n, c.cold)
		}
		if n := w.spent(read); n != 0 {
			t.Errorf("%d segments: warm %d GETs", c.segments, n)
		}
	}
}

// With a version in the newest segment, older ones are not read: neither their blocks, nor
// their tails once the newest is open.
func TestPointReadStopsAtTheNewestVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(run(0, 100, 1, "old")...)
	w.add(run(0, 100, 2, "new")...)
	ref := w.view.Chunk.Refs[1]
	if _, err := w.store.reader(ctx, &ref); err != nil {
		t.Fatal(err)
	}
	if n := w.spent(func() { w.get(50) }); n != 1 {
		t.Errorf("%d GETs, want the newest segment's block only", n)
	}
}

// A row that is still in a memtable costs nothing.
func TestUnflushedRowsCostNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(run(0, 100, 1, "flushed")...)
	w.view.Mems = []Mem{newMem(put(5, 9, "new"), del(6, 9))}
	n := w.spent(func() {
		if got, ok := w.get(5); !ok || got != "new" {
			t.Errorf("get 5: %q %v", got, ok)
		}
		if row, live, err := w.store.Get(ctx, w.view, key(6)); live || !row.Delete || err != nil {
			t.Errorf("get 6: %v %v %v, want its deletion", row, live, err)
		}
	})
	if n != 0 {
		t.Errorf("%d GETs", n)
	}
}

// Where references follow one another, a scan opens the next only when it comes to it; a
// range opens those that it touches.
func TestScanOpensSegmentsAsItComesToThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.block = 64 << 10 // a segment has one block
	for i := range 6 {
		w.add(run(i*10, i*10+10, 1, "v")...)
	}
	for _, c := range []struct {
		what    string
		r       shardkey.Range
		reverse bool
		limit   int
		opened  int
	}{
		{"first rows", shardkey.Range{}, false, 3, 1},
		{"last rows", shardkey.Range{}, true, 3, 1},
		{"to the last row of the first", shardkey.Range{}, false, 10, 1},
		{"one row into the second", shardkey.Range{}, false, 11, 2},
		{"everything", shardkey.Range{}, false, 0, 6},
		{"a range", keys(25, 35), false, 0, 2},
		{"a range backwards", keys(25, 35), true, 0, 2},
		{"a range that ends where a segment begins", keys(25, 30), false, 0, 1},
		{"a gap", shardkey.Range{Min: key(99)}, false, 0, 0},
	} {
		w.cool()
		if n := w.spent(func() { w.scan(c.r, c.reverse, c.limit) }); n != 2*c.opened {
			t.Errorf("%s: %d GETs, want a tail and a block of %d segments", c.what, n, c.opened)
		}
	}
}

// A counted scan of one chunk under a compacted run and two wide fresh segments opens the
// wide ones and the first of the run together, not the whole run.
func TestScanDoesNotOpenARunBecauseAWideSegmentOverlapsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.block = 64 << 10 // a segment has one block
	for i := range 6 {
		w.add(run(i*10, i*10+10, 1, "v")...)
	}
	w.add(put(0, 2, "x"), put(59, 2, "x"))
	w.add(put(1, 3, "x"), put(58, 3, "x"))
	if n := w.spent(func() { w.scan(shardkey.Range{}, false, 5) }); n != 6 {
		t.Errorf("%d GETs, want tails and blocks of 3 segments", n)
	}
}

// Cold reads wait for the bucket twice, however many segments overlap: for the tails, then
// for the blocks.
func TestColdReadsTakeTwoRoundTrips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.block = 64 << 10
		for i := range 5 {
			w.add(run(i, 50, 1, "v")...)
		}
		elapsed := func(do func()) time.Duration {
			w.store = w.open(slow{w.bucket, latency})
			begin := time.Now()
			do()
			return time.Since(begin)
		}
		if d := elapsed(func() { w.get(30) }); d != 2*latency {
			t.Errorf("point read: %v, want 2 round trips of %v", d, latency)
		}
		if d := elapsed(func() { w.scan(keys(20, 22), false, 0) }); d != 2*latency {
			t.Errorf("scan: %v, want 2 round trips of %v", d, latency)
		}
	})
}

// Readers that need the same cold segment at once share its GETs; one that gives up early
// does not take the others with it.
func TestConcurrentColdReadsShareTheirGets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range 3 {
			w.add(run(0, 50, 1, "v")...)
		}
		w.store = w.open(slow{w.bucket, latency})
		hasty, stop := context.WithTimeout(ctx, latency/2)
		defer stop()
		n := w.spent(func() {
			var wait sync.WaitGroup
			for i := range 20 {
				wait.Go(func() {
					c := ctx
					if i%4 == 0 {
						c = hasty
					}
					_, live, err := w.store.Get(c, w.view, key(30))
					if c == hasty && err == nil || c == ctx && (err != nil || !live) {
						t.Errorf("reader %d: %v %v", i, live, err)
					}
				})
			}
			wait.Wait()
		})
		if n < 4 || n > 3*3+1 { // each tail may be begun by a hasty reader, at most five of them
			t.Errorf("%d GETs for 20 readers", n)
		}
	})
}

// What a context spent is counted, also on goroutines that it starts.
func TestCounterCountsWhatItsContextSpent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(run(0, 50, 1, "v")...)
	w.add(run(0, 50, 2, "v")...)
	var c Counter
	got := w.spent(func() {
		if _, _, err := w.store.Get(WithCounter(ctx, &c), w.view, key(3)); err != nil {
			t.Error(err)
		}
	})
	if c.Requests() != int64(got) || c.Bytes() == 0 {
		t.Errorf("counted %d requests, %d bytes; %d were sent", c.Requests(), c.Bytes(), got)
	}
}

const latency = 10 * time.Millisecond

// slow is a bucket whose GETs take a while each.
type slow struct {
	bucket.Bucket
	latency time.Duration
}

func (s slow) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	t := time.NewTimer(s.latency)
	defer t.Stop()
	select {
	case <-t.C:
		return s.Bucket.Get(ctx, key, o)
	case <-ctx.Done():
		return bucket.Object{}, context.Cause(ctx)
	}
}
