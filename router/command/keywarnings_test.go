package command

import (
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestKeysAreWarnedOf judges keys of sampled documents: what grows with time, and what has
// few values; hashed, compound and high-cardinality keys are left alone.
func TestKeysAreWarnedOf(t *testing.T) {
	t.Parallel()
	oid := func(i int) string { return fmt.Sprintf(`{"$oid": "%08x%016x"}`, i, i*7919%1000) }
	kinds := map[string]func(i int) string{
		"oid": func(i int) string { return fmt.Sprintf(`{"_id": %s, "k": %s}`, oid(i), oid(i)) },
		"date": func(i int) string {
			return fmt.Sprintf(`{"_id": %s, "k": {"$date": {"$numberLong": "%d"}}}`, oid(i), i)
		},
		"counter": func(i int) string { return fmt.Sprintf(`{"_id": %d, "k": %d}`, i, 100+i) },
		"random":  func(i int) string { return fmt.Sprintf(`{"_id": %s, "k": %d}`, oid(i), i*7919%1000) },
		"name":    func(i int) string { return fmt.Sprintf(`{"_id": %d, "k": "n%d"}`, i*99, i) },
		"again":   func(i int) string { return fmt.Sprintf(`{"_id": %d, "k": %d}`, i, i%60) },
		"few":     func(i int) string { return fmt.Sprintf(`{"_id": %s, "k": "state%d"}`, oid(i), i%3) },
		"none":    nil,
	}
	for _, c := range []struct{ docs, key, want string }{
		{"oid", `{"k": 1}`, "ObjectId"},
		{"oid", `{"_id": 1}`, "ObjectId"},
		{"oid", `{"k": "hashed"}`, ""},
		{"date", `{"k": 1}`, "date"},
		{"date", `{"k": 1, "_id": 1}`, "date"},
		{"counter", `{"k": 1}`, "counts up"},
		{"counter", `{"_id": 1}`, "counts up"},
		{"random", `{"k": 1}`, ""},
		{"again", `{"k": 1, "_id": 1}`, ""},
		{"name", `{"k": 1}`, ""},
		{"name", `{"_id": 1}`, ""},
		{"few", `{"k": 1}`, "have 3 values of the shard key { k: 1 }"},
		{"few", `{"k": "hashed"}`, "have 3 values"},
		{"few", `{"k": 1, "_id": 1}`, ""},
		{"none", `{"_id": 1}`, "ObjectId unless you set it"},
		{"none", `{"k": 1}`, ""},
	} {
		var docs []bson.Raw
		for i := range 200 {
			if kinds[c.docs] != nil {
				docs = append(docs, raw(t, kinds[c.docs](i)))
			}
		}
		key, err := shardkey.ParsePattern(raw(t, c.key))
		if err != nil {
			t.Fatal(err)
		}
		got := judgeKey(key, docs)
		if (len(got) == 0) != (c.want == "") || c.want != "" && !strings.Contains(got[0], c.want) {
			t.Errorf("%s of %s: %q, want %q", c.key, c.docs, got, c.want)
		}
	}
}
