package rpc

import (
	"bytes"
	"fmt"
	"math"
	"strconv"

	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// A message is one BSON document. Every request and reply has two methods, without
// reflection and without a copy of the documents inside:
//
//	Append(dst) appends the document; fields with their zero value are left out
//	Parse(doc)  is the inverse; byte slices of the result are parts of doc
//
// Parse refuses a field that it does not know: a newer peer must not send one that changes
// the meaning of a request (and leaves new ones out while they are zero), and a misspelled
// one is never ignored. Unsigned numbers travel as int64 with the same 64 bits.

// encoder appends fields. The zero-value rule is in each method.
type encoder struct{ b []byte }

// mark is where an open document or array begins.
type mark int32

func (e *encoder) start() mark {
	i, b := bsoncore.ReserveLength(e.b)
	e.b = b
	return mark(i)
}

func (e *encoder) sub(t bsoncore.Type, name string) mark {
	e.b = bsoncore.AppendHeader(e.b, t, name)
	return e.start()
}

func (e *encoder) doc(name string) mark   { return e.sub(bsoncore.TypeEmbeddedDocument, name) }
func (e *encoder) array(name string) mark { return e.sub(bsoncore.TypeArray, name) }

func (e *encoder) end(at mark) {
	e.b = append(e.b, 0)
	e.b = bsoncore.UpdateLength(e.b, int32(at), int32(len(e.b))-int32(at))
}

func (e *encoder) int(name string, v int64) {
	if v != 0 {
		e.b = bsoncore.AppendInt64Element(e.b, name, v)
	}
}

func (e *encoder) float(name string, v float64) {
	if v != 0 {
		e.b = bsoncore.AppendDoubleElement(e.b, name, v)
	}
}

func (e *encoder) bool(name string, v bool) {
	if v {
		e.b = bsoncore.AppendBooleanElement(e.b, name, true)
	}
}

func (e *encoder) str(name, v string) {
	if v != "" {
		e.b = bsoncore.AppendStringElement(e.b, name, v)
	}
}

func (e *encoder) bin(name string, v []byte) {
	if len(v) > 0 {
		e.b = bsoncore.AppendBinaryElement(e.b, name, 0, v)
	}
}

func (e *encoder) raw(name string, v bson.Raw) {
	if v != nil {
		e.b = bsoncore.AppendDocumentElement(e.b, name, v)
	}
}

func (e *encoder) raws(name string, vs []bson.Raw) {
	if len(vs) == 0 {
		return
	}
	at := e.array(name)
	for i, v := range vs {
		e.index(bsoncore.TypeEmbeddedDocument, i)
		e.b = append(e.b, v...)
	}
	e.end(at)
}

// index begins an element of an array, whose name is its number.
func (e *encoder) index(t bsoncore.Type, i int) {
	e.b = append(strconv.AppendInt(append(e.b, byte(t)), int64(i), 10), 0)
}

// item opens the i-th document of an array.
func (e *encoder) item(i int) mark {
	e.index(bsoncore.TypeEmbeddedDocument, i)
	return e.start()
}

func (e *encoder) value(name string, v bson.RawValue) {
	if v.Type != 0 {
		e.b = bsoncore.AppendHeader(e.b, bsoncore.Type(v.Type), name)
		e.b = append(e.b, v.Value...)
	}
}

// reader goes through the elements of a document or array: after next, name and v are the
// present one. The getters check its type. The first thing that is wrong ends the loop and
// stays in err:
//
//	for f.next() {
//		switch string(f.name) {
//		case "to":
//			r.To = f.str()
//		default:
//			f.unknown()
//		}
//	}
//	return f.err
//
// Every length is checked against what is there before it is used, and nothing recurses
// but the nesting of the message types themselves.
type reader struct {
	rest []byte
	name []byte
	v    bsoncore.Value
	err  error
}

func read(doc []byte) (f reader) {
	n, rest, ok := bsoncore.ReadLength(doc)
	if !ok || int(n) != len(doc) || n < 5 || doc[n-1] != 0 {
		f.fail("a document of %d bytes says it has %d", len(doc), n)
		return f
	}
	f.rest = rest[:len(rest)-1]
	return f
}

func (f *reader) next() bool {
	if f.err != nil || len(f.rest) == 0 {
		return false
	}
	end := bytes.IndexByte(f.rest[1:], 0)
	if end < 0 {
		f.fail("a field name without an end")
		return false
	}
	var ok bool
	f.name = f.rest[1 : 1+end]
	f.v, f.rest, ok = bsoncore.ReadValue(f.rest[end+2:], bsoncore.Type(f.rest[0]))
	f.want(ok, "whole")
	return f.err == nil
}

func (f *reader) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("message: %s: %w", fmt.Sprintf(format, args...), errkind.Invalid)
	}
}

