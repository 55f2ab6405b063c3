package segment

import (
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Row is one version of one document: a put, or with Delete a tombstone (Doc is nil).
//
// Rows are ordered by (Collection, Key) ascending, then Seq descending: the newest version
// of a key comes first. Key is the row key's bytes (shardkey.Pattern.AppendKey), without
// the collection.
type Row struct {
	Collection manifest.CollectionID
	Key        []byte
	Seq        manifest.Seq
	Delete     bool
	Doc        bson.Raw
}

// OpID names one client write for ever: session, transaction number, statement, attempt.
// It has the fields of rpc.OpID in the same order, so that Go converts one to the other.
type OpID struct {
	Session [32]byte
	Txn     int64
	Stmt    int32
	Attempt int32
}

// RetryEntry remembers that a retryable write was done, and what was answered. It belongs
// to the chunk that contains Key, not to a row, and outlives the row.
type RetryEntry struct {
	Collection manifest.CollectionID
	// Key is the row written: the entry belongs to whatever chunk has it. Empty: the entry
	// is about all rows of Span, and belongs to every chunk that has some of them.
	Key   []byte
	Span  shardkey.Range
	Op    OpID
	Reply []byte // opaque to this package
	// ExpiresAt, in unix seconds, is when the entry may be forgotten.
	ExpiresAt int64
}

// MemoryBytes is about what an entry takes in memory.
func (e *RetryEntry) MemoryBytes() int64 {
	const beside = 208 // itself, and how it is found
	return int64(len(e.Key)+len(e.Reply)) + beside
}
