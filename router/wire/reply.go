package wire

import (
	"encoding/binary"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// replyOverhead is what a message has around its document, at most.
const replyOverhead = headerSize + 4 + 8 + 4 + 4

// appendReply appends what comes before a document of so many bytes that is the whole answer to
// a request.
func appendReply(dst []byte, id, responseTo int32, legacy bool, docBytes int) []byte {
	start := len(dst)
	opcode := uint32(opMsg)
	if legacy {
		opcode = opReply
	}
	for _, v := range [...]uint32{0, uint32(id), uint32(responseTo), opcode} {
		dst = binary.LittleEndian.AppendUint32(dst, v)
	}
	if legacy {
		const awaitCapable, oneDocument = 8, 1
		dst = binary.LittleEndian.AppendUint32(dst, awaitCapable)
		dst = binary.LittleEndian.AppendUint64(dst, 0) // no cursor
		dst = binary.LittleEndian.AppendUint32(dst, 0) // from the first
		dst = binary.LittleEndian.AppendUint32(dst, oneDocument)
	} else {
		dst = append(dst, 0, 0, 0, 0, 0) // no flags, a body
	}
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start+docBytes))
	return dst
}

// isDocument tells whether doc has the length that it says, and is worth sending.
func isDocument(doc bson.Raw) bool {
	n, ok := lengthOf(doc)
	return ok && n == len(doc) && doc[n-1] == 0
}

// ErrorReply is the reply of a command that failed:
//
//	{ok: 0, errmsg, code, codeName, <the fields of Info>, errorLabels: [...]}
//
// errorLabels is there only when e has some.
func ErrorReply(e *mongoerr.Error) bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(make([]byte, 0, 128+len(e.Message)+len(e.Info)))
	doc = bsoncore.AppendDoubleElement(doc, "ok", 0)
	doc = bsoncore.AppendStringElement(doc, "errmsg", e.Message)
	doc = bsoncore.AppendInt32Element(doc, "code", int32(e.Code))
	doc = bsoncore.AppendStringElement(doc, "codeName", e.Code.String())
	if isDocument(e.Info) {
		doc = append(doc, e.Info[4:len(e.Info)-1]...)
	}
	if len(e.Labels) > 0 {
		var labels int32
		labels, doc = bsoncore.AppendArrayElementStart(doc, "errorLabels")
		for i, label := range e.Labels {
			doc = bsoncore.AppendStringElement(doc, string(rune('0'+i)), label)
		}
		doc = mustEnd(bsoncore.AppendArrayEnd(doc, labels))
	}
	return mustEnd(bsoncore.AppendDocumentEnd(doc, start))
}

func mustEnd(doc []byte, err error) []byte {
	if err != nil {
		panic(err) // Invariant: every end has its start in the same bytes.
	}
	return doc
}
