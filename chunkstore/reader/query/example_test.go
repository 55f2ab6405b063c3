package query

import (
	"fmt"
	"testing"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// The two best of a collection of three chunks, as their owner would answer a router that
// merges them with those of other owners.
func ExampleOpen() {
	w := newWorld(&testing.T{}, 2, 4)
	for id := range 6 {
		w.flush(doc(id, id, bson.E{Key: "n", Value: id % 4}))
	}
	q := rpc.Query{
		Filter: raw(bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 0}}}}),
		Sort:   raw(bson.D{{Key: "n", Value: -1}, {Key: "_id", Value: 1}}),
		Limit:  2, WithSortKey: true,
		Projection: raw(bson.D{{Key: "n", Value: 1}}),
	}
	c, err := Open(ctx, w.store, w.targets(), q, Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	docs, done, err := c.Next(ctx, rpc.Batch{})
	for _, d := range docs {
		fmt.Println(d.Lookup("d"))
	}
	fmt.Println(done, err)
	// Output:
	// {"_id": {"$numberInt":"3"},"n": {"$numberInt":"3"}}
	// {"_id": {"$numberInt":"2"},"n": {"$numberInt":"2"}}
	// true <nil>
}
