package writer

import (
	"encoding/binary"
	"unsafe"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// row is one unflushed version of one document, or of its absence. What it points to never
// changes: snapshots share it.
type row struct {
	// path is the collection's number, four bytes, and the row key.
	path []byte
	doc  bson.Raw // nil: deleted
	seq  manifest.Seq
	// at is where the WAL holds it; rows of one WAL object share it.
	at *stamp
	// existed tells whether a live row of the key lay below the memtable when the memtable
	// took its first version of it: the difference to what is live now is what a flush adds
	// to the chunk's count. Owned by: the shard's mutex, and the flush once frozen.
	existed bool
}

// stamp is a place in the WAL: the position that covers one object.
type stamp struct{ pos manifest.Position }

// rowOverhead is what a row costs in memory beyond its bytes, about.
const rowOverhead = 176

func (r *row) key() []byte                    { return r.path[4:] }
func (r *row) live() bool                     { return r.doc != nil }
func (r *row) bytes() int64                   { return int64(len(r.path)+len(r.doc)) + rowOverhead }
func (r *row) size() int64                    { return int64(len(r.path) - 4 + len(r.doc)) }
func (r *row) name() string                   { return text(r.path[4:]) }
func (r *row) above(f manifest.Position) bool { return f.Less(r.at.pos) }

func (r *row) collection() manifest.CollectionID {
	return manifest.CollectionID(binary.BigEndian.Uint32(r.path))
}

func (r *row) row() segment.Row {
	return segment.Row{Collection: r.collection(), Key: r.key(), Seq: r.seq, Delete: r.doc == nil, Doc: r.doc}
}

// appendPath appends the path of a row.
func appendPath(dst []byte, c manifest.CollectionID, key []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(c)), key...)
}

// text is b as a string without a copy. Requires: b never changes.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// arena copies bytes into large blocks, so that a document costs no allocation of its own.
// A block lives as long as anything in it. Owned by: the shard's mutex.
type arena struct{ free []byte }

const (
	arenaBlock = 256 << 10
	arenaLarge = 32 << 10 // what is larger gets its own allocation
)

func (a *arena) copy(b []byte) []byte {
	if len(b) > arenaLarge {
		return append(make([]byte, 0, len(b)), b...)
	}
	if len(b) > len(a.free) {
		a.free = make([]byte, arenaBlock)
	}
	c := a.free[:len(b):len(b)]
	a.free = a.free[len(b):]
	copy(c, b)
	return c
}
