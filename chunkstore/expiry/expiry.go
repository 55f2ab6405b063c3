// Package expiry says when documents expire: what a collection's TTL indexes mean.
//
// # The rule
//
// An index with expireAfterSeconds names one field. A document whose field is a date, or an
// array with dates in it, of which the earliest counts, expires that many seconds after the
// date; any other document never does. With a partialFilterExpression only the documents
// that it matches expire. Of several such indexes the first to say so counts.
//
// # What expired means
//
// From the millisecond at which it expires, no operation sees the document: not one that
// reads, changes or deletes, and not one that inserts, which takes its place. So it does not
// matter when the bytes go. A row that is expired is to everybody what a deletion is: it
// hides older versions of its key, and is left out.
//
// # Whose clock
//
// Each look at a chunk is judged by one clock at one moment: the wall clock of the shard's
// owner when it takes the view (a reader of a free shard or of a snapshot: its own), which
// a cursor keeps to for all its batches. An owner never goes back behind a moment by which it
// has judged. Between two processes the moment differs by as much as their clocks do: a
// document that one owner called expired can be seen again for so long after a takeover by
// one whose clock is behind, unless it was removed. Rows are removed for good only Grace after
// they expired, so that a clock that is ahead by less takes nothing early.
//
// The rule is that of the moment, too: when an index is dropped or expireAfterSeconds is
// raised, documents that are not removed yet return, as in MongoDB.
//
// The package may change with any release.
package expiry

import (
	"math"
	"time"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Grace is how long after their expiry rows stay in the bucket at least.
const Grace = time.Minute

// Field is the field of an index specification that makes it a TTL index.
const Field = "expireAfterSeconds"

// Rule is when the documents of a collection expire. The nil Rule: never. Immutable.
type Rule struct{ indexes []index }

type index struct {
	path  string
	after int64            // ms
	only  *document.Filter // nil: all documents
}

// Of is the rule of a collection; nil when nothing expires. An index that no longer makes
// sense, which createIndexes refuses, expires nothing.
func Of(c *manifest.Collection) *Rule {
	var r *Rule
	for i := range c.Indexes {
		x, ok := indexOf(c.Indexes[i].Spec)
		if !ok {
			continue
		}
		if r == nil {
			r = &Rule{}
		}
		r.indexes = append(r.indexes, x)
	}
	return r
}

func indexOf(spec bson.Raw) (x index, ok bool) {
	seconds, ok := document.Lookup(spec, Field)
	if !ok {
		return x, false
	}
	key, isDoc := spec.Lookup("key").DocumentOK()
	fields, err := key.Elements()
	if !isDoc || err != nil || len(fields) != 1 || !seconds.IsNumber() {
		return x, false
	}
	x.path, x.after = fields[0].Key(), seconds.AsInt64()*1000
	if only, has := spec.Lookup("partialFilterExpression").DocumentOK(); has {
		if x.only, err = document.ParseFilter(only); err != nil {
			return x, false
		}
	}
	return x, x.after >= 0
}

// Never is later than any expiry.
const Never = math.MaxInt64

// At is when a document expires, in Unix milliseconds; Never.
func (r *Rule) At(doc bson.Raw) int64 {
	at := int64(Never)
	if r == nil {
		return at
	}
	for i := range r.indexes {
		at = min(at, r.indexes[i].at(doc))
	}
	return at
}

// Expired reports whether a document is expired at a moment, in Unix milliseconds.
func (r *Rule) Expired(doc bson.Raw, now int64) bool { return r != nil && r.At(doc) <= now }

// By judges documents at one moment; nil when nothing expires.
func (r *Rule) By(now int64) func(doc bson.Raw) bool {
	if r == nil {
		return nil
	}
	return func(doc bson.Raw) bool { return r.At(doc) <= now }
}

func (x *index) at(doc bson.Raw) int64 {
	date, ok := earliest(doc, x.path)
	if !ok || date > Never-x.after {
		return Never
	}
	if x.only != nil {
		if in, err := x.only.MatchErr(doc); !in || err != nil {
			return Never
		}
	}
	return date + x.after
}

// earliest is the first of the dates at a path, in Unix milliseconds.
func earliest(doc bson.Raw, path string) (date int64, ok bool) {
	v, found := document.Lookup(doc, path)
	switch {
	case !found:
		return 0, false
	case v.Type == bson.TypeDateTime:
		return v.DateTime(), true
	case v.Type != bson.TypeArray:
		return 0, false
	}
	values, err := bson.RawArray(v.Value).Values()
	if err != nil {
		return 0, false
	}
	for _, e := range values {
		if e.Type == bson.TypeDateTime && (!ok || e.DateTime() < date) {
			date, ok = e.DateTime(), true
		}
	}
	return date, ok
}
