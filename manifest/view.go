package manifest

import (
	"cmp"
	"iter"
	"slices"

	"github.com/granarydb/granary/manifest/shardkey"
)

// State is the whole truth at one root version: an immutable value, safe for any number of
// readers. Nothing that an accessor returns may be modified. The zero State is no state; a
// cluster's first comes from Create, later ones from Apply or from a Root.
type State struct {
	cluster ClusterID
	version Version
	nonce   [16]byte
	format  Format

	nextCollection CollectionID
	nextChunk      ChunkID

	// recent is complete for the versions above recentSince: an Op that is absent from it
	// was not committed by any of them.
	recent      []RecentOp
	recentSince Version
	// copiedMillis is the committer's wall clock of the last version kept as a copy.
	copiedMillis int64

	shards      []*Shard         // by id
	retired     []RetiredShard   // by id
	collections []*Collection    // by database and name
	byID        []*Collection    // the same, by id
	tables      []*table         // by collection id, one for each collection
	records     []Record         // by kind and id
	jobs        []Job            // by id
	dropped     []DroppedSegment // oldest first
	tokens      []Token          // by app and batch
	pins        []Pin            // by id
	history     []HistoryEntry   // oldest first

	// pageNumber is the next pageID.number of this version.
	pageNumber uint32
	// unknown are sections of a newer minor format, kept as they came.
	unknown []section
}

// Version is the number of the root commit that made s.
func (s *State) Version() Version { return s.version }

// ClusterID names the cluster; it never changes.
func (s *State) ClusterID() ClusterID { return s.cluster }

// Nonce is the fresh random name of exactly this body of the root.
func (s *State) Nonce() [16]byte { return s.nonce }

// Format is what a program must understand to read and to change this state.
func (s *State) Format() Format { return s.format }

// Shards are all shards, by id.
func (s *State) Shards() []*Shard { return s.shards }

// Shard is the shard of that name, or nil.
func (s *State) Shard(id ShardID) *Shard {
	i, ok := slices.BinarySearchFunc(s.shards, id, func(h *Shard, id ShardID) int { return cmp.Compare(h.ID, id) })
	if !ok {
		return nil
	}
	return s.shards[i]
}

// Collection is the collection of that id, or nil.
func (s *State) Collection(id CollectionID) *Collection {
	i, ok := slices.BinarySearchFunc(s.byID, id, func(c *Collection, id CollectionID) int { return cmp.Compare(c.ID, id) })
	if !ok {
		return nil
	}
	return s.byID[i]
}

// CollectionByName is the collection of that namespace, or nil.
func (s *State) CollectionByName(database, name string) *Collection {
	i, ok := s.searchName(database, name)
	if !ok {
		return nil
	}
	return s.collections[i]
}

func (s *State) searchName(database, name string) (int, bool) {
	return slices.BinarySearchFunc(s.collections, database, func(c *Collection, _ string) int {
		return cmp.Or(cmp.Compare(c.Database, database), cmp.Compare(c.Name, name))
	})
}

// NextCollection is the id that the next collection gets.
func (s *State) NextCollection() CollectionID { return s.nextCollection }

// Collections are all collections, by database and name.
func (s *State) Collections() []*Collection { return s.collections }

