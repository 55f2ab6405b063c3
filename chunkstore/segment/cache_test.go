package segment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/manifest/shardkey"
	"pgregory.net/rapid"
)

// sized is a value of so many bytes.
type sized int64

func (s sized) sizeBytes() int64 { return int64(s) }

func numbered(i int) cacheKey { return cacheKey{name{}, int32(i)} }

// load puts value i through the cache and reports whether it was fetched.
func loadNumber(t testing.TB, c *Cache, i int, size int64) (fetched bool) {
	t.Helper()
	v, err := c.get(t.Context(), numbered(i), func() (value, error) {
		fetched = true
		return sized(size), nil
	})
	if err != nil || v != sized(size) {
		t.Fatal(v, err)
	}
	return fetched
}

// The cache never holds more than its budget, and counts what it holds.
func TestCacheKeepsItsBudget(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := NewCache(rapid.Int64Range(0, 5000).Draw(t, "budget"))
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			k := rapid.IntRange(0, 20).Draw(t, "key")
			if rapid.Bool().Draw(t, "look") {
				c.lookup(numbered(k))
			} else {
				c.add(numbered(k), sized(rapid.Int64Range(0, 2000).Draw(t, "size")))
			}
			var sum int64
			for _, e := range c.entries {
				if e.value != nil {
					sum += e.size
				}
			}
			if c.Used() > c.budget || c.Used() != sum || c.ghosts.bytes > c.budget {
				t.Fatalf("%d used, %d held, budget %d", c.Used(), sum, c.budget)
			}
		}
	})
}

// A long scan of blocks that nobody asks for twice leaves the hot ones in place.
func TestScanDoesNotFlushTheHotBlocks(t *testing.T) {
	t.Parallel()
	c := NewCache(100 * (1000 + entryOverhead))
	for range 2 {
		for i := range 60 {
			loadNumber(t, c, i, 1000)
		}
	}
	for i := range 1000 {
		loadNumber(t, c, 1000+i, 1000)
	}
	for i := range 60 {
		if loadNumber(t, c, i, 1000) {
			t.Errorf("hot block %d was evicted", i)
		}
	}
}

// What fits stays, however often it is gone through.
func TestWorkingSetThatFitsStays(t *testing.T) {
	t.Parallel()
	c := NewCache(100 * (1000 + entryOverhead))
	for round := range 3 {
		for i := range 100 {
			if loadNumber(t, c, i, 1000) != (round == 0) {
				t.Errorf("round %d: block %d", round, i)
			}
		}
	}
	if !loadNumber(t, c, 1, 1000) == c.has(numbered(100)) {
		t.Error("something else is there")
	}
}

// What was hot once and is not any more gives way to what is hot now.
func TestWorkingSetThatMovesTakesOver(t *testing.T) {
	t.Parallel()
	c := NewCache(100 * (1000 + entryOverhead))
	for set := range 5 {
		for round := range 6 {
			for i := range 80 {
				if loadNumber(t, c, 1000*set+i, 1000) && round == 5 {
					t.Errorf("set %d: block %d is not cached", set, i)
				}
			}
		}
	}
}

// The same calls leave the same blocks: nothing in the cache is left to chance.
func TestCacheIsDeterministic(t *testing.T) {
	t.Parallel()
	var first []string
	for run := range 3 {
		c := NewCache(30_000)
		var log []string
		for i := range 5000 {
			k := i * i % 97 % (40 + i%23)
			log = append(log, fmt.Sprint(loadNumber(t, c, k, int64(500+k*7))))
		}
		if run == 0 {
			first = log
		} else if !slices.Equal(first, log) {
			t.Error("the runs differ")
		}
	}
}

// Concurrent loads of one block share a fetch; everyone gets its outcome, also an error.
func TestConcurrentLoadsShareOneFetch(t *testing.T) {
	t.Parallel()
	for _, fail := range []error{nil, errors.New("broken")} {
		synctest.Test(t, func(t *testing.T) {
			c := NewCache(0)
			fetches := 0
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					v, err := c.get(t.Context(), numbered(1), func() (value, error) {
						fetches++
						time.Sleep(time.Second)
						return sized(7), fail
					})
					if v != sized(7) || err != fail {
						t.Error(v, err)
					}
				})
			}
			wg.Wait()
			if fetches != 1 {
				t.Errorf("%d fetches", fetches)
			}
		})
	}
}

