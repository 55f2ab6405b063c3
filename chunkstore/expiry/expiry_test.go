package expiry

import (
	"testing"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func raw(t *testing.T, text string) bson.Raw {
	t.Helper()
	var d bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
		t.Fatal(text, err)
	}
	return d
}

func collection(t *testing.T, specs ...string) *manifest.Collection {
	t.Helper()
	c := &manifest.Collection{}
	for _, s := range specs {
		c.Indexes = append(c.Indexes, manifest.Index{Spec: raw(t, s)})
	}
	return c
}

// Dates count, alone or in an array; of several indexes the first to expire a document.
func TestWhenDocumentsExpire(t *testing.T) {
	t.Parallel()
	after := `{"key": {"a.at": 1}, "expireAfterSeconds": 60}`
	for _, c := range []struct {
		specs []string
		doc   string
		at    int64
	}{
		{[]string{after}, `{"a": {"at": {"$date": "1970-01-01T00:01:00Z"}}}`, 120_000},
		{[]string{after}, `{"a": {"at": [1, {"$date": "1970-01-01T00:02:00Z"}, {"$date": "1970-01-01T00:01:00Z"}, null]}}`, 120_000},
		{[]string{after}, `{"a": {"at": [1, "x"]}}`, Never},
		{[]string{after}, `{"a": {"at": 5}}`, Never},
		{[]string{after}, `{"a": {"at": {"$timestamp": {"t": 1, "i": 1}}}}`, Never},
		{[]string{after}, `{"at": {"$date": "1970-01-01T00:01:00Z"}}`, Never},
		{[]string{after}, `{"a": {"at": {"$date": {"$numberLong": "-1000"}}}}`, 59_000},
		{[]string{after}, `{"a": {"at": {"$date": {"$numberLong": "9223372036854775807"}}}}`, Never},
		{[]string{`{"key": {"t": -1}, "expireAfterSeconds": 0}`, after}, `{"t": {"$date": "1970-01-01T00:01:30Z"}, "a": {"at": {"$date": "1970-01-01T00:01:00Z"}}}`, 90_000},
		{[]string{`{"key": {"t": 1}, "expireAfterSeconds": 1, "partialFilterExpression": {"x": 1}}`}, `{"t": {"$date": "1970-01-01T00:00:00Z"}, "x": 1}`, 1000},
		{[]string{`{"key": {"t": 1}, "expireAfterSeconds": 1, "partialFilterExpression": {"x": 1}}`}, `{"t": {"$date": "1970-01-01T00:00:00Z"}, "x": 2}`, Never},
	} {
		r, d := Of(collection(t, c.specs...)), raw(t, c.doc)
		if at := r.At(d); at != c.at {
			t.Errorf("%s expires at %d, want %d", c.doc, at, c.at)
		}
		if c.at != Never && (!r.Expired(d, c.at) || r.Expired(d, c.at-1)) {
			t.Errorf("%s does not expire at %d exactly", c.doc, c.at)
		}
	}
}

// Without an index that expires anything there is no rule.
func TestMostCollectionsHaveNoRule(t *testing.T) {
	t.Parallel()
	for _, specs := range [][]string{nil, {`{"key": {"at": 1}}`}, {`{"key": {"a": 1, "b": 1}, "expireAfterSeconds": 5}`}} {
		r := Of(collection(t, specs...))
		if r != nil || r.By(5) != nil || r.Expired(raw(t, `{}`), 5) {
			t.Errorf("%v makes a rule", specs)
		}
	}
}
