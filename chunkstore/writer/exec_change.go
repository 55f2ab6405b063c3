package writer

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// attemptsPerRow bounds how often an operation is evaluated again because others came in
// between.
const attemptsPerRow = 16

// mutation is a parsed Update or Delete.
type mutation struct {
	op      *rpc.WriteOp
	filter  *document.Filter
	update  *document.Update // nil: Delete
	project *document.Projection
}

// change carries out an Update or a Delete.
func (x *exec) change(ctx context.Context, op *rpc.WriteOp) (res rpc.WriteResult, err error) {
	m, err := x.parse(op)
	if err != nil {
		return res, err
	}
	if op.Op != (rpc.OpID{}) {
		h := opLatch(op.Op)
		if err := x.s.acquire(ctx, h); err != nil {
			return res, err
		}
		x.latched = []latch{h}
		defer func() { x.s.release(x.latched...) }()
	}
	c, err := x.enter(ctx, op)
	if err != nil {
		return res, err
	}
	e, err := c.before(op.Op)
	if e != nil {
		res, err = x.recorded(op, e)
	} else if op.Multi {
		err = nil // its parts will tell
	}
	x.s.mu.Unlock()
	x.elsewhere = false
	switch {
	case e != nil || err != nil:
		return res, err
	case op.Multi:
		res, err = x.changeMany(ctx, m)
	case op.Key != nil:
		res, err = x.changeKey(ctx, m)
	default:
		res, err = x.changeFirst(ctx, m)
	}
	if errors.As(err, &res.Err) {
		if !op.Multi {
			res = rpc.WriteResult{Err: res.Err} // it was not the one document after all
		}
		return res, x.fail(ctx, op, &res)
	}
	return res, err
}

// fail makes the error that ended a retryable operation its outcome for good: an attempt
// that was sent earlier and comes later does not succeed where this one failed, since who
// sent both has been told so.
func (x *exec) fail(ctx context.Context, op *rpc.WriteOp, res *rpc.WriteResult) error {
	if op.Op == (rpc.OpID{}) || res.Err.Code == mongoerr.TransactionTooOld {
		return nil
	}
	said := *res
	if x.elsewhere {
		// Errors show keys, and this one may be of a document in another location.
		said.Err = mongoerr.New(res.Err.Code, "the document would have gone to another location, where it cannot be: %s in %s", res.Err.Code, x.coll.Namespace())
	}
	return x.put(ctx, op, func(c *chunk) ([]change, error) {
		return []change{{path: x.placeOf(op, c), op: wal.RetryOnly, retry: x.entry(op, nil, erroredReply(&said))}}, nil
	})
}

// parse compiles what the operation asks for. Errors: *mongoerr.Error.
func (x *exec) parse(op *rpc.WriteOp) (m *mutation, err error) {
	m = &mutation{op: op}
	filter := op.Filter
	if filter == nil {
		filter = emptyDocument
	}
	if m.filter, err = document.ParseFilter(filter); err != nil {
		return nil, err
	}
	if op.Kind == rpc.Update {
		m.update, err = document.ParseUpdate(op.Update, document.UpdateOptions{
			ArrayFilters: op.ArrayFilters, Filter: m.filter, NowMillis: x.s.w.host.Wall().UnixMilli(), Upsert: op.Upsert,
		})
		if err != nil {
			return nil, err
		}
		if op.Multi && m.update.IsReplacement() {
			return nil, mongoerr.New(mongoerr.FailedToParse, "multi update is not supported for replacement-style update")
		}
	}
	if op.Return != rpc.ReturnNone && len(op.Projection) > len(emptyDocument) {
		m.project, err = document.ParseProjection(op.Projection)
	}
	return m, err
}

var emptyDocument = bson.Raw{5, 0, 0, 0, 0}

// image is what the operation returns of a document.
func (m *mutation) image(doc bson.Raw) (bson.Raw, error) {
	if m.project == nil || doc == nil {
		return doc, nil
	}
	return m.project.Append(nil, doc)
}

// grip is the row latches that an operation holds.
type grip struct {
	s    *shard
	held []latch
}

func (g *grip) has(h latch) bool { return slices.Contains(g.held, h) }

