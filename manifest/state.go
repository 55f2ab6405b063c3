package manifest

import (
	"fmt"

	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Shard is a named slot that owns chunks: the unit of failure, of the WAL and of zones.
type Shard struct {
	ID     ShardID
	Epoch  Epoch
	Kind   EpochKind
	Status ShardStatus
	// Holder is the random name of the process that holds the shard, and Address where it
	// answers ("host:port"; "" in one process). Both are hints of the last claim: safety
	// is the epoch.
	Holder  string
	Address string
	// LeaseMillis is at least the lease that the holder of Epoch counts with, and those of
	// OpenEpochs, who may still be serving: a successor waits by it.
	LeaseMillis uint32
	Location    LocationID
	Zones       []string
	// Floor: everything it covers is in segments, for every chunk of the shard. Never goes
	// back. WAL objects it covers may be deleted; a takeover scans from it.
	Floor Position
	// OpenEpochs are the older epochs whose WAL may hold records above Floor, ascending.
	OpenEpochs []Epoch
}

// EpochKind tells who may append to the WAL of the present epoch.
type EpochKind uint8

const (
	// EpochExclusive: one holder appends.
	EpochExclusive EpochKind = iota
	// EpochShared: whoever has read the log may append the next index. Reserved.
	EpochShared
)

// ShardStatus is where a shard stands between two holders.
type ShardStatus uint8

const (
	// ShardFree: nobody holds it, and its WAL is drained to Floor.
	ShardFree ShardStatus = iota
	// ShardHeld: the holder of Epoch serves it, or died holding it.
	ShardHeld
	// ShardDraining: held, and giving its chunks away.
	ShardDraining
)

// Collection is a namespace with a shard key. An unsharded one has the key {_id: 1} and
// Sharded false; nothing else differs.
type Collection struct {
	ID        CollectionID
	UUID      [16]byte
	Database  string
	Name      string
	Key       shardkey.Pattern
	Sharded   bool
	Unique    bool // the shard key was declared unique
	Options   bson.Raw
	Indexes   []Index
	Zones     []ZoneRange
	NoBalance bool
	// SplitWithinKey lets one shard-key value span several chunks (bounds then show _id); see
	// withinkey.go for when, and what speaks against it.
	SplitWithinKey bool
	// DataVersion is raised by each commit that changes rows of several of its chunks. While
	// it is 0, no document of the collection has ever gone from one chunk to another.
	DataVersion DataVersion
	// CreatedMillis is the creator's wall clock, for people.
	CreatedMillis int64
}

// Namespace is "database.name".
func (c *Collection) Namespace() string { return c.Database + "." + c.Name }

// Index is a recorded index definition; Spec is the document that createIndexes was given.
type Index struct {
	Name string
	Spec bson.Raw
}

// ZoneRange pins a key range of a collection to a zone.
type ZoneRange struct {
	Zone             string
	Range            shardkey.Range
	MinBSON, MaxBSON bson.Raw
}

// Chunk is a half-open range of a collection's key space, owned by one shard.
type Chunk struct {
	ID         ChunkID
	Collection CollectionID
	Range      shardkey.Range
	// MinBSON and MaxBSON are the bounds as users see them: key bytes do not keep int, long
	// and double apart.
	MinBSON, MaxBSON bson.Raw
	Version          ChunkVersion
	Shard            ShardID
	// OwnFloor is the chunk's floor while it is higher than its shard's; else zero. What
	// counts is State.EffectiveFloor.
	OwnFloor Position
	// MaxSeq is at least the seq of every row in Refs.
	MaxSeq Seq
	// Refs are the chunk's data, oldest first.
	Refs []SegmentRef
	// Rows counts live documents in Refs; exact unless RowsEstimated (after a split).
	Rows          int64
	RowsEstimated bool
	// Bytes is the uncompressed size of the rows in Refs.
	Bytes int64
	Flags ChunkFlags
	// Indivisible says more about a chunk with that flag; else zero.
	Indivisible Indivisible
	// ManualUntil: chunks split by hand are not merged before this time (unix seconds).
	ManualUntil int64
}

// ChunkFlags mark a chunk.
type ChunkFlags uint32

const (
	// ChunkIndivisible: one key value fills it; not tried again before its data change. The
	// mark stays when rows come: whether these are enough to try again is for whoever plans.
	ChunkIndivisible ChunkFlags = 1 << iota
)

// Indivisible is what was found when a chunk could not be cut.
type Indivisible struct {
	// Value is the shard-key value of all its rows, as a bound shows it; nil: not told.
	Value bson.Raw
	// Bytes is how much its rows were then.
	Bytes int64
}

// SegmentRef is a chunk's view of one segment.
type SegmentRef struct {
	Segment  SegmentID
	Location LocationID
	// Clip: rows of the segment outside it are not the chunk's.
	Clip shardkey.Range
	// MinKey and MaxKey bound the keys of the rows, both inclusive, as the reference was
	// made; after a split they may reach beyond Clip. Long ones are shortened outwards.
	// Both are empty when there are no rows, only retry ids.
	MinKey, MaxKey []byte
	// MinSeq and MaxSeq bound the seqs of the rows. FixedSeq, when not 0, is the seq of
	// every row: batches learn theirs at the commit.
	MinSeq, MaxSeq, FixedSeq Seq
	// TailOffset and TailLength are the ranged GET that opens the segment; Size is the
	// whole object, in bytes.
	TailOffset uint64
	TailLength uint32
	Size       uint64
	// Rows and Bytes (uncompressed) count this chunk's entries, tombstones included; after
	// a split they are even shares of what they were, in Rows rounded up.
	Rows  uint64
	Bytes uint64
	// RetryUntil is the last expiry (unix seconds) of the retry ids inside; 0: none.
	RetryUntil int64
	// Dates bound the dates by which the rows expire; zero: not known.
	Dates DateBounds
}

// DateBounds are the earliest and the latest date in the documents of some rows, in Unix
// milliseconds, of the field that Of stands for: one TTL index, whatever its seconds are. A
// row without such a date, and a deletion, is the largest number.
type DateBounds struct {
	Of       uint64
	Min, Max int64
}

// Join bounds the dates of both; zero when those of one are not known.
func (d DateBounds) Join(e DateBounds) DateBounds {
	if d.Of != e.Of {
		return DateBounds{}
	}
	return DateBounds{Of: d.Of, Min: min(d.Min, e.Min), Max: max(d.Max, e.Max)}
}

// Job is a registered actor that uploads segments before it commits.
type Job struct {
	ID            JobID
	Kind          string // "compact", "ingest", "reshard"
	Holder        string
	StartedMillis int64
	Detail        bson.Raw
}

// DroppedSegment is a segment that lost a reference at Version: a candidate for GC, which
// asks reachability again before it deletes.
type DroppedSegment struct {
	Segment  SegmentID
	Location LocationID
	Version  Version
	// Millis is the wall clock of the commit that dropped it: GC waits a while as a
	// courtesy to readers; safety does not depend on it.
	Millis int64
}

// Token records a batch that was decided, so that the same batch again gets the same answer.
type Token struct {
	App, Batch string
	Committed  bool // false: aborted
	Version    Version
	Result     bson.Raw
	ExpiresAt  int64 // unix seconds
}

// Pin keeps everything reachable from root version Version alive.
type Pin struct {
	ID        [16]byte
	Name      string
	Version   Version
	ExpiresAt int64 // unix seconds; 0: until dropped
}

// HistoryEntry is one structural change, from which config.changelog is made.
type HistoryEntry struct {
	Version Version
	Millis  int64 // committer's wall clock
	What    string
	NS      string
	Detail  bson.Raw
}

// RecentOp is one of the last committed operations.
type RecentOp struct {
	Op      OpID
	Version Version
}

// RecordKind is the kind of a named document in the root: users, roles, API keys, settings,
// balancer settings and windows, reshard state, views, batch holds, locations. They are kept
// as BSON so that a later feature needs no new format.
type RecordKind uint8

// The kinds, and what the ID of a Record is.
const (
	RecordSetting  RecordKind = iota + 1 // the setting's name
	RecordBalancer                       // a part of the balancer's settings
	RecordUser                           // database.user
	RecordRole                           // database.role
	RecordAPIKey                         // the key's public part
	RecordReshard                        // the namespace
	RecordView                           // the namespace
	RecordHold                           // the batch that holds
	RecordLocation                       // the LocationID, in decimal
	RecordDatabase                       // the database's name
	RecordZones                          // the namespace: zone ranges of what is not sharded yet
)

// Record is a named document in the root.
type Record struct {
	Kind RecordKind
	ID   string
	Body bson.Raw
}

// Limits of the lists in the root.
const (
	// RecentOps is how many (op, version) pairs the root keeps.
	RecentOps = 1024
	// HistoryEntries is how many structural changes the root keeps.
	HistoryEntries = 200
	// DroppedEntries bounds the list of GC candidates; beyond it the orphan sweep finds
	// them.
	DroppedEntries = 4096
)

// String is the kind's name, as users see it.
func (k RecordKind) String() string {
	names := [...]string{"", "setting", "balancer", "user", "role", "apiKey", "reshard", "view", "hold", "location", "database", "zones"}
	if k == 0 || int(k) >= len(names) {
		return fmt.Sprintf("record kind %d", uint8(k))
	}
	return names[k]
}

// RetiredShard remembers a removed shard: if its name comes back, its epochs go on where
// they stopped, because objects of the old ones may still be in the bucket.
type RetiredShard struct {
	ID    ShardID
	Epoch Epoch
	Floor Position
}

// Format says which programs may use a root. A number is major*256 + minor.
type Format struct {
	// MinReader is the oldest format that a program must understand to read the root, and
	// MinWriter to change it.
	MinReader, MinWriter uint16
}

// The formats: a cluster begins with the first, and needs the next as soon as one of its
// shards has a location of its own.
const (
	formatFirst     uint16 = 1 << 8
	formatLocations uint16 = 1<<8 | 1
)

// FormatVersion is the newest format that this package reads and writes.
const FormatVersion = formatLocations

// String is "1.0 to read, 1.0 to write".
func (f Format) String() string {
	return formatName(f.MinReader) + " to read, " + formatName(f.MinWriter) + " to write"
}

func formatName(v uint16) string { return fmt.Sprintf("%d.%d", v>>8, v&0xFF) }
