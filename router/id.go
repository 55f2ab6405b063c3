package router

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// MaxDocumentBytes is the largest document that can be stored.
const MaxDocumentBytes = 16 << 20

// objectIDs makes ObjectIds: seconds, five random bytes of the process, a counter.
type objectIDs struct {
	host    host.Host
	process [5]byte
	counter atomic.Uint32
}

func newObjectIDs(h host.Host) *objectIDs {
	o := &objectIDs{host: h}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], h.Uint64())
	copy(o.process[:], b[:])
	o.counter.Store(uint32(h.Uint64()))
	return o
}

func (o *objectIDs) next() (id bson.ObjectID) {
	binary.BigEndian.PutUint32(id[:4], uint32(o.host.Wall().Unix()))
	copy(id[4:9], o.process[:])
	n := o.counter.Add(1)
	id[9], id[10], id[11] = byte(n>>16), byte(n>>8), byte(n)
	return id
}

func (o *objectIDs) value() bson.RawValue {
	id := o.next()
	return bson.RawValue{Type: bson.TypeObjectID, Value: id[:]}
}

// withID is doc with its _id in front; a missing one is made. Errors: *mongoerr.Error for an
// _id that cannot be one, and for a document that is too large.
func (o *objectIDs) withID(doc bson.Raw) (bson.Raw, error) {
	id, at, err := findID(doc)
	if err != nil {
		return nil, err
	}
	if at != 4 {
		front := bsoncore.AppendHeader(make([]byte, 4, len(doc)+17), bsoncore.TypeObjectID, "_id")
		rest := []byte(doc[4:])
		if at == 0 {
			front = append(front, o.value().Value...)
		} else {
			end := at + len("_id") + 2 + len(id.Value)
			front = append(append(front[:4], doc[at:end]...), doc[4:at]...)
			rest = doc[end:]
		}
		doc = append(front, rest...)
		binary.LittleEndian.PutUint32(doc, uint32(len(doc)))
	}
	if len(doc) > MaxDocumentBytes {
		return nil, mongoerr.New(mongoerr.BSONObjectTooLarge, "object to insert too large. size in bytes: %d, max size: %d", len(doc), MaxDocumentBytes)
	}
	return doc, nil
}

// findID finds the _id of a validated document, and the offset of its element; 0: none.
func findID(doc bson.Raw) (id bson.RawValue, at int, err error) {
	at = 4
	for rest := []byte(doc[4:]); ; {
		e, next, ok := bsoncore.ReadElement(rest)
		if !ok {
			return bson.RawValue{}, 0, nil
		}
		if string(e.KeyBytes()) == "_id" {
			v := e.Value()
			id = bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}
			return id, at, checkID(id)
		}
		rest, at = next, at+len(e)
	}
}

func checkID(id bson.RawValue) error {
	switch id.Type {
	case bson.TypeArray, bson.TypeRegex, bson.TypeUndefined:
		return mongoerr.New(mongoerr.InvalidIDField, "The '_id' value cannot be of type %s", typeName(id.Type))
	case bson.TypeEmbeddedDocument:
		for rest := id.Value[4:]; ; {
			e, next, ok := bsoncore.ReadElement(rest)
			if !ok {
				return nil
			}
			if k := e.KeyBytes(); len(k) > 0 && k[0] == '$' {
				return mongoerr.New(mongoerr.DollarPrefixedFieldName,
					"_id fields may not contain '$'-prefixed fields: %s is not valid for storage.", k)
			}
			rest = next
		}
	}
	return nil
}

func typeName(t bson.Type) string {
	switch t {
	case bson.TypeArray:
		return "array"
	case bson.TypeRegex:
		return "regex"
	}
	return "undefined"
}
