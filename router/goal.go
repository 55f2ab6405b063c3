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
//	{a: attempt, d: true}                    sent to a chunk without a key
//	{a: attempt}                             nothing matched: no effect
type goal struct {
	attempt int32
	key     []byte
	id      bson.RawValue // of an upsert
	doc     bson.Raw      // of an upsert; not in the intent: it is made again from id
	direct  bool
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
	if g.direct {
		doc = bsoncore.AppendBooleanElement(doc, "d", true)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}

func decodeGoal(doc bson.Raw) (*goal, error) {
	g := &goal{}
	a, _ := document.Lookup(doc, "a")
	attempt, ok := a.Int32OK()
	if !ok {
		return nil, fmt.Errorf("an intent of %d bytes without its attempt: %w", len(doc), errkind.Corrupt)
	}
	g.attempt = attempt
	if t, ok := document.Lookup(doc, "t"); ok {
		_, g.key, _ = t.BinaryOK()
	}
	if d, ok := document.Lookup(doc, "d"); ok {
		g.direct, _ = d.BooleanOK()
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
