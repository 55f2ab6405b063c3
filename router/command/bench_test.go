package command

import (
	"context"
	"fmt"
	"testing"

	"github.com/granarydb/granary/router/routertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// BenchmarkCommands is what a command costs without its transport, on a warm owner in memory.
func BenchmarkCommands(b *testing.B) {
	c := routertest.New(b, routertest.Options{})
	s := New(c.Router, nil)
	ctx := context.Background()
	docs := func(from int) bson.A {
		var a bson.A
		for i := range 1000 {
			a = append(a, bson.D{{Key: "_id", Value: from + i}, {Key: "name", Value: fmt.Sprintf("name %d", i)}, {Key: "pad", Value: make([]byte, 240)}})
		}
		return a
	}
	insert := func(from int) bson.Raw {
		body, err := bson.Marshal(bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs(from)}, {Key: "$db", Value: "db"}})
		if err != nil {
			b.Fatal(err)
		}
		return body
	}
	s.Do(ctx, insert(0))
	find := raw(b, `{"find": "c", "filter": {"_id": 500}, "limit": 1, "singleBatch": true, "$db": "db"}`)
	if n, _ := s.Do(ctx, find).Lookup("cursor", "firstBatch", "0", "_id").AsInt64OK(); n != 500 {
		b.Fatal("not found")
	}
	b.Run("ping", func(b *testing.B) {
		ping := raw(b, `{"ping": 1, "$db": "admin"}`)
		b.ReportAllocs()
		for b.Loop() {
			s.Do(ctx, ping)
		}
	})
	b.Run("findOne", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Do(ctx, find)
		}
	})
	b.Run("updateOne", func(b *testing.B) {
		update := raw(b, `{"update": "c", "updates": [{"q": {"_id": 500}, "u": {"$inc": {"v": 1}}}], "$db": "db"}`)
		b.ReportAllocs()
		for b.Loop() {
			s.Do(ctx, update)
		}
	})
	b.Run("insert1000", func(b *testing.B) {
		from := 1000
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			body := insert(from)
			from += 1000
			b.StartTimer()
			s.Do(ctx, body)
		}
	})
}
