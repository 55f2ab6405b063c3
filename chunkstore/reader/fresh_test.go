package reader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/diskcache"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
)

// flipping answers some GETs with wrong bits, in bytes of the right length.
type flipping struct {
	bucket.Bucket
	bad  func(n int) bool
	gets int
}

func (f *flipping) Get(ctx context.Context, key string, o bucket.GetOptions) (bucket.Object, error) {
	obj, err := f.Bucket.Get(ctx, key, o)
	f.gets++
	if err == nil && f.bad(f.gets) {
		obj.Body = bytes.Clone(obj.Body)
		for i := len(obj.Body) / 2; i < len(obj.Body); i += 100 {
			obj.Body[i] ^= 4
		}
	}
	return obj, err
}

// Wrong bytes that a cache, on disk or in memory, once got from the store are found, asked for
// again past it, and gone: the next process finds the right ones. Bytes that are wrong in the
// store are Corrupt, after one more GET.
func TestWrongBytesDoNotStayInACache(t *testing.T) {
	for _, whole := range []uint64{0, wholeBytes} {
		for bad := 1; bad <= 3; bad++ {
			t.Run(fmt.Sprintf("whole up to %d, GET %d", whole, bad), func(t *testing.T) {
				w := newWorld(t)
				w.add(run(0, 100, 1, "v")...)
				dir := t.TempDir()
				store := &flipping{Bucket: w.inner, bad: func(n int) bool { return n == bad }}
				process := func(look func()) (fresh, gets int64) {
					t.Helper()
					m := layer.Metrics(store)
					disk, err := diskcache.Open(m, host.System(), dir, nil)
					w.must(err)
					defer disk.Close()
					w.store = w.open(layer.Cache(disk, 1<<20))
					w.store.whole = whole
					look()
					disk.Sync()
					return m.Fresh(), m.Snapshot().Total(layer.Get).Requests
				}
				all := func() {
					t.Helper()
					row, live := w.get(50)
					if n := len(w.scan(shardkey.Range{}, false, 0)); !live || row != "v" || n != 100 {
						t.Errorf("row 50 is %q, %v; %d rows of 100", row, live, n)
					}
				}
				fresh, gets := process(all)
				if int64(bad) <= gets-fresh && fresh == 0 {
					t.Errorf("%d GETs, none of them past the caches", gets)
				}
				if fresh, _ = process(all); fresh != 0 {
					t.Errorf("the next process asked %d times past its caches", fresh)
				}
				store.bad = func(int) bool { return true }
				dir = t.TempDir()
				process(func() {
					if _, _, err := w.store.Get(ctx, w.view, key(50)); !errors.Is(err, errkind.Corrupt) {
						t.Errorf("wrong in the store: %v", err)
					}
				})
			})
		}
	}
}
