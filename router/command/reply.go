package command

import (
	"strconv"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// maxReply is how many bytes of documents a batch has at most.
const maxReply = 16 << 20

// okReply is {ok: 1}.
func okReply() bson.Raw { return ok(build()) }

// build begins a reply.
func build() *bsoncore.DocumentBuilder { return bsoncore.NewDocumentBuilder() }

// ok ends a reply with ok: 1.
func ok(b *bsoncore.DocumentBuilder) bson.Raw { return bson.Raw(b.AppendDouble("ok", 1).Build()) }

// errorReply is a failed command as drivers expect it. ok comes first, as MongoDB sends it.
func errorReply(e *mongoerr.Error) bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendDoubleElement(doc, "ok", 0)
	doc = bsoncore.AppendStringElement(doc, "errmsg", e.Message)
	doc = bsoncore.AppendInt32Element(doc, "code", int32(e.Code))
	doc = bsoncore.AppendStringElement(doc, "codeName", e.Code.String())
	doc = appendInfo(doc, e)
	if len(e.Labels) > 0 {
		var at int32
		at, doc = bsoncore.AppendArrayElementStart(doc, "errorLabels")
		for i, l := range e.Labels {
			doc = bsoncore.AppendStringElement(doc, strconv.Itoa(i), l)
		}
		doc, _ = bsoncore.AppendArrayEnd(doc, at)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}

// appendInfo adds the extra fields of an error.
func appendInfo(doc []byte, e *mongoerr.Error) []byte {
	if len(e.Info) > 5 {
		doc = append(doc, e.Info[4:len(e.Info)-1]...)
	}
	return doc
}

// cursorReply is {cursor: {<batch>: docs, id, ns}, ok: 1}.
func cursorReply(batch string, docs []bson.Raw, id int64, ns string) bson.Raw {
	size := 128 + len(ns)
	for _, d := range docs {
		size += len(d) + 8
	}
	start, doc := bsoncore.AppendDocumentStart(make([]byte, 0, size))
	cursor, doc := bsoncore.AppendDocumentElementStart(doc, "cursor")
	array, doc := bsoncore.AppendArrayElementStart(doc, batch)
	var name [20]byte
	for i, d := range docs {
		doc = append(doc, byte(bson.TypeEmbeddedDocument))
		doc = append(append(doc, strconv.AppendInt(name[:0], int64(i), 10)...), 0)
		doc = append(doc, d...)
	}
	doc, _ = bsoncore.AppendArrayEnd(doc, array)
	doc = bsoncore.AppendInt64Element(doc, "id", id)
	doc = bsoncore.AppendStringElement(doc, "ns", ns)
	doc, _ = bsoncore.AppendDocumentEnd(doc, cursor)
	doc = bsoncore.AppendDoubleElement(doc, "ok", 1)
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}

// array is an array of documents.
func array(docs []bson.Raw) []byte {
	start, a := bsoncore.AppendArrayStart(nil)
	for i, d := range docs {
		a = bsoncore.AppendDocumentElement(a, strconv.Itoa(i), d)
	}
	a, _ = bsoncore.AppendArrayEnd(a, start)
	return a
}

// values is an array of values.
func values(vs []bson.RawValue) []byte {
	start, a := bsoncore.AppendArrayStart(nil)
	for i, v := range vs {
		a = bsoncore.AppendValueElement(a, strconv.Itoa(i), core(v))
	}
	a, _ = bsoncore.AppendArrayEnd(a, start)
	return a
}

// stringArray is an array of strings.
func stringArray(list ...string) []byte {
	start, a := bsoncore.AppendArrayStart(nil)
	for i, s := range list {
		a = bsoncore.AppendStringElement(a, strconv.Itoa(i), s)
	}
	a, _ = bsoncore.AppendArrayEnd(a, start)
	return a
}

func core(v bson.RawValue) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}
}
