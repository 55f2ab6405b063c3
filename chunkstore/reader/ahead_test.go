package reader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest/shardkey"
)

// noisy is n rows of about size bytes that do not compress.
func noisy(from, n, size int) []segment.Row {
	rnd := rand.NewChaCha8([32]byte{byte(from), byte(from >> 8)})
	text := make([]byte, size)
	rows := make([]segment.Row, 0, n)
	for k := from; k < from+n; k++ {
		_, _ = rnd.Read(text) // never fails; the codec looks at bytes, not at UTF-8
		rows = append(rows, put(k, 1, string(text)))
	}
	return rows
}

// A cold scan of a large segment takes a GET for each 4 MiB and a few to get there, and waits
// for a third of them; without room to read ahead it takes one for each MiB, and waits for
// all.
func TestColdScanReadsAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.block = 64 << 10
		const mib = 32
		w.add(noisy(0, mib<<10, 1000)...)
		for _, c := range []struct {
			what   string
			ahead  bool
			gets   int
			rounds time.Duration
		}{{"ahead", true, mib/4 + 8, 10}, {"one by one", false, mib + 6, mib + 6}} {
			for _, reverse := range []bool{false, true} {
				w.store = w.open(slow{w.bucket, latency})
				if !c.ahead {
					w.store.prefetch = nil
				}
				begin := time.Now()
				n := w.spent(func() {
					if rows := len(w.scan(shardkey.Range{}, reverse, 0)); rows != mib<<10 {
						t.Fatalf("%d rows", rows)
					}
				})
				rounds := time.Since(begin) / latency
				t.Logf("%s, reverse %v: %d GETs, waited for %d", c.what, reverse, n, rounds)
				if n > c.gets || rounds > c.rounds {
					t.Errorf("%s: %d GETs, waited for %d; want %d and %d", c.what, n, rounds, c.gets, c.rounds)
				}
				if c.ahead && w.store.prefetch.Used() != 0 {
					t.Errorf("%d bytes are still taken", w.store.prefetch.Used())
				}
			}
		}
	})
}

// A scan that ends early has read little more than it passed, and leaves nothing behind.
func TestShortScansReadLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.block = 64 << 10
	w.add(noisy(0, 10<<10, 1000)...)
	for _, c := range []struct{ rows, gets, bytes int }{
		{1, 2, 160 << 10}, // tail and block
		{60, 2, 160 << 10},
		{100, 3, 300 << 10},
		{1000, 6, 5 * 1000 << 10},
		{3000, 9, 5 * 3000 << 10},
	} {
		w.cool()
		var cost Counter
		ctx := WithCounter(ctx, &cost)
		it := w.store.Scan(ctx, w.view, shardkey.Range{}, false)
		for range c.rows {
			if !it.Next(ctx) {
				t.Fatal(it.Err())
			}
		}
		it.Rest()
		if cost.Requests() > int64(c.gets) || cost.Bytes() > int64(c.bytes) || w.store.prefetch.Used() != 0 {
			t.Errorf("%d rows: %d GETs of %d bytes, %d taken; want %d of %d", c.rows, cost.Requests(), cost.Bytes(), w.store.prefetch.Used(), c.gets, c.bytes)
		}
	}
}

// A scan that rests can go on and sees every row once; what the caller says that it wants is
// what is read.
func TestScanGoesOnAfterRests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.block = 64 << 10
	const rows = 8 << 10
	for _, r := range []int{0, 1} {
		w.add(noisy(r*rows, rows, 600)...)
	}
	for _, reverse := range []bool{false, true} {
		for _, wants := range []bool{false, true} {
			w.cool()
			var cost Counter
			ctx := WithCounter(ctx, &cost)
			it := w.store.Scan(ctx, w.view, shardkey.Range{}, reverse)
			n, left := 0, 0
			if wants {
				it.Want(func() int64 { return int64(left) })
			}
			for left = 3000; it.Next(ctx); n++ {
				at := n
				if reverse {
					at = 2*rows - 1 - n
				}
				if string(it.Row().Key) != string(key(at)) {
					t.Fatalf("row %d is %x", n, it.Row().Key)
				}
				if left--; left == 0 {
					it.Rest()
					if w.store.prefetch.Used() != 0 {
						t.Fatalf("%d bytes taken at rest", w.store.prefetch.Used())
					}
					left = 3000
				}
			}
			if n != 2*rows || it.Err() != nil {
				t.Errorf("%d rows, %v", n, it.Err())
			}
			t.Logf("reverse %v, wants %v: %d GETs, %d bytes", reverse, wants, cost.Requests(), cost.Bytes())
			if whole := int64(2 * rows * 700); wants && cost.Bytes() > whole*5/4 {
				t.Errorf("%d bytes were read for %d", cost.Bytes(), whole)
			}
		}
	}
}

