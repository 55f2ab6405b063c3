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
// # How rows go
//
// A reference in the root bounds the dates of its rows (manifest.DateBounds). Where all of
// them have expired, the reference leaves by a change of the root alone, unless an older one
// may have versions of its rows (manifest.Expire). What shares a segment with longer lived
// rows goes when a compaction writes the segment anew: it treats a row for which Expired is
// true, Grace ago, as it treats a deletion, and so keeps it while there may be older versions.
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
	"hash/fnv"
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
	id    uint64 // of path and only: manifest.DateBounds.Of
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
	id := fnv.New64a()
	_, _ = id.Write(key)
	if only, has := spec.Lookup("partialFilterExpression").DocumentOK(); has {
		if x.only, err = document.ParseFilter(only); err != nil {
			return x, false
		}
		_, _ = id.Write(only)
	}
	x.id = id.Sum64()
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

// By judges at one moment, in Unix milliseconds; nil when nothing expires.
func (r *Rule) By(now int64) *Moment {
	if r == nil {
		return nil
	}
	return &Moment{rule: r, now: now}
}

// Moment judges documents at one moment. For the nil Moment nothing is expired. Immutable.
type Moment struct {
	rule *Rule
	now  int64
}

// Expired reports whether a document is expired.
func (m *Moment) Expired(doc bson.Raw) bool { return m != nil && m.rule.At(doc) <= m.now }

// Some reports whether a row of a reference may be expired, as far as its dates tell.
func (m *Moment) Some(ref *manifest.SegmentRef) bool {
	if m == nil {
		return false
	}
	x := m.rule.only(ref)
	return x == nil || x.after <= Never-max(ref.Dates.Min, 0) && ref.Dates.Min+x.after <= m.now
}

// All reports whether every row of a reference surely is expired.
func (m *Moment) All(ref *manifest.SegmentRef) bool {
	if m == nil {
		return false
	}
	x := m.rule.only(ref)
	return x != nil && x.after <= Never-max(ref.Dates.Max, 0) && ref.Dates.Max+x.after <= m.now
}

// only is the one index of the rule, when the dates of the reference are of it; else nil.
func (r *Rule) only(ref *manifest.SegmentRef) *index {
	if len(r.indexes) == 1 && r.indexes[0].id == ref.Dates.Of {
		return &r.indexes[0]
	}
	return nil
}

// Dates collects the dates of rows for the reference that will show them. Its zero value has
// seen none.
type Dates struct{ bounds manifest.DateBounds }

// Add takes in a row; doc nil: a deletion.
func (d *Dates) Add(r *Rule, doc bson.Raw) {
	if r == nil || len(r.indexes) != 1 {
		return
	}
	date := int64(Never)
	if doc != nil {
		date = r.indexes[0].date(doc)
	}
	one := manifest.DateBounds{Of: r.indexes[0].id, Min: date, Max: date}
	if d.bounds.Of == 0 {
		d.bounds = one
	} else {
		d.bounds = d.bounds.Join(one)
	}
}

// Bounds are the dates of the rows; zero when the collection has no TTL index, or several.
func (d *Dates) Bounds() manifest.DateBounds { return d.bounds }

func (x *index) at(doc bson.Raw) int64 {
	date := x.date(doc)
	if date > Never-x.after {
		return Never
	}
	return date + x.after
}

// date is the date that counts; Never when the document does not expire by this index.
func (x *index) date(doc bson.Raw) int64 {
	date, ok := earliest(doc, x.path)
	if !ok {
		return Never
	}
	if x.only != nil {
		if in, err := x.only.MatchErr(doc); !in || err != nil {
			return Never
		}
	}
	return date
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
