// Package query executes one query over chunks: at their owner, and at whoever reads the
// chunks of a free shard straight from the bucket.
//
// # The flow
//
//	targets --> rows --> filter --> skip, limit --> shape --> batch
//	            |                \-> sort -->-/      |
//	            point reads and scans,               projection, envelope
//	            target by target, range by range
//
// A Target is a chunk and the ranges of it that are asked for. A range that is exactly one
// row key is read as a point: it opens no iterator, and a filter in the segment answers for
// most that do not have it. All other ranges are scans of package reader.
//
// Nothing is read before the first Next or Count, and a Cursor keeps nothing running
// between two calls: a caller that has had enough drops it.
//
// # Order
//
// Without Sort, rows come target by target, in the order given, and inside each in key
// order. With KeyOrder they come in key order over all targets, ascending or descending,
// whatever the order in which these were listed. With Sort they come by their sort key, and
// rows of equal sort keys as they were met.
//
// A sort holds what it sorts: under a limit the best skip+limit documents, else all. Past
// Limits.SortBytes it fails with QueryExceededMemoryLimit, as Distinct does with its values. When
// all sorts of the process together have taken Limits.Sorts, it is refused (admission.Overloaded).
// Distinct has no use for Sort, Skip and Limit, and Count none for Sort.
//
// # Documents
//
// A document is returned as it is stored: it aliases the decoded block, which is never
// changed, so that a Find without projection copies nothing. Only what is built, projections
// and the envelopes of Keys and WithSortKey, is put together in buffers of the batch.
//
//	plain          the document, or its projection
//	Keys           {k: Binary(row key), d: document}
//	WithSortKey    {d: document, s: Binary(sort key)}; with Keys {k, d, s}
//	Distinct       {v: value}
//
// The sort key is that of document.Sort.AppendKey: comparing its bytes merges the answers of
// several owners.
//
// # What goes wrong
//
// Every error ends the cursor: the same error is returned for ever, never a shorter answer.
//
// The package may change with any release.
package query

