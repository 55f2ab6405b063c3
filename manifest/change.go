package manifest

import "go.mongodb.org/mongo-driver/v2/bson"

// Edit is a small delta with preconditions: the only way the root changes.
type Edit struct {
	// Op must be fresh for every Edit; it tells after an unknown outcome whether this Edit
	// was the one that landed.
	Op OpID
	// Changes apply in order, each on the result of those before it, all or none.
	Changes []Change
	// Millis is the committer's wall clock: for the history, and to tell which retry ids
	// are still in force.
	Millis int64
	// Background edits wait for the commit budget; edits a user waits for do not.
	Background bool
}

// Change is one precondition and its effect. Implementations are the exported structs of
// this package whose doc says "Change:"; apply fails with Conflict when the precondition
// does not hold, and with Invalid when the change could never be right.
type Change interface{ apply(*builder) error }

// ChunkAt names a chunk as the planner saw it. A chunk with another version, owner or
// range is another chunk: the precondition fails.
type ChunkAt struct {
	Collection CollectionID
	Min        []byte // Range.Min: where to look
	ID         ChunkID
	Version    ChunkVersion
}

// At is c as a precondition.
func (c *Chunk) At() ChunkAt {
	return ChunkAt{Collection: c.Collection, Min: c.Range.Min, ID: c.ID, Version: c.Version}
}

// Bound is a split point: key bytes and what users see.
type Bound struct {
	Key  []byte
	BSON bson.Raw
}

// NewChunk places one initial chunk.
type NewChunk struct {
	Min, Max Bound // empty Key: unbounded; BSON then holds MinKey/MaxKey
	Shard    ShardID
	// ManualUntil is as in Chunk: a person wants the chunk as it is.
	ManualUntil int64
}

// Added is what a commit adds to one chunk: references and what they change.
type Added struct {
	// Refs are appended, oldest first. Keys lie inside the chunk; clips are narrowed to it.
	Refs []SegmentRef
	// MaxSeq is the highest seq given out; those of Refs raise it by themselves.
	MaxSeq Seq
	// RowsDelta is how many live documents were added less removed; it keeps an exact
	// count exact. BytesDelta is what Chunk.Bytes grows by.
	RowsDelta  int64
	BytesDelta int64
	// Unsure: RowsDelta counts on rows that may have expired and left meanwhile. The chunk's
	// count becomes an estimate.
	Unsure bool
}

