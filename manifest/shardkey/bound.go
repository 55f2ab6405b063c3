package shardkey

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Bound reads a cut point as users write it: the fields of p in order, of which the last
// ones may be missing. They are completed with MinKey; with MaxKey when all the given ones
// are MaxKey, since {a: MaxKey} means the end. A hashed field takes the hash, as a
// NumberLong, and not the value.
//
// The open ends, all MinKey and all MaxKey, have no key: it is nil for both, and full tells
// which (see Range for a pair of bounds). Invalid names the field and what it takes.
func (p Pattern) Bound(doc bson.Raw) (key []byte, full bson.Raw, err error) {
	values, err := p.boundValues(doc)
	if err != nil {
		return nil, nil, fmt.Errorf("bound of %v: %w: %w", p, err, errkind.Invalid)
	}
	full = p.document(values)
	if all(values, bson.TypeMinKey) || all(values, bson.TypeMaxKey) {
		return nil, full, nil
	}
	for i, v := range values {
		if p.Fields[i].Hashed && v.Type == bson.TypeInt64 {
			key = appendHash(key, v.Int64())
		} else {
			key = AppendValue(key, v, p.Fields[i].Descending)
		}
	}
	return key, full, nil
}

func (p Pattern) boundValues(doc bson.Raw) ([]bson.RawValue, error) {
	rest := body(doc)
	values := make([]bson.RawValue, 0, len(p.Fields))
	for {
		e, ok := next(&rest)
		if !ok {
			break
		}
		i := len(values)
		switch {
		case i == len(p.Fields):
			return nil, fmt.Errorf("field %q is not in the key", e.name)
		case string(e.name) != p.Fields[i].Path:
			return nil, fmt.Errorf("has field %q where the key has %q: name the key's fields in their order",
				e.name, p.Fields[i].Path)
		case e.kind == bson.TypeArray:
			return nil, fmt.Errorf("field %q is an array, which no key can hold", e.name)
		case p.Fields[i].Hashed && !isHashBound(e.kind):
			return nil, fmt.Errorf("field %q is hashed: give its hash as a NumberLong (see convertShardKeyToHashed), MinKey or MaxKey",
				e.name)
		}
		values = append(values, bson.RawValue{Type: e.kind, Value: e.value})
	}
	switch {
	case len(rest) != 0:
		return nil, fmt.Errorf("is malformed")
	case len(values) == 0:
		return nil, fmt.Errorf("is empty: give at least the first field")
	}
	missing := bson.TypeMinKey
	if all(values, bson.TypeMaxKey) {
		missing = bson.TypeMaxKey
	}
	return p.fill(values, missing), nil
}

func isHashBound(kind bson.Type) bool {
	return kind == bson.TypeInt64 || kind == bson.TypeMinKey || kind == bson.TypeMaxKey
}

func all(values []bson.RawValue, kind bson.Type) bool {
	return !slices.ContainsFunc(values, func(v bson.RawValue) bool { return v.Type != kind })
}

// document is the fields of p with these values; a missing one is null.
func (p Pattern) document(values []bson.RawValue) bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	for i, v := range values {
		if v.Type == 0 {
			v = bson.RawValue{Type: bson.TypeNull}
		}
		doc = bsoncore.AppendHeader(doc, bsoncore.Type(v.Type), p.Fields[i].Path)
		doc = append(doc, v.Value...)
	}
	return endDocument(doc, start)
}

// Range reads a pair of bounds, and refuses one in which no key can lie: Invalid.
func (p Pattern) Range(min, max bson.Raw) (r Range, fullMin, fullMax bson.Raw, err error) {
	if r.Min, fullMin, err = p.Bound(min); err != nil {
		return Range{}, nil, nil, err
	}
	if r.Max, fullMax, err = p.Bound(max); err != nil {
		return Range{}, nil, nil, err
	}
	if bytes.Equal(fullMin, p.MaxBSON()) || bytes.Equal(fullMax, p.MinBSON()) || r.Empty() {
		return Range{}, nil, nil, fmt.Errorf("range of %v: min %v is not below max %v: %w", p, fullMin, fullMax, errkind.Invalid)
	}
	return r, fullMin, fullMax, nil
}

// BoundOf is the cut point right below the rows with the shard key of doc, where a chunk
// can be split. Errors as AppendKey; Invalid also for a document with MinKey or with MaxKey
// in every field, since its bound would read like the open end.
func (p Pattern) BoundOf(doc bson.Raw) (key []byte, full bson.Raw, err error) {
	if key, err = p.AppendShardKey(nil, doc); err != nil {
		return nil, nil, err
	}
	values := p.Values(doc)
	for i, f := range p.Fields {
		if f.Hashed {
			values[i] = int64Value(Hash(values[i]))
		}
	}
	if all(values, bson.TypeMinKey) || all(values, bson.TypeMaxKey) {
		return nil, nil, fmt.Errorf("bound at %v of %v: is the end of the key space: %w", p.document(values), p, errkind.Invalid)
	}
	return key, p.document(values), nil
}

func int64Value(i int64) bson.RawValue {
	return bson.RawValue{Type: bson.TypeInt64, Value: bsoncore.AppendInt64(nil, i)}
}

// MinBSON is the lower end of the key space as users see it: MinKey in every field.
func (p Pattern) MinBSON() bson.Raw { return p.document(p.fill(nil, bson.TypeMinKey)) }

// MaxBSON is the upper end of the key space as users see it: MaxKey in every field.
func (p Pattern) MaxBSON() bson.Raw { return p.document(p.fill(nil, bson.TypeMaxKey)) }

// fill appends MinKey or MaxKey for each field that has no value yet.
func (p Pattern) fill(values []bson.RawValue, kind bson.Type) []bson.RawValue {
	for len(values) < len(p.Fields) {
		values = append(values, bson.RawValue{Type: kind})
	}
	return values
}

// HashedInitialPoints are the n-1 cut points that make n even parts of the hash space, at
// the very hashes at which MongoDB cuts: a new hashed collection has its chunks at once.
// prefix holds the values of the fields before the hashed one, when there are any; the
// points then cut the hash space within these. None when p has no hashed field, or prefix
// another number of values.
func HashedInitialPoints(p Pattern, n int, prefix ...bson.RawValue) []Bound {
	at := slices.IndexFunc(p.Fields, func(f Field) bool { return f.Hashed })
	if at < 0 || at != len(prefix) || n < 2 {
		return nil
	}
	points := make([]Bound, 0, n-1)
	for _, hash := range evenHashes(n) {
		key, full, err := p.Bound(p.document(p.fill(append(slices.Clone(prefix), int64Value(hash)), bson.TypeMinKey)))
		if err != nil {
			return nil // an array in prefix
		}
		points = append(points, Bound{Key: key, BSON: full})
	}
	return points
}

// evenHashes are the n-1 hashes between n even parts, ascending, symmetric around 0.
func evenHashes(n int) []int64 {
	step := math.MaxInt64 / int64(n) * 2
	first := step / 2
	var hashes []int64
	if n%2 == 0 {
		hashes, first = append(hashes, 0), step
	}
	for i := range int64(n-1) / 2 {
		hashes = append(hashes, first+i*step, -first-i*step)
	}
	slices.Sort(hashes)
	return hashes
}
