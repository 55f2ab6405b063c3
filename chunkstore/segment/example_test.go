package segment_test

import (
	"context"
	"fmt"

	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Example writes two rows and a tombstone of one chunk, and reads them back.
func Example() {
	doc := func(city string) bson.Raw {
		b, _ := bson.Marshal(bson.D{{Key: "city", Value: city}})
		return b
	}
	id := manifest.SegmentID{Creator: manifest.Creator{Kind: manifest.CreatorShard, Shard: "shard01", Epoch: 1}, Random: [16]byte{7}}
	w := segment.NewWriter(id, nil)
	for _, row := range []segment.Row{
		{Collection: 1, Key: []byte("a"), Seq: 3, Doc: doc("Aachen")},
		{Collection: 1, Key: []byte("b"), Seq: 5, Delete: true},
		{Collection: 1, Key: []byte("c"), Seq: 4, Doc: doc("Celle")},
	} {
		if err := w.Add(row); err != nil {
			panic(err)
		}
	}
	if err := w.Cut(segment.Part{Collection: 1, Clip: shardkey.Range{Max: []byte("m")}}); err != nil {
		panic(err)
	}
	body, _, err := w.Finish()
	if err != nil {
		panic(err)
	}
	ref := w.Refs()[0]
	fmt.Printf("%d rows from %s to %s, seqs %d to %d\n", ref.Rows, ref.MinKey, ref.MaxKey, ref.MinSeq, ref.MaxSeq)

	ctx := context.Background()
	fetch := func(_ context.Context, off, length int64) ([]byte, error) { return body[off : off+length], nil }
	r, err := segment.Open(ctx, fetch, ref, segment.NewCache(64<<20))
	if err != nil {
		panic(err)
	}
	row, ok, err := r.Get(ctx, 1, []byte("c"))
	fmt.Println(ok, row.Seq, row.Doc, err)
	it := r.Scan(1, shardkey.Range{Min: []byte("b")}, true)
	for it.Next(ctx) {
		fmt.Printf("%s delete=%v\n", it.Row().Key, it.Row().Delete)
	}
	fmt.Println(it.Err())
	// Output:
	// 3 rows from a to c, seqs 3 to 5
	// true 4 {"city": "Celle"} <nil>
	// c delete=false
	// b delete=true
	// <nil>
}
