package writer

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// duplicateKey is MongoDB's E11000. The rule that was broken is the uniqueness of the row
// key: of _id, where that is the shard key, else of the shard key together with the _id.
func duplicateKey(coll *manifest.Collection, doc bson.Raw) *mongoerr.Error {
	return duplicateIn(coll, "", coll.Key.RowPattern(), doc)
}

// duplicateIn is E11000 of an index; without a name it has that of its fields.
func duplicateIn(coll *manifest.Collection, index string, pattern shardkey.Pattern, doc bson.Raw) *mongoerr.Error {
	var name, text strings.Builder
	start, values := bsoncore.AppendDocumentStart(nil)
	for i, f := range pattern.Fields {
		if i > 0 {
			name.WriteByte('_')
			text.WriteString(", ")
		}
		kind := "1"
		switch {
		case f.Hashed:
			kind = "hashed"
		case f.Descending:
			kind = "-1"
		}
		fmt.Fprintf(&name, "%s_%s", f.Path, kind)
		v, ok := document.Lookup(doc, f.Path)
		if !ok {
			v = bson.RawValue{Type: bson.TypeNull}
		}
		fmt.Fprintf(&text, "%s: %s", f.Path, shown(v))
		values = bsoncore.AppendValueElement(values, f.Path, bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value})
	}
	values, _ = bsoncore.AppendDocumentEnd(values, start)
	if index == "" {
		index = name.String()
	}
	if index == "_id_1" {
		index = "_id_"
	}
	e := mongoerr.New(mongoerr.DuplicateKey, "E11000 duplicate key error collection: %s index: %s dup key: { %s }", coll.Namespace(), index, text.String())
	e.Info = bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(bsoncore.AppendDocumentElement(nil, "keyPattern", pattern.BSON()), "keyValue", values))
	return e
}

// shown is a value as MongoDB's messages write it, as far as keys are concerned.
func shown(v bson.RawValue) string {
	switch v.Type {
	case bson.TypeObjectID:
		return "ObjectId('" + v.ObjectID().Hex() + "')"
	case bson.TypeInt32, bson.TypeInt64:
		return strconv.FormatInt(v.AsInt64(), 10)
	case bson.TypeDouble:
		if f := v.Double(); f == math.Trunc(f) && math.Abs(f) < 1e15 {
			return strconv.FormatFloat(f, 'f', 1, 64)
		}
		return strconv.FormatFloat(v.Double(), 'g', -1, 64)
	case bson.TypeDateTime:
		return "new Date(" + strconv.FormatInt(v.DateTime(), 10) + ")"
	case bson.TypeNull:
		return "null"
	}
	return v.String()
}

// newID makes an ObjectId: the wall clock's seconds, then randomness.
func (w *Writer) newID() bson.RawValue {
	id := binary.BigEndian.AppendUint32(nil, uint32(w.host.Wall().Unix()))
	id = binary.BigEndian.AppendUint64(id, w.asked.Uint64())
	return bson.RawValue{Type: bson.TypeObjectID, Value: id}
}
