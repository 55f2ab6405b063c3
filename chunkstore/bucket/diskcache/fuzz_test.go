package diskcache

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/granarydb/granary/chunkstore/bucket"
)

// Whatever a file holds, also under a header whose checksum is right, reading it gives as
// many bytes as were asked for or an error.
func FuzzFilesAreReadOrRefused(f *testing.F) {
	n := names{"mem:", "seg/a"}
	for _, size := range []int{1, 300, pieceSize + 1} {
		obj := &bucket.Object{Body: noise("a", size), Attrs: bucket.Attrs{Key: "seg/a", Size: int64(size) + 10, Tag: "t"}}
		f.Add(append(n.encodeHeader(10, obj), obj.Body...), int64(10), int64(size), int64(10), int64(10+size))
	}
	f.Fuzz(func(t *testing.T, file []byte, off, length, from, to int64) {
		if off < 0 || length <= 0 || length > 1<<20 || off > 1<<40 || from < off || to > off+length || from >= to {
			return
		}
		e := &extent{off: off, length: length}
		if len(file) >= fileHead {
			if size := binary.LittleEndian.Uint32(file[8:]); size >= 16 && int64(size) <= int64(len(file)) {
				binary.LittleEndian.PutUint32(file[12:], crc32.Checksum(file[16:size], castagnoli))
			}
		}
		body, _, err := n.readRange(bytes.NewReader(file), e, from, to)
		if err == nil && int64(len(body)) != to-from {
			t.Errorf("%d bytes of %d", len(body), to-from)
		}
	})
}
