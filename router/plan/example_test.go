package plan_test

import (
	"fmt"
	"iter"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router/plan"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// halves is a chunk map: the keys below 100, and the others.
type halves [2]*manifest.Chunk

func (h halves) ChunksIn(_ manifest.CollectionID, r shardkey.Range) iter.Seq[*manifest.Chunk] {
	return func(yield func(*manifest.Chunk) bool) {
		for _, c := range h {
			if c.Range.Overlaps(r) && !yield(c) {
				return
			}
		}
	}
}

func ExampleMake() {
	key, _ := shardkey.ParsePattern(encode(bson.D{{Key: "age", Value: 1}}))
	cut, _, _ := key.Bound(encode(bson.D{{Key: "age", Value: 100}}))
	chunks := halves{
		{ID: 1, Shard: "shard01", Range: shardkey.Range{Max: cut}},
		{ID: 2, Shard: "shard02", Range: shardkey.Range{Min: cut}},
	}
	c := &manifest.Collection{ID: 1, Key: key}
	for _, filter := range []bson.D{
		{{Key: "age", Value: 35}},
		{{Key: "age", Value: bson.D{{Key: "$lt", Value: 35}}}},
		{{Key: "name", Value: "Ada"}},
	} {
		f, _ := document.ParseFilter(encode(filter))
		p := plan.Make(chunks, c, f, nil)
		fmt.Printf("%s, %d chunks: %s\n", p.Kind, len(p.Targets), p.Reason())
	}
	// Output:
	// targeted, 1 chunks: equality on the whole shard key { age: 1 }
	// range, 1 chunks: conditions on "age", leading in the shard key { age: 1 }
	// broadcast, 2 chunks: no usable condition on "age", the first field of the shard key { age: 1 }: every chunk may hold a match
}

func encode(d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}
