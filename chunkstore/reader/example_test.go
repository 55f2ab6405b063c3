package reader_test

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A chunk of one segment is read: a point, and a range backwards.
func Example() {
	ctx := context.Background()
	b := membucket.New()
	chunk := &manifest.Chunk{ID: 1, Collection: 7, Refs: upload(ctx, b, "ann", "bob", "eve")}

	open := func(manifest.LocationID) (bucket.Bucket, error) { return b, nil }
	store := reader.NewStore(open, segment.NewCache(64<<20))
	view := reader.View{Chunk: chunk}

	row, live, err := store.Get(ctx, view, []byte("bob"))
	fmt.Println(row.Doc, live, err)

	it := store.Scan(ctx, view, shardkey.Range{Min: []byte("b")}, true)
	for it.Next(ctx) {
		fmt.Println(string(it.Row().Key))
	}
	fmt.Println(it.Err())
	// Output:
	// {"name": "bob"} true <nil>
	// eve
	// bob
	// <nil>
}

// upload makes one segment of documents with these names as keys.
func upload(ctx context.Context, b bucket.Bucket, names ...string) []manifest.SegmentRef {
	id := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "shard01", Epoch: 1}}
	w := segment.NewWriter(id, nil)
	for i, name := range names {
		doc, _ := bson.Marshal(bson.D{{Key: "name", Value: name}})
		if err := w.Add(segment.Row{Collection: 7, Key: []byte(name), Seq: manifest.Seq(i + 1), Doc: doc}); err != nil {
			panic(err)
		}
	}
	if err := w.Cut(segment.Part{Collection: 7}); err != nil {
		panic(err)
	}
	body, _, err := w.Finish()
	if err != nil {
		panic(err)
	}
	if _, err := b.Put(ctx, id.Key(), body, bucket.IfAbsent); err != nil {
		panic(err)
	}
	return w.Refs()
}
