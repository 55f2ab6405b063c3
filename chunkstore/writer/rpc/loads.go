package rpc

import (
	"time"

	"github.com/granarydb/granary/manifest"
)

// LoadsRequest asks for the loads of the shard in the header.
type LoadsRequest struct{ Header }

// LoadsReply is what the owner counted, by chunk id. A chunk that is not in it has nothing
// unflushed and is not in use.
type LoadsReply struct {
	Chunks []ChunkLoad
	// Copying are the moves to other locations that are under way.
	Copying []Copying
}

// Copying is how far a move to another location is, in bytes of keys and documents. Total grows
// with what is written meanwhile.
type Copying struct {
	Collection   manifest.CollectionID
	Chunk        manifest.ChunkID // the first of Chunks
	Chunks       int64
	To           manifest.ShardID
	Bytes, Total int64
}

// ChunkLoad is what is asked of one chunk. Rates are per second, with the past counting less
// and less: a minute ago a third.
type ChunkLoad struct {
	Collection manifest.CollectionID
	ID         manifest.ChunkID
	Version    manifest.ChunkVersion
	// Reads counts requests that touch the chunk, Writes records, Inserts those of them that
	// are new documents.
	Reads, Writes, Inserts float64
	// UnflushedRows and UnflushedBytes (keys and documents) are in memory and the log only.
	UnflushedRows, UnflushedBytes int64
	// TailShare is which part of Inserts, 0 to 1, came above whatever had been inserted before.
	TailShare float64
	// Median is a row key in the middle of those that were lately asked for; empty: too few
	// were.
	Median []byte
	// Age is for how long the owner has counted.
	Age time.Duration
}
