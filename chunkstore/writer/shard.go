package writer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Phase is where a held shard stands.
type Phase string

// The phases, in order. A shard that ended stays known, with its reason, until it is held
// again.
const (
	Claimed   Phase = "claimed"   // the root names this process
	Sealing   Phase = "sealing"   // ending the WAL of older epochs
	Replaying Phase = "replaying" // reading it
	Waiting   Phase = "waiting"   // for the lease of the holder before to run out
	Serving   Phase = "serving"
	Draining  Phase = "draining" // giving the shard back
	Ended     Phase = "ended"    // fenced, freed, or left
)

// shard is one claim of one shard by this process: one epoch.
//
// Two goroutines work for it from the moment it serves: the committer makes batches durable
// (commit.go), the janitor does one job at a time that changes where rows are: flush, move,
// free (jobs.go). Requests run on their callers' goroutines. All of them, and the observer
// of the root (absorb.go), share what follows under mu, for moments: never across a request
// to the bucket, a call, or a wait.
type shard struct {
	w       *Writer
	id      manifest.ShardID
	epoch   manifest.Epoch
	cluster manifest.ClusterID
	// bucket is where its log and the segments of its chunks are: that of its location.
	bucket   bucket.Bucket
	location manifest.LocationID

	// ended is closed when this claim is over, for whatever reason; stop cancels what its
	// goroutines are doing, and idle is closed when they have returned.
	ended chan struct{}
	stop  context.CancelCauseFunc
	idle  chan struct{}
	// aside are documents on their way to other shards; none begins once the claim has ended.
	aside sync.WaitGroup
	// writing is the host as the committer sees it, working as the janitor does.
	writing, working host.Host
	kick             chan struct{} // capacity 1: a batch waits for the committer
	jobs             chan *job

	mu    sync.Mutex
	phase Phase
	// endErr is why it ended: what requests get that had no effect.
	endErr error
	// unserved is closed to requests until the shard serves, and again while it drains.
	unserved *gate
	state    *manifest.State // the newest absorbed
	// rootFloor is the shard's floor in state.
	rootFloor manifest.Position
	// reshaping are the collections in state that take no writes now.
	reshaping map[manifest.CollectionID]bool
	chunks    map[manifest.ChunkID]*chunk
	stirred   map[manifest.ChunkID]*chunk // of chunks; see stirred.go
	aging     []aging                     // the earliest due first
	paused    []*chunk                    // those with a pause
	// rules are when documents expire, of the collections in which any do. judged is the latest
	// moment by which that was decided, in Unix milliseconds.
	rules  map[manifest.CollectionID]expiring
	judged int64
	// since is the version of the first root absorbed, and gained that with which a chunk of
	// a collection last came from another shard; see exec_rekey.go for what readers need it.
	since    manifest.Version
	gained   map[manifest.CollectionID]manifest.Version
	warm     []*chunk // those with a heat, and some that are gone
	latches  latches
	heldRows []*hold // in the order in which they began
	// Apart, since retry entries keep the paths alive long after the documents are flushed.
	paths, docs arena
	slab        []row // to be

	open, flight *batch
	spare        *batch
	full         *gate // who waits for room in the open batch; nil: nobody
	long         *gate // who waits for a shorter WAL; nil: nobody
	// durable covers the WAL objects that are known to be stored, and whose rows are in the
	// memtables.
	durable manifest.Position
	log     tally
	bytes   int64 // of unflushed rows, pending ones too

	lease    lease
	cursors  cursors
	flushing *job // a flush that waits for the janitor
	lastAck  time.Duration
	// touched is when a row was last made durable, flushed when the last flush was
	// committed; on the monotonic clock.
	touched, flushed time.Duration
	counts           Counts
}

