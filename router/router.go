// Package router finds the chunks that an operation concerns, asks their owners, and makes
// one answer of theirs. It keeps nothing that matters: every router may die at any moment,
// and any other may continue.
//
// # How an operation runs
//
//	+--> plan on the cached map --> ask the owners --> answers agree? --> reply
//	|                                    |                  |
//	+----- load the root <--- backoff <--+-- stale, gone ---+
//
// An owner that knows the chunk in another version answers StaleVersion; one that lost its
// shard answers Fenced; one that is gone does not answer. Each time the router loads the
// root (one conditional GET), plans again and asks again, until the operation's deadline:
// a client never sees that a chunk was split or moved, or that a writer died.
//
// # Writes
//
// Every statement has an OpID: the client's session, transaction number and statement, or a
// nonce of the router's. When an answer is lost, the statement may or may not have been
// applied; the router sends it again under the same OpID, and the owner answers what
// happened the first time. So a lost answer becomes a known one inside the deadline; after
// it the client is told that the outcome is unknown, never that it failed.
//
// A statement whose filter pins the shard key goes to one owner in one request. Another one
// that concerns a single document first finds a match, then goes to exactly that row, where
// the filter is checked again; see twophase.go for what makes this happen once.
//
// # Shards without a writer
//
// A free shard has everything in the bucket: reads go straight there, after one GET of the
// root that was sent after the operation began. A write needs a holder: the Claimer is
// asked for one.
//
// Names exported here are the API for embedding a router; it may still change.
package router

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/reshard"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Claimer finds a writer for a shard.
type Claimer interface {
	// Claim asks that some writer hold the shard, which is free, or whose holder did not
	// answer several times in a row. It returns when the shard is held or when nobody can
	// hold it now; the router loads the root either way. It must not take a shard from a
	// holder that works.
	Claim(ctx context.Context, shard manifest.ShardID) error
}

// Settings tune a Router. Zero fields mean the defaults.
type Settings struct {
	// Patience is how long an operation without a time limit of its own is tried; 30 s.
	Patience time.Duration
	// Fanout bounds the shards that one operation asks at once; 16.
	Fanout int
	// BatchBytes bounds what the shards of one operation send at once, all together;
	// 16 MiB. Every shard may send at least BatchBytesMin.
	BatchBytes int
	// BackoffMin and BackoffMax bound the wait before another attempt; 5 ms and 500 ms.
	BackoffMin, BackoffMax time.Duration
	// WriteBytes bounds the documents and updates of one request to an owner; 16 MiB. A
	// larger statement goes alone.
	WriteBytes int
	// DistinctBytes bounds the answer of a distinct; 16 MiB.
	DistinctBytes int
	// Zone is where this router is: a collection that it makes in one chunk, and that belongs to no
	// zone, begins on a shard of it, near those who made it. "": anywhere.
	Zone string
	// Reshard tunes what gives collections with documents another shard key.
	Reshard reshard.Settings
}

const (
	// BatchBytesMin is the least that one shard may send in one answer.
	BatchBytesMin = 256 << 10
	// WriteOpsMax bounds the statements of one request to an owner.
	WriteOpsMax = 100_000
	// UnreachableMax is how often in a row a holder may not answer one operation before the
	// Claimer is asked.
	UnreachableMax = 3
	// UnreachableFor is how long at least it must have been silent by then.
	UnreachableFor = time.Second
)

func (s Settings) withDefaults() Settings {
	set(&s.Patience, 30*time.Second)
	set(&s.Fanout, 16)
	set(&s.BatchBytes, 16<<20)
	set(&s.BackoffMin, 5*time.Millisecond)
	set(&s.BackoffMax, 500*time.Millisecond)
	set(&s.WriteBytes, 16<<20)
	set(&s.DistinctBytes, 16<<20)
	return s
}

func set[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Config is what a Router is made of. Root, Dialer and Host are required.
type Config struct {
	Root   *manifest.Root
	Dialer rpc.Dialer
	// Store reads chunks of free shards; nil: they wait for a writer like a write does.
	Store *reader.Store
	// Bucket takes the segments of a collection that gets another shard key while it holds
	// documents; nil: this router refuses that.
	Bucket bucket.Bucket
	// Prepare makes a bucket ready to be the location of a shard; nil: this router adds no shard
	// with a location of its own.
	Prepare func(ctx context.Context, url string) error
	// Claimer finds writers for free shards; nil: they wait until one comes by itself.
	Claimer Claimer
	Host    host.Host
	Log     *slog.Logger // nil: silent
	// Answers is the memory for documents that shards have sent and clients have not taken,
	// and Sorts that for sorts of free shards; nil: no bound.
	Answers, Sorts *admission.Account
	Settings       Settings
}

// Router executes operations. Safe for concurrent use; it needs no closing.
type Router struct {
	root     *manifest.Root
	dialer   rpc.Dialer
	store    *reader.Store
	bucket   bucket.Bucket
	claimer  Claimer
	prepare  func(context.Context, string) error
	host     host.Host
	log      *slog.Logger
	settings Settings
	answers  *admission.Account
	sorts    *admission.Account
	ids      *objectIDs
	lanes    lanes
	// targeting counts how far operations reach.
	targeting *targeting
	pinned    pinned

	mu         sync.Mutex // never held across a call
	claiming   map[manifest.ShardID]bool
	resharding map[int64]*Resharding
}

// New makes a Router.
func New(c Config) *Router {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Router{
		root: c.Root, dialer: c.Dialer, store: c.Store, bucket: c.Bucket, claimer: c.Claimer, prepare: c.Prepare, host: c.Host, log: c.Log,
		answers: c.Answers, sorts: c.Sorts, settings: c.Settings.withDefaults(), ids: newObjectIDs(c.Host), lanes: lanes{host: c.Host}, targeting: newTargeting(), claiming: make(map[manifest.ShardID]bool),
	}
}

// Root is the cluster's root as this router sees it.
func (r *Router) Root() *manifest.Root { return r.root }

// NewObjectID makes an _id.
func (r *Router) NewObjectID() bson.ObjectID { return r.ids.next() }

// Host is the clock and randomness that the router was made with.
func (r *Router) Host() host.Host { return r.host }

// Namespace names a collection.
type Namespace struct{ Database, Collection string }

// String is "database.collection".
func (n Namespace) String() string { return n.Database + "." + n.Collection }

// each runs f(0) to f(n-1), at most Fanout at once, and returns when all have returned.
func (r *Router) each(n int, f func(i int)) {
	if n <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	slots := make(chan struct{}, r.settings.Fanout)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	all.Wait()
}

// docBytes is what a document is taken for before it has come.
const docBytes = 64 << 10

// batch bounds one shard's answer when `shards` of them answer together, to a caller that
// wants `docs` documents (0: as many as fit). Its bytes are taken from the memory for answers:
// when that is short, answers are smaller and more.
func (r *Router) batch(docs, shards int) rpc.Batch {
	if docs <= 0 {
		docs = math.MaxInt32
	}
	want := max(r.settings.BatchBytes/max(shards, 1), BatchBytesMin)
	if docs < want/docBytes {
		want = max(docs*docBytes, BatchBytesMin)
	}
	return rpc.Batch{Docs: docs, Bytes: int(r.answers.Take(int64(want), BatchBytesMin))}
}
