package segment

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"sort"

	"github.com/granarydb/granary/manifest"
)

// A row block is the payload of a frame of type rows; all its rows are of one collection.
//
//	u32 rows | u32 collection | u64 base seq | entries | u32 offset of every 16th entry | u32 how many
//	entry: uvarint shared | uvarint unshared | varint (seq - base) | u8 op (0 delete, 1 put) | key suffix | document
//
// Every 16th entry, a restart, shares nothing with the key before it: a search goes by the
// restarts, then through at most 16 entries. A document is as long as its first four bytes
// say.
const (
	restartEvery = 16
	blockHead    = 16
	opDelete     = 0
	opPut        = 1
)

// blockBuilder encodes rows that the Writer has checked; reusable.
type blockBuilder struct {
	buf        []byte
	restarts   []uint32
	rows       int
	collection manifest.CollectionID
	baseSeq    manifest.Seq
}

func (b *blockBuilder) reset() { b.buf, b.restarts, b.rows = b.buf[:0], b.restarts[:0], 0 }

// fits reports whether the row can be added without the decoded block, restarts and all,
// passing size bytes of memory.
func (b *blockBuilder) fits(r *Row, size int) bool {
	row := 2*binary.MaxVarintLen32 + binary.MaxVarintLen64 + 1 + len(r.Key) + len(r.Doc)
	return len(b.buf)+row+4*(len(b.restarts)+2)+decodeSlack <= size
}

// add appends a row; last is the key of the row before it.
func (b *blockBuilder) add(r *Row, last []byte) {
	if b.rows == 0 {
		b.buf = append(b.buf, make([]byte, blockHead)...)
		binary.LittleEndian.PutUint32(b.buf[4:], uint32(r.Collection))
		binary.LittleEndian.PutUint64(b.buf[8:], uint64(r.Seq))
		b.collection, b.baseSeq = r.Collection, r.Seq
	}
	shared := 0
	if b.rows%restartEvery == 0 {
		b.restarts = append(b.restarts, uint32(len(b.buf)))
	} else {
		shared = commonPrefix(last, r.Key)
	}
	b.buf = binary.AppendUvarint(b.buf, uint64(shared))
	b.buf = binary.AppendUvarint(b.buf, uint64(len(r.Key)-shared))
	b.buf = binary.AppendVarint(b.buf, int64(r.Seq-b.baseSeq)) // wraps, and wraps back
	if r.Delete {
		b.buf = append(b.buf, opDelete)
	} else {
		b.buf = append(b.buf, opPut)
	}
	b.buf = append(b.buf, r.Key[shared:]...)
	b.buf = append(b.buf, r.Doc...)
	b.rows++
}

// finish returns the payload, valid until reset.
func (b *blockBuilder) finish() []byte {
	binary.LittleEndian.PutUint32(b.buf, uint32(b.rows))
	for _, r := range b.restarts {
		b.buf = binary.LittleEndian.AppendUint32(b.buf, r)
	}
	b.buf = binary.LittleEndian.AppendUint32(b.buf, uint32(len(b.restarts)))
	return b.buf
}

// commonPrefix is how many bytes a and b begin with in common.
func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// block is a decoded row block whose structure has been checked once, completely, so that
// reading it cannot fail. Immutable: rows alias data for ever.
type block struct {
	data       []byte // the payload
	entriesEnd int
	groups     int // restarts
	rows       int
	collection manifest.CollectionID
	baseSeq    manifest.Seq
}

func (b *block) sizeBytes() int64 { return int64(cap(b.data)) + 96 }

// restart is the offset of group g's first entry; of the end for g == groups.
func (b *block) restart(g int) int {
	if g >= b.groups {
		return b.entriesEnd
	}
	return int(binary.LittleEndian.Uint32(b.data[b.entriesEnd+4*g:]))
}

// restartKey is the first key of group g.
func (b *block) restartKey(g int) []byte {
	var e entry
	e.parse(b.data[:b.entriesEnd], b.restart(g))
	return e.suffix(b.data)
}

