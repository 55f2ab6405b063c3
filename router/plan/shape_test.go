package plan

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func TestAShapeHasNoValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ filter, sort, want string }{
		{`{}`, ``, `{}`},
		{`{"a": 1, "b.c": "secret"}`, ``, `{ a: ?, b.c: ? }`},
		{`{"total": {"$gt": 5, "$lt": 9}}`, `{"total": -1, "_id": 1}`, `{ total: { $gt: ?, $lt: ? } } sort { total: -1, _id: 1 }`},
		{`{"$or": [{"a": 1}, {"b": {"$in": [1, 2, 3]}}]}`, ``, `{ $or: [{ a: ? }, { b: { $in: [?] } }] }`},
		{`{"a": {"city": "secret", "zip": 7}}`, ``, `{ a: ? }`},
		{`{"a": []}`, ``, `{ a: [?] }`},
		{`{"a": {"": 1}}`, ``, `{ a: ? }`},
		{`{"a": {"$elemMatch": {"x": 1}}}`, ``, `{ a: { $elemMatch: ? } }`},
	} {
		var sort bson.Raw
		if c.sort != "" {
			sort = doc(t, c.sort)
		}
		if got := Shape(doc(t, c.filter), sort); got != c.want {
			t.Errorf("%s %s: %s, expected %s", c.filter, c.sort, got, c.want)
		}
	}
	if got := Shape(nil, nil); got != "{}" {
		t.Errorf("no filter: %s", got)
	}
}

// TestAShapeIsBounded: neither many fields, nor long names, nor depth make it long.
func TestAShapeIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var d any = bson.D{{Key: "x", Value: 1}}
		for range rapid.IntRange(0, 8).Draw(t, "depth") {
			d = bson.D{{Key: "$or", Value: bson.A{d, d}}}
		}
		all := bson.D{{Key: "$and", Value: bson.A{d}}}
		for i := range rapid.IntRange(0, 300).Draw(t, "fields") {
			all = append(all, bson.E{Key: fmt.Sprintf("field%d", i), Value: i})
		}
		if s := Shape(marshal(t, all), nil); len(s) > 2*shapeBytesMax {
			t.Fatalf("%d bytes: %s", len(s), s)
		} else if len(all) > 50 && !strings.Contains(s, "...") {
			t.Fatalf("not cut: %s", s)
		}
	})
}
