// Package writer is the shard owner: the one process that may change the documents of a
// shard's chunks, and that answers reads of them from memory.
//
// # Words
//
// A Writer is one process; it holds any number of shards. Holding a shard is a claim: one
// epoch of the shard in the root. An operation is one statement of a client; it makes
// records (a document's new version, or its deletion). A batch is the records that become
// one WAL object. A row is a record's place in memory: pending until its batch is stored,
// then in the chunk's memtable, until a flush has it in a segment. A cover of the WAL up to
// some point is a position; a floor is a position below which everything is in segments.
//
//	  requests                      committer                      janitor
//	     |                              |                             |
//	latch, read, decide                 |                             |
//	     |  append                      |                             |
//	     +--------> open batch --take-->| PUT wal/<shard>/<epoch>/<n> |
//	     |                              |  (If-None-Match: *)         |
//	     |            rows -> memtables +--------> freeze ----------->| PUT seg/...
//	     |<--- stored, or unknown ------+                             | commit: refs, floors
//	   reply                                                          v
//	                                            observer of the root: drops what is covered
//
// # What is promised
//
// A write is acknowledged when its batch is stored, never before, and nothing that a client
// is told rests on a row that is not. Operations on one shard-key value run one after
// another, and see each other's pending rows; reads see durable rows only. A retryable
// write is done once: its id is in the same record as its effect, and belongs to the chunk
// from then on, wherever the chunk goes.
//
// # When it goes wrong
//
// The root is the only authority. Every root version that this process sees, also in the
// answer to its own commits, passes through absorb before anyone acts on it: another epoch
// ends the claim at once, a chunk that is another's is dropped with its rows. Writes that
// wait for their batch then get UnknownOutcome, for a successor may find their records or
// not; everything else gets Fenced or StaleVersion, which mean that nothing was done.
//
// A crash leaves the WAL above the floors, which the next holder seals and replays
// (claim.go), and perhaps a segment that nothing refers to. A PUT of the dead process that
// arrives later finds the seal in its place. Between the claim and the moment the next
// holder serves lies the lease of the one before, so that whoever is cut off, stopped or
// slow can answer from memory only what nobody has changed yet (lease.go).
//
// # Locks
//
// Writer.mu, then shard.mu, then memory.mu; none is ever held across a request to the
// bucket, a call, or a wait. What lasts longer is held by channels: latches (latch.go),
// gates (gate.go), and the janitor's queue (jobs.go).
//
// The package may change with any release.
package writer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/granarydb/granary/chunkstore/alarm"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Config is what a Writer is made of. Root, Bucket, Store, Host and Holder are required.
type Config struct {
	Root *manifest.Root
	// Bucket is where WAL and segments go, but those of shards in another location; Open
	// finds that one's bucket, nil: this process holds no such shard.
	Bucket bucket.Bucket
	Open   func(manifest.LocationID) (bucket.Bucket, error)
	// Store reads segments.
	Store *reader.Store
	Host  host.Host
	// Holder is the random name of this process; Address is where it answers ("host:port",
	// "" in one process).
	Holder, Address string
	Log             *slog.Logger // nil: silent
	// Dial finds the destinations of moves; nil: this process moves nothing.
	Dial rpc.Dialer
	// Alarm hears what ends here of what is Corrupt; nil: nobody does.
	Alarm    *alarm.Bell
	Settings Settings
}

// Writer holds shards and serves them: an rpc.Owner. Safe for concurrent use.
type Writer struct {
	root            *manifest.Root
	own             bucket.Bucket
	open            func(manifest.LocationID) (bucket.Bucket, error)
	store           *reader.Store
	host            host.Host
	holder, address string
	log             *slog.Logger
	dial            rpc.Dialer
	alarm           *alarm.Bell
	set             Settings
	memory          memory
	turns           turns
	relocates       chan struct{} // capacity 1: a move to another location
	relocating      atomic.Pointer[relocation]
	seed            [16]byte  // of the actors' random numbers
	asked           host.Host // as requests see it
	running         host.Host // as Run does
	forget          func()    // takes the observer off the root

	mu        sync.Mutex
	closed    bool
	shards    map[manifest.ShardID]*shard // the last claim of each
	claiming  map[manifest.ShardID]bool
	claimants map[manifest.ShardID]host.Host
}

// New makes a Writer. It watches the root from now on; Close ends that.
func New(c Config) *Writer {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	w := &Writer{
		root: c.Root, own: c.Bucket, open: c.Open, store: c.Store, host: c.Host, holder: c.Holder, address: c.Address,
		log: c.Log, dial: c.Dial, alarm: c.Alarm, set: c.Settings.withDefaults(),
		shards: make(map[manifest.ShardID]*shard), claiming: make(map[manifest.ShardID]bool),
		claimants: make(map[manifest.ShardID]host.Host),
	}
	w.turns.clock = c.Host.Clock
	w.relocates = make(chan struct{}, 1)
	w.seed = c.Host.ID16()
	w.asked, w.running = w.actor("requests"), w.actor("run")
	w.memory.limit, w.memory.clock = w.set.MemtableBytes, c.Host.Clock
	w.memory.high = make(chan struct{}, 1)
	w.forget = c.Root.AddObserver(w.absorb)
	return w
}

// bucket is that of a location. Errors: Invalid.
func (w *Writer) bucket(at manifest.LocationID) (bucket.Bucket, error) {
	switch {
	case at == 0:
		return w.own, nil
	case w.open == nil:
		return nil, fmt.Errorf("location %d: %w: this process knows the cluster's own bucket only", at, errkind.Invalid)
	}
	return w.open(at)
}

// absorb shows a root version to every shard, before anyone else in the process gets it.
func (w *Writer) absorb(st *manifest.State) {
	for _, s := range w.held() {
		s.absorb(st)
	}
}

// held are the shards of this process, by id, also those that ended.
func (w *Writer) held() []*shard {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*shard, 0, len(w.shards))
	for _, s := range w.shards {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *shard) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return list
}

// shard is the last claim of a shard, or nil.
func (w *Writer) shard(id manifest.ShardID) *shard {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shards[id]
}

// register makes a new claim known; false when the Writer is closed.
func (w *Writer) register(s *shard) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.shards[s.id] = s
	return true
}

// deadline bounds a request by what its client still waits.
func (w *Writer) deadline(ctx context.Context, h *rpc.Header) (context.Context, context.CancelFunc) {
	if h.Deadline <= 0 {
		return context.WithCancel(ctx)
	}
	return w.host.WithTimeout(ctx, h.Deadline)
}

// Invariant: a Writer answers whatever routers and other writers ask.
var _ rpc.Owner = (*Writer)(nil)