type (
	// PutRecord is a Change: sets or replaces a named document. With IfAbsent it conflicts
	// when one exists; with IfBody, when there is none with exactly this body.
	PutRecord struct {
		Record   Record
		IfAbsent bool
		IfBody   bson.Raw
	}
	// DropRecord is a Change: removes a named document; a missing one is no conflict.
	DropRecord struct {
		Kind RecordKind
		ID   string
	}
	// AddShards is a Change: adds free shards; conflicts when one exists. A name that was
	// removed before goes on with the epochs it had. URL, when not "", is the location of
	// what they will hold, for ever: one that the cluster knows, or a new one.
	AddShards struct {
		IDs []ShardID
		URL string
	}
	// RemoveShard is a Change: removes a shard that owns nothing and is free or draining. Its
	// epoch and floor stay known as a RetiredShard. The holder of a draining one stops when it
	// sees a root without it. Nothing that it acknowledged is lost: each chunk left in a commit
	// that held all of its rows. What may still reach its log is of an epoch below the retired
	// floor, which nobody replays.
	RemoveShard struct{ ID ShardID }
	// SetShardZones is a Change: the zones that a shard belongs to, in any order.
	SetShardZones struct {
		ID    ShardID
		Zones []string
	}
	// CreateCollection is a Change: conflicts when the namespace exists. The chunks must
	// cover the key space. The new collection takes the next free id, its chunks the next
	// chunk ids and version 1.
	CreateCollection struct {
		Collection Collection // ID ignored
		Chunks     []NewChunk
	}
	// ReshapeCollection is a Change: gives a collection another key, options and chunks. It
	// keeps UUID and name, and takes another id: rows of the old key that are still in some
	// WAL belong to the old id, and are never read again. Conflicts when its chunks are not
	// exactly At, when one has references that are not in Rebuilt, or when one's shard is
	// held and not among Owners at its present epoch: an owner that is named has nothing
	// unflushed there, and takes no writes and answers no reads until it knows the outcome.
	ReshapeCollection struct {
		Collection Collection // ID and UUID of an existing one
		At         []ChunkAt  // all its chunks
		Owners     []OwnerAt  // of At, where the shard is held
		Chunks     []NewChunk
		// Rebuilt is its data under the new key; nil: it holds none, and the id is the next.
		Rebuilt *Rebuilt
		// Restored, in place of Chunks and Rebuilt, is what it was before.
		Restored *Restored
	}
	// AlterCollection is a Change: replaces options, indexes, zones and switches; key and
	// chunks stay. Conflicts unless the collection still equals Was in those fields.
	AlterCollection struct{ Was, Now Collection }
	// DropCollection is a Change: removes the collection and its chunks; their segments
	// become candidates for GC. Conflicts when ID does not exist.
	DropCollection struct{ ID CollectionID }
	// DropRange is a Change: the rows from Min up to Max leave, however many they are. Chunks
	// that reach out of the range are cut; each chunk inside it has a new version and no
	// references but those whose retry ids are in force, which show no row. The collection
	// gets the next DataVersion, and the hold ends. Preconditions: Hold stands, as given;
	// no job rewrites the collection; every chunk that the range touches is of a free shard,
	// or of one among Owners at its present epoch: an owner that is named has flushed under
	// the hold.
	DropRange struct {
		Hold     RangeHold
		Min, Max Bound
		Owners   []OwnerAt
	}
	// Claim is a Change: the next epoch of a shard, held by Holder. A shard that was not
	// free gets its old epoch added to OpenEpochs, and keeps the longer of both leases.
	// Precondition: Epoch is the one seen.
	Claim struct {
		Shard       ShardID
		Epoch       Epoch
		Holder      string
		Address     string
		LeaseMillis uint32
	}
	// SetDraining is a Change: marks a held shard draining, or held again.
	SetDraining struct {
		Shard    ShardID
		Draining bool
	}
	// Flush is a Change: adds what one holder's memtables held up to Snapshot. Precondition:
	// shard held at Epoch, floor not beyond Snapshot. A chunk that is not as named is
	// skipped: its rows stay with whoever owns it. When none was skipped and Complete, the
	// shard's floor becomes Snapshot, open epochs below it leave, and own floors that it
	// reaches are zero; otherwise the included chunks get it as their own floor. References
	// for a chunk whose floor is not below Snapshot conflict: they were added before. A chunk
	// that is Tied and not as named conflicts, too.
	Flush struct {
		Shard    ShardID
		Epoch    Epoch
		Snapshot Position
		Complete bool // every chunk of the shard with rows at or below Snapshot is named
		Chunks   []FlushedChunk
	}
	// Free is a Change: the last flush and the release of a shard in one: floor = Snapshot
	// (the end of the WAL), no open epochs, no own floors, nobody holds it. Conflicts when
	// any named chunk differs, another epoch holds the shard, or a floor is beyond
	// Snapshot.
	Free struct {
		Shard    ShardID
		Epoch    Epoch
		Snapshot Position
		Chunks   []FlushedChunk
	}
	// Move is a Change: the chunk's last rows and its new owner. Preconditions: chunk as
	// named and owned by From, both shards at their epochs, To held and not draining,
	// Promise of the epoch ToEpoch. The chunk's own floor becomes Promise, or zero where
	// To's floor covers it; its version grows. A move to a free shard is one from a free
	// shard, with a zero Promise. To a shard in another location the chunk's references go
	// as Copied, and Added is there.
	Move struct {
		Chunk     ChunkAt
		From      ShardID
		FromEpoch Epoch
		To        ShardID
		ToEpoch   Epoch
		Promise   Position
		Copied    *Copied // nil: both shards are in one location, or the chunk has no references
		Added     Added
	}
	// Split is a Change: the chunk becomes len(Points)+1 chunks with clipped references,
	// on the same shard, with new ids and the next version; floor and MaxSeq are inherited,
	// rows and bytes become shares. Precondition: chunk as named. Points, at most 8192,
	// ascend strictly inside the range.
	Split struct {
		Chunk       ChunkAt
		Points      []Bound
		ManualUntil int64
		// Shares says how much of the data lies in each part, in any unit; nil: it is taken
		// to be even.
		Shares []int64
		// Epoch, when not 0, must be the owner's: the owner splits its own chunk.
		Epoch Epoch
	}
	// Merge is a Change: Right is appended to Left, as a chunk with a new id and a version
	// above both. Preconditions: both as named, adjacent, same shard, EQUAL effective
	// floors. MaxSeq = the larger.
	Merge struct{ Left, Right ChunkAt }
	// Batch is a Change: adds references to chunks whose owners hold them, and the token.
	// Preconditions: token undecided; each chunk as named, its owner at Epoch; on a free
	// shard, where nobody answers, Seq above the chunk's MaxSeq. A collection of which
	// several chunks are named gets the next DataVersion.
	Batch struct {
		Token  Token
		Chunks []BatchChunk
	}
	// RaiseDataVersion is a Change: the collection's first DataVersion, before the owner of
	// two chunks moves a document between them by its WAL alone. A raised one stays.
	RaiseDataVersion struct{ Collection CollectionID }
	// DirectCommit is a Change: rows for one chunk of a free shard. Preconditions: shard
	// free at Epoch; chunk as named with exactly MaxSeq, which all seqs are above. No floor
	// is touched.
	DirectCommit struct {
		Shard  ShardID
		Epoch  Epoch
		Chunk  ChunkAt
		MaxSeq Seq
		Added  Added
	}
	// AdvanceFree is a Change: raises a free shard's epoch, so that direct commits still
	// uploading start again (GC does this before it sweeps behind them).
	AdvanceFree struct {
		Shard ShardID
		Epoch Epoch
	}
	// RegisterJob is a Change: conflicts when the id exists. A job that builds a collection
	// (Job.Builds) takes the next free collection id with it; it conflicts when it names
	// another than NextCollection. One that merges segments conflicts when another such job
	// works on one of its chunks (Job.Chunks): the same work is not done twice.
	RegisterJob struct{ Job Job }
	// ExpelJob is a Change: removes a job; what it uploads cannot be committed any more. A
	// missing one is no conflict. Left is what it uploaded and does not need: candidates for
	// GC.
	ExpelJob struct {
		ID   JobID
		Left []SegmentRef
	}
	// Compact is a Change: replaces Inputs by Outputs in one chunk. Preconditions: job
	// registered; chunk of that id, in any version, owned by anyone; the inputs still
	// referenced, next to each other and with the same clips; when Oldest, they are still
	// the oldest references (tombstones were dropped). Outputs have no key and no seq that
	// the inputs have not, and keep retry ids that are in force at Edit.Millis. Rows, when
	// not negative, is the exact live count of the outputs; it becomes the chunk's when
	// there are no other references.
	//
	// Expired is how many of the live rows were left out because they had expired, as the
	// collection's Indexes said. Then these must still be its indexes, and the inputs the
	// oldest references, or an older version would be seen again. The chunk's count becomes an
	// estimate: newer versions of such rows may wait in a log.
	Compact struct {
		Job     JobID
		Chunk   ChunkAt
		Inputs  []SegmentRef
		Outputs []SegmentRef
		Oldest  bool
		Rows    int64
		Expired int64
		Indexes []Index
	}
	// Expire is a Change: references of which every row has expired, and those that show
	// none, leave one chunk; retry ids in force stay. Preconditions: no job rewrites the
	// collection; chunk of that id, in any version; the references are there, as given; the
	// collection's indexes are still Indexes, which said what expires; and no reference that
	// stays can hold an older version of a row that leaves. How many live rows that leaves in
	// the chunk is not known, since newer versions may wait in a log.
	Expire struct {
		Chunk   ChunkAt
		Refs    []SegmentRef
		Indexes []Index
	}
	// Forsake is a Change: references whose segments are lost or damaged leave one chunk, so that
	// the rest of it is served. What is left of the segments stays in the bucket. Preconditions:
	// no job rewrites the collection; chunk of that id, in any version; the references are
	// there, as given. Rows and deletions in them are gone: an older version of a row that is
	// in another reference is seen again.
	Forsake struct {
		Chunk ChunkAt
		Refs  []SegmentRef
	}
	// MarkChunk is a Change: sets the flags of a chunk, and with ChunkIndivisible why.
	// Precondition: chunk as named.
	MarkChunk struct {
		Chunk       ChunkAt
		Flags       ChunkFlags
		Indivisible Indivisible
	}
	// ForgetDropped is a Change: GC deleted these, or found them in use. Those that are not
	// listed as given are no conflict.
	ForgetDropped struct{ Segments []DroppedSegment }
	// AddPin is a Change: pins the version that this commit makes.
	AddPin struct{ Pin Pin } // Version ignored
	// DropPin is a Change: removes a pin; a missing one is no conflict.
	DropPin struct{ ID [16]byte }
	// DecideToken is a Change: writes an aborted token, so that the batch can never commit.
	// Conflicts when the batch was committed.
	DecideToken struct{ Token Token }
	// ExpireTokens is a Change: forgets tokens that expired before Now (unix seconds).
	ExpireTokens struct{ Now int64 }
	// Note is a Change: an entry in the history about what happened outside of the root, and
	// nothing else.
	Note struct {
		What, NS string
		Detail   bson.Raw
	}
	// RaiseFormat is a Change: the explicit switch to a newer format, after which older
	// programs no longer read, or write, the root. Invalid beyond FormatVersion.
	RaiseFormat struct{ MinReader, MinWriter uint16 }
)

