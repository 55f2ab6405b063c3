package rpc

import (
	"context"
	"errors"
	"syscall"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Peer is the face of a writer process as a whole, to its peers and to routers that look for
// a writer. Nothing here is needed for safety: what counts is the root.
type Peer interface {
	// Ping tells who answers at an address, and makes the caller known there. It never asks
	// the bucket.
	Ping(ctx context.Context, r *PingRequest) (*PingReply, error)
	// Claim asks the process to hold the shard of the header, which is free, or whose holder
	// seems gone; it returns when the shard is served. The process looks for itself, and
	// takes nothing from a holder that answers. Errors: Conflict (it will not: it is
	// stopping, is not for this shard, or the holder answers), and those of a claim.
	Claim(ctx context.Context, r *ClaimRequest) (*ClaimReply, error)
}

// PeerDialer finds the process that answers at an address ("host:port").
type PeerDialer interface {
	DialPeer(address string) (Peer, error)
}

// Process is what a writer process says of itself.
type Process struct {
	// Holder is the process's random name, and Address where it answers.
	Holder, Address string
	// Any: it takes any shard. Named are the shards that it was started for.
	Any   bool
	Named []manifest.ShardID
	// Leaving: it is giving its shards away and takes none.
	Leaving bool
}

// PingRequest asks who is there. From is the caller when it is a writer process itself; a
// router leaves it zero.
type PingRequest struct {
	Header
	From Process
}

// PingReply is who is there. Peers are the other processes that it has heard from lately,
// also those that hold nothing and that therefore no root names.
type PingReply struct {
	Self  Process
	Peers []Process
	// RootVersion is the newest that it has seen.
	RootVersion manifest.Version
	// Shards are those that it holds, as it sees them.
	Shards []HeldShard
	// FlushedBytes and MergedBytes are the bytes of segments that the process has stored since
	// it started: of flushes of the shards that it holds, and of what was merged.
	FlushedBytes, MergedBytes int64
	// Corrupt is how often it found what is Corrupt, and CorruptAgeMillis and CorruptLast when
	// and what last. Only who is no process of the cluster is told: a ping without From.
	Corrupt, CorruptAgeMillis int64
	CorruptLast               string
}

// HeldShard is where a shard stands in the process that holds it.
type HeldShard struct {
	ID    manifest.ShardID
	Epoch manifest.Epoch
	Phase string
	// LeaseLeftMillis is how long reads need no look at the bucket, AckAgeMillis how long
	// ago the last batch was stored (-1: never), Unflushed the bytes that are in the log only.
	LeaseLeftMillis, AckAgeMillis, Unflushed int64
}

// ClaimRequest: the shard is Header.Shard.
type ClaimRequest struct{ Header }

// ClaimReply: the process serves the shard in this epoch.
type ClaimReply struct{ Epoch manifest.Epoch }

// Stranger: the peer answers, and does not accept our secret; nothing was done. It matches
// errkind.Throttled: somebody will give all processes the same secret, and then it works.
var Stranger error = stranger{}

type stranger struct{}

func (stranger) Error() string { return "is GRANARY_SECRET the same everywhere?" }
func (stranger) Unwrap() error { return errkind.Throttled }

// NobodyListens reports whether a call failed because no process listens at the address: the
// machine answered, the process is gone, or has not started yet.
func NobodyListens(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
