package plan

import (
	"bytes"
	"slices"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// span is a half-open range of one field's bytes. Cuts are never inside a value, so a point
// (the range of one value) is inside another span or outside, never cut by it.
type span struct {
	shardkey.Range
	point bool // Min is the value's encoding, Max its PrefixEnd
	value bool // Min is a value's encoding
}

// spans are ascending and disjoint. nil is the whole field; empty and not nil is nothing.
type spans []span

func pointSpan(value []byte) span {
	return span{Range: shardkey.Range{Min: value, Max: shardkey.PrefixEnd(value)}, point: true, value: true}
}

// intersect is what both allow.
func (a spans) intersect(b spans) spans {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	out := spans{}
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if r, ok := a[i].Intersect(b[j].Range); ok {
			from := a[i]
			if shardkey.CompareMin(b[j].Min, from.Min) > 0 {
				from = b[j]
			}
			out = append(out, span{Range: r, point: a[i].point || b[j].point, value: from.value})
		}
		if shardkey.CompareMax(a[i].Max, b[j].Max) < 0 {
			i++
		} else {
			j++
		}
	}
	return out
}

// unite makes any list of spans ascending and disjoint. Neighbours become one, except that
// points stay points.
func unite(all spans) spans {
	slices.SortFunc(all, func(a, b span) int {
		if c := shardkey.CompareMin(a.Min, b.Min); c != 0 {
			return c
		}
		return shardkey.CompareMax(b.Max, a.Max)
	})
	out := spans{}
	for _, s := range all {
		n := len(out)
		if n == 0 || len(out[n-1].Max) != 0 && bytes.Compare(out[n-1].Max, s.Min) < 0 {
			out = append(out, s)
			continue
		}
		last := &out[n-1]
		if last.point && s.point && last.Equal(s.Range) {
			continue
		}
		last.point = false
		if shardkey.CompareMax(s.Max, last.Max) > 0 {
			last.Max = s.Max
		}
	}
	return out
}

// field turns conditions on one field of the row key into spans.
type field struct{ shardkey.Field }

// condition is the spans of a leaf whose path is the field's; nil when it narrows nothing.
func (f field) condition(n document.Node) spans {
	switch n.Op {
	case document.Eq:
		return f.equal(n.Value)
	case document.In:
		return f.anyOf(n.Values)
	case document.Exists:
		if v, ok := n.Value.BooleanOK(); ok && !v {
			return f.null()
		}
	case document.Gt, document.Gte, document.Lt, document.Lte:
		return f.compare(n.Op, n.Value)
	case document.Regex:
		return f.begins(n.Value)
	}
	return nil
}

// inside is the spans of a leaf whose path is a parent of the field's: an equality with a
// whole document fixes every field in it.
func (f field) inside(n document.Node, rest string) spans {
	values := n.Values
	switch n.Op {
	case document.Eq:
		values = []bson.RawValue{n.Value}
	case document.In:
	default:
		return nil
	}
	all := spans{}
	for _, v := range values {
		s := f.child(v, rest)
		if s == nil {
			return nil
		}
		all = append(all, s...)
	}
	return unite(all)
}

// child is the spans of the field when its parent equals v.
func (f field) child(v bson.RawValue, rest string) spans {
	switch v.Type {
	case bson.TypeArray, bson.TypeRegex:
		return nil
	case bson.TypeEmbeddedDocument:
		if got, ok := document.Lookup(v.Document(), rest); ok {
			return f.equal(got)
		}
	}
	return f.null()
}

func (f field) equal(v bson.RawValue) spans {
	switch v.Type {
	case bson.TypeArray, bson.TypeRegex:
		return nil
	case bson.TypeNull, bson.TypeUndefined:
		return f.null()
	}
	return spans{pointSpan(f.encode(v))}
}

func (f field) anyOf(values []bson.RawValue) spans {
	all := make(spans, 0, len(values))
	for _, v := range values {
		s := f.equal(v)
		if s == nil {
			return nil
		}
		all = append(all, s...)
	}
	return unite(all)
}

// null is what {field: null} matches: null, a missing field, which is stored as null, and
// the old type undefined.
func (f field) null() spans {
	return unite(spans{
		pointSpan(f.encode(bson.RawValue{Type: bson.TypeNull})),
		pointSpan(f.encode(bson.RawValue{Type: bson.TypeUndefined})),
	})
}

// compare is the part of the value's own type above or below it. A hash keeps no order, and
// MinKey and MaxKey compare with every type: these narrow nothing.
func (f field) compare(op document.Op, v bson.RawValue) spans {
	switch v.Type {
	case bson.TypeNull, bson.TypeUndefined:
		return f.null()
	case bson.TypeArray, bson.TypeRegex, bson.TypeMinKey, bson.TypeMaxKey:
		return nil
	}
	if f.Hashed {
		return nil
	}
	enc := f.encode(v)
	r := shardkey.Range{Min: []byte{enc[0]}, Max: []byte{enc[0] + 1}}
	switch op {
	case document.Gt:
		r.Min = shardkey.PrefixEnd(enc)
	case document.Gte:
		r.Min = enc
	case document.Lt:
		r.Max = enc
	case document.Lte:
		r.Max = shardkey.PrefixEnd(enc)
	}
	if r.Empty() {
		return spans{}
	}
	return spans{{Range: r, value: op == document.Gte}}
}

func (f field) encode(v bson.RawValue) []byte {
	if f.Hashed {
		return shardkey.AppendHashed(nil, v)
	}
	return shardkey.AppendValue(nil, v, false)
}