// Rebuilt is a collection's data under another key, as a job wrote them.
type Rebuilt struct {
	Job JobID // registered; the collection gets the id that it Builds
	// From are the references of ReshapeCollection.At that this was made of, in their order:
	// a chunk with others conflicts.
	From [][]SegmentRef
	// Added is what each of ReshapeCollection.Chunks begins with.
	Added []Added
}

// Restored is a collection as a pin shows it, which gets its id, its key and its data back. Its
// rows in a WAL are all at or below the floors that its chunks had then, and have again; its
// segments are in the bucket, since the pin stands.
type Restored struct {
	Pin    [16]byte     // must stand
	ID     CollectionID // that the collection had
	Chunks []*Chunk     // of it, all, in key order
	// From are the references of ReshapeCollection.At that have been seen; Job, registered,
	// wrote Retries: what was answered since, which each chunk gets.
	From    [][]SegmentRef
	Job     JobID
	Retries []SegmentRef
}

// OwnerAt names the holder of a shard: a precondition that no takeover came in between.
type OwnerAt struct {
	Shard ShardID
	Epoch Epoch
}

// Copied is the data of a chunk at another location. The rules are those of a Compact of all
// of the chunk's references.
type Copied struct {
	Job JobID // registered; it made To
	// From are the chunk's references, as they were copied: a chunk with others conflicts.
	From []SegmentRef
	To   []SegmentRef
	// Rows, when not negative, is the exact count of live documents in To.
	Rows int64
}

// FlushedChunk is one chunk's part of a flush. At.Version is the one at the snapshot. Tied chunks
// have halves of one change, such as a document that went from one to another: they are flushed
// together or not at all, so that every version of the root shows both halves or neither.
type FlushedChunk struct {
	At    ChunkAt
	Added Added
	Tied  bool
}

// BatchChunk is one chunk's part of a batch, with what its owner answered to prepare.
type BatchChunk struct {
	At    ChunkAt
	Shard ShardID
	Epoch Epoch
	Seq   Seq // the refs' fixed seq
	Added Added
}
