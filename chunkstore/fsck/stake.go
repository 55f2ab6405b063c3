package fsck

import (
	"encoding/json"
	"fmt"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// KeyRange is a part of a collection, as a user would ask for it: the documents of one chunk,
// from Min on and below Max.
type KeyRange struct {
	Namespace string           `json:"ns"`
	Chunk     manifest.ChunkID `json:"chunk"`
	Shard     manifest.ShardID `json:"shard"`
	Min       json.RawMessage  `json:"min"` // the bounds as documents of the shard key
	Max       json.RawMessage  `json:"max"`
}

// stakesMax bounds the key ranges that one problem lists: a log object that is lost concerns
// every chunk of its shard.
const stakesMax = 20

// RangeOf is a chunk as a key range.
func RangeOf(state *manifest.State, chunk *manifest.Chunk) KeyRange {
	return KeyRange{Namespace: namespace(state, chunk), Chunk: chunk.ID, Shard: chunk.Shard, Min: extended(chunk.MinBSON), Max: extended(chunk.MaxBSON)}
}

// String is the range for people: orders from {"customer":1} up to {"customer":7}.
func (r KeyRange) String() string {
	return fmt.Sprintf("%s from %s up to %s (chunk %d of %s)", r.Namespace, r.Min, r.Max, r.Chunk, r.Shard)
}

func namespace(state *manifest.State, chunk *manifest.Chunk) string {
	if c := state.Collection(chunk.Collection); c != nil {
		return c.Namespace()
	}
	return fmt.Sprintf("collection %d", chunk.Collection)
}

// extended is a bound as Extended JSON.
func extended(d bson.Raw) json.RawMessage {
	text, err := bson.MarshalExtJSON(d, false, false)
	if err != nil {
		return json.RawMessage("null")
	}
	return text
}

// Above are the chunks of a shard of which records at a position are in no segment: those
// whose floor does not cover it. More is how many there are beyond those that are listed.
func Above(state *manifest.State, shard manifest.ShardID, epoch manifest.Epoch, index uint64) (list []KeyRange, more int) {
	for chunk := range state.AllChunks() {
		switch {
		case chunk.Shard != shard || state.EffectiveFloor(chunk).Covers(epoch, index):
		case len(list) == stakesMax:
			more++
		default:
			list = append(list, RangeOf(state, chunk))
		}
	}
	return list, more
}
