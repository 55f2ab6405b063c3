package segment

import (
	"bytes"
	"fmt"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
)

// WriterOptions are the settings of a Writer; nil means the defaults.
type WriterOptions struct {
	// Codec is S2 (the default, also when 0) or Zstd. What does not shrink is stored Raw.
	Codec Codec
	// BlockSize is the target size of a block before compression, in bytes; default 64 KiB.
	// A row that is larger makes a block of its own.
	BlockSize int
	// SizeHint is the expected size of the object in bytes, allocated at once; 0: it grows.
	SizeHint int
	// Location is where the object will be uploaded; it goes into the references.
	Location manifest.LocationID
}

const blockSizeDefault = 64 << 10

// Part names the chunk whose rows and retry entries were added since the last Cut.
type Part struct {
	Collection manifest.CollectionID
	Clip       shardkey.Range
}

// Tail is the ranged GET that opens a segment.
type Tail struct {
	Offset uint64
	Length uint32
}

// Writer builds one segment in memory: rows in order, and after those of a chunk a Cut. Not
// safe for concurrent use. A call that fails with Invalid has changed nothing.
type Writer struct {
	id   manifest.SegmentID
	o    WriterOptions
	body []byte
	tail Tail // after Finish

	block     blockBuilder
	blockSep  []byte // separator of the block being built
	blockFlag byte   // its flags
	index     indexBuilder
	meta      meta
	hashes    []uint64 // of the keys, for the filter
	retries   []RetryEntry

	last    []byte // composite key of the last row
	next    []byte // scratch: composite key of the row being added
	lastSeq manifest.Seq

	cut  cut
	refs []manifest.SegmentRef
}

// cut is what was added since the last Cut.
type cut struct {
	collection     manifest.CollectionID
	minKey         []byte
	minSeq, maxSeq manifest.Seq
	rows, bytes    uint64
	firstRetry     int // in Writer.retries
}

// NewWriter starts an empty segment. id must be fresh: names are never reused.
func NewWriter(id manifest.SegmentID, o *WriterOptions) *Writer {
	w := &Writer{id: id}
	if o != nil {
		w.o = *o
	}
	if w.o.Codec == Raw {
		w.o.Codec = S2
	}
	if w.o.BlockSize <= 0 {
		w.o.BlockSize = blockSizeDefault
	}
	w.body = appendHeader(make([]byte, 0, max(w.o.SizeHint, headerSize)), id.Random)
	w.meta.header = bytes.Clone(w.body)
	return w
}

// Add appends a row; key and document are copied. Rows come in order, no two with the same
// collection, key and seq. Errors: Invalid for a row out of order, beyond the limits, or of
// another collection than the rows since the last Cut.
func (w *Writer) Add(r Row) error {
	w.next = appendComposite(w.next[:0], r.Collection, r.Key)
	order := 1
	if w.meta.rows > 0 {
		order = bytes.Compare(w.next, w.last)
	}
	if err := w.checkRow(&r, order); err != nil {
		return fmt.Errorf("add row to segment %s: %w", w.id, err)
	}
	if w.block.rows > 0 && (w.block.collection != r.Collection || !w.block.fits(&r, w.o.BlockSize)) {
		w.flushBlock()
	}
	if w.block.rows == 0 {
		w.blockSep, w.blockFlag = appendSeparator(w.blockSep[:0], w.last, w.next), 0
		if order == 0 {
			w.blockFlag = flagContinues
		}
	}
	if order != 0 {
		w.hashes = append(w.hashes, keyHash(r.Collection, r.Key))
	}
	w.block.add(&r, w.lastKey())
	w.count(&r)
	w.last, w.next, w.lastSeq = w.next, w.last, r.Seq
	return nil
}

func (w *Writer) checkRow(r *Row, order int) error {
	switch n, ok := docLen(r.Doc); {
	case r.Collection == 0 || len(r.Key) == 0 || len(r.Key) > MaxKeyBytes:
		return invalidf("collection %d, key of %d bytes: want a collection and a key of 1 to %d bytes", r.Collection, len(r.Key), MaxKeyBytes)
	case r.Delete && len(r.Doc) != 0:
		return invalidf("a delete with a document")
	case !r.Delete && (!ok || n != len(r.Doc)):
		return invalidf("%d bytes are no document of at most %d bytes", len(r.Doc), MaxDocBytes)
	case order < 0 || order == 0 && r.Seq >= w.lastSeq:
		return invalidf("row %d %x seq %d is not above %x seq %d", r.Collection, r.Key, r.Seq, w.last, w.lastSeq)
	case w.cut.rows > 0 && w.cut.collection != r.Collection:
		return invalidf("row of collection %d before the Cut of collection %d", r.Collection, w.cut.collection)
	case w.meta.rows == MaxRows:
		return invalidf("%d rows: begin another segment", MaxRows)
	}
	return nil
}

