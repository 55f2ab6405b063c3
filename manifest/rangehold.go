package manifest

import (
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// RangeHold announces that a range of a collection is about to lose its documents. It is a
// record in the root, so that every owner learns of it in the order of all other changes.
//
// Invariant: an owner that has absorbed a root with the hold neither reads nor writes the
// range until it has absorbed one without it. The commit that takes the documents away takes
// the hold away, too. So nobody who may still believe in the documents shows them after
// somebody else did not, and nothing is written between what an owner flushed under the hold
// and the commit. Whoever sets a hold removes it, or any owner does after a while; the
// commit then conflicts.
type RangeHold struct {
	ID         string // its record's: a nonce, 1 to 255 bytes
	Collection CollectionID
	Range      shardkey.Range
}

// Names of the fields of a hold's record.
const (
	holdCollection = "collection"
	holdMin        = "min"
	holdMax        = "max"
)

// Record is h as it is in the root.
func (h RangeHold) Record() Record {
	return Record{Kind: RecordHold, ID: h.ID, Body: bson.Raw(bsoncore.NewDocumentBuilder().
		AppendInt64(holdCollection, int64(h.Collection)).
		AppendBinary(holdMin, 0, h.Range.Min).AppendBinary(holdMax, 0, h.Range.Max).Build())}
}

// Touches reports whether a chunk has a part of the range.
func (h RangeHold) Touches(c *Chunk) bool {
	return c.Collection == h.Collection && c.Range.Overlaps(h.Range)
}

// RangeHolds are the holds that stand, by id.
func (s *State) RangeHolds() []RangeHold {
	var holds []RangeHold
	for _, r := range s.Records(RecordHold) {
		holds = append(holds, r.rangeHold())
	}
	return holds
}

func (r Record) rangeHold() RangeHold {
	h := RangeHold{ID: r.ID}
	h.Collection = CollectionID(r.Body.Lookup(holdCollection).AsInt64())
	_, h.Range.Min, _ = r.Body.Lookup(holdMin).BinaryOK()
	_, h.Range.Max, _ = r.Body.Lookup(holdMax).BinaryOK()
	return h
}