// parseBlock checks a payload: every length and offset, that restarts are where they must
// be and share nothing, and that rows ascend. Errors: Corrupt.
func parseBlock(p []byte) (*block, error) {
	if len(p) < blockHead+4 {
		return nil, corruptf("row block of %d bytes", len(p))
	}
	b := &block{
		data:       p,
		rows:       int(binary.LittleEndian.Uint32(p)),
		collection: manifest.CollectionID(binary.LittleEndian.Uint32(p[4:])),
		baseSeq:    manifest.Seq(binary.LittleEndian.Uint64(p[8:])),
		groups:     int(binary.LittleEndian.Uint32(p[len(p)-4:])),
	}
	// An entry takes at least 4 bytes: that bounds rows before anything is computed from it.
	if b.rows < 1 || b.rows > len(p)/4 || b.groups != (b.rows+restartEvery-1)/restartEvery || blockHead+4*b.groups+4 > len(p) {
		return nil, corruptf("row block of %d bytes claims %d rows, %d restarts", len(p), b.rows, b.groups)
	}
	b.entriesEnd = len(p) - 4 - 4*b.groups
	return b, b.check()
}

func (b *block) check() error {
	entries := b.data[:b.entriesEnd]
	at := blockHead
	var e entry
	var key []byte
	var seq manifest.Seq
	for i := range b.rows {
		restart := i%restartEvery == 0
		if restart && b.restart(i/restartEvery) != at {
			return corruptf("row block: restart %d", i/restartEvery)
		}
		if !e.parse(entries, at) || e.shared > len(key) || restart && e.shared != 0 || uint(e.shared+e.doc-e.key-1) >= MaxKeyBytes {
			return corruptf("row block: entry %d at %d", i, at)
		}
		s := b.baseSeq + e.seqDelta
		suffix := e.suffix(entries)
		if i > 0 && !above(suffix, s, key[e.shared:], seq) {
			return corruptf("row block: entry %d is not above the one before", i)
		}
		key, seq = append(key[:e.shared], suffix...), s
		at = e.end
	}
	if at != b.entriesEnd {
		return corruptf("row block: %d bytes after the last entry", b.entriesEnd-at)
	}
	return nil
}

// entry is one row as stored. It holds offsets, not slices: storing a pointer costs a write
// barrier while the garbage collector runs, which it does a lot where blocks are decoded.
type entry struct {
	shared   int
	key      int // the suffix of the key is [key, doc)
	doc      int // the document is [doc, end), empty for a deletion
	end      int // the next entry begins here
	seqDelta manifest.Seq
	put      bool
}

func (e *entry) suffix(b []byte) []byte { return b[e.key:e.doc:e.doc] }

// parse reads the entry at offset at of b.
func (e *entry) parse(b []byte, at int) bool {
	var shared, unshared uint64
	if at+1 < len(b) && b[at]|b[at+1] < 0x80 { // both are one byte: nearly always
		shared, unshared, at = uint64(b[at]), uint64(b[at+1]), at+2
	} else {
		shared, at = uvarint(b, at)
		unshared, at = uvarint(b, at)
	}
	delta, at := uvarint(b, at)
	if at >= len(b) || shared > MaxKeyBytes || unshared > uint64(len(b)-at-1) || b[at] > opPut {
		return false
	}
	e.put = b[at] == opPut
	e.shared = int(shared)
	e.seqDelta = manifest.Seq(delta>>1) ^ -manifest.Seq(delta&1)
	e.key = at + 1
	e.doc = e.key + int(unshared)
	e.end = e.doc
	if !e.put {
		return true
	}
	n, ok := docLen(b[e.doc:])
	e.end += n
	return ok
}

// above reports whether a row with this suffix and seq s comes after one of seq seq that has
// rest where this has the suffix: what matters is what follows the shared prefix.
func above(suffix []byte, s manifest.Seq, rest []byte, seq manifest.Seq) bool {
	if len(rest) > 0 && len(suffix) > 0 && suffix[0] != rest[0] {
		return suffix[0] > rest[0]
	}
	c := bytes.Compare(suffix, rest)
	return c > 0 || c == 0 && s < seq
}

