package plan

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Bounds of a shape: what is beyond is an ellipsis.
const (
	shapeBytesMax = 200
	shapeDepthMax = 6
)

// Shape is a filter and a sort without their values: what queries of one kind have in common.
//
//	{ total: { $gt: ? }, $or: [{ a: ? }, { b: ? }] } sort { total: -1 }
//
// A list of values is [?], however many there are. The text is bounded, and so is the work.
func Shape(filter, sort bson.Raw) string {
	var w shape
	w.doc(filter, 0)
	if len(sort) > len(emptyDoc) {
		w.WriteString(" sort ")
		w.keys(sort)
	}
	return strings.ToValidUTF8(w.String(), "?")
}

var emptyDoc = bson.Raw{5, 0, 0, 0, 0}

type shape struct{ strings.Builder }

// full reports, and says, that nothing more fits.
func (w *shape) full(depth int) bool {
	if w.Len() < shapeBytesMax && depth < shapeDepthMax {
		return false
	}
	if !strings.HasSuffix(w.String(), "...") {
		w.WriteString("...")
	}
	return true
}

// fields calls f for every field of a document, with what separates them between.
func (w *shape) fields(d bson.Raw, depth int, open, end string, f func(name string, v bson.RawValue)) {
	if len(d) <= len(emptyDoc) {
		w.WriteString(open + end)
		return
	}
	pad := ""
	if open == "{" {
		pad = " "
	}
	w.WriteString(open + pad)
	first := true
	for rest := []byte(d[4:]); ; first = false {
		e, next, ok := bsoncore.ReadElement(rest)
		if !ok {
			break
		}
		if !first {
			w.WriteString(", ")
		}
		if w.full(depth) {
			break
		}
		v := e.Value()
		f(string(e.KeyBytes()), bson.RawValue{Type: bson.Type(v.Type), Value: v.Data})
		rest = next
	}
	w.WriteString(pad + end)
}

// doc is a filter, or a document of operators.
func (w *shape) doc(d bson.Raw, depth int) {
	w.fields(d, depth, "{", "}", func(name string, v bson.RawValue) {
		w.WriteString(name + ": ")
		w.value(v, depth+1)
	})
}

// value is a condition: operators are shown, and what they compare with is not.
func (w *shape) value(v bson.RawValue, depth int) {
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		if e, _, ok := bsoncore.ReadElement(v.Value[4:]); ok && len(e.KeyBytes()) > 0 && e.KeyBytes()[0] == '$' {
			w.doc(v.Value, depth)
			return
		}
	case bson.TypeArray:
		if e, _, ok := bsoncore.ReadElement(v.Value[4:]); ok && e.Value().Type == bsoncore.TypeEmbeddedDocument {
			w.fields(v.Value, depth, "[", "]", func(_ string, x bson.RawValue) {
				if d, isDoc := x.DocumentOK(); isDoc {
					w.doc(d, depth+1)
					return
				}
				w.WriteString("?")
			})
			return
		}
		w.WriteString("[?]")
		return
	}
	w.WriteString("?")
}

// keys is a sort.
func (w *shape) keys(sort bson.Raw) {
	w.fields(sort, 0, "{", "}", func(name string, v bson.RawValue) {
		direction := "1"
		if n, ok := v.AsFloat64OK(); ok && n < 0 {
			direction = "-1"
		}
		w.WriteString(name + ": " + direction)
	})
}
