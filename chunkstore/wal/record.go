package wal

import (
	"encoding/binary"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// RecordOp is what a record does to its row.
type RecordOp uint8

// The operations, as stored.
const (
	Delete    RecordOp = 0 // a tombstone: Doc is nil
	Replace   RecordOp = 1 // a new version of a row that exists
	Insert    RecordOp = 2 // a row that did not exist
	RetryOnly RecordOp = 3 // no row, only Retry: Key and Seq have no meaning
)

// Record is the change of one row: its whole new document, or a tombstone.
type Record struct {
	Collection manifest.CollectionID
	Key        []byte // the row key, without the collection
	Op         RecordOp
	Seq        manifest.Seq
	Doc        bson.Raw
	// Retry is nil, or what to remember of the client's write. Its Collection is the
	// record's; its Key may differ, and it has no Span: that is in its Reply.
	Retry *segment.RetryEntry
}

// Record flags.
const (
	flagRetry    = 1 // a retry entry follows
	flagRetryKey = 2 // with a key of its own
)

// minRecord is the size of the smallest record in bytes.
const minRecord = 1 + 1 + 4 + 1 + 1

// retryFixed is the size of a retry entry without key and reply.
const retryFixed = 32 + 8 + 4 + 4 + 8

// Batch builds the payload of one object: add records while the object before is in
// flight, then hand it to Log.Append. The zero value is empty and ready.
type Batch struct {
	buf []byte
	n   int
}

// Len is the number of records.
func (b *Batch) Len() int { return b.n }

// Size is the number of bytes of the payload so far, before compression.
func (b *Batch) Size() int { return len(b.buf) }

// Reset empties the batch and keeps its memory, unless that is large.
func (b *Batch) Reset() {
	b.n = 0
	if b.buf = b.buf[:0]; cap(b.buf) > keepBytes {
		b.buf = nil
	}
}

// keepBytes bounds the memory that an idle Batch or Log keeps.
const keepBytes = 8 << 20

// Add appends a record; everything is copied. Errors: Invalid, and nothing was added, for a
// record that is not well-formed, or when the payload would pass MaxPayload: a batch must
// be appended first.
func (b *Batch) Add(r Record) error {
	if err := checkRecord(&r); err != nil {
		return err
	}
	start := len(b.buf)
	b.buf = appendRecord(b.buf, &r)
	if len(b.buf) > MaxPayload {
		b.buf = b.buf[:start]
		return invalidf("a batch of more than %d bytes: append it before adding more", MaxPayload)
	}
	b.n++
	return nil
}

func checkRecord(r *Record) error {
	put := r.Op == Insert || r.Op == Replace
	switch n, ok := docLen(r.Doc); {
	case r.Op > RetryOnly || r.Collection == 0:
		return invalidf("record with operation %d of collection %d", r.Op, r.Collection)
	case r.Op == RetryOnly && r.Retry == nil:
		return invalidf("a record without row and without retry entry")
	case r.Op != RetryOnly && len(r.Key) == 0, len(r.Key) > segment.MaxKeyBytes:
		return invalidf("record key of %d bytes: want 1 to %d", len(r.Key), segment.MaxKeyBytes)
	case put && (!ok || n != len(r.Doc)), !put && len(r.Doc) > 0:
		return invalidf("operation %d with %d bytes that are no document of at most %d", r.Op, len(r.Doc), segment.MaxDocBytes)
	}
	if e := r.Retry; e != nil && (e.Collection != r.Collection || len(e.Key) == 0 || len(e.Key) > segment.MaxKeyBytes || len(e.Reply) > segment.MaxDocBytes) {
		return invalidf("retry entry of collection %d with a key of %d bytes and a reply of %d in a record of collection %d",
			e.Collection, len(e.Key), len(e.Reply), r.Collection)
	}
	return nil
}

func appendRecord(dst []byte, r *Record) []byte {
	flags := byte(0)
	if e := r.Retry; e != nil {
		flags |= flagRetry
		if string(e.Key) != string(r.Key) {
			flags |= flagRetryKey
		}
	}
	dst = append(dst, byte(r.Op), flags)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(r.Collection))
	dst = binary.AppendUvarint(dst, uint64(r.Seq))
	dst = appendBytes(dst, r.Key)
	dst = append(dst, r.Doc...)
	if e := r.Retry; e != nil {
		dst = append(dst, e.Op.Session[:]...)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Op.Txn))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(e.Op.Stmt))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(e.Op.Attempt))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(e.ExpiresAt))
		if flags&flagRetryKey != 0 {
			dst = appendBytes(dst, e.Key)
		}
		dst = appendBytes(dst, e.Reply)
	}
	return dst
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// parseRecords decodes a payload of n records, which alias it. Errors: Corrupt.
func parseRecords(p []byte, n int) ([]Record, error) {
	if n < 1 || n > len(p)/minRecord {
		return nil, corruptf("payload of %d bytes claims %d records", len(p), n)
	}
	r := cursor{b: p}
	records := make([]Record, n)
	var retries []segment.RetryEntry
	for i := range records {
		if !r.record(&records[i], &retries, n-i) {
			return nil, corruptf("record %d before offset %d", i, r.at)
		}
	}
	if r.at != len(p) {
		return nil, corruptf("%d bytes after the last record", len(p)-r.at)
	}
	return records, nil
}