// Who opens a small segment at the same moment as others reads its rows from the same Fetch as
// they do, whoever was first; the cache keeps the tail and the blocks, not the object.
func TestWholeSegmentIsFetchedOnceForAll(t *testing.T) {
	t.Parallel()
	rows := sample(20, 1)
	body, refs := build(t, nil, rows, nil)
	synctest.Test(t, func(t *testing.T) {
		obj := &object{body: body}
		slow := func(ctx context.Context, off, length int64) ([]byte, error) {
			time.Sleep(time.Second)
			return obj.fetch(ctx, off, length)
		}
		cache := NewCache(1 << 20)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				r, err := OpenWhole(t.Context(), slow, refs[0], cache)
				if err != nil {
					t.Error(err)
					return
				}
				if row, ok, err := r.Get(t.Context(), 1, rows[0].Key); !ok || err != nil || row.Seq != rows[0].Seq {
					t.Error(row, ok, err)
				}
			})
		}
		wg.Wait()
		if obj.count() != 1 {
			t.Errorf("requests %v", obj.gets)
		}
		if v, _ := cache.lookup(cacheKey{refs[0].Segment.Random, tailBlock}); v == nil {
			t.Error("the tail is not cached")
		} else if _, ok := v.(*tail); !ok {
			t.Errorf("the cache keeps a %T", v)
		}
	})
}

// When the one that fetches gives up, another that still waits fetches; who gives up
// waiting goes alone; who only waited and whose context ended gets what is there, if it is.
func TestLoadOutlivesItsFirstCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewCache(1 << 20)
		fetch := func(ctx context.Context) func() (value, error) {
			return func() (value, error) {
				select {
				case <-time.After(10 * time.Second):
					return sized(7), nil
				case <-ctx.Done():
					return nil, fmt.Errorf("fetch: %w", ctx.Err())
				}
			}
		}
		var wg sync.WaitGroup
		for i, timeout := range []time.Duration{time.Second, 5 * time.Second, time.Hour, time.Hour} {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				_, err := c.get(ctx, numbered(1), fetch(ctx))
				if (err == nil) != (timeout == time.Hour) {
					t.Errorf("timeout %v: %v", timeout, err)
				}
			})
		}
		wg.Wait()
	})
	done := &load{done: make(chan struct{})}
	close(done.done)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if !done.wait(ctx) {
			t.Fatal("an ended context hides what is there")
		}
	}
}

// A fetch that panics leaves nobody waiting.
func TestPanicOfAFetchIsNotALock(t *testing.T) {
	t.Parallel()
	c := NewCache(1 << 20)
	func() {
		defer func() { _ = recover() }()
		_, _ = c.get(t.Context(), numbered(1), func() (value, error) { panic("broken") })
	}()
	if !loadNumber(t, c, 1, 10) {
		t.Error("a value from nowhere")
	}
}

// Many goroutines read one segment through one small cache, and get the right rows. The
// zstd coders work inside a synctest bubble and afterwards outside of it.
func TestConcurrentReaders(t *testing.T) {
	t.Parallel()
	rows := sample(800, 1)
	body, refs := build(t, &WriterOptions{Codec: Zstd, BlockSize: 2000}, rows, nil)
	read := func(t *testing.T) {
		cache := NewCache(20_000)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				r, _ := open(t, body, refs, cache)
				got := scan(t, r, 1, shardkey.Range{}, g%2 == 0)
				if g%2 == 0 {
					slices.Reverse(got)
				}
				sameRows(t, got, rows)
				for n := g; n < 800; n += 8 {
					if _, ok, err := r.Get(t.Context(), 1, key(n)); !ok || err != nil {
						t.Error(ok, err)
					}
				}
			})
		}
		wg.Wait()
	}
	synctest.Test(t, read)
	read(t)
	synctest.Test(t, read)
}