// Databases are the names of the databases that were declared by a RecordDatabase or hold a
// collection, ascending.
func (s *State) Databases() []string {
	var names []string
	for _, r := range s.Records(RecordDatabase) {
		names = append(names, r.ID)
	}
	for _, c := range s.collections {
		names = append(names, c.Database)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Record is the named document of that kind.
func (s *State) Record(kind RecordKind, id string) (Record, bool) {
	i, ok := s.searchRecord(kind, id)
	if !ok {
		return Record{}, false
	}
	return s.records[i], true
}

func (s *State) searchRecord(kind RecordKind, id string) (int, bool) {
	return slices.BinarySearchFunc(s.records, kind, func(r Record, _ RecordKind) int {
		return cmp.Or(cmp.Compare(r.Kind, kind), cmp.Compare(r.ID, id))
	})
}

// Records are the named documents of one kind, by id.
func (s *State) Records(kind RecordKind) []Record {
	from, _ := s.searchRecord(kind, "")
	to, _ := s.searchRecord(kind+1, "")
	return s.records[from:to:to]
}

// Jobs are the registered jobs, by id.
func (s *State) Jobs() []Job { return s.jobs }

// Job is the registered job of that id; false when it never registered or was expelled.
func (s *State) Job(id JobID) (Job, bool) {
	i, ok := searchJob(s.jobs, id)
	if !ok {
		return Job{}, false
	}
	return s.jobs[i], true
}

// Dropped are the candidates for GC, the oldest first.
func (s *State) Dropped() []DroppedSegment { return s.dropped }

// Tokens are the decided batches, by application and batch.
func (s *State) Tokens() []Token { return s.tokens }

// Token is the decision on one batch; false while it is undecided.
func (s *State) Token(app, batch string) (Token, bool) {
	i, ok := searchToken(s.tokens, app, batch)
	if !ok {
		return Token{}, false
	}
	return s.tokens[i], true
}

// Pins are the pins, by id.
func (s *State) Pins() []Pin { return s.pins }

// History are the last structural changes, the oldest first.
func (s *State) History() []HistoryEntry { return s.history }

// HasOp tells whether op is among the recent commits, and which version it made.
func (s *State) HasOp(op OpID) (Version, bool) {
	for i := len(s.recent) - 1; i >= 0; i-- {
		if s.recent[i].Op == op {
			return s.recent[i].Version, true
		}
	}
	return 0, false
}

// KnowsOpsSince tells whether every commit after version base is still among the recent
// ones: only then the absence of an Op proves that it was not committed after base.
func (s *State) KnowsOpsSince(base Version) bool { return base >= s.recentSince }

// Chunks are a collection's chunks in key order; none when there is no such collection.
func (s *State) Chunks(c CollectionID) iter.Seq[*Chunk] { return s.table(c).all() }

// ChunksIn are the chunks of a collection that overlap r, in key order.
func (s *State) ChunksIn(c CollectionID, r shardkey.Range) iter.Seq[*Chunk] {
	return s.table(c).in(r)
}

// ChunkOf is the chunk that contains key; nil only when there is no such collection.
func (s *State) ChunkOf(c CollectionID, key []byte) *Chunk { return s.table(c).find(key) }

// ChunkAt is the chunk exactly as named, or nil.
func (s *State) ChunkAt(at ChunkAt) *Chunk {
	c := s.ChunkOf(at.Collection, at.Min)
	if c == nil || c.ID != at.ID || c.Version != at.Version || string(c.Range.Min) != string(at.Min) {
		return nil
	}
	return c
}

// AllChunks are the chunks of all collections, by collection id and key.
func (s *State) AllChunks() iter.Seq[*Chunk] {
	return func(yield func(*Chunk) bool) {
		for _, t := range s.tables {
			for c := range t.all() {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// NumChunks counts the chunks of a collection.
func (s *State) NumChunks(c CollectionID) int {
	if t := s.table(c); t != nil {
		return t.count
	}
	return 0
}

// EffectiveFloor is the position in the WAL of c's shard at or below which every row of c
// is in its references: the larger of its own floor and its shard's.
func (s *State) EffectiveFloor(c *Chunk) Position {
	if h := s.Shard(c.Shard); h != nil {
		return MaxPosition(c.OwnFloor, h.Floor)
	}
	return c.OwnFloor
}

// Retired are the shards that were removed, by id.
func (s *State) Retired() []RetiredShard { return s.retired }

func (s *State) searchRetired(id ShardID) (int, bool) {
	return slices.BinarySearchFunc(s.retired, id, func(r RetiredShard, id ShardID) int { return cmp.Compare(r.ID, id) })
}
