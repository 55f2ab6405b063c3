package query

import (
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	batchDocsDefault  = 101
	batchBytesDefault = 16 << 20
)

// batch collects one answer. It ends with the document that reaches one of its bounds; one
// that would pass the bound of bytes waits for the next batch, unless it is the first.
type batch struct {
	docs     []bson.Raw
	bytes    int
	maxDocs  int
	maxBytes int
	arena    arena
}

func newBatch(b rpc.Batch) *batch {
	out := &batch{maxDocs: b.Docs, maxBytes: b.Bytes}
	if out.maxDocs <= 0 {
		out.maxDocs = batchDocsDefault
	}
	if out.maxBytes <= 0 {
		out.maxBytes = batchBytesDefault
	}
	return out
}

func (b *batch) full() bool { return len(b.docs) >= b.maxDocs || b.bytes >= b.maxBytes }

func (b *batch) add(doc bson.Raw) bool {
	if len(b.docs) > 0 && b.bytes+len(doc) > b.maxBytes {
		return false
	}
	b.docs = append(b.docs, doc)
	b.bytes += len(doc)
	return true
}

// arena is memory for documents that are built: many for one allocation. What it handed out
// is never changed.
type arena struct{ slab []byte }

const (
	slabMin = 512
	slabMax = 256 << 10
)

// room is a slice to append about n bytes to.
func (a *arena) room(n int) []byte {
	if cap(a.slab)-len(a.slab) < n {
		a.slab = make([]byte, 0, max(min(2*cap(a.slab), slabMax), slabMin, n))
	}
	return a.slab
}

// keep takes back what room gave, longer by the bytes from start on, and returns these.
func (a *arena) keep(start int, grown []byte) []byte {
	a.slab = grown
	return grown[start:len(grown):len(grown)]
}