// newShard makes the shard of an epoch just claimed, the next after before, with the bucket
// of its location. It does not serve yet.
func newShard(w *Writer, before *manifest.Shard, b bucket.Bucket, cluster manifest.ClusterID, stop context.CancelCauseFunc) *shard {
	id, epoch := before.ID, before.Epoch+1
	return &shard{
		w: w, id: id, epoch: epoch, cluster: cluster, bucket: b, location: before.Location, stop: stop,
		writing: w.actor("%s %d committer", id, epoch), working: w.actor("%s %d janitor", id, epoch),
		ended: make(chan struct{}), idle: make(chan struct{}), kick: make(chan struct{}, 1), jobs: make(chan *job, jobsMax),
		phase: Claimed, unserved: newGate(), chunks: make(map[manifest.ChunkID]*chunk), stirred: make(map[manifest.ChunkID]*chunk),
		gained: make(map[manifest.CollectionID]manifest.Version),
		open:   newBatch(1, nil), durable: manifest.Position{Epoch: epoch}, lease: lease{length: w.set.Lease},
	}
}

// end is the end of this claim: requests that had no effect get reason, writes that wait
// for a batch get UnknownOutcome. The first reason stays.
func (s *shard) end(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(reason)
}

func (s *shard) endLocked(reason error) {
	if s.endErr != nil {
		return
	}
	s.endErr, s.phase = reason, Ended
	for _, b := range []*batch{s.flight, s.open} {
		if b != nil {
			b.err = fmt.Errorf("write to shard %s epoch %d: %w: the shard's claim ended (%v)", s.id, s.epoch, errkind.UnknownOutcome, reason)
			s.counts.Unknown += int64(len(b.records))
			close(b.done)
		}
	}
	s.flight = nil
	s.grow(-s.bytes)
	for _, c := range s.chunks {
		s.unweigh(c)
	}
	s.w.memory.chunks.Add(-int64(len(s.chunks)))
	s.chunks, s.warm, s.latches, s.cursors, s.heldRows = nil, nil, latches{}, cursors{}, nil
	clear(s.stirred)
	s.aging, s.paused = nil, nil
	close(s.ended)
	s.stop(reason)
}

// endedErr is what a request gets that comes too late. Requires: not the mutex.
func (s *shard) endedErr() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endErr
}

// fenced is the reason when the root shows another epoch, or none.
func (s *shard) fenced(now *manifest.Shard) error {
	if now == nil {
		return fmt.Errorf("shard %s epoch %d: %w", s.id, s.epoch, errRemoved)
	}
	return fmt.Errorf("shard %s epoch %d: %w: %q holds epoch %d", s.id, s.epoch, errkind.Fenced, now.Holder, now.Epoch)
}

// grow counts bytes of unflushed rows. Requires: the mutex.
func (s *shard) grow(n int64) {
	s.bytes += n
	s.w.memory.add(n)
}

// enter finds the shard of a request and waits until it serves and knows the root version
// that the request was planned on.
func (w *Writer) enter(ctx context.Context, h *rpc.Header) (*shard, error) {
	s := w.shard(h.Shard)
	if s == nil {
		return nil, fmt.Errorf("shard %s: %w: this process does not hold it", h.Shard, errkind.Fenced)
	}
	if err := s.serves(ctx); err != nil {
		return nil, err
	}
	if h.RootVersion > s.version() {
		err := w.turns.take(ctx, w.turns.join(), func() error {
			_, err := w.root.AtLeast(ctx, h.RootVersion)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("shard %s: know root version %d: %w", s.id, h.RootVersion, err)
		}
	}
	return s, nil
}

// serves waits until the shard serves. Errors: why it ended, the cause of ctx.
func (s *shard) serves(ctx context.Context) error {
	for {
		s.mu.Lock()
		if s.endErr != nil || s.unserved == nil {
			err := s.endErr
			s.mu.Unlock()
			return err
		}
		g := s.unserved
		place := s.w.turns.join()
		s.mu.Unlock()
		if err := s.await(ctx, g, place); err != nil {
			return err
		}
	}
}

// version is the newest root version that the shard has absorbed.
func (s *shard) version() manifest.Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == nil {
		return 0
	}
	return s.state.Version()
}

// wake tells the committer that a batch waits.
func (s *shard) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}