// References that follow one another are opened before the scan comes to them, once it has
// come to a few.
func TestScanOpensWhatFollowsBeforeItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.block = 64 << 10
		for i := range 40 {
			w.add(run(i*10, i*10+10, 1, "v")...)
		}
		for _, reverse := range []bool{false, true} {
			w.store = w.open(slow{w.bucket, latency})
			begin := time.Now()
			n := w.spent(func() { w.scan(shardkey.Range{}, reverse, 0) })
			if rounds := time.Since(begin) / latency; n != 80 || rounds > 20 {
				t.Errorf("%d GETs, waited for %d", n, rounds)
			}
			it := w.store.Scan(ctx, w.view, shardkey.Range{}, reverse)
			for range 100 {
				it.Next(ctx)
			}
			it.Rest()
			if w.store.prefetch.Used() != 0 {
				t.Errorf("%d bytes taken at rest", w.store.prefetch.Used())
			}
			for n = 100; it.Next(ctx); n++ {
			}
			if n != 400 || it.Err() != nil {
				t.Errorf("%d rows, %v", n, it.Err())
			}
		}
		w.store = w.open(slow{w.bucket, latency})
		n := w.spent(func() {
			it := w.store.Scan(ctx, w.view, shardkey.Range{}, false)
			left := int64(60)
			it.Want(func() int64 { return left })
			for ; left > 0 && it.Next(ctx); left-- {
			}
			it.Rest()
		})
		if n != 12 {
			t.Errorf("%d GETs for 6 segments", n)
		}
	})
}

// flaky fails every n-th GET.
type flaky struct {
	bucket.Bucket
	every, n *atomic.Int64
	err      error
}

func (f flaky) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	if f.n.Add(1)%f.every.Load() == 0 {
		return bucket.Object{}, f.err
	}
	return f.Bucket.Get(ctx, key, o)
}

// Whichever GET of a scan fails, also one that was sent ahead, the scan ends with its error
// and leaves nothing in flight; it never ends as if there were no more rows.
func TestScanFailsWithAnyOfItsGets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.block = 64 << 10
	w.add(noisy(0, 6000, 600)...)
	for i := range 10 {
		w.add(run(6000+i*10, 6010+i*10, 1, "v")...)
	}
	broken := errors.New("broken")
	for _, reverse := range []bool{false, true} {
		for nth := int64(1); ; nth++ {
			f := flaky{Bucket: w.bucket, every: new(atomic.Int64), n: new(atomic.Int64), err: fmt.Errorf("get: %w", broken)}
			f.every.Store(nth)
			w.store = w.open(f)
			it := w.store.Scan(ctx, w.view, shardkey.Range{}, reverse)
			n := 0
			for ; it.Next(ctx); n++ {
			}
			if w.store.prefetch.Used() != 0 {
				t.Fatalf("GET %d: %d bytes taken", nth, w.store.prefetch.Used())
			}
			if it.Err() == nil && n != 6100 || it.Err() != nil && !errors.Is(it.Err(), broken) {
				t.Fatalf("GET %d: %d rows, %v", nth, n, it.Err())
			}
			if f.n.Load() < nth {
				break
			}
		}
	}
}

// A scan under a context that ends stops waiting, and gives up what is in flight.
func TestScanAheadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.block = 64 << 10
		w.add(noisy(0, 4<<10, 1000)...)
		for after := latency / 2; after < 10*latency; after += latency {
			w.store = w.open(slow{w.bucket, latency})
			short, stop := context.WithTimeout(ctx, after)
			it := w.store.Scan(short, w.view, shardkey.Range{}, false)
			n := 0
			for ; it.Next(short); n++ {
			}
			stop()
			if n == 4<<10 && it.Err() == nil {
				break
			}
			if !errors.Is(it.Err(), context.DeadlineExceeded) || w.store.prefetch.Used() != 0 {
				t.Errorf("after %v: %d rows, %v, %d bytes taken", after, n, it.Err(), w.store.prefetch.Used())
			}
		}
	})
}

// What was begun under a context that has ended is read again under the one that goes on.
func TestScanOutlivesTheContextOfOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.block = 64 << 10
		const rows = 4 << 10
		w.add(noisy(0, rows, 1000)...)
		w.store = w.open(slow{w.bucket, latency})
		it := w.store.Scan(ctx, w.view, shardkey.Range{}, false)
		n := 0
		for i := 0; ; i++ {
			call, stop := context.WithCancel(ctx)
			more := true
			for k := 0; k < 700 && more; k++ {
				if more = it.Next(call); more {
					n++
				}
			}
			stop()
			if !more {
				break
			}
		}
		if n != rows || it.Err() != nil {
			t.Errorf("%d rows, %v", n, it.Err())
		}
	})
}
