package document

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// doc300 is a document of about 300 bytes with ten fields, the wanted one in the last.
func doc300(t testing.TB) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(bson.D{
		{Key: "_id", Value: bson.NewObjectID()},
		{Key: "user", Value: "customer-000000000123"},
		{Key: "email", Value: "someone.with.a.name@example.com"},
		{Key: "n", Value: int32(42)},
		{Key: "score", Value: 3.25},
		{Key: "created", Value: bson.DateTime(1700000000000)},
		{Key: "tags", Value: bson.A{"red", "green", "blue"}},
		{Key: "active", Value: true},
		{Key: "note", Value: "The quick brown fox jumps over the lazy dog and then some more."},
		{Key: "stats", Value: bson.D{{Key: "visits", Value: int64(12345)}, {Key: "x", Value: 17.5}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func BenchmarkValidate(b *testing.B) {
	doc := doc300(b)
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Validate(doc, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMatch matches filters that hold, so that every condition is looked at.
func BenchmarkMatch(b *testing.B) {
	doc := doc300(b)
	for name, filter := range map[string]bson.D{
		"one nested field last":  {{Key: "stats.x", Value: bson.D{{Key: "$gt", Value: 10}}}},
		"one field first":        {{Key: "user", Value: "customer-000000000123"}},
		"three fields":           {{Key: "n", Value: 42}, {Key: "active", Value: true}, {Key: "score", Value: bson.D{{Key: "$gte", Value: 1}}}},
		"in an array":            {{Key: "tags", Value: "blue"}},
		"or of two, in of three": {{Key: "$or", Value: bson.A{bson.D{{Key: "n", Value: 1}}, bson.D{{Key: "n", Value: bson.D{{Key: "$in", Value: bson.A{40, 41, 42}}}}}}}},
		"two missing":            {{Key: "zz", Value: bson.D{{Key: "$exists", Value: false}}}, {Key: "yy", Value: nil}},
	} {
		b.Run(name, func(b *testing.B) {
			raw, err := bson.Marshal(filter)
			if err != nil {
				b.Fatal(err)
			}
			f, err := ParseFilter(raw)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(doc)))
			for b.Loop() {
				if !f.Match(doc) {
					b.Fatal("no match")
				}
			}
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	doc := doc300(b)
	for name, text := range map[string]string{
		"inc":          `{$inc: {n: 1}}`,
		"set nested":   `{$set: {'stats.x': 5.5, 'stats.new': 1}}`,
		"push":         `{$push: {tags: 'white'}}`,
		"set and more": `{$set: {note: 'short', active: false}, $inc: {'stats.visits': 1}, $unset: {email: 1}}`,
		"replacement":  `{user: 'x', n: 1}`,
	} {
		b.Run(name, func(b *testing.B) {
			u := update(b, text, UpdateOptions{})
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				out, changed, err := u.Apply(buf[:0], doc)
				if err != nil || !changed {
					b.Fatal(changed, err)
				}
				buf = out
			}
		})
	}
}

func BenchmarkProjection(b *testing.B) {
	doc := doc300(b)
	for name, text := range map[string]string{
		"include two": `{user: 1, 'stats.x': 1}`, "exclude one": `{note: 0}`, "computed": `{user: 1, next: {$add: ['$n', 1]}}`,
	} {
		b.Run(name, func(b *testing.B) {
			p, err := ParseProjection(raw(b, text))
			if err != nil {
				b.Fatal(err)
			}
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				if buf, err = p.Append(buf[:0], doc); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGroup counts documents by one field, 100 groups.
func BenchmarkGroup(b *testing.B) {
	var docs []bson.Raw
	for i := range 1000 {
		docs = append(docs, docOf(el(16, "_id", le32(i)...), el(16, "g", le32(i%100)...)))
	}
	p := pipeline(b, `[{$group: {_id: '$g', n: {$sum: 1}}}]`)
	b.ReportAllocs()
	for b.Loop() {
		for _, err := range p.Run(b.Context(), stream(docs...), RunLimits{}) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/doc")
}

func BenchmarkSortKey(b *testing.B) {
	doc := doc300(b)
	s, err := ParseSort(raw(b, `{score: -1, user: 1}`))
	if err != nil {
		b.Fatal(err)
	}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = s.AppendKey(buf[:0], doc)
	}
}
