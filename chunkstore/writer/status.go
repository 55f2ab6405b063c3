package writer

import (
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/manifest"
)

// Counts count what happened to one claim of a shard since it began.
type Counts struct {
	Batches, Records       int64 // stored
	Flushes, Moves         int64 // committed
	Segments, SegmentBytes int64 // stored
	Unknown                int64 // records whose outcome nobody was told
	Fenced                 int64 // 1: another epoch was seen in the root
	Throttled              int64 // writes refused for want of room
	Retries                int64 // writes answered from the retry table
}

// ShardStatus is where one shard stands in this process.
type ShardStatus struct {
	ID       manifest.ShardID
	Epoch    manifest.Epoch
	Phase    Phase
	Reason   string // why it ended
	Root     manifest.Version
	Chunks   int
	Rows     int   // unflushed, durable
	Bytes    int64 // unflushed, pending ones too
	Position manifest.Position
	Floor    manifest.Position
	// WALObjects and WALBytes are what a takeover would replay.
	WALObjects int
	WALBytes   int64
	LeaseLeft  time.Duration
	// SinceAck is how long ago a batch was stored; negative: never.
	SinceAck time.Duration
	Cursors  int
	Counts   Counts
}

// Status is a Writer at one moment.
type Status struct {
	Holder      string
	MemoryBytes int64 // unflushed rows
	MemoryLimit int64
	Waiting     admission.Bound // the writes that wait for room
	Shards      []ShardStatus   // by id
}

// Status tells where the process stands. It asks nobody.
func (w *Writer) Status() Status {
	st := Status{Holder: w.holder, MemoryBytes: w.memory.used.Load(), MemoryLimit: w.memory.limit, Waiting: w.memory.line.bound(&w.set)}
	for _, s := range w.held() {
		st.Shards = append(st.Shards, s.status())
	}
	return st
}

func (s *shard) status() ShardStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.w.host.Mono()
	st := ShardStatus{
		ID: s.id, Epoch: s.epoch, Phase: s.phase, Chunks: len(s.chunks), Bytes: s.bytes,
		Position: s.durable, Floor: s.rootFloor, WALObjects: len(s.log.objects), WALBytes: s.log.bytes,
		LeaseLeft: s.lease.left(now), SinceAck: -1, Cursors: len(s.cursors.open), Counts: s.counts,
	}
	if s.endErr != nil {
		st.Reason, st.LeaseLeft = s.endErr.Error(), 0
	}
	if s.state != nil {
		st.Root = s.state.Version()
	}
	if s.counts.Batches > 0 {
		st.SinceAck = now - s.lastAck
	}
	for _, c := range s.stirred {
		st.Rows += c.mem.len() + c.frozen.len()
	}
	return st
}

// count notes something. Requires: not the mutex.
func (s *shard) count(f func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.counts)
}
