package segment

import (
	"bytes"
	"encoding/binary"
	"sort"

	"github.com/granarydb/granary/manifest"
)

// An index lists consecutive frames: the row blocks, or the retry frames.
//
//	u32 frames | u32 bytes of all separators | per frame: uvarint shared | uvarint unshared | uvarint clen | uvarint rows | u8 flags | separator suffix
//
// A separator is a composite key, u32 big-endian collection id and key bytes: at most the
// frame's first, above the last of the frame before, as short as that allows but with the
// whole collection id. Offsets are running sums. In the index of row blocks the flag
// `continues` marks a block that begins with another version of the last key of the block
// before; its separator is that key. In that of retry frames `spans` marks one whose entries
// are about more than one row.
const (
	flagContinues = 1
	flagSpans     = 2
)

// Separators take at most indexExpansion times the payload and indexSlack in memory: a
// writer shares no prefix where that would be passed, so a reader refuses more.
const (
	indexHead      = 8
	indexExpansion = 8
	indexSlack     = 64 << 10
)

type indexBuilder struct {
	buf      []byte
	frames   int
	last     []byte // separator of the last frame
	expanded int
}

// add appends a frame whose separator is sep.
func (x *indexBuilder) add(sep []byte, clen, rows int, flags byte) {
	if x.frames == 0 {
		x.buf = append(x.buf[:0], make([]byte, indexHead)...)
	}
	x.frames++
	x.expanded += len(sep)
	shared := commonPrefix(x.last, sep)
	if x.expanded > indexExpansion*len(x.buf)+indexSlack {
		shared = 0
	}
	for _, v := range []int{shared, len(sep) - shared, clen, rows} {
		x.buf = binary.AppendUvarint(x.buf, uint64(v))
	}
	x.buf = append(x.buf, flags)
	x.buf = append(x.buf, sep[shared:]...)
	x.last = append(x.last[:0], sep...)
}

func (x *indexBuilder) finish() []byte {
	binary.LittleEndian.PutUint32(x.buf, uint32(x.frames))
	binary.LittleEndian.PutUint32(x.buf[4:], uint32(x.expanded))
	return x.buf
}

// appendComposite appends the composite key of (c, key).
func appendComposite(dst []byte, c manifest.CollectionID, key []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(c)), key...)
}

// appendSeparator appends the shortest separator above composite key last and at most
// first; first > last, or last is empty.
func appendSeparator(dst, last, first []byte) []byte {
	n := 4
	if len(last) > 0 {
		n = max(n, commonPrefix(last, first)+1)
	}
	return append(dst, first[:min(n, len(first))]...)
}

// index is a decoded one. Immutable.
type index struct {
	seps  []byte
	ends  []uint32 // of separator i in seps
	offs  []uint64 // of frame i in the object; one more for the end of the last
	rows  []uint32
	flags []byte
}

func (x *index) sizeBytes() int64 { return int64(len(x.seps) + 17*len(x.flags) + 128) }

func (x *index) frames() int { return len(x.flags) }

func (x *index) sep(i int) []byte {
	start := uint32(0)
	if i > 0 {
		start = x.ends[i-1]
	}
	return x.seps[start:x.ends[i]]
}

func (x *index) collection(i int) manifest.CollectionID {
	return manifest.CollectionID(binary.BigEndian.Uint32(x.sep(i)))
}

// parseIndex decodes a payload; frames begin at offset base of the object and must end at
// or before limit. Errors: Corrupt.
func parseIndex(p []byte, base, limit uint64) (*index, error) {
	if len(p) < indexHead {
		return nil, corruptf("index of %d bytes", len(p))
	}
	n, expanded := int(binary.LittleEndian.Uint32(p)), int(binary.LittleEndian.Uint32(p[4:]))
	if n > len(p)/5 || expanded > indexExpansion*len(p)+indexSlack {
		return nil, corruptf("index of %d bytes claims %d frames, %d bytes of separators", len(p), n, expanded)
	}
	x := &index{
		seps: make([]byte, 0, expanded), ends: make([]uint32, 0, n),
		offs: make([]uint64, 1, n+1), rows: make([]uint32, 0, n), flags: make([]byte, 0, n),
	}
	x.offs[0] = base
	at := indexHead
	for i := range n {
		var ok bool
		if at, ok = x.parseFrame(p, at); !ok || x.offs[i+1] > limit {
			return nil, corruptf("index entry %d at %d", i, at)
		}
		if i > 0 {
			c := bytes.Compare(x.sep(i-1), x.sep(i))
			if c > 0 || c == 0 && x.flags[i]&flagContinues == 0 {
				return nil, corruptf("index separator %d is not above the one before", i)
			}
		}
	}
	if at != len(p) || len(x.seps) != expanded {
		return nil, corruptf("index: %d bytes after the last entry, %d of separators", len(p)-at, len(x.seps))
	}
	return x, nil
}

// parseFrame appends the entry at offset at of p.
func (x *index) parseFrame(p []byte, at int) (int, bool) {
	i := x.frames()
	shared, at := uvarint(p, at)
	unshared, at := uvarint(p, at)
	clen, at := uvarint(p, at)
	rows, at := uvarint(p, at)
	var last []byte
	if i > 0 {
		last = x.sep(i - 1)
	}
	if at >= len(p) || unshared > uint64(len(p)-at-1) || shared > uint64(len(last)) || shared+unshared < 4 ||
		shared+unshared > uint64(cap(x.seps)-len(x.seps)) || clen > maxBlockBytes || rows < 1 || rows > maxBlockBytes {
		return at, false
	}
	end := at + 1 + int(unshared)
	x.seps = append(append(x.seps, last[:shared]...), p[at+1:end]...)
	x.ends = append(x.ends, uint32(len(x.seps)))
	x.offs = append(x.offs, x.offs[i]+frameHead+clen)
	x.rows = append(x.rows, uint32(rows))
	x.flags = append(x.flags, p[at])
	return end, true
}

// compareSep compares separator i with the composite key of (c, key).
func (x *index) compareSep(i int, c manifest.CollectionID, key []byte) int {
	sep := x.sep(i)
	switch s := manifest.CollectionID(binary.BigEndian.Uint32(sep)); {
	case s < c:
		return -1
	case s > c:
		return 1
	}
	return bytes.Compare(sep[4:], key)
}

// first is the first frame that can hold (c, key) or what follows it; frames() if none.
func (x *index) first(c manifest.CollectionID, key []byte) int {
	i := sort.Search(x.frames(), func(i int) bool { return x.compareSep(i, c, key) > 0 }) - 1
	for i > 0 && x.flags[i]&flagContinues != 0 && x.compareSep(i, c, key) == 0 {
		i--
	}
	if i < 0 || x.collection(i) < c {
		i++ // no frame of the collection begins at or before key
	}
	return i
}

// above is the first frame whose rows are all at or above (c, max), an empty max being
// above every key of c.
func (x *index) above(c manifest.CollectionID, max []byte) int {
	return sort.Search(x.frames(), func(i int) bool {
		if len(max) == 0 {
			return x.collection(i) > c
		}
		return x.compareSep(i, c, max) >= 0
	})
}
