package rpc

import (
	"fmt"
	"io"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// The HTTP transport: POST /rpc/v1/{read,cursor,write,promise,prepare,decide,move,flush,ping,claim} over HTTP/1.1
// with connections kept alive, one BSON document as the body of the request and of the
// answer.
//
//	Authorization: Bearer SECRET       compared in constant time
//	Content-Type: application/bson
//	Content-Length: N                  required; at most MessageBytesMax
//	Granary-Deadline-Ms: 9500          how long the client waits; left out: no deadline
//
// What the owner answers, errors included ({ok: 0, ...}), has status 200. Any other status
// is the transport's: 401 the secret, 411 and 413 the length, 400 a body that is not a valid
// message; with these nothing was done.
const (
	// PathPrefix is where the verbs are.
	PathPrefix = "/rpc/v1/"
	// MessageBytesMax bounds a request or reply, as MongoDB bounds a wire message.
	MessageBytesMax = 48_000_000

	contentType    = "application/bson"
	deadlineHeader = "Granary-Deadline-Ms"
)

// message is a request or a reply.
type message interface {
	Append(dst []byte) []byte
	Parse(doc []byte) error
}

// firstRead bounds what is allocated before a byte of the body has come.
const firstRead = 64 << 10

// readMessage reads one document that is exactly the body. It allocates in proportion to
// what has come, not to what the length promises. Errors: Invalid for a length that is not
// a document's, or not the body's; others of the connection.
func readMessage(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	n32, _, ok := bsoncore.ReadLength(head[:])
	if n := int(n32); !ok || n < 5 || n > MessageBytesMax {
		return nil, fmt.Errorf("read message: it says it has %d bytes, 5 to %d are allowed: %w", n, MessageBytesMax, errkind.Invalid)
	}
	n := int(n32)
	doc := append(make([]byte, 0, min(n, firstRead)), head[:]...)
	for len(doc) < n {
		have := len(doc)
		if have == cap(doc) {
			bigger := make([]byte, have, min(n, 4*have))
			copy(bigger, doc)
			doc = bigger
		}
		doc = doc[:cap(doc)]
		if _, err := io.ReadFull(r, doc[have:]); err != nil {
			return nil, fmt.Errorf("read message: after %d of %d bytes: %w", have, n, err)
		}
	}
	if extra, err := r.Read(make([]byte, 1)); extra != 0 || err != io.EOF {
		return nil, fmt.Errorf("read message: something follows its %d bytes: %w", n, errkind.Invalid)
	}
	return doc, nil
}
