package query

import (
	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// distinct passes on each value of a field the first time that it comes up. Values that
// MongoDB takes for equal (1 and 1.0) have the same key bytes, and are one.
type distinct struct {
	field   string
	budget  int64 // bytes
	used    int64
	seen    map[string]struct{} // by key bytes
	values  []bson.RawValue     // of the present document
	pending []bson.RawValue     // of these, not looked at yet
	scratch []byte
	loan    *loan
}

// distinctBytes is about what an entry of the map takes beside its bytes.
const distinctBytes = 64

func newDistinct(field string, budget int64, l *loan) *distinct {
	return &distinct{field: field, budget: budget, seen: map[string]struct{}{}, loan: l}
}

// add takes the values of a document. Requires: none is pending.
func (d *distinct) add(doc bson.Raw) {
	d.values = document.AppendDistinct(d.values[:0], doc, d.field)
	d.pending = d.values
}

// next is the next new value of the document, as {v: value}; nil when there is none.
// Errors: mongoerr QueryExceededMemoryLimit, admission.Overloaded.
func (d *distinct) next(a *arena) (bson.Raw, error) {
	for len(d.pending) > 0 {
		v := d.pending[0]
		d.pending = d.pending[1:]
		d.scratch = shardkey.AppendValue(d.scratch[:0], v, false)
		if _, ok := d.seen[string(d.scratch)]; ok {
			continue
		}
		if d.used += int64(len(d.scratch)) + distinctBytes; d.used > d.budget {
			return nil, mongoerr.New(mongoerr.QueryExceededMemoryLimit,
				"the distinct values of %q exceed the memory limit of %d bytes", d.field, d.budget)
		}
		if err := d.loan.cover(d.used); err != nil {
			return nil, err
		}
		d.seen[string(d.scratch)] = struct{}{}
		dst := a.room(len(v.Value) + 16)
		out := append(dst, 0, 0, 0, 0, byte(v.Type), 'v', 0)
		out = endDocument(append(out, v.Value...), len(dst))
		return a.keep(len(dst), out), nil
	}
	return nil, nil
}