// docLen is the length that the document at the start of b says it has, when it fits and
// ends as documents do.
func docLen(b []byte) (int, bool) {
	if len(b) < 5 {
		return 0, false
	}
	n := int(binary.LittleEndian.Uint32(b))
	return n, n >= 5 && n <= len(b) && n <= MaxDocBytes && b[n-1] == 0
}

// uvarint reads a uvarint at offset at of b and returns the offset after it; on bytes that
// are none the offset is beyond the end, for the caller to check once after several.
func uvarint(b []byte, at int) (uint64, int) {
	if at >= len(b) {
		return 0, len(b) + 1
	}
	if b[at] < 0x80 {
		return uint64(b[at]), at + 1
	}
	if at+1 < len(b) && b[at+1] < 0x80 {
		return uint64(b[at]&0x7F) | uint64(b[at+1])<<7, at + 2
	}
	v, n := binary.Uvarint(b[at:])
	if n <= 0 {
		return 0, len(b) + 1
	}
	return v, at + n
}

// groupAbove is the first group whose keys are all at or above key.
func (b *block) groupAbove(key []byte) int {
	return sort.Search(b.groups, func(g int) bool { return bytes.Compare(b.restartKey(g), key) >= 0 })
}

// groupOf is the first group that can hold a row at or above key.
func (b *block) groupOf(key []byte) int { return max(b.groupAbove(key)-1, 0) }

// get returns the newest row with the key, whose Key is the caller's slice.
func (b *block) get(key []byte) (Row, bool) {
	var scratch [256]byte
	k := scratch[:0]
	var e entry
	for at := b.restart(b.groupOf(key)); at < b.entriesEnd; {
		e.parse(b.data[:b.entriesEnd], at)
		k = append(k[:e.shared], e.suffix(b.data)...)
		switch c := bytes.Compare(k, key); {
		case c == 0:
			return e.row(b, key), true
		case c > 0:
			return Row{}, false
		}
		at = e.end
	}
	return Row{}, false
}

func (e *entry) row(b *block, key []byte) Row {
	return Row{Collection: b.collection, Key: key, Seq: b.baseSeq + e.seqDelta, Delete: !e.put, Doc: e.document(b.data)}
}

// document is nil for a deletion.
func (e *entry) document(b []byte) []byte {
	if !e.put {
		return nil
	}
	return b[e.doc:e.end:e.end]
}

// group decodes group g into rows and returns how many there are. Keys that share bytes
// with their predecessor are put together in keys; the others alias the block.
func (b *block) group(g int, rows *[restartEvery]Row, keys *arena) int {
	at, end, n := b.restart(g), b.restart(g+1), 0
	entries := b.data[:b.entriesEnd]
	var e entry
	var key []byte
	for at < end {
		e.parse(entries, at)
		switch {
		case e.shared == 0:
			key = e.suffix(b.data)
		case e.key < e.doc || e.shared < len(key):
			key = keys.join(key[:e.shared], e.suffix(b.data))
		}
		r := &rows[n]
		r.Collection, r.Key, r.Seq, r.Delete, r.Doc = b.collection, key, b.baseSeq+e.seqDelta, !e.put, e.document(entries)
		n, at = n+1, e.end
	}
	return n
}

// arena hands out byte strings that are never changed or freed one by one: many keys for
// one allocation. Its slabs grow, so that a short scan stays small.
type arena struct{ free []byte }

const arenaSlabMax = 8 << 10

func (a *arena) join(p, q []byte) []byte {
	n := len(p) + len(q)
	if cap(a.free)-len(a.free) < n {
		a.free = make([]byte, 0, max(min(2*cap(a.free), arenaSlabMax), 512, n))
	}
	start := len(a.free)
	a.free = append(append(a.free, p...), q...)
	return a.free[start : start+n : start+n]
}
