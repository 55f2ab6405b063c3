package segment

import (
	"encoding/binary"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// A filter takes 16 bits a key, holds every key that was added, and lets at most 1 in 500
// others pass, whatever its size.
func TestFilterIsSmallAndSelective(t *testing.T) {
	t.Parallel()
	hash := func(n uint64) uint64 {
		return keyHash(7, binary.BigEndian.AppendUint64([]byte("key"), n))
	}
	for _, n := range []int{1, 100, 10_000, 200_000} {
		hashes := make([]uint64, n)
		for i := range hashes {
			hashes[i] = hash(uint64(i))
		}
		f := newFilter(hashes)
		if most := 2*n + filterBlock; len(f) > most {
			t.Errorf("%d keys: %d bytes, want at most %d", n, len(f), most)
		}
		for _, h := range hashes {
			if !f.mayContain(h) {
				t.Fatalf("%d keys: one of them is missing", n)
			}
		}
		const others = 200_000
		passed := 0
		for i := range uint64(others) {
			if f.mayContain(hash(1<<32 + i)) {
				passed++
			}
		}
		t.Logf("%d keys: %d bytes, %d of %d others pass", n, len(f), passed, others)
		if n > 1000 && passed > others/500 {
			t.Errorf("%d keys: %d of %d others pass", n, passed, others)
		}
	}
}

// Filters of fewer bits a key, as earlier versions wrote them, are read as they are.
func TestFilterOfAnotherDensityIsRead(t *testing.T) {
	t.Parallel()
	hashes := make([]uint64, 1000)
	for i := range hashes {
		hashes[i] = xxhash.Sum64(binary.BigEndian.AppendUint64(nil, uint64(i)))
	}
	dense := newFilter(hashes)
	for _, blocks := range []int{1, 10, 40, len(dense)/filterBlock + 3} {
		f := make(filter, blocks*filterBlock)
		f.add(hashes)
		got, err := parseFilter(f)
		check(t, err)
		for _, h := range hashes {
			if !got.mayContain(h) {
				t.Fatalf("%d blocks: a key is missing", blocks)
			}
		}
	}
}