func (f *reader) unknown() {
	f.fail("field %.40q is not known here: the peer is newer, or no peer", f.name)
}

func (f *reader) want(ok bool, what string) {
	if !ok {
		f.fail("field %.40q is not %s", f.name, what)
	}
}

func (f *reader) int() int64 {
	v, ok := f.v.Int64OK()
	f.want(ok, "an int64")
	return v
}

// small is an int64 that fits into an enumeration or a smaller type.
func (f *reader) small(max int64) int64 {
	v := f.int()
	if v < 0 || v > max {
		f.fail("field %.40q is not between 0 and %d", f.name, max)
	}
	return v
}

func (f *reader) int32() int32 {
	v := f.int()
	f.want(v >= math.MinInt32 && v <= math.MaxInt32, "an int32")
	return int32(v)
}

// float is a finite number that is not negative.
func (f *reader) float() float64 {
	v, ok := f.v.DoubleOK()
	f.want(ok && v >= 0 && v <= math.MaxFloat64, "a rate")
	return v
}

func (f *reader) bool() bool {
	v, ok := f.v.BooleanOK()
	f.want(ok, "a boolean")
	return v
}

func (f *reader) str() string {
	v, ok := f.v.StringValueOK()
	f.want(ok, "a string")
	return v
}

func (f *reader) bin() []byte {
	sub, v, ok := f.v.BinaryOK()
	f.want(ok && sub == 0, "binary data")
	return v
}

func (f *reader) raw() bson.Raw {
	v, ok := f.v.DocumentOK()
	f.want(ok && len(v) >= 5, "a document")
	return bson.Raw(v)
}

func (f *reader) value() bson.RawValue {
	return bson.RawValue{Type: bson.Type(f.v.Type), Value: f.v.Data}
}

// doc reads inside the present field, which must be a document; elements inside one that
// must be an array. The caller gives the inner reader's error to took.
func (f *reader) doc() reader {
	d := f.raw()
	if f.err != nil {
		return reader{err: f.err}
	}
	return read(d)
}

func (f *reader) elements() reader {
	a, ok := f.v.ArrayOK()
	if f.want(ok, "an array"); f.err != nil {
		return reader{err: f.err}
	}
	return read(a)
}

// took ends the reading inside a field.
func (f *reader) took(err error) {
	if f.err == nil {
		f.err = err
	}
}

// itemsMax bounds the operations of a request and the results of a reply: what is allocated
// for one is much larger than its smallest form on the wire.
const itemsMax = 100_000

// count is how many elements follow, at most max, for one allocation of the right size. A
// name without an end, or a value that is cut, ends the counting: next will say so.
func (f *reader) count(max int) (n int) {
	ahead := *f
	for ahead.next() {
		n++
	}
	if n > max {
		f.fail("%d elements, at most %d are allowed", n, max)
		return 0
	}
	return n
}

func (f *reader) raws() []bson.Raw {
	els := f.elements()
	out := make([]bson.Raw, 0, els.count(math.MaxInt32))
	for els.next() {
		out = append(out, els.raw())
	}
	f.took(els.err)
	return out
}
