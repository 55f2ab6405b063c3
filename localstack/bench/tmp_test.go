package bench

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket/membucket"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestTmpOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := open(t, slow{membucket.New(), 50 * time.Millisecond}, quiet)
		x.sharded(100, 200, 300, 400, 500)
		var list bson.A
		for range 1000 {
			list = append(list, row(rand.IntN(600)))
		}
		for i := range list { list[i] = bson.D{{Key: "_id", Value: i}, {Key: "k", Value: rand.IntN(600)}} }
		raw, _ := bson.Marshal(bson.D{{Key: "insert", Value: "docs"}, {Key: "documents", Value: list}, {Key: "$db", Value: "bench"}})
		start := time.Now()
		reply := x.stack.Commands.Do(context.Background(), raw)
		t.Log(time.Since(start), reply)
	})
}
