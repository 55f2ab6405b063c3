package shardkey

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// MaxFields is how many fields a pattern may have: MongoDB's limit for an index.
const MaxFields = 32

// ParsePattern reads the key of a shardCollection: fields with the value 1 or "hashed", at
// most one of them hashed. Anything else is Invalid, in MongoDB's words.
func ParsePattern(spec bson.Raw) (Pattern, error) {
	p, err := parse(spec, func(f *Field, v bson.RawValue) error {
		if class(v.Type) == classNumber && compareWith(v, 1) == 0 {
			return nil
		}
		return parseHashed(f, v)
	})
	if err != nil {
		return Pattern{}, fmt.Errorf("shard key %w: %w", err, errkind.Invalid)
	}
	return p, nil
}

// ParseIndexPattern reads the key of a createIndexes: any number but 0, whose sign is the
// direction, or "hashed", at most once. The other kinds of index are Invalid.
func ParseIndexPattern(spec bson.Raw) (Pattern, error) {
	p, err := parse(spec, func(f *Field, v bson.RawValue) error {
		if class(v.Type) != classNumber {
			return parseHashed(f, v)
		}
		if compareWith(v, 0) == 0 || compareWith(v, math.NaN()) == 0 {
			return fmt.Errorf("field %q: values in the index key pattern cannot be 0; use 1 or -1", f.Path)
		}
		f.Descending = compareWith(v, 0) < 0
		return nil
	})
	if err != nil {
		return Pattern{}, fmt.Errorf("index key %w: %w", err, errkind.Invalid)
	}
	return p, nil
}

func parse(spec bson.Raw, direction func(*Field, bson.RawValue) error) (Pattern, error) {
	rest := body(spec)
	var p Pattern
	hashed := 0
	for {
		e, ok := next(&rest)
		if !ok {
			break
		}
		f := Field{Path: string(e.name)}
		if err := checkPath(f.Path); err != nil {
			return p, err
		}
		if err := direction(&f, bson.RawValue{Type: e.kind, Value: e.value}); err != nil {
			return p, err
		}
		if f.Hashed {
			hashed++
		}
		if p.Has(f.Path) {
			return p, fmt.Errorf("field %q is named twice", f.Path)
		}
		p.Fields = append(p.Fields, f)
	}
	switch {
	case len(rest) != 0:
		return p, fmt.Errorf("is not a document")
	case len(p.Fields) == 0:
		return p, fmt.Errorf("is empty: name at least one field, as in {_id: 1}")
	case len(p.Fields) > MaxFields:
		return p, fmt.Errorf("has %d fields, the most is %d", len(p.Fields), MaxFields)
	case hashed > 1:
		return p, fmt.Errorf("%v can contain at most one 'hashed' field", p)
	}
	return p, nil
}

// compareWith orders a number of any type and f, by their keys.
func compareWith(v bson.RawValue, f float64) int {
	return bytes.Compare(AppendValue(nil, v, false), appendDouble([]byte{classNumber}, f, exact))
}

func parseHashed(f *Field, v bson.RawValue) error {
	if v.Type == bson.TypeString && string(text(v.Value)) == "hashed" {
		f.Hashed = true
		return nil
	}
	return fmt.Errorf("can contain at most one 'hashed' field, and/or multiple numerical fields set to a value of 1; "+
		"failed to parse field %q: %v", f.Path, v)
}

// checkPath refuses the paths that MongoDB refuses: empty parts and operators ($id, $db and
// $ref inside are parts of a DBRef).
func checkPath(path string) error {
	if path == "" {
		return fmt.Errorf("has a field without a name")
	}
	if strings.IndexByte(path, 0) >= 0 {
		return fmt.Errorf("field %q contains a NUL", path)
	}
	for i, part := range strings.Split(path, ".") {
		switch {
		case part == "":
			return fmt.Errorf("field %q contains empty parts", path)
		case part[0] != '$':
		case i > 0 && (part == "$id" || part == "$db" || part == "$ref"):
		default:
			return fmt.Errorf("field %q contains parts that start with '$'", path)
		}
	}
	return nil
}

// BSON is p as a document: 1, -1 or "hashed" by path. ParseIndexPattern reads it back.
func (p Pattern) BSON() bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	for _, f := range p.Fields {
		switch {
		case f.Hashed:
			doc = bsoncore.AppendStringElement(doc, f.Path, "hashed")
		case f.Descending:
			doc = bsoncore.AppendInt32Element(doc, f.Path, -1)
		default:
			doc = bsoncore.AppendInt32Element(doc, f.Path, 1)
		}
	}
	return endDocument(doc, start)
}

// String is p as MongoDB's messages show it: { a: 1, b: "hashed" }.
func (p Pattern) String() string {
	var s strings.Builder
	for i, f := range p.Fields {
		direction := "1"
		if f.Hashed {
			direction = `"hashed"`
		} else if f.Descending {
			direction = "-1"
		}
		fmt.Fprintf(&s, "%s %s: %s", map[bool]string{true: "{", false: ","}[i == 0], f.Path, direction)
	}
	if s.Len() == 0 {
		return "{}"
	}
	return s.String() + " }"
}

// Equal tells whether both have the same fields in the same order and kind.
func (p Pattern) Equal(o Pattern) bool { return slices.Equal(p.Fields, o.Fields) }

// PrefixOf tells whether o has the same fields first, and perhaps more behind them.
func (p Pattern) PrefixOf(o Pattern) bool {
	return len(p.Fields) <= len(o.Fields) && slices.Equal(p.Fields, o.Fields[:len(p.Fields)])
}

// Has tells whether path is one of the fields, in any kind.
func (p Pattern) Has(path string) bool {
	return slices.ContainsFunc(p.Fields, func(f Field) bool { return f.Path == path })
}

// HasID tells whether the _id itself is one of the fields, so that the shard key alone is
// the row key. A hashed _id does not count: two ids may share a hash.
func (p Pattern) HasID() bool {
	return slices.ContainsFunc(p.Fields, func(f Field) bool { return f.Path == "_id" && !f.Hashed })
}

// RowPattern is the pattern of row keys: p, followed by _id unless HasID. Its bounds can
// cut between two rows of one shard-key value.
func (p Pattern) RowPattern() Pattern {
	if p.HasID() {
		return p
	}
	return Pattern{Fields: append(slices.Clone(p.Fields), Field{Path: "_id"})}
}

// endDocument closes the document that begins at start.
func endDocument(doc []byte, start int32) []byte {
	doc, err := bsoncore.AppendDocumentEnd(doc, start)
	if err != nil {
		panic(err) // Invariant: start came from AppendDocumentStart on the same bytes.
	}
	return doc
}
