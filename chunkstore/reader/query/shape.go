package query

import (
	"encoding/binary"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/segment"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// shape is what a row becomes in an answer.
type shape struct {
	projection *document.Projection // nil: whole documents
	key        bool                 // with the row key, as k
	sortKey    bool                 // with the sort key, as s
}

// shapeExtra is about how many bytes an envelope adds to key and document.
const shapeExtra = 64

// in shapes a row that is not sorted. A whole document stays where it is.
func (s *shape) in(a *arena, row *segment.Row) (bson.Raw, error) {
	if s.projection == nil && !s.key {
		return row.Doc, nil
	}
	dst := a.room(len(row.Key) + len(row.Doc) + shapeExtra)
	out, err := s.append(dst, row, nil)
	if err != nil {
		return nil, err
	}
	return a.keep(len(dst), out), nil
}

// append appends the shaped document.
func (s *shape) append(dst []byte, row *segment.Row, sortKey []byte) ([]byte, error) {
	if !s.key && !s.sortKey {
		return s.document(dst, row.Doc)
	}
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	if s.key {
		dst = appendBinary(dst, 'k', row.Key)
	}
	dst = append(dst, byte(bson.TypeEmbeddedDocument), 'd', 0)
	dst, err := s.document(dst, row.Doc)
	if err != nil {
		return nil, err
	}
	if s.sortKey {
		dst = appendBinary(dst, 's', sortKey)
	}
	return endDocument(dst, start), nil
}

func (s *shape) document(dst []byte, doc bson.Raw) ([]byte, error) {
	if s.projection == nil {
		return append(dst, doc...), nil
	}
	return s.projection.Append(dst, doc)
}

// endDocument closes the document whose length field is at start.
func endDocument(dst []byte, start int) []byte {
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start))
	return dst
}

func appendBinary(dst []byte, name byte, b []byte) []byte {
	dst = append(dst, byte(bson.TypeBinary), name, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(b)))
	return append(append(dst, bson.TypeBinaryGeneric), b...)
}
