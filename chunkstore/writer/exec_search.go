package writer

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/reader/query"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// changeFirst carries out an operation on the first match in its target: by its sort, else
// in key order. A match is searched for without latches, then looked at again under its own;
// but a target that is one shard-key value is latched as a whole, so that two upserts of one
// key make one document.
func (x *exec) changeFirst(ctx context.Context, m *mutation) (res rpc.WriteResult, err error) {
	g := &grip{s: x.s}
	defer g.drop()
	if h, ok := x.rangeLatch(m.op); ok {
		if _, err := g.take(ctx, h); err != nil {
			return res, err
		}
	}
	for range attemptsPerRow {
		res, out, err := x.search(ctx, m, g)
		if err == nil && out == unmatched {
			res, out, err = x.noMatch(ctx, m, nil, g)
		}
		if err != nil || out == settled {
			return res, err
		}
	}
	return res, crowded()
}

// search tries the matches one after another. restarted: search again, since one that was found
// was another by the time of its latch: it may match under another key.
func (x *exec) search(ctx context.Context, m *mutation, g *grip) (res rpc.WriteResult, out outcome, err error) {
	sorted := len(m.op.Sort) > len(emptyDocument)
	cur, v, err := x.matches(ctx, m, x.r.Targets[m.op.Target].Ranges, sorted)
	if err != nil {
		return res, settled, err
	}
	size := rpc.Batch{Docs: 8, Bytes: 1 << 20}
	if sorted {
		size.Docs = 1
	}
	changed := false
	for done := false; !done; {
		var docs []bson.Raw
		docs, done, err = x.s.more(ctx, cur, size)
		if err != nil {
			if err = x.s.missing(ctx, err, v.Chunk); errors.Is(err, errOtherRefs) {
				return res, restarted, nil
			}
			return res, settled, err
		}
		for _, d := range docs {
			res, out, err = x.tryMatch(ctx, m, d, g)
			if err != nil || out != unmatched {
				return res, out, err
			}
			if sorted {
				return res, restarted, nil // another may be the first now
			}
			changed = true
		}
	}
	if changed {
		return res, restarted, nil
	}
	return res, unmatched, nil
}

// tryMatch carries out the operation on a match, unless it has changed meanwhile.
func (x *exec) tryMatch(ctx context.Context, m *mutation, found bson.Raw, g *grip) (res rpc.WriteResult, out outcome, err error) {
	key, _, err := foundRow(found)
	if err != nil {
		return res, settled, err
	}
	path := appendPath(nil, x.r.Collection, key)
	h, err := x.rowLatch(path)
	if err != nil {
		return res, settled, err
	}
	if g.has(h) {
		return x.changeRow(ctx, m, path, g, nil)
	}
	own := &grip{s: x.s}
	defer own.drop()
	if len(g.held) > 0 {
		_, err := g.take(ctx, h)
		return res, restarted, err
	}
	if _, err := own.take(ctx, h); err != nil {
		return res, settled, err
	}
	for range attemptsPerRow {
		res, out, err = x.changeRow(ctx, m, path, own, nil)
		if err != nil || out != restarted {
			return res, out, err
		}
	}
	return res, settled, crowded()
}

// matches starts a search for what the operation matches among the rows that operations
// see now, pending ones too. As a read it waits for held rows: what came to one from another shard
// may be known to others before this shard hears of it.
func (x *exec) matches(ctx context.Context, m *mutation, ranges []shardkey.Range, sorted bool) (*query.Cursor, reader.View, error) {
	c, err := x.unheld(ctx, m.op, ranges)
	if err != nil {
		return nil, reader.View{}, err
	}
	v, last := x.s.pendingView(c)
	x.depend(last)
	x.s.mu.Unlock()
	q := rpc.Query{Mode: rpc.Keys, Filter: m.op.Filter, KeyOrder: 1}
	if sorted {
		q.Sort, q.Limit, q.KeyOrder = m.op.Sort, 1, 0
	}
	cur, err := query.Open(ctx, x.s.w.store, []query.Target{{View: v, Ranges: ranges, Key: x.coll.Key}}, q, query.Limits{SortBytes: x.s.w.set.SortBytes, Sorts: x.s.w.set.Sorts})
	return cur, v, err
}

// unheld is enter, at a moment at which no row of the ranges is held. Who holds one needs no latch
// any more, so nobody waits in a circle.
func (x *exec) unheld(ctx context.Context, op *rpc.WriteOp, ranges []shardkey.Range) (*chunk, error) {
	for {
		c, err := x.enter(ctx, op)
		if err != nil {
			return nil, err
		}
		h := x.s.heldRow(c, &rpc.Target{Ranges: ranges})
		if h == nil || broken(readsInHandoff) {
			return c, nil
		}
		place := x.s.w.turns.join()
		x.s.mu.Unlock()
		if err := x.s.await(ctx, h.gate, place); err != nil {
			return nil, err
		}
	}
}

// foundRow reads one {k, d} of a search.
func foundRow(found bson.Raw) (key []byte, doc bson.Raw, err error) {
	k, _ := document.Lookup(found, "k")
	d, _ := document.Lookup(found, "d")
	_, key, ok := k.BinaryOK()
	doc, isDoc := d.DocumentOK()
	if !ok || !isDoc {
		return nil, nil, fmt.Errorf("a search found %d bytes that are no {k, d}: %w", len(found), errkind.Corrupt)
	}
	return key, doc, nil
}
