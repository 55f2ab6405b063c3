package shardkey

import (
	"fmt"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// AppendKey appends the row key of doc: its fields, then its _id unless HasID. A missing
// field counts as null. Invalid when a field, or the way to it, is an array.
func (p Pattern) AppendKey(dst []byte, doc bson.Raw) ([]byte, error) {
	dst, err := p.AppendShardKey(dst, doc)
	if err != nil || p.HasID() {
		return dst, err
	}
	return Field{Path: "_id"}.append(dst, doc)
}

// AppendShardKey appends the shard key of doc: its fields only. Errors as AppendKey.
func (p Pattern) AppendShardKey(dst []byte, doc bson.Raw) ([]byte, error) {
	var err error
	for _, f := range p.Fields {
		if dst, err = f.append(dst, doc); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

func (f Field) append(dst []byte, doc []byte) ([]byte, error) {
	v, err := f.value(doc)
	switch {
	case err != nil:
		return dst, err
	case f.Hashed:
		return AppendHashed(dst, v), nil
	}
	return AppendValue(dst, v, f.Descending), nil
}

// value is what doc holds at f; the zero RawValue when it is missing.
func (f Field) value(doc []byte) (bson.RawValue, error) {
	v, found := lookup(doc, f.Path)
	switch found {
	case foundArray:
		return v, fmt.Errorf("key field %q: a key cannot contain array values or array descendants: %w",
			f.Path, errkind.Invalid)
	case foundGarbage:
		return v, fmt.Errorf("key field %q: the document is malformed: %w", f.Path, errkind.Invalid)
	}
	return v, nil
}

// Values is what doc holds in each field, unhashed; the zero RawValue where it is missing,
// or lies behind an array.
func (p Pattern) Values(doc bson.Raw) []bson.RawValue {
	values := make([]bson.RawValue, len(p.Fields))
	for i, f := range p.Fields {
		if v, found := lookup(doc, f.Path); found == foundValue {
			values[i] = v
		}
	}
	return values
}

// Missing are the paths of the fields that doc does not have: their place in its key is that
// of null.
func (p Pattern) Missing(doc bson.Raw) []string {
	var paths []string
	for i, v := range p.Values(doc) {
		if v.Type == 0 {
			paths = append(paths, p.Fields[i].Path)
		}
	}
	return paths
}

// Prefix is the shard-key part of a row key of this pattern, as a part of the same bytes.
// Corrupt when rowKey is not exactly the fields and the _id.
func (p Pattern) Prefix(rowKey []byte) ([]byte, error) {
	rest := rowKey
	var err error
	for _, f := range p.Fields {
		if rest, err = f.skip(rest); err != nil {
			return nil, fmt.Errorf("key %x of %v: field %q: %w", rowKey, p, f.Path, err)
		}
	}
	prefix := rowKey[: len(rowKey)-len(rest) : len(rowKey)-len(rest)]
	if !p.HasID() {
		if rest, err = SkipValue(rest); err != nil {
			return nil, fmt.Errorf("key %x of %v: _id: %w", rowKey, p, err)
		}
	}
	if len(rest) != 0 {
		return nil, fmt.Errorf("key %x of %v: %d bytes too many: %w", rowKey, p, len(rest), errkind.Corrupt)
	}
	return prefix, nil
}

// skip takes the bytes of this field off key.
func (f Field) skip(key []byte) ([]byte, error) {
	switch {
	case f.Hashed && len(key) > 0 && key[0] == classNumber:
		if len(key) < 9 {
			return nil, fmt.Errorf("hash cut short: %w", errkind.Corrupt)
		}
		return key[9:], nil
	case len(key) > 0 && (direction(key[0]) != 0) != f.Descending:
		return nil, fmt.Errorf("runs the wrong way: %w", errkind.Corrupt)
	}
	return SkipValue(key)
}
