package router

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Documents are what a person types where this package wants documents.
type Documents []Document

// Document is one of them, for packages that have nothing else to do with BSON.
type Document = bson.Raw

// ParseDocuments reads Extended JSON: an array of documents, or one after another. Errors:
// Invalid, with what to type.
func ParseDocuments(text []byte) (docs Documents, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		if _, err := d.Token(); err != nil {
			return nil, err
		}
	}
	for d.More() {
		var one json.RawMessage
		err := d.Decode(&one)
		var doc bson.Raw
		if err == nil {
			err = bson.UnmarshalExtJSON(one, false, &doc)
		}
		if err != nil {
			return nil, fmt.Errorf(`document %d: %w: %w; a document is Extended JSON: {"k": 1}, with dates as {"$date": "2026-01-31T00:00:00Z"}`, len(docs)+1, err, errkind.Invalid)
		}
		docs = append(docs, doc)
	}
	return docs, nil
}

// Bounds are two documents: a lower and an upper bound. Errors: Invalid.
func (d Documents) Bounds() (b [2]bson.Raw, err error) {
	if len(d) != 2 {
		return b, fmt.Errorf(`%d documents: give the lower and the upper bound, [{"k": 1}, {"k": 5}]: %w`, len(d), errkind.Invalid)
	}
	return [2]bson.Raw(d), nil
}

// ExtendedJSON is a document as people read it; null when it is none.
func ExtendedJSON(d bson.Raw) json.RawMessage {
	text, err := DocumentJSON(d, false)
	if err != nil {
		return json.RawMessage("null")
	}
	return text
}

// DocumentJSON is a document as Extended JSON: relaxed, as people read it, or canonical, which
// tells every type. Errors: those of a document that is none.
func DocumentJSON(d bson.Raw, canonical bool) ([]byte, error) {
	return bson.MarshalExtJSON(d, canonical, false)
}
