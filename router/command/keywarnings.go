package command

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// sampleDocs is how many documents of a collection a key is judged by: half of them with
	// the lowest _ids, half with the highest.
	sampleDocs = 1000
	// sampleLeast is how many it takes to say something of values.
	sampleLeast = 50
	// sharedBy is by how many documents of the sample a value is shared, on average, when
	// there are said to be few values.
	sharedBy = 10
)

// keyWarnings says what speaks against a shard key, by a sample of the collection when there
// is one, and logs it. It refuses nothing, and fails at nothing.
func (s *Commands) keyWarnings(ctx context.Context, c *call, ns router.Namespace, key shardkey.Pattern) []string {
	var docs []bson.Raw
	for _, order := range []int32{1, -1} {
		part, err := s.sample(ctx, c, ns, key, order)
		if err != nil {
			s.options.Log.Warn("no sample for the warnings about a shard key", "ns", ns, "cause", err)
			return nil
		}
		if order < 0 {
			slices.Reverse(part)
		}
		docs = append(docs, part...)
	}
	warnings := judgeKey(key, docs)
	for _, w := range warnings {
		s.options.Log.Warn(w, "ns", ns)
	}
	return warnings
}

// sample reads the key and the _id of documents from one end of the collection by _id.
func (s *Commands) sample(ctx context.Context, c *call, ns router.Namespace, key shardkey.Pattern, order int32) ([]bson.Raw, error) {
	fields := build().AppendInt32("_id", 1)
	for _, f := range key.Fields {
		if f.Path != "_id" && !strings.HasPrefix(f.Path, "_id.") {
			fields.AppendInt32(f.Path, 1)
		}
	}
	cur, err := s.router.Find(ctx, ns, router.Query{
		Projection: bson.Raw(fields.Build()), Sort: bson.Raw(build().AppendInt32("_id", order).Build()), Limit: sampleDocs / 2, MaxTime: c.maxTime,
	})
	if err != nil {
		return nil, err
	}
	defer cur.Close(ctx)
	return cur.Batch(ctx, 0, maxSampleBytes)
}

const maxSampleBytes = 16 << 20

// judgeKey is keyWarnings of documents in the order of their _ids.
func judgeKey(key shardkey.Pattern, docs []bson.Raw) []string {
	var warnings []string
	if what := growing(key.Fields[0], docs); what != "" {
		path := key.Fields[0].Path
		warnings = append(warnings, fmt.Sprintf("the shard key %v begins with %q, which %s: new documents all go to the last chunk, and so to one shard at a time. "+
			"For writes that spread use {%s: \"hashed\"}, or a field in front of it that varies", key, path, what, path))
	}
	if n := distinctKeys(key, docs); len(docs) >= sampleLeast && n*sharedBy <= len(docs) {
		warnings = append(warnings, fmt.Sprintf("%d sampled documents have %d values of the shard key %v: documents of one value stay in one chunk, "+
			"so there are about %d chunks at most, and shards beyond that number stay empty. Another field behind it, as in %s, lifts that",
			len(docs), n, key, n, suffixed(key)))
	}
	return warnings
}

// suffixed is the key with _id behind it, as one types it.
func suffixed(key shardkey.Pattern) string {
	if key.Has("_id") {
		return strings.TrimSuffix(key.String(), " }") + ", <field>: 1 }"
	}
	return key.RowPattern().String()
}

func distinctKeys(key shardkey.Pattern, docs []bson.Raw) int {
	seen := make(map[string]bool)
	for _, d := range docs {
		if k, err := key.AppendShardKey(nil, d); err == nil {
			seen[string(k)] = true
		}
	}
	return len(seen)
}

// growing says how a field's values grow with time; "" when they do not, or it is unknown.
// Without documents an _id is taken for what drivers make.
func growing(f shardkey.Field, docs []bson.Raw) string {
	switch {
	case f.Hashed:
		return ""
	case len(docs) == 0 && f.Path == "_id":
		return "is an ObjectId unless you set it, and these grow with time"
	case len(docs) < sampleLeast:
		return ""
	}
	var values, ids []bson.RawValue
	for _, d := range docs {
		v, ok := document.Lookup(d, f.Path)
		id, _ := document.Lookup(d, "_id")
		if !ok {
			return ""
		}
		values, ids = append(values, v), append(ids, id)
	}
	inTime := ofTypes(ids, bson.TypeObjectID) || ofTypes(ids, bson.TypeInt32, bson.TypeInt64)
	switch {
	case ofTypes(values, bson.TypeObjectID):
		return "is an ObjectId in all sampled documents, and these grow with time"
	case ofTypes(values, bson.TypeDateTime, bson.TypeTimestamp) && (f.Path == "_id" || inTime && ascending(values)):
		return "is a date that grows with _id"
	case ofTypes(values, bson.TypeInt32, bson.TypeInt64) && f.Path == "_id" && dense(values),
		ofTypes(values, bson.TypeInt32, bson.TypeInt64) && f.Path != "_id" && inTime && ascending(values):
		return "counts up"
	}
	return ""
}

func ofTypes(values []bson.RawValue, kinds ...bson.Type) bool {
	return !slices.ContainsFunc(values, func(v bson.RawValue) bool { return !slices.Contains(kinds, v.Type) })
}

// ascending reports whether nearly all values are at or above those before them, not all the
// same, and those of the newer half above those of the older: what counts up and begins again
// and again comes back to where it was.
func ascending(values []bson.RawValue) bool {
	up, down := 0, 0
	for i := 1; i < len(values); i++ {
		switch c := document.Compare(values[i-1], values[i]); {
		case c < 0:
			up++
		case c > 0:
			down++
		}
	}
	older := slices.MaxFunc(values[:len(values)/2], document.Compare)
	return up > 0 && down*10 <= up && document.Compare(older, values[3*len(values)/4]) <= 0
}

// dense reports whether ascending integers leave few numbers out, as a counter does.
func dense(values []bson.RawValue) bool {
	half := values[:len(values)/2]
	return len(half) > 1 && half[len(half)-1].AsInt64()-half[0].AsInt64() <= 4*int64(len(half))
}

// uniquenessOfID says how far _id is unique under a key; "" when it is by itself.
func uniquenessOfID(key shardkey.Pattern) string {
	for _, f := range key.Fields {
		if f.Path != "_id" {
			return fmt.Sprintf("_id is unique together with the shard key %v, not by itself: documents with different values of it may have one _id. "+
				"ObjectIds made by drivers differ anyway", key)
		}
	}
	return ""
}
