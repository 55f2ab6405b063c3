package router

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// goal is the row that a statement was decided to be for. An intent carries it:
//
//	{a: attempt, t: Binary(row key)}         an existing row
//	{a: attempt, t: Binary(row key), u: _id} the upsert inserts it
//	{a: attempt, d: nonce}                   sent to a chunk without a key, by that try
//	{a: attempt}                             nothing matched: no effect
type goal struct {
	attempt int32
	key     []byte
	id      bson.RawValue // of an upsert
	// doc is what the upsert inserts; it is not in the intent, but made again from id. nil
	// with an id: it came out different.
	doc bson.Raw
	// direct, when not 0, names the try that sent the statement to a chunk without a key.
	direct int64
}

func (g *goal) encode() bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendInt32Element(doc, "a", g.attempt)
	if g.key != nil {
		doc = bsoncore.AppendBinaryElement(doc, "t", bson.TypeBinaryGeneric, g.key)
	}
	if !g.id.IsZero() {
		doc = bsoncore.AppendValueElement(doc, "u", bsoncore.Value{Type: bsoncore.Type(g.id.Type), Data: g.id.Value})
	}
	if g.direct != 0 {
		doc = bsoncore.AppendInt64Element(doc, "d", g.direct)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}

// decodeGoal reads the document of an intent, which is one that encode made.
func decodeGoal(doc bson.Raw) (*goal, error) {
	g := &goal{}
	var a bson.RawValue
	if len(doc) >= 5 {
		a, _ = document.Lookup(doc, "a")
	}
	attempt, ok := a.Int32OK()
	if !ok {
		return nil, fmt.Errorf("an intent of %d bytes without its attempt: %w", len(doc), errkind.Corrupt)
	}
	g.attempt = attempt
	if t, ok := document.Lookup(doc, "t"); ok {
		_, g.key, _ = t.BinaryOK()
	}
	if d, ok := document.Lookup(doc, "d"); ok {
		g.direct, _ = d.Int64OK()
	}
	g.id, _ = document.Lookup(doc, "u")
	return g, nil
}

// homeKey is where a collection keeps what is known about an operation: a key that depends
// on the operation alone, spread over the numbers.
func homeKey(op rpc.OpID) []byte {
	var b [44]byte
	copy(b[:], op.Session[:])
	binary.BigEndian.PutUint64(b[32:], uint64(op.Txn))
	binary.BigEndian.PutUint32(b[40:], uint32(op.Stmt))
	return binary.BigEndian.AppendUint64([]byte{0x10}, xxhash.Sum64(b[:]))
}
