package segment

import "go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

// meta is what a segment says about itself: one flat BSON document, so that a later minor
// version adds fields that this one ignores. All numbers are int64.
type meta struct {
	header         []byte // a copy of the object's first 32 bytes
	rows, deletes  int64
	bytes          int64 // keys and documents, before compression
	minSeq, maxSeq int64
	// Retry frames lie back to back at retryOff; their index is one frame of the tail. All
	// zero when there are none.
	retryOff, retryLen           int64
	retryIndexOff, retryIndexLen int64
	retryEntries                 int64
}

type metaField struct {
	key   string
	value *int64
}

// numbers lists the numeric fields in the order in which they are written.
func (m *meta) numbers() [10]metaField {
	return [10]metaField{
		{"rows", &m.rows},
		{"deletes", &m.deletes},
		{"bytes", &m.bytes},
		{"minSeq", &m.minSeq},
		{"maxSeq", &m.maxSeq},
		{"retryOff", &m.retryOff},
		{"retryLen", &m.retryLen},
		{"retryIndexOff", &m.retryIndexOff},
		{"retryIndexLen", &m.retryIndexLen},
		{"retryEntries", &m.retryEntries},
	}
}

func (m *meta) encode() []byte {
	i, b := bsoncore.AppendDocumentStart(nil)
	b = bsoncore.AppendBinaryElement(b, "header", 0, m.header)
	for _, f := range m.numbers() {
		b = bsoncore.AppendInt64Element(b, f.key, *f.value)
	}
	b, _ = bsoncore.AppendDocumentEnd(b, i)
	return b
}

// parseMeta reads a payload. It looks at the top level only, so nesting in a field that it
// ignores costs nothing. Errors: Corrupt.
func parseMeta(p []byte) (*meta, error) {
	if n, ok := docLen(p); !ok || n != len(p) {
		return nil, corruptf("meta is no document")
	}
	m := &meta{}
	numbers := m.numbers()
	found := 0
	for rest := p[4 : len(p)-1]; len(rest) > 0; {
		e, after, ok := bsoncore.ReadElement(rest)
		if !ok {
			return nil, corruptf("meta element at %d", len(p)-1-len(rest))
		}
		rest = after
		key, v := e.Key(), e.Value()
		if _, b, ok := v.BinaryOK(); ok && key == "header" {
			m.header = b
		}
		for _, f := range numbers {
			if n, ok := v.Int64OK(); ok && key == f.key {
				*f.value = n
				found++
			}
		}
	}
	if found != len(numbers) || m.header == nil {
		return nil, corruptf("meta lacks a field")
	}
	return m, nil
}

// add counts a row whose key and document have size bytes. Seqs are unsigned: they are
// compared before they are stored as int64.
func (m *meta) add(r *Row, size int64) {
	if m.rows == 0 || uint64(r.Seq) < uint64(m.minSeq) {
		m.minSeq = int64(r.Seq)
	}
	if m.rows == 0 || uint64(r.Seq) > uint64(m.maxSeq) {
		m.maxSeq = int64(r.Seq)
	}
	m.rows, m.bytes = m.rows+1, m.bytes+size
	if r.Delete {
		m.deletes++
	}
}