// cursor reads a payload; after bytes that are not as they must be, bad is set and it
// returns zero values.
type cursor struct {
	b   []byte
	at  int
	bad bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || n < 0 || n > len(c.b)-c.at {
		c.bad = true
		return nil
	}
	c.at += n
	return c.b[c.at-n : c.at : c.at]
}

func (c *cursor) fixed(n int) []byte {
	if b := c.take(n); b != nil {
		return b
	}
	return make([]byte, n)
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.b[c.at:])
	if c.bad = c.bad || n <= 0; c.bad {
		return 0
	}
	c.at += n
	return v
}

// bytes reads a length of at most limit and that many bytes.
func (c *cursor) bytes(limit int) []byte {
	n := c.uvarint()
	c.bad = c.bad || n > uint64(limit)
	return c.take(int(n))
}

// doc reads a document.
func (c *cursor) doc() bson.Raw {
	n, ok := docLen(c.b[c.at:])
	c.bad = c.bad || !ok
	return c.take(n)
}

// record decodes one record; retries is where its entry goes, left bounds how many may
// still come.
func (c *cursor) record(r *Record, retries *[]segment.RetryEntry, left int) bool {
	head := c.fixed(6)
	op, flags := RecordOp(head[0]), head[1]
	c.bad = c.bad || flags&^(flagRetry|flagRetryKey) != 0
	r.Op = op
	r.Collection = manifest.CollectionID(binary.LittleEndian.Uint32(head[2:]))
	r.Seq = manifest.Seq(c.uvarint())
	r.Key = c.bytes(segment.MaxKeyBytes)
	if op == Insert || op == Replace {
		r.Doc = c.doc()
	}
	if flags&flagRetry != 0 && !c.bad {
		if *retries == nil {
			*retries = make([]segment.RetryEntry, 0, min(left, (len(c.b)-c.at)/retryFixed+1))
		}
		*retries = append(*retries, segment.RetryEntry{})
		r.Retry = &(*retries)[len(*retries)-1]
		c.retry(r, flags)
	}
	return !c.bad && checkRecord(r) == nil
}

func (c *cursor) retry(r *Record, flags byte) {
	f := c.fixed(retryFixed)
	e := r.Retry
	e.Collection, e.Key = r.Collection, r.Key
	e.Op.Session = [32]byte(f)
	e.Op.Txn = int64(binary.LittleEndian.Uint64(f[32:]))
	e.Op.Stmt = int32(binary.LittleEndian.Uint32(f[40:]))
	e.Op.Attempt = int32(binary.LittleEndian.Uint32(f[44:]))
	e.ExpiresAt = int64(binary.LittleEndian.Uint64(f[48:]))
	if flags&flagRetryKey != 0 {
		e.Key = c.bytes(segment.MaxKeyBytes)
	}
	e.Reply = c.bytes(segment.MaxDocBytes)
}

// docLen is the length that the document at the start of b says it has, when it fits and
// ends as documents do. What is inside was validated when it was written.
func docLen(b []byte) (int, bool) {
	if len(b) < 5 {
		return 0, false
	}
	n := int(binary.LittleEndian.Uint32(b))
	return n, n >= 5 && n <= len(b) && n <= segment.MaxDocBytes && b[n-1] == 0
}
