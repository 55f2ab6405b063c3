// Package rpc is what routers and writers say to one another: requests that name chunks
// by (id, version), and answers that are never partial without saying so.
//
// A request goes to the holder of one shard. It lists the chunks it was planned on; an
// owner that knows another version of one of them, or does not own it, answers
// StaleVersion, and the router refreshes its map and plans again. A request carries the
// router's root version: an owner behind it refreshes first.
package rpc

import (
	"context"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Owner is the face of a process that holds shards. Errors match the kinds of errkind
// (StaleVersion, Throttled, UnknownOutcome, Fenced, SnapshotUnavailable, Corrupt, Invalid),
// admission.Overloaded, which is Throttled too, or are a *mongoerr.Error. Fenced and StaleVersion mean that nothing was done.
type Owner interface {
	// Read starts a find, or answers a count or distinct.
	Read(ctx context.Context, r *ReadRequest) (*ReadReply, error)
	// Cursor continues or closes what a Read left open. Errors: mongoerr CursorNotFound.
	Cursor(ctx context.Context, r *CursorRequest) (*ReadReply, error)
	// Write applies operations of one collection on chunks of one shard.
	Write(ctx context.Context, r *WriteRequest) (*WriteReply, error)
	// Promise answers the destination's part of a planned move: its present WAL position,
	// bound to exactly these chunks and versions.
	Promise(ctx context.Context, r *PromiseRequest) (*PromiseReply, error)
	// Prepare holds the row to which another shard is about to move a document, until the
	// root shows what became of that.
	Prepare(ctx context.Context, r *PrepareRequest) (*PrepareReply, error)
	// Decide tells the outcome of what was prepared.
	Decide(ctx context.Context, r *DecideRequest) (*DecideReply, error)
	// Move hands chunks over, all or none: the source flushes and commits. It returns the
	// root version.
	Move(ctx context.Context, r *MoveRequest) (*MoveReply, error)
	// Loads tells what is asked of the chunks of a shard.
	Loads(ctx context.Context, r *LoadsRequest) (*LoadsReply, error)
	// Flush makes everything the shard acknowledged so far part of segments.
	Flush(ctx context.Context, r *FlushRequest) (*FlushReply, error)
}

// Dialer finds the Owner that answers at a shard's address.
type Dialer interface {
	Dial(shard manifest.ShardID, holder, address string) (Owner, error)
}

// Target is one chunk of a request, and the part of it that is asked for.
type Target struct {
	ID      manifest.ChunkID
	Version manifest.ChunkVersion
	Min     []byte // the chunk's Range.Min, where its owner looks
	// Ranges narrow the request inside the chunk, ascending, not overlapping; none: all.
	Ranges []shardkey.Range
}

// Header is common to all requests.
type Header struct {
	Shard       manifest.ShardID
	Collection  manifest.CollectionID
	RootVersion manifest.Version
	// Deadline is how long the client still waits, counted from the send; 0: no deadline.
	Deadline time.Duration
}

// Level is how a read proves that it is not stale.
type Level uint8

const (
	// Lease: from memory while the lease is provably valid, else it is renewed first.
	Lease Level = iota
	// Verified: one shared conditional GET of the root per read batch; no clock.
	Verified
)

// ReadMode is what a Read wants.
type ReadMode uint8

const (
	// Find returns documents.
	Find ReadMode = iota
	// Count returns N, the number of matches after Skip and Limit.
	Count
	// Distinct returns the distinct values of Query.Field, each as {v: value}.
	Distinct
	// Keys is Find that returns {k: Binary(row key), d: document}: for the two-phase write
	// and for merges.
	Keys
)

// Query is what to do with each target's rows.
type Query struct {
	Mode       ReadMode
	Filter     bson.Raw // nil: all
	Projection bson.Raw // nil: whole documents
	// Sort is nil when any order will do, or when key order is asked for by KeyOrder.
	Sort bson.Raw
	// KeyOrder: rows come in row-key order, ascending (1) or descending (-1); 0: any.
	KeyOrder    int8
	Skip, Limit int64 // Limit 0: none
	Field       string
	// WithSortKey adds to each document of a Find or Keys with a Sort the key that it was
	// sorted by: rows are {d: document, s: Binary}, and with Keys {k, d, s}. The binary's
	// bytes are those of document.Sort.AppendKey: comparing them (bytes.Compare) orders the
	// rows of several owners, directions included, without a look at the documents.
	WithSortKey bool
}

// ReadRequest asks one owner.
type ReadRequest struct {
	Header
	Targets []Target // in the order in which rows are wanted
	Level   Level
	Query   Query
	Batch   Batch
}

// Batch bounds one answer. Zero values mean 101 documents and 16 MiB.
type Batch struct {
	Docs  int
	Bytes int
}

const batchBytesDefault = 16 << 20

// ReadReply is one batch.
type ReadReply struct {
	Docs   []bson.Raw
	Cursor uint64 // 0: exhausted
	N      int64  // Count
	// DataVersion is the collection's in the root that the answer is of.
	DataVersion manifest.DataVersion
	// Gained, on the first batch of a collection whose DataVersion is not 0, is the root
	// version with which the shard last got a chunk of the collection from another. A reader
	// that was planned on an older one, and that asks other shards too, must plan again:
	// documents can have gone between that chunk and others without a new DataVersion.
	Gained manifest.Version
	Stats  ReadStats
}

// ReadStats is what an answer cost, for explain and metrics.
type ReadStats struct {
	DocsExamined   int64
	BucketRequests int64
	BucketBytes    int64
}

// CursorRequest continues (or closes) a cursor at the owner that opened it.
type CursorRequest struct {
	Header
	Cursor uint64
	Close  bool
	Batch  Batch
}

// OpID names one client write for ever: a session, its transaction number and the
// statement. The zero OpID is a write that is not retryable. Attempt tells apart the
// targets that a write without the full shard key was sent to, one after another.
type OpID struct {
	Session [32]byte // lsid.id and a hash of the user, or a router's own nonce
	Txn     int64
	Stmt    int32
	Attempt int32
}

// WriteKind is what an operation does.
type WriteKind uint8

const (
	// Insert stores Doc, or fails with DuplicateKey.
	Insert WriteKind = iota
	// Update changes what Filter matches.
	Update
	// Delete removes what Filter matches.
	Delete
	// Intent records at the operation's home where a write without the full shard key
	// goes: Doc is {a: attempt, t: target key, ...}; the answer's Value is what the first one recorded, or
	// the one with a higher Attempt.
	Intent
	// Refuse records that operation Op will never be applied here, unless it was already:
	// then the answer is that result.
	Refuse
)

// WriteOp is one statement.
type WriteOp struct {
	Kind   WriteKind
	Op     OpID
	Target int // index into WriteRequest.Targets
	// Key narrows Update and Delete to one row; with Key nil they search the target's
	// ranges for matches in key order. For Intent it is the home key.
	Key          []byte
	Doc          bson.Raw // Insert, Intent
	Filter       bson.Raw
	Update       bson.RawValue // document or pipeline array
	ArrayFilters []bson.Raw
	Sort         bson.Raw // which match, when several (findAndModify)
	Multi        bool
	Upsert       bool // only where every match would be inside the target
	// Return asks for the document: findAndModify.
	Return     ReturnDoc
	Projection bson.Raw
}

// ReturnDoc says which image of the document an operation returns.
type ReturnDoc uint8

const (
	// ReturnNone: counts only.
	ReturnNone ReturnDoc = iota
	// ReturnBefore: as it was when the operation matched it.
	ReturnBefore
	// ReturnAfter: as the operation left it, or inserted it.
	ReturnAfter
)

// WriteRequest asks one owner. Ordered stops at the first failure.
type WriteRequest struct {
	Header
	Targets []Target
	Ops     []WriteOp
	Ordered bool
	// Early asks for the results as soon as they are decided. Ordered statements that go to
	// and fro between shards would otherwise wait for a PUT at each change. Nobody may be told
	// of such results before a request with After, sent to the same shard, has succeeded.
	Early bool
	// After is the Until of an earlier reply: the answer waits until the log is there. When
	// that can no longer happen, or this owner does not know, the error is UnknownOutcome.
	After manifest.Position
}

// WriteReply has one result per operation that was tried, in order. With Ordered it may be
// shorter than the request.
type WriteReply struct {
	Results []WriteResult
	// Until is where the shard's log ends once the results are durable; zero when they are,
	// as they always are without Early.
	Until manifest.Position
}

// WriteResult is the outcome of one operation, durable in the bucket when it is sent, but
// for Early.
type WriteResult struct {
	N, Modified int64
	UpsertedID  bson.RawValue // zero: not upserted
	Value       bson.Raw      // Return, Intent; nil: null
	// Err is nil, or why the operation had no effect.
	Err *mongoerr.Error
	// Stale: the target is not as planned; nothing was done for this operation (a Multi
	// was not finished: sent again under the same Op it goes on where it stopped; N is what it
	// has done so far).
	Stale bool
	// Waits, with Stale, is a shard that must have a holder who answers first: the document
	// goes there.
	Waits manifest.ShardID
}

// PromiseRequest: To's shard is Header.Shard. Chunks are those of one MoveRequest.
type PromiseRequest struct {
	Header
	Chunks []manifest.ChunkAt
}

// PromiseReply is void for a chunk under another version, and under another Epoch.
type PromiseReply struct {
	Epoch    manifest.Epoch
	Position manifest.Position
}

// PrepareRequest asks the owner of the row Key in Chunk to keep it free. A request that
// comes again, with the same Token, gets the same answer.
type PrepareRequest struct {
	Header
	Chunk manifest.ChunkAt
	Key   []byte
	Token [16]byte
	// From is who will commit: what it prepared is void once its epoch has ended.
	From manifest.OwnerAt
	// Doc is the document, when there are unique indexes that it might break.
	Doc bson.Raw
	// Op, Reply and Expires are the retry entry that comes with the document; no Op: none.
	Op      OpID
	Reply   []byte
	Expires int64 // unix seconds
}

// PrepareReply says that the row is taken (Exists), or is held for the commit of a document
// with Seq, by the owner in Epoch: none of its versions is only in the WAL.
type PrepareReply struct {
	Exists bool
	Epoch  manifest.Epoch
	Seq    manifest.Seq
}

// DecideRequest: what was prepared under Token is committed in the Header's RootVersion; or,
// with Aborted, it was not and never will be.
type DecideRequest struct {
	Header
	Token   [16]byte
	Aborted bool
}

// DecideReply: the owner knows.
type DecideReply struct{}

// MovesMax bounds the chunks of one MoveRequest.
const MovesMax = 4096

// MoveRequest asks the owner (Header.Shard) to hand Chunks, at most MovesMax, each once and
// of any collections, to To: in one commit, all or none.
type MoveRequest struct {
	Header
	Chunks []manifest.ChunkAt
	To     manifest.ShardID
}

// MoveReply tells when the new owner is in charge.
type MoveReply struct{ Version manifest.Version }

// FlushRequest flushes the shard in the header.
type FlushRequest struct{ Header }

// FlushReply: everything acknowledged before the request is in segments of Version.
type FlushReply struct{ Version manifest.Version }
