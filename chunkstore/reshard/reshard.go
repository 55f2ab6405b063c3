// Package reshard gives a collection that holds documents another shard key, while it is read
// and written: its rows are written anew under the new key, beside the old ones, and one commit
// puts the new chunks in the place of the old.
//
//	register   the job, the id of the collection to be, and a record that tells how far it is
//	base       owners flush; all rows of that root are read, sorted by the new key (runs), and
//	           merged into segments, cut into chunks
//	rounds     owners flush; the rows of references that came since are looked up in the root
//	           before: what they were is taken away at its old place, what they are is put at
//	           its new one. Each round is as long as the writes during the one before
//	switch     when a round was short: the collection is marked (owners take no writes and
//	           answer no reads), owners flush, the last short round, and the commit
//
// # Words
//
// A root version is seen as a snapshot: its references show all of the collection that was
// flushed by then. The image is the collection under the new key as of the last snapshot.
//
// # Why nothing is lost, doubled or torn
//
// Every acknowledged write is in the references of the snapshot that is taken under the mark:
// owners that see the mark take no writes, and have flushed what they took before. The image is
// of that very snapshot, since the commit asks that each old chunk still has exactly the
// references that were read (also if a compaction, which changes nothing, replaced some). The
// commit is one change of the root: a reader sees the collection before it or after it. Reads
// and writes that wait find another collection id and are planned again.
//
// A row of a round is compared with the snapshot before by seq: one that is not newer was
// known. So a split, a merge, a move and a compaction between two snapshots are no special
// cases. The seqs of the image order what a round does after what the one before did, and in
// one round a put after the removal at the same key.
//
// What was answered to retryable writes goes along (writer.Carried), so that a write that is
// sent again across the switch is done once.
//
// # Verified before it counts
//
// The content of a collection is how many documents it has, and the sum of a hash of each with
// its key, which does not depend on their order. While old chunks are read it is added up; a
// round takes away what a document was and adds what it is. The new chunks are read back from
// the bucket: the base as a whole, each chunk's count and the content of all, before the rounds
// begin, and of each round what it wrote. So each byte that the switch makes visible was read
// as a reader will read it. Before the commit the count of the new chunks must be that of the old
// ones, also as the root counts them where that is exact. What differs ends the job with Corrupt,
// and nothing was changed. The second reading of the base costs its GETs, no PUT, and happens
// while the collection is read and written; under the mark only the last, short round is read.
//
// # Two documents with one key
//
// Rows are told apart by shard key and _id. Two documents that agree in both under the new key,
// or in the key alone where it is to be unique, end the job with DuplicateKey and both named;
// the collection stays as it is. So does a document with an array in the key.
//
// # When it ends early
//
// Whatever ends it before the commit, the mark is taken back, and the job is expelled together
// with what it uploaded, which GC then deletes. The names of its segments follow from its id and a
// number, and the record says how many there may be: so all that it stored is given to GC without
// a listing. A commit whose outcome is unknown is neither: nothing is cleaned up.
//
// A process that dies leaves its job and its record; the mark is taken back by an owner. Who tries
// next sees that the record does not change any more, and goes on with the job from what it noted
// last (resume.go), or expels it when it noted nothing; GC expels it after ten minutes. From then on
// nothing of the silent process can be committed. A record that says what was asked for
// (Seen.Again) lets another router take over by itself.
//
// # Undone
//
// With Goal.Keep the root that is seen under the mark is pinned before the commit, and the new
// collection remembers the pin: two round trips more while others wait. The pin keeps the old
// segments, and what of other collections is replaced meanwhile. As long as no row was written
// since the switch, Restore puts the old chunks back in one commit, with no data moved: they get
// the id, floors and references that they had, and the retry entries that came since. A row that
// was written since cannot be in them; then a job like any other rewrites the collection under
// its old key, with those rows, and nothing that was acknowledged is lost.
//
// # What it costs
//
// The rows are read once, written once and read back, or written and read twice when they do not
// fit in memory at once: then sorted runs are written first. Memory: MemoryBytes of rows, a segment in the making, a block of
// each run.
package reshard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/manifest/shardkey"
)

