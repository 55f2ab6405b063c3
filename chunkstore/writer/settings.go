package writer

import (
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
)

// Settings tune a Writer. Zero fields mean the defaults.
type Settings struct {
	// Lease is how long reads are answered from memory after a proof that this process
	// holds the shard; a successor waits for it. 5 s.
	Lease time.Duration
	// Drift bounds how much the clocks of two processes may differ in speed, as a part of
	// one: 0.01.
	Drift float64
	// MemtableBytes bounds the unflushed rows of the process: at half of it flushes begin,
	// at all of it writes wait. 64 MiB.
	MemtableBytes int64
	// BatchBytes and BatchRecords bound one WAL object; 8 MiB and 10,000. A larger single
	// document goes alone.
	BatchBytes, BatchRecords int
	// SegmentBytes is about where a segment ends and the next begins; 32 MiB.
	SegmentBytes int
	// WALBytes and WALObjects bound what a takeover has to replay: at half of them a flush
	// begins, at twice of them writes wait for it. 64 MiB and 1000.
	WALBytes   int64
	WALObjects int
	// IdleFlush is after how long without a write a shard is flushed, so that its WAL is
	// drained; 30 s.
	IdleFlush time.Duration
	// RootPoll is how often Run reads the root, so that an idle process learns what others
	// changed; Lease.
	RootPoll time.Duration
	// MovePreflush is how much of a chunk may be unflushed when a move begins to hold it;
	// more is flushed first. 1 MiB.
	MovePreflush int64
	// Patience bounds the calls to other processes; 10 s.
	Patience time.Duration
	// HoldMax is how long a row stays held for the commit of another shard's owner before
	// this one sees to it that there will be none; Patience.
	HoldMax time.Duration
	// RetryFor is how long retry ids are kept; 30 min.
	RetryFor time.Duration
	// RetryBytes bounds them in memory, for the process; 64 MiB. A chunk's share is between
	// 256 KiB and 16 MiB, and less when the process has so many chunks that all together take
	// more than Retries may have.
	RetryBytes int64
	// WaitersMax and WaitersBytes bound the writes that wait for memory, for a flush or for
	// their batch; more are refused at once. 1024 and 64 MiB.
	WaitersMax   int
	WaitersBytes int64
	// WaitMax is how long a write may be expected to wait for memory when many do; then, or
	// when it is longer than the write's own deadline, it is refused at once. 250 ms.
	WaitMax time.Duration
	// Cursors bounds the open cursors of a shard, CursorIdle how long one lives unused;
	// 1000 and 10 min.
	Cursors    int
	CursorIdle time.Duration
	// SortBytes bounds the memory of one sort or distinct; the reader's default. Sorts is the
	// memory that all of them share; nil: no bound.
	SortBytes int64
	Sorts     *admission.Account
	// Retries and Segments are the memory for retry ids, and for the segments that flushes
	// build; nil: no bound but RetryBytes, and SegmentBytes for each shard.
	Retries, Segments *admission.Account
}

func (s Settings) withDefaults() Settings {
	set(&s.Lease, 5*time.Second)
	set(&s.Drift, 0.01)
	set(&s.MemtableBytes, 64<<20)
	set(&s.BatchBytes, 8<<20)
	set(&s.BatchRecords, 10_000)
	set(&s.SegmentBytes, 32<<20)
	set(&s.WALBytes, 64<<20)
	set(&s.WALObjects, 1000)
	set(&s.IdleFlush, 30*time.Second)
	set(&s.RootPoll, s.Lease)
	set(&s.MovePreflush, 1<<20)
	set(&s.Patience, 10*time.Second)
	set(&s.HoldMax, s.Patience)
	set(&s.RetryFor, 30*time.Minute)
	set(&s.RetryBytes, 64<<20)
	set(&s.WaitersMax, 1024)
	set(&s.WaitersBytes, 64<<20)
	set(&s.WaitMax, 250*time.Millisecond)
	set(&s.Cursors, 1000)
	set(&s.CursorIdle, 10*time.Minute)
	return s
}

// set gives a setting its default.
func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
