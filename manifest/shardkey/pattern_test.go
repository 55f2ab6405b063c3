package shardkey

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestPatternsReadBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, text string }{
		{`{"_id": 1}`, `{ _id: 1 }`},
		{`{"a": 1.0, "b.c": {"$numberLong": "1"}}`, `{ a: 1, b.c: 1 }`},
		{`{"a": "hashed", "b": 1}`, `{ a: "hashed", b: 1 }`},
		{`{"a": 1, "b": "hashed", "c": 1}`, `{ a: 1, b: "hashed", c: 1 }`},
		{`{"ref.$id": 1}`, `{ ref.$id: 1 }`},
	} {
		p := pattern(t, c.spec)
		if p.String() != c.text {
			t.Errorf("%s reads as %v, want %s", c.spec, p, c.text)
		}
		again, err := ParsePattern(p.BSON())
		if err != nil || !again.Equal(p) {
			t.Errorf("%v reads back as %v, %v", p, again, err)
		}
	}
	if s := (Pattern{}).String(); s != "{}" {
		t.Errorf("no pattern is shown as %s", s)
	}
}

func TestWrongPatternsAreRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range MaxFields + 1 {
		many = append(many, fmt.Sprintf(`"f%d": 1`, i))
	}
	for _, c := range []struct{ spec, reason string }{
		{`{}`, "empty"},
		{`{"": 1}`, "without a name"},
		{`{"a..b": 1}`, "empty parts"},
		{`{"a.": 1}`, "empty parts"},
		{`{".a": 1}`, "empty parts"},
		{`{"$a": 1}`, "start with '$'"},
		{`{"$id": 1}`, "start with '$'"},
		{`{"a.$**": 1}`, "start with '$'"},
		{`{"a": -1}`, "set to a value of 1"},
		{`{"a": 2}`, "set to a value of 1"},
		{`{"a": 1.5}`, "set to a value of 1"},
		{`{"a": "text"}`, "set to a value of 1"},
		{`{"a": true}`, "set to a value of 1"},
		{`{"a": {"b": 1}}`, "set to a value of 1"},
		{`{"a": "hashed", "b": "hashed"}`, "at most one 'hashed'"},
		{`{"a": 1, "a": 1}`, "twice"},
		{`{` + strings.Join(many, ", ") + `}`, "the most is 32"},
	} {
		_, err := ParsePattern(ext(t, c.spec))
		if !errors.Is(err, errkind.Invalid) || !strings.Contains(fmt.Sprint(err), c.reason) {
			t.Errorf("%s: %v, want %s", c.spec, err, c.reason)
		}
	}
	whole := ext(t, `{"a": 1}`)
	for n := range whole {
		if _, err := ParsePattern(whole[:n]); !errors.Is(err, errkind.Invalid) {
			t.Errorf("first %d bytes: %v", n, err)
		}
	}
}

func TestIndexPatternsMayDescend(t *testing.T) {
	t.Parallel()
	p, err := ParseIndexPattern(ext(t, `{"a": -1, "b": 2.5, "c": "hashed", "d": {"$numberDecimal": "-3"}}`))
	if err != nil || p.String() != `{ a: -1, b: 1, c: "hashed", d: -1 }` {
		t.Errorf("read as %v, %v", p, err)
	}
	again, err := ParseIndexPattern(p.BSON())
	if err != nil || !again.Equal(p) {
		t.Errorf("%v reads back as %v, %v", p, again, err)
	}
	for _, spec := range []string{`{}`, `{"a": 0}`, `{"a": {"$numberDouble": "NaN"}}`, `{"a": "text"}`, `{"a": "2dsphere"}`, `{"$**": 1}`, `{"a": "hashed", "b": "hashed"}`} {
		if _, err := ParseIndexPattern(ext(t, spec)); !errors.Is(err, errkind.Invalid) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func TestHasAndHasID(t *testing.T) {
	t.Parallel()
	p := pattern(t, `{"a.b": 1, "_id": "hashed"}`)
	if !p.Has("a.b") || !p.Has("_id") || p.Has("a") || p.HasID() {
		t.Errorf("%v: has a.b %v, _id %v, a %v, HasID %v", p, p.Has("a.b"), p.Has("_id"), p.Has("a"), p.HasID())
	}
	if q := pattern(t, `{"a": 1, "_id": 1}`); !q.HasID() || !q.RowPattern().Equal(q) {
		t.Errorf("%v: HasID %v, rows %v", q, q.HasID(), q.RowPattern())
	}
	if p.Equal(pattern(t, `{"a.b": 1, "_id": 1}`)) {
		t.Error("hashed and ranged are equal")
	}
}

func ExamplePattern_AppendKey() {
	spec, _ := bson.Marshal(bson.D{{Key: "region", Value: 1}, {Key: "customer", Value: "hashed"}})
	p, _ := ParsePattern(spec)
	doc, _ := bson.Marshal(bson.D{{Key: "_id", Value: 7}, {Key: "region", Value: "eu"}, {Key: "customer", Value: "c-17"}})
	key, _ := p.AppendKey(nil, doc)
	prefix, _ := p.Prefix(key)
	fmt.Printf("%v\n%x | %x\n", p, prefix, key[len(prefix):])
	// Output:
	// { region: 1, customer: "hashed" }
	// 2065750001104dc7a5dd4c2bda30 | 10c01c00000000000000
}
