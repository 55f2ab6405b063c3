package manifest

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/granarydb/granary/manifest/errkind"
)

// Distinct ids are distinct types, so that the compiler refuses a chunk id as a shard epoch.
type (
	// ClusterID names the cluster for ever; every object carries it.
	ClusterID [16]byte
	// Version counts root commits: the first root has version 1.
	Version uint64
	// OpID names one Edit; it resolves an unknown outcome.
	OpID [16]byte
	// ShardID is a shard's name, such as "shard01": [a-z0-9-], at most 32 bytes.
	ShardID string
	// Epoch counts the claims of one shard; never reused, never resumed. 0: never claimed.
	Epoch uint64
	// CollectionID is never reused within a cluster. 0 is no collection.
	CollectionID uint32
	// ChunkID is never reused within a cluster. 0 is no chunk.
	ChunkID uint64
	// ChunkVersion grows with every split, merge and move of the chunk.
	ChunkVersion uint64
	// Seq orders the writes of one chunk. 0: before every write.
	Seq uint64
	// LocationID names a bucket + prefix + storage class; 0 is the cluster's own bucket.
	LocationID uint32
	// JobID is the nonce of a registered job (compaction, ingest, reshard).
	JobID [16]byte
	// DataVersion counts the root commits that changed rows of several chunks of a collection.
	DataVersion uint64
)

// Position is a place in a shard's WAL, exclusive: (e, n) covers every object of the epochs
// below e and the indexes 0..n-1 of e. The zero Position covers nothing. Floors, promises
// and snapshot positions are Positions, and compare as pairs.
type Position struct {
	Epoch Epoch
	Next  uint64
}

// Less reports whether p covers less than q.
func (p Position) Less(q Position) bool {
	return p.Epoch < q.Epoch || p.Epoch == q.Epoch && p.Next < q.Next
}

// Covers reports whether the WAL object (e, index) is below p.
func (p Position) Covers(e Epoch, index uint64) bool {
	return e < p.Epoch || e == p.Epoch && index < p.Next
}

// String is "(epoch,<next)".
func (p Position) String() string { return fmt.Sprintf("(%d,<%d)", p.Epoch, p.Next) }

// MaxPosition is the larger of two.
func MaxPosition(p, q Position) Position {
	if p.Less(q) {
		return q
	}
	return p
}

// CreatorKind says what kind of actor uploaded a segment.
type CreatorKind byte

// The kinds, as the first letter of the creator in the object key.
const (
	CreatorShard  CreatorKind = 's' // the shard's holder at an epoch
	CreatorDirect CreatorKind = 'd' // a direct commit on a free shard at an epoch
	CreatorJob    CreatorKind = 'j' // a registered job
)

// Creator is the actor that uploaded a segment; GC asks whether it is still registered.
type Creator struct {
	Kind  CreatorKind
	Shard ShardID // for 's' and 'd'
	Epoch Epoch   // for 's' and 'd'
	Job   JobID   // for 'j'
}

// String is the creator's component of the object key: "s.shard01.7", "j.<32 hex>".
func (c Creator) String() string {
	if c.Kind == CreatorJob {
		return "j." + hex.EncodeToString(c.Job[:])
	}
	return fmt.Sprintf("%c.%s.%d", c.Kind, c.Shard, c.Epoch)
}

// SegmentID names a segment; never reused.
type SegmentID struct {
	Creator Creator
	Random  [16]byte
}

// Key is the object key: seg/<2 hex>/<creator>/<32 hex>.
func (s SegmentID) Key() string {
	r := hex.EncodeToString(s.Random[:])
	return "seg/" + r[:2] + "/" + s.Creator.String() + "/" + r
}

// String is the object key.
func (s SegmentID) String() string { return s.Key() }

// ParseSegmentKey is the inverse of SegmentID.Key. Errors: Invalid.
func ParseSegmentKey(key string) (SegmentID, error) {
	bad := fmt.Errorf("segment key %q: %w: want seg/<2 hex>/<creator>/<32 hex>", key, errkind.Invalid)
	parts := strings.Split(key, "/")
	if len(parts) != 4 || parts[0] != "seg" || len(parts[3]) != 32 || !strings.HasPrefix(parts[3], parts[1]) || len(parts[1]) != 2 {
		return SegmentID{}, bad
	}
	var id SegmentID
	if _, err := hex.Decode(id.Random[:], []byte(parts[3])); err != nil {
		return SegmentID{}, bad
	}
	c, err := parseCreator(parts[2])
	if err != nil {
		return SegmentID{}, bad
	}
	id.Creator = c
	return id, nil
}

func parseCreator(s string) (Creator, error) {
	f := strings.Split(s, ".")
	switch {
	case len(f) == 2 && f[0] == "j" && len(f[1]) == 32:
		c := Creator{Kind: CreatorJob}
		_, err := hex.Decode(c.Job[:], []byte(f[1]))
		return c, err
	case len(f) == 3 && (f[0] == "s" || f[0] == "d"):
		c := Creator{Kind: CreatorKind(f[0][0]), Shard: ShardID(f[1])}
		_, err := fmt.Sscanf(f[2], "%d", &c.Epoch)
		return c, err
	}
	return Creator{}, errkind.Invalid
}

// WALKey is the object key of one WAL object: wal/<shard>/<epoch>/<index>, both numbers 20
// digits wide so that a listing is in order.
func WALKey(s ShardID, e Epoch, index uint64) string {
	return fmt.Sprintf("wal/%s/%020d/%020d", s, e, index)
}

// ParseWALKey is the inverse of WALKey. Errors: Invalid.
func ParseWALKey(key string) (s ShardID, e Epoch, index uint64, err error) {
	parts := strings.Split(key, "/")
	if len(parts) == 4 && parts[0] == "wal" {
		ep, err1 := strconv.ParseUint(parts[2], 10, 64)
		ix, err2 := strconv.ParseUint(parts[3], 10, 64)
		if err1 == nil && err2 == nil && WALKey(ShardID(parts[1]), Epoch(ep), ix) == key {
			return ShardID(parts[1]), Epoch(ep), ix, nil
		}
	}
	return "", 0, 0, fmt.Errorf("wal key %q: %w: want wal/<shard>/<epoch>/<index>, 20 digits each", key, errkind.Invalid)
}
