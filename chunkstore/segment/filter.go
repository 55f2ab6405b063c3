package segment

import (
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"
	"github.com/granarydb/granary/manifest"
)

// The filter answers "certainly not here" for most keys that a segment does not hold: a
// split-block Bloom filter, 32-byte blocks of eight 32-bit words, one bit in each word for
// a key, so that a test touches one cache line. With 16 bits for a key about 1 in 1000 keys
// that are absent pass; 10 bits let 1 in 100 pass, which is felt where a key may be in any of
// dozens of segments. (Binary fuse filters need less space for the same rate, but building
// them can fail and takes 20 times the memory of the filter.)
const (
	filterBlock      = 32
	filterBitsPerKey = 16
)

// filterSalts spread one 32-bit hash over the words: odd constants of the Parquet format.
var filterSalts = [8]uint32{0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d, 0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31}

// keyHash is xxhash64 of the key, plus the collection times an odd constant.
func keyHash(c manifest.CollectionID, key []byte) uint64 {
	return xxhash.Sum64(key) + uint64(c)*0x9E3779B97F4A7C15
}

// filter is the payload of the filter's frame; nil holds every key.
type filter []byte

// newFilter sizes a filter for the hashes and adds them.
func newFilter(hashes []uint64) filter {
	blocks := (len(hashes)*filterBitsPerKey + filterBlock*8 - 1) / (filterBlock * 8)
	f := make(filter, blocks*filterBlock)
	f.add(hashes)
	return f
}

func (f filter) add(hashes []uint64) {
	for _, h := range hashes {
		b := f.block(h)
		for i, salt := range filterSalts {
			w := b[4*i:]
			binary.LittleEndian.PutUint32(w, binary.LittleEndian.Uint32(w)|1<<(uint32(h)*salt>>27))
		}
	}
}

// parseFilter checks a payload; an empty one means that the segment has no rows.
func parseFilter(p []byte) (filter, error) {
	if len(p) == 0 || len(p)%filterBlock != 0 {
		return nil, corruptf("filter of %d bytes", len(p))
	}
	return filter(p), nil
}

func (f filter) block(h uint64) []byte {
	i, _ := bits.Mul64(h, uint64(len(f)/filterBlock))
	return f[i*filterBlock:][:filterBlock]
}

func (f filter) mayContain(h uint64) bool {
	if f == nil {
		return true
	}
	b := f.block(h)
	for i, salt := range filterSalts {
		if binary.LittleEndian.Uint32(b[4*i:])&(1<<(uint32(h)*salt>>27)) == 0 {
			return false
		}
	}
	return true
}
