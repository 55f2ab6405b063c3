package command

import (
	"iter"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// configChunks shows the chunks that a filter can match, one at a time: there may be a hundred
// thousand. A filter that fixes uuid looks at that collection only, and what is of another shard
// than a fixed one is not written out. Whether a document really matches is the caller's to see;
// it is good until the next one.
func configChunks(st *manifest.State, filter bson.Raw) iter.Seq[bson.Raw] {
	uuid, shard := filter.Lookup("uuid"), filter.Lookup("shard")
	return func(yield func(bson.Raw) bool) {
		var doc []byte
		for _, coll := range st.Collections() {
			if _, id, ok := uuid.BinaryOK(); ok && string(id) != string(coll.UUID[:]) {
				continue
			}
			for chunk := range st.Chunks(coll.ID) {
				if name, ok := shard.StringValueOK(); ok && name != string(chunk.Shard) {
					continue
				}
				doc = appendConfigChunk(doc[:0], coll, chunk)
				if !yield(doc) {
					return
				}
			}
		}
	}
}

func appendConfigChunk(doc []byte, coll *manifest.Collection, chunk *manifest.Chunk) []byte {
	var id bson.ObjectID
	for i := range 8 {
		id[11-i] = byte(chunk.ID >> (8 * i))
	}
	start, doc := bsoncore.AppendDocumentStart(doc)
	doc = bsoncore.AppendObjectIDElement(doc, "_id", id)
	doc = bsoncore.AppendBinaryElement(doc, "uuid", bson.TypeBinaryUUID, coll.UUID[:])
	doc = bsoncore.AppendDocumentElement(doc, "min", bsoncore.Document(chunk.MinBSON))
	doc = bsoncore.AppendDocumentElement(doc, "max", bsoncore.Document(chunk.MaxBSON))
	doc = bsoncore.AppendStringElement(doc, "shard", string(chunk.Shard))
	doc = bsoncore.AppendTimestampElement(doc, "lastmod", uint32(chunk.Version>>32), uint32(chunk.Version))
	if chunk.Flags&manifest.ChunkIndivisible != 0 {
		doc = bsoncore.AppendBooleanElement(doc, "jumbo", true)
		doc = appendIndivisible(doc, coll, chunk)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, start) // start is where AppendDocumentStart said
	return doc
}

// appendIndivisible says what fills a chunk that cannot be cut, how much that is, and what helps.
func appendIndivisible(doc []byte, coll *manifest.Collection, chunk *manifest.Chunk) []byte {
	if len(chunk.Indivisible.Value) == 0 {
		return doc
	}
	return bsoncore.AppendDocumentElement(doc, "granary", build().
		AppendDocument("indivisibleValue", chunk.Indivisible.Value).
		AppendInt64("bytes", chunk.Indivisible.Bytes).
		AppendString("remedy", "it moves as it is; "+coll.IndivisibleRemedy()).
		Build())
}