// lastKey is the key of the last row, without its collection.
func (w *Writer) lastKey() []byte {
	if len(w.last) == 0 {
		return nil
	}
	return w.last[4:]
}

func (w *Writer) count(r *Row) {
	size := int64(len(r.Key) + len(r.Doc))
	w.meta.add(r, size)
	c := &w.cut
	if c.rows == 0 {
		c.collection, c.minKey, c.minSeq, c.maxSeq = r.Collection, bytes.Clone(r.Key), r.Seq, r.Seq
	}
	c.rows, c.bytes = c.rows+1, c.bytes+uint64(size)
	c.minSeq, c.maxSeq = min(c.minSeq, r.Seq), max(c.maxSeq, r.Seq)
}

// AddRetry adds a retry entry of the chunk that the next Cut names, in any order. Its bytes
// are kept until Finish. Errors: Invalid beyond the limits of key and document.
func (w *Writer) AddRetry(e RetryEntry) error {
	if e.Collection == 0 || len(e.Key) > MaxKeyBytes || len(e.Span.Min) > MaxKeyBytes+1 || len(e.Span.Max) > MaxKeyBytes+1 || len(e.Reply) > MaxDocBytes {
		return fmt.Errorf("add retry entry to segment %s: %w", w.id,
			invalidf("collection %d, key of %d bytes, reply of %d: want at most %d and %d", e.Collection, len(e.Key), len(e.Reply), MaxKeyBytes, MaxDocBytes))
	}
	w.retries = append(w.retries, e)
	return nil
}

// Cut ends a chunk: the rows and retry entries since the last Cut become one reference,
// also when there are none (the caller drops that one). A block may go on across the cut.
// Errors: Invalid when one of them is outside the chunk.
func (w *Writer) Cut(c Part) error {
	if err := w.checkCut(c); err != nil {
		return fmt.Errorf("cut segment %s: %w", w.id, err)
	}
	ref := manifest.SegmentRef{
		Segment: w.id, Location: w.o.Location,
		Clip:   shardkey.Range{Min: bytes.Clone(c.Clip.Min), Max: bytes.Clone(c.Clip.Max)},
		MinKey: w.cut.minKey, MinSeq: w.cut.minSeq, MaxSeq: w.cut.maxSeq,
		Rows: w.cut.rows, Bytes: w.cut.bytes,
	}
	if w.cut.rows > 0 {
		ref.MaxKey = bytes.Clone(w.lastKey())
	}
	for _, e := range w.retries[w.cut.firstRetry:] {
		ref.RetryUntil = max(ref.RetryUntil, e.ExpiresAt)
	}
	w.refs = append(w.refs, ref)
	w.cut = cut{firstRetry: len(w.retries)}
	return nil
}

func (w *Writer) checkCut(c Part) error {
	if w.cut.rows > 0 && (w.cut.collection != c.Collection || !within(c.Clip, w.cut.minKey) || !within(c.Clip, w.lastKey())) {
		return invalidf("rows %d %x to %x are not all in collection %d [%x, %x)", w.cut.collection, w.cut.minKey, w.lastKey(), c.Collection, c.Clip.Min, c.Clip.Max)
	}
	for _, e := range w.retries[w.cut.firstRetry:] {
		if e.Collection != c.Collection || !e.in(c.Clip) {
			return invalidf("retry entry %d %x is not in collection %d [%x, %x)", e.Collection, e.Key, c.Collection, c.Clip.Min, c.Clip.Max)
		}
	}
	return nil
}

// Size is about how many bytes the object has so far, without retry entries.
func (w *Writer) Size() int {
	return len(w.body) + len(w.block.buf) + len(w.index.buf) + len(w.hashes)*filterBitsPerKey/8
}

// Rows is how many rows were added, tombstones included.
func (w *Writer) Rows() int { return int(w.meta.rows) }

// Refs returns, after Finish, one reference per Cut, in order, with the place of the tail
// and the size of the object in each.
func (w *Writer) Refs() []manifest.SegmentRef { return w.refs }