// take takes one more latch. Latches are taken in the order of their hashes, therefore all
// are given back first: restarted says that there were some, and that what was seen under
// them is to be looked at again.
func (g *grip) take(ctx context.Context, h latch) (restarted bool, err error) {
	restarted = len(g.held) > 0
	want := append(slices.Clone(g.held), h)
	g.drop()
	g.held, err = g.s.acquireAll(ctx, want)
	return restarted, err
}

func (g *grip) drop() {
	g.s.release(g.held...)
	g.held = nil
}

// outcome is what came of an attempt at one row.
type outcome int

const (
	settled   outcome = iota // the operation has its result
	unmatched                // there is no such row, or it does not match
	restarted                // more latches are held now: look again
)

// changeKey carries out an operation on the row that it names.
func (x *exec) changeKey(ctx context.Context, m *mutation) (res rpc.WriteResult, err error) {
	path := appendPath(nil, x.r.Collection, m.op.Key)
	h, err := x.rowLatch(path)
	if err != nil {
		return res, err
	}
	g := &grip{s: x.s}
	defer g.drop()
	if _, err := g.take(ctx, h); err != nil {
		return res, err
	}
	for range attemptsPerRow {
		res, out, err := x.changeRow(ctx, m, path, g, nil)
		if err == nil && out == unmatched {
			res, out, err = x.noMatch(ctx, m, path[4:], g)
		}
		if err != nil || out == settled {
			return res, err
		}
	}
	return res, crowded()
}

func crowded() error {
	return mongoerr.New(mongoerr.WriteConflict, "the document was changed by others %d times before it could be written", attemptsPerRow)
}

// changeRow evaluates the operation on one row, whose latch is in the grip, and appends what
// it does. many is nil but for a write of many documents.
func (x *exec) changeRow(ctx context.Context, m *mutation, path []byte, g *grip, many *piece) (res rpc.WriteResult, out outcome, err error) {
	doc, err := x.present(ctx, m.op, path)
	if err != nil || doc == nil {
		return res, unmatched, err
	}
	if many != nil {
		if again, err := x.arrived(ctx, m.op, path[4:]); again || err != nil {
			return res, unmatched, err
		}
	}
	if ok, err := m.filter.MatchErr(doc); !ok || err != nil {
		return res, unmatched, err
	}
	if m.update == nil {
		if m.op.Return != rpc.ReturnNone {
			if res.Value, err = m.image(doc); err != nil {
				return res, settled, err
			}
		}
		res.N = 1
		return res, settled, x.finish(ctx, m, many, &res, change{path: path, op: wal.Delete})
	}
	next, changed, err := m.update.Apply(nil, doc)
	if err != nil {
		return res, settled, err
	}
	if err := x.returned(m, &res, doc, next); err != nil {
		return res, settled, err
	}
	res.N = 1
	if !changed {
		return res, settled, x.finish(ctx, m, many, &res)
	}
	res.Modified = 1
	to, err := x.pathOf(next)
	if err != nil {
		return res, settled, err
	}
	if bytes.Equal(to, path) {
		if err := x.keepsUnique(ctx, to, next, doc); err != nil {
			return res, settled, err
		}
		return res, settled, x.finish(ctx, m, many, &res, change{path: path, op: wal.Replace, doc: next})
	}
	out, err = x.rekey(ctx, m, many, change{path: path, op: wal.Delete}, to, next, &res, g)
	return res, out, err
}

// returned fills in the document that the operation asks for.
func (x *exec) returned(m *mutation, res *rpc.WriteResult, before, after bson.Raw) (err error) {
	switch m.op.Return {
	case rpc.ReturnBefore:
		res.Value, err = m.image(before)
	case rpc.ReturnAfter:
		res.Value, err = m.image(after)
	}
	return err
}

// pathOf is the row path of a document that is to be stored. Errors: *mongoerr.Error.
func (x *exec) pathOf(doc bson.Raw) ([]byte, error) {
	path, err := x.coll.Key.AppendKey(appendPath(nil, x.r.Collection, nil), doc)
	if e := x.storable(doc, path, err); e != nil {
		return nil, e
	}
	return path, nil
}