import (
	"context"
	"slices"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Target is a chunk, and the part of it that is asked for.
type Target struct {
	View reader.View
	// Ranges narrow the query inside the chunk, ascending, not overlapping; none: all.
	Ranges []shardkey.Range
	// Key is the collection's shard key. It tells which ranges are exactly one row; without
	// it they are scanned.
	Key shardkey.Pattern
}

// Limits bound what one query may hold in memory; zero fields mean the defaults.
type Limits struct {
	// SortBytes bounds what a sort or a distinct keeps; default 64 MiB.
	SortBytes int64
	// Sorts is the memory that all of them share; nil: each has its own bound only.
	Sorts *admission.Account
}

const sortBytesDefault = 64 << 20

// Cursor is a query under way. Not safe for concurrent use. It needs no closing.
type Cursor struct {
	mode   rpc.ReadMode
	rows   rows
	filter *document.Filter // nil: all
	shape  shape
	sort   *sorter   // nil: as they come
	unique *distinct // of Distinct
	skip   int64     // still to pass over
	limit  int64     // still to return; < 0: no limit
	held   bson.Raw  // did not fit into the last batch
	err    error
	cost   reader.Counter
	guess  guess
	loan   *loan // nil: nothing is sorted
}

// Open prepares a query; it reads nothing. Errors: *mongoerr.Error for a query that cannot
// be understood.
func Open(_ context.Context, store *reader.Store, targets []Target, q rpc.Query, limits Limits) (*Cursor, error) {
	if q.Skip < 0 || q.Limit < 0 {
		return nil, mongoerr.New(mongoerr.BadValue, "skip %d and limit %d must not be negative", q.Skip, q.Limit)
	}
	if limits.SortBytes <= 0 {
		limits.SortBytes = sortBytesDefault
	}
	c := &Cursor{mode: q.Mode, skip: q.Skip, limit: q.Limit}
	if c.limit == 0 {
		c.limit = -1
	}
	c.rows = rows{store: store, targets: targets, reverse: q.KeyOrder < 0, cost: &c.cost, want: c.wanted}
	if q.KeyOrder != 0 {
		c.rows.targets = inKeyOrder(targets, c.rows.reverse)
	}
	if err := c.parse(q, limits); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Cursor) parse(q rpc.Query, limits Limits) (err error) {
	if !empty(q.Filter) {
		if c.filter, err = document.ParseFilter(q.Filter); err != nil {
			return err
		}
	}
	switch q.Mode {
	case rpc.Count:
		return nil
	case rpc.Distinct:
		c.loan = newLoan(c, limits.Sorts)
		c.unique = newDistinct(q.Field, limits.SortBytes, c.loan)
		return nil
	}
	c.shape = shape{key: q.Mode == rpc.Keys, sortKey: q.WithSortKey}
	if !empty(q.Projection) {
		if c.shape.projection, err = document.ParseProjection(q.Projection); err != nil {
			return err
		}
	}
	if empty(q.Sort) {
		if q.WithSortKey {
			return mongoerr.New(mongoerr.BadValue, "a sort key was asked for without a sort")
		}
		return nil
	}
	by, err := document.ParseSort(q.Sort)
	if err != nil {
		return err
	}
	c.loan = newLoan(c, limits.Sorts)
	c.sort = newSorter(by, c.skip, c.limit, limits.SortBytes, c.loan)
	return nil
}

// empty reports whether a part of a query asks for nothing: absent, or {}.
func empty(doc bson.Raw) bool { return len(doc) <= 5 }

// inKeyOrder is the targets by the key ranges of their chunks.
func inKeyOrder(targets []Target, reverse bool) []Target {
	ordered := slices.Clone(targets)
	slices.SortStableFunc(ordered, func(a, b Target) int {
		if reverse {
			a, b = b, a
		}
		return shardkey.CompareMin(a.View.Chunk.Range.Min, b.View.Chunk.Range.Min)
	})
	return ordered
}

// Next returns the next documents of a Find, Keys or Distinct, at least one unless there is
// none. done says that none follow; without it the next batch may still be empty. The slice
// is the caller's; the documents must not be changed.
//
// Errors: those of reader.Store; the context's cause; *mongoerr.Error of the filter,
// projection or sort.
func (c *Cursor) Next(ctx context.Context, b rpc.Batch) (docs []bson.Raw, done bool, err error) {
	if c.err == nil && c.mode == rpc.Count {
		c.err = mongoerr.New(mongoerr.IllegalOperation, "a count has no documents")
	}
	if c.err != nil {
		return nil, true, c.err
	}
	out := newBatch(b)
	c.guess.batch = out
	defer c.rows.rest()
	ctx = reader.WithCounter(ctx, &c.cost)
	for !out.full() {
		doc := c.held
		if c.held = nil; doc == nil {
			doc, err = c.produce(ctx, out)
		}
		switch {
		case err != nil:
			c.err = err
			c.loan.release()
			return nil, true, err
		case doc == nil:
			c.loan.release()
			return out.docs, true, nil
		case !out.add(doc):
			c.held = doc
			return out.docs, false, nil
		}
	}
	if done = c.exhausted(); done {
		c.loan.release()
	}
	return out.docs, done, nil
}

// Stats is what the query cost so far.
func (c *Cursor) Stats() rpc.ReadStats {
	return rpc.ReadStats{DocsExamined: c.rows.examined, BucketRequests: c.cost.Requests(), BucketBytes: c.cost.Bytes()}
}

// produce is the next document; nil at the end.
func (c *Cursor) produce(ctx context.Context, out *batch) (bson.Raw, error) {
	switch {
	case c.unique != nil:
		return c.nextValue(ctx, out)
	case c.sort != nil:
		return c.nextSorted(ctx)
	}
	if c.limit == 0 {
		return nil, nil
	}
	for {
		ok, err := c.match(ctx)
		if !ok || err != nil {
			return nil, err
		}
		if c.skip > 0 {
			c.skip--
			continue
		}
		if c.limit > 0 {
			c.limit--
		}
		return c.shape.in(&out.arena, &c.rows.row)
	}
}

// nextSorted reads and sorts everything at the first call.
func (c *Cursor) nextSorted(ctx context.Context) (bson.Raw, error) {
	for !c.sort.ready {
		ok, err := c.match(ctx)
		if err == nil && ok {
			err = c.sort.add(&c.shape, &c.rows.row)
		}
		if err != nil {
			return nil, err
		}
		if !ok {
			c.sort.finish(c.skip)
		}
	}
	return c.sort.next(), nil
}

// match moves to the next row that the filter lets through.
func (c *Cursor) match(ctx context.Context) (bool, error) {
	for {
		ok, err := c.rows.next(ctx)
		if !ok || err != nil {
			return false, err
		}
		if matches, err := c.filter.MatchErr(c.rows.row.Doc); matches || err != nil {
			return matches, err
		}
	}
}

// exhausted reports whether it is known without another read that nothing follows.
func (c *Cursor) exhausted() bool {
	switch {
	case c.held != nil:
		return false
	case c.unique != nil:
		return len(c.unique.pending) == 0 && c.rows.exhausted()
	case c.sort != nil:
		return c.sort.exhausted()
	}
	return c.limit == 0 || c.rows.exhausted()
}

// nextValue is the next value that Distinct has not seen yet.
func (c *Cursor) nextValue(ctx context.Context, out *batch) (bson.Raw, error) {
	for {
		if v, err := c.unique.next(&out.arena); v != nil || err != nil {
			return v, err
		}
		ok, err := c.match(ctx)
		if !ok || err != nil {
			return nil, err
		}
		c.unique.add(c.rows.row.Doc)
	}
}
