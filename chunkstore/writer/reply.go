package writer

import (
	"encoding/binary"
	"fmt"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// recorded is what a retry entry's Reply begins with. The numbers are in the bucket.
type recorded byte

const (
	// inserted: an Insert was done. Nothing follows.
	inserted recorded = 1
	// answered: an Update or Delete of one document was carried out; the result follows.
	answered recorded = 2
	// progressed: a write of many documents has finished the rows from one key to another;
	// how far, and what it did there, follows.
	progressed recorded = 3
	// intended: an Intent; its document follows.
	intended recorded = 4
	// refused: the operation will never be applied here. Nothing follows.
	refused recorded = 5
	// duplicated: an Insert found a row with its key. Nothing follows.
	duplicated recorded = 6
	// errored: the operation ended in an error, which follows.
	errored recorded = 7
	// arrived: a write of many documents brought the row here, by a change of its key.
	// Nothing follows.
	arrived recorded = 8
)

func kindOf(e *segment.RetryEntry) recorded {
	if len(e.Reply) == 0 {
		return 0
	}
	return recorded(e.Reply[0])
}

var (
	insertedReply   = []byte{byte(inserted)}
	refusedReply    = []byte{byte(refused)}
	duplicatedReply = []byte{byte(duplicated)}
	arrivedReply    = []byte{byte(arrived)}
)

// Marks of what follows the counts of an answered Reply.
const (
	hasUpserted = 1 << iota
	hasValue
)

// answerReply encodes the result of a write of one document.
//
//	2 | uvarint n | uvarint modified | flags | [type, uvarint length, upserted id] | [document]
func answerReply(r *rpc.WriteResult) []byte {
	b := binary.AppendUvarint([]byte{byte(answered)}, uint64(r.N))
	b = binary.AppendUvarint(b, uint64(r.Modified))
	at := len(b)
	b = append(b, 0)
	if r.UpsertedID.Type != 0 {
		b[at] |= hasUpserted
		b = append(b, byte(r.UpsertedID.Type))
		b = binary.AppendUvarint(b, uint64(len(r.UpsertedID.Value)))
		b = append(b, r.UpsertedID.Value...)
	}
	if r.Value != nil {
		b[at] |= hasValue
		b = append(b, r.Value...)
	}
	return b
}

// parseAnswer is the inverse of answerReply. Errors: Corrupt.
func parseAnswer(b []byte) (r rpc.WriteResult, err error) {
	c := cut{b: b[1:]}
	r.N, r.Modified = int64(c.uvarint()), int64(c.uvarint())
	flags := c.byte()
	if flags&hasUpserted != 0 {
		r.UpsertedID.Type = bson.Type(c.byte())
		r.UpsertedID.Value = c.bytes()
	}
	if flags&hasValue != 0 {
		r.Value, c.b = c.b, nil
	}
	return r, c.end("answer")
}

// erroredReply encodes the result of a write that ended in an error, after r.N rows.
//
//	7 | uvarint n | uvarint modified | uvarint code | uvarint length, message | [document: Info]
func erroredReply(r *rpc.WriteResult) []byte {
	b := binary.AppendUvarint([]byte{byte(errored)}, uint64(r.N))
	b = binary.AppendUvarint(b, uint64(r.Modified))
	b = binary.AppendUvarint(b, uint64(r.Err.Code))
	b = append(binary.AppendUvarint(b, uint64(len(r.Err.Message))), r.Err.Message...)
	return append(b, r.Err.Info...)
}

// parseErrored is the inverse of erroredReply. Errors: Corrupt.
func parseErrored(b []byte) (r rpc.WriteResult, err error) {
	c := cut{b: b[1:]}
	r.N, r.Modified = int64(c.uvarint()), int64(c.uvarint())
	r.Err = &mongoerr.Error{Code: mongoerr.Code(c.uvarint()), Message: string(c.bytes())}
	if len(c.b) > 0 {
		r.Err.Info, c.b = c.b, nil
	}
	return r, c.end("error")
}

// intentReply encodes an Intent: 4 | document.
func intentReply(doc bson.Raw) []byte { return append([]byte{byte(intended)}, doc...) }

// progress is how far a write of many documents has come: every match among the rows of its
// target from Min to before Max is finished, and the counts are what it did there. Splits and
// merges make several of them, or parts of one, belong to one chunk; the counts of one
// belong to the chunk that holds Last.
type progress struct {
	done        shardkey.Range
	last        []byte // the last row key that was finished; not empty
	n, modified int64
}

// reply encodes p.
//
//	3 | uvarint n | uvarint modified | min | max | last    each: uvarint length, bytes
func (p *progress) reply() []byte {
	b := binary.AppendUvarint([]byte{byte(progressed)}, uint64(p.n))
	b = binary.AppendUvarint(b, uint64(p.modified))
	for _, part := range [][]byte{p.done.Min, p.done.Max, p.last} {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	return b
}

// parseProgress is the inverse of reply. Errors: Corrupt.
func parseProgress(b []byte) (p progress, err error) {
	c := cut{b: b[1:]}
	p.n, p.modified = int64(c.uvarint()), int64(c.uvarint())
	p.done.Min, p.done.Max, p.last = c.bytes(), c.bytes(), c.bytes()
	return p, c.end("progress")
}

// cut takes fields off the front of a Reply; once bad, it stays so.
type cut struct {
	b   []byte
	bad bool
}

func (c *cut) uvarint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.bad = true
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *cut) byte() byte {
	if len(c.b) == 0 {
		c.bad = true
		return 0
	}
	b := c.b[0]
	c.b = c.b[1:]
	return b
}

func (c *cut) bytes() []byte {
	n := c.uvarint()
	if c.bad || n > uint64(len(c.b)) {
		c.bad = true
		return nil
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

func (c *cut) end(what string) error {
	if c.bad || len(c.b) != 0 {
		return fmt.Errorf("parse the %s of a retry entry: %w", what, errkind.Corrupt)
	}
	return nil
}

// Told is what a retry entry says of rows besides its own key: documents that it answers with,
// and the row that a statement was decided to be for.
func Told(e *segment.RetryEntry) (docs []bson.Raw, key []byte) {
	switch kindOf(e) {
	case answered:
		if r, err := parseAnswer(e.Reply); err == nil && r.Value != nil {
			docs = append(docs, r.Value)
		}
	case intended:
		if v, err := bson.Raw(e.Reply[1:]).LookupErr(intentRow); err == nil {
			_, key, _ = v.BinaryOK()
		}
	}
	return docs, key
}