// present is the present document of a row, pending or durable; nil: none, or an expired one.
// The row's latch keeps it present. Errors: errStale, those of a read.
func (x *exec) present(ctx context.Context, op *rpc.WriteOp, path []byte) (bson.Raw, error) {
	for {
		c, err := x.enter(ctx, op)
		if err != nil {
			return nil, err
		}
		inside := c.info.Range.Contains(path[4:])
		x.s.mu.Unlock()
		if !inside {
			return nil, errStale
		}
		if doc, _, gone, err := x.rowIn(ctx, c, path); err != nil || !gone {
			return doc, err
		}
	}
}

// rowIn is present for a row of chunk c; over: there is an expired document, whose place
// another one takes; gone: there is no such chunk here any more.
func (x *exec) rowIn(ctx context.Context, c *chunk, path []byte) (doc bson.Raw, over, gone bool, err error) {
	for {
		x.s.mu.Lock()
		if err := x.s.endErr; err != nil || c.gone {
			x.s.mu.Unlock()
			return nil, false, true, err
		}
		r, b := x.s.unflushedRow(c, path)
		x.depend(b)
		v := reader.View{Chunk: c.info, Moment: x.s.moment(x.r.Collection)}
		x.s.mu.Unlock()
		switch {
		case r == nil:
		case r.live() && v.Moment.Expired(r.doc):
			return nil, true, false, nil
		default:
			return r.doc, false, false, nil
		}
		row, live, err := x.s.flushedRow(ctx, v, path[4:])
		if err == nil && live {
			return row.Doc, false, false, nil
		}
		if err == nil {
			return nil, row.Key != nil && !row.Delete, false, nil
		}
		if err = x.s.missing(ctx, err, v.Chunk); !errors.Is(err, errOtherRefs) {
			return nil, false, false, err
		}
	}
}

// finish appends the changes of an operation on one document, and its retry entry with the
// last of them; without a change the entry goes alone.
func (x *exec) finish(ctx context.Context, m *mutation, many *piece, res *rpc.WriteResult, changes ...change) error {
	if many != nil {
		return x.finishRow(ctx, m.op, many, res, changes)
	}
	return x.put(ctx, m.op, func(c *chunk) ([]change, error) {
		e := x.answer(m.op, res)
		if e == nil {
			return changes, nil
		}
		if len(changes) == 0 {
			return []change{{path: x.placeOf(m.op, c), op: wal.RetryOnly, retry: e}}, nil
		}
		changes[len(changes)-1].retry = e
		return changes, nil
	})
}

// placeOf is the path at which an operation without a change is remembered: that of its row,
// or somewhere in its target.
func (x *exec) placeOf(op *rpc.WriteOp, c *chunk) []byte {
	key := op.Key
	if key == nil || !c.info.Range.Contains(key) {
		r := c.info.Range
		if ranges := x.r.Targets[op.Target].Ranges; len(ranges) > 0 {
			if part, ok := r.Intersect(ranges[0]); ok {
				r = part
			}
		}
		key = someKey(r)
	}
	return appendPath(nil, x.r.Collection, key)
}

// noMatch ends an operation that matched nothing: an upsert inserts, anything else is
// remembered, so that a retry does not match what came later. The grip has the latches
// under which nothing matched.
func (x *exec) noMatch(ctx context.Context, m *mutation, key []byte, g *grip) (res rpc.WriteResult, out outcome, err error) {
	if !m.op.Upsert || m.update == nil {
		if m.op.Op == (rpc.OpID{}) {
			return res, settled, nil
		}
		return res, settled, x.finish(ctx, m, nil, &res)
	}
	doc, err := m.update.Upsert(nil, m.filter, x.s.w.newID)
	if err != nil {
		return res, settled, err
	}
	path, err := x.pathOf(doc)
	if err != nil {
		return res, settled, err
	}
	res.N = 1
	res.UpsertedID, _ = document.Lookup(doc, "_id")
	if m.op.Return == rpc.ReturnAfter {
		if res.Value, err = m.image(doc); err != nil {
			return res, settled, err
		}
	}
	out, err = x.rekey(ctx, m, nil, change{op: wal.RetryOnly}, path, doc, &res, g)
	return res, out, err
}