// Settings tune a job. Zero fields mean the defaults.
type Settings struct {
	// MemoryBytes is how much of rows is sorted at once; 32 MiB.
	MemoryBytes int
	// ChunkBytes is about the size of the new chunks where nobody says where to cut; 64 MiB.
	ChunkBytes int64
	// SegmentBytes is about where a segment ends and the next begins; 32 MiB.
	SegmentBytes int
	// SwitchBelow is how long a round may have taken for the switch to follow; 300 ms. It follows
	// also when rounds do not get shorter any more, and after RoundsMax; 12.
	SwitchBelow time.Duration
	RoundsMax   int
	// SilentFor is how long the record of another job must not change for it to be taken for
	// dead; 40 s, since a flush may take as long as routers have patience.
	SilentFor time.Duration
	// SaveEvery is how often a job notes how far it is, for who takes it over; 10 s. Negative: at
	// every occasion.
	SaveEvery time.Duration
}

func (s Settings) withDefaults() Settings {
	set(&s.MemoryBytes, 32<<20)
	set(&s.ChunkBytes, 64<<20)
	set(&s.SegmentBytes, 32<<20)
	set(&s.SwitchBelow, 300*time.Millisecond)
	set(&s.RoundsMax, 12)
	set(&s.SilentFor, 40*time.Second)
	set(&s.SaveEvery, 10*time.Second)
	return s
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Config is what a job works with. All but Log and Settings are required.
type Config struct {
	Root   *manifest.Root
	Bucket bucket.Bucket
	// Store reads segments; the job has a cache of its own.
	Store *reader.Store
	Host  host.Host
	Log   *slog.Logger // nil: silent
	// Holder is the name of this process, for people.
	Holder string
	// Flush has all owners of the collection's chunks in s see that root, and flush. It returns
	// those that hold their shard.
	Flush    func(ctx context.Context, s *manifest.State, c *manifest.Collection) ([]manifest.OwnerAt, error)
	Settings Settings
}

// Goal is what the collection is to become.
type Goal struct {
	Key shardkey.Pattern
	// Unique: no two documents may have one shard key.
	Unique bool
	// Unsharded: the collection is no longer sharded; Key is then that of any such collection.
	Unsharded bool
	// Points are where to cut, ascending; with Only there and nowhere else. Without Only, and
	// with Parts > 0, the chunks between are of such a size that there are about so many, at most.
	Points []shardkey.Bound
	Only   bool
	Parts  int
	// Keep is how long the collection as it was can be put back (Restore); 0: it cannot.
	Keep time.Duration
	// Finish makes the collection as it shall be of what it is in s, and puts the chunks between
	// points on shards. Key, Unique and Sharded are set from the goal afterwards.
	Finish func(s *manifest.State, c manifest.Collection, points []shardkey.Bound) (Final, error)
}

// Final is what a collection becomes.
type Final struct {
	Collection manifest.Collection
	Chunks     []manifest.NewChunk
	// With are changes that belong into the same commit.
	With []manifest.Change
}

// work is a job under way. Used by one goroutine.
type work struct {
	Config
	goal     Goal
	store    *reader.Store
	progress *Progress
	job      manifest.JobID
	coll     manifest.Collection // as it is; its Options change with the mark
	marked   bool
	id       manifest.CollectionID // of the collection to be
	image    *image
	carried  *writer.Carried
	uploaded []manifest.SegmentRef // all, for GC if nobody needs them
	named    int64                 // how many segments have a name
	reserved int64                 // how many may have one, as the record says
	restores *manifest.Collection  // as it was; nil: it is rewritten
	kept     *manifest.Undo        // how to come back from the switch in the making
	source   content               // of the image's snapshot, as it was read of the old chunks
	round    int
	broken   bool          // the image is of no snapshot
	unclear  bool          // whether the switch was committed is not known
	beat     time.Duration // Mono of the last record
	// What it noted for the next process: of the old chunks, which are in segment baseAt, and of
	// how far it is, in segment saved; and when. inherited is what the process before noted.
	seen      shown
	baseAt    int64
	saved     int64
	noted     time.Duration
	inherited *save
}

// segmentCache is the memory for tails and blocks that are read more than once.
const segmentCache = 16 << 20

// Run carries the job out. progress, which may be nil, is filled in meanwhile. Errors: a
// *mongoerr.Error (DuplicateKey, NamespaceNotFound, ConflictingOperationInProg, a document that
// cannot have the key, ReshardCollectionAborted), the cause of ctx: nothing was changed;
// UnknownOutcome; those of bucket and root.
func Run(ctx context.Context, c Config, ns string, goal Goal, progress *Progress) (*manifest.State, error) {
	if progress == nil {
		progress = NewProgress(c.Host, ns, goal.Key, 0, nil)
	}
	w := start(c, goal, progress)
	s, err := w.run(ctx)
	if err = w.ended(ctx, err); err != nil {
		return nil, fmt.Errorf("give %s the key %v: %w", ns, goal.Key, err)
	}
	return s, nil
}

func (w *work) run(ctx context.Context) (*manifest.State, error) {
	if err := w.register(ctx); err != nil {
		return nil, err
	}
	seen, err := w.base(ctx)
	if err != nil {
		return nil, err
	}
	for {
		if seen, err = w.catchUp(ctx, seen); err != nil {
			return nil, err
		}
		s, now, err := w.replace(ctx, seen)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errkind.Conflict) || w.broken {
			return nil, err
		}
		if w.round > w.Settings.RoundsMax+switchesMax {
			return nil, mongoerr.New(mongoerr.ExceededTimeLimit, "the collection was changed under each of %d attempts to switch to the new key (%v); nothing was changed, try again when less is written", switchesMax, err)
		}
		w.Log.Info("a switch to the new key has to wait", "ns", w.coll.Namespace(), "cause", err)
		if err := w.unmark(ctx); err != nil {
			return nil, err
		}
		seen = now
	}
}

// switchesMax bounds the attempts to switch, beyond RoundsMax.
const switchesMax = 8

// catchUp makes rounds until one was short, or they do not get shorter any more: a store that
// takes its time makes every round long.
func (w *work) catchUp(ctx context.Context, seen shown) (shown, error) {
	w.progress.enter("catchUp")
	for before := time.Duration(0); ; {
		start := w.Host.Mono()
		s, _, err := w.Root.Load(ctx)
		if err != nil {
			return nil, err
		}
		now, _, err := w.snapshot(ctx, s)
		if err != nil {
			return nil, err
		}
		if err := w.follow(ctx, seen, now); err != nil {
			return nil, err
		}
		seen = w.shownBy(now)
		took := w.Host.Mono() - start
		if w.progress.hurried() || took <= w.Settings.SwitchBelow || took >= before*7/10 && before > 0 || w.round >= w.Settings.RoundsMax {
			return seen, nil
		}
		before = took
	}
}

// snapshot is the newest root after all owners have flushed, having seen s.
func (w *work) snapshot(ctx context.Context, s *manifest.State) (*manifest.State, []manifest.OwnerAt, error) {
	c, err := w.present(s)
	if err != nil {
		return nil, nil, err
	}
	owners, err := w.Flush(ctx, s, c)
	if err != nil {
		return nil, nil, err
	}
	if s, _, err = w.Root.Load(ctx); err != nil {
		return nil, nil, err
	}
	_, err = w.present(s)
	return s, owners, err
}

// present is the collection in s, as long as it and the job are there.
func (w *work) present(s *manifest.State) (*manifest.Collection, error) {
	c := s.Collection(w.coll.ID)
	if c == nil {
		return nil, mongoerr.New(mongoerr.NamespaceNotFound, "collection %s was dropped, or given another key, meanwhile", w.coll.Namespace())
	}
	r, ok := s.Record(manifest.RecordReshard, w.progress.ns)
	if _, stands := s.Job(w.job); !stands || !ok || !w.mine(r) {
		return nil, mongoerr.New(mongoerr.ReshardCollectionAborted, "resharding of %s was aborted, or another process took this one for dead", w.coll.Namespace())
	}
	if hurry(r.Body) {
		w.progress.Hurry()
	}
	return c, nil
}
