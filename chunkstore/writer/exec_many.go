package writer

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A write of many documents goes through its target in key order, row by row, each under
// its own latch. Every WAL object that has some of its rows also says how far it has come
// and what it did so far, under the operation's id. So whoever gets the operation sent
// again, on this owner or the next, goes on where it stopped, and nothing is done twice;
// the counts in the answer are of the whole.

// piece is a stretch of the target that is being worked on.
type piece struct {
	progress
	end   []byte // of the stretch; empty: open
	entry *retry // the last that was appended
	at    int    // of its record in the batch that holds it
}

// changeMany carries out an operation on all matches in its target.
func (x *exec) changeMany(ctx context.Context, m *mutation) (res rpc.WriteResult, err error) {
	left, res, err := x.unfinished(ctx, m)
	if err != nil {
		return res, err
	}
	for _, r := range left {
		p := &piece{progress: progress{done: shardkey.Range{Min: r.Min, Max: r.Min}, last: someKey(r)}, end: r.Max}
		err := x.stretch(ctx, m, p)
		res.N += p.n
		res.Modified += p.modified
		if err != nil {
			return res, err
		}
	}
	return res, nil
}

// unfinished is what an earlier attempt left to do, and the counts of what it did.
func (x *exec) unfinished(ctx context.Context, m *mutation) (left []shardkey.Range, res rpc.WriteResult, err error) {
	c, err := x.enter(ctx, m.op)
	if err != nil {
		return nil, res, err
	}
	defer x.s.mu.Unlock()
	left = x.r.Targets[m.op.Target].Ranges
	if len(left) == 0 {
		left = []shardkey.Range{c.info.Range}
	}
	asked := left
	if m.op.Op == (rpc.OpID{}) {
		return left, res, nil
	}
	parts := c.retries.parts(m.op.Op)
	if len(parts) == 0 || broken(manyRestarted) {
		return left, res, c.tooOld(m.op.Op)
	}
	x.s.counts.Retries++
	counted := map[string]progress{} // by its last row: one part may be known whole and cut to a chunk
	for _, e := range parts {
		p, err := parseProgress(e.Reply)
		if err != nil {
			return nil, res, err
		}
		x.depend(e.in)
		left = without(left, p.done)
		if !slices.ContainsFunc(asked, func(r shardkey.Range) bool { return r.Contains(p.last) }) {
			continue
		}
		if was := counted[string(p.last)]; p.n >= was.n {
			counted[string(p.last)] = p
			res.N, res.Modified = res.N+p.n-was.n, res.Modified+p.modified-was.modified
		}
	}
	return left, res, nil
}

// without is the ranges without what lies in cut.
func without(ranges []shardkey.Range, cut shardkey.Range) []shardkey.Range {
	var left []shardkey.Range
	for _, r := range ranges {
		if !r.Overlaps(cut) {
			left = append(left, r)
			continue
		}
		if shardkey.CompareMin(r.Min, cut.Min) < 0 {
			left = append(left, shardkey.Range{Min: r.Min, Max: cut.Min})
		}
		if shardkey.CompareMax(cut.Max, r.Max) < 0 {
			left = append(left, shardkey.Range{Min: cut.Max, Max: r.Max})
		}
	}
	return left
}

// stretch works through one stretch, and records its end.
func (x *exec) stretch(ctx context.Context, m *mutation, p *piece) error {
	for {
		rest := shardkey.Range{Min: p.done.Max, Max: p.end}
		if bytes.Equal(p.done.Min, p.done.Max) {
			rest.Min = p.done.Min
		}
		finished, err := x.through(ctx, m, rest, p)
		if err != nil {
			return err
		}
		if finished {
			break
		}
	}
	p.done.Max = p.end
	if m.op.Op == (rpc.OpID{}) {
		return nil
	}
	return x.put(ctx, m.op, func(c *chunk) ([]change, error) {
		return []change{{path: appendPath(nil, x.r.Collection, p.keyIn(c)), op: wal.RetryOnly, piece: p}}, nil
	})
}

// through changes what matches in rest; finished is false when the segments changed under
// the search, and the rest is to be searched again.
func (x *exec) through(ctx context.Context, m *mutation, rest shardkey.Range, p *piece) (finished bool, err error) {
	cur, v, err := x.matches(ctx, m, []shardkey.Range{rest}, false)
	if err != nil {
		return false, err
	}
	for done := false; !done; {
		var docs []bson.Raw
		docs, done, err = x.s.more(ctx, cur, rpc.Batch{Docs: 64, Bytes: 1 << 20})
		if err != nil {
			if err = x.s.missing(ctx, err, v.Chunk); errors.Is(err, errOtherRefs) {
				return false, nil
			}
			return false, err
		}
		for _, d := range docs {
			if err := x.admit(ctx); err != nil {
				return false, err
			}
			if err := x.changeMatch(ctx, m, d, p); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// changeMatch changes one match, unless it has changed meanwhile.
func (x *exec) changeMatch(ctx context.Context, m *mutation, found bson.Raw, p *piece) error {
	key, _, err := foundRow(found)
	if err != nil {
		return err
	}
	path := appendPath(nil, x.r.Collection, key)
	h, err := x.rowLatch(path)
	if err != nil {
		return err
	}
	g := &grip{s: x.s}
	defer g.drop()
	if _, err := g.take(ctx, h); err != nil {
		return err
	}
	out := restarted
	for n := 0; out == restarted; n++ {
		if n == attemptsPerRow {
			return crowded()
		}
		if _, out, err = x.changeRow(ctx, m, path, g, p); err != nil {
			return err
		}
	}
	p.last = path[4:]
	p.done.Max = append(bytes.Clone(p.last), 0)
	return nil
}

// passed counts a row that was come to, and what happened to it.
func (p *progress) passed(res *rpc.WriteResult, key []byte) {
	p.n += res.N
	p.modified += res.Modified
	p.last, p.done.Max = key, append(bytes.Clone(key), 0)
}

// finishRow counts one row of a write of many, and appends its change with the progress up
// to and with the row.
func (x *exec) finishRow(ctx context.Context, op *rpc.WriteOp, p *piece, res *rpc.WriteResult, changes []change) error {
	if len(changes) == 0 {
		p.n += res.N
		p.modified += res.Modified
		return nil
	}
	p.passed(res, changes[0].path[4:])
	changes[0].piece = p
	return x.put(ctx, op, func(*chunk) ([]change, error) { return changes, nil })
}

// mark makes the entry of the progress so far, for the record that is appended now; nil
// when the operation is not retryable. In one WAL object only the last record of the
// operation needs one: an entry that is in the open batch moves from its record to the
// next. Requires: the mutex.
func (x *exec) mark(op *rpc.WriteOp, c *chunk, p *piece) *retry {
	if op.Op == (rpc.OpID{}) {
		return nil
	}
	open := x.s.open
	if p.entry != nil && p.entry.in == open && p.at < len(open.records) {
		open.records[p.at].Retry = nil
		c.retries.bytes -= p.entry.size()
	} else {
		p.entry = x.entry(op, nil, nil)
		p.entry.from = p.done.Min
	}
	p.entry.Key, p.entry.Reply = bytes.Clone(p.keyIn(c)), p.reply()
	if p.entry.in == open {
		c.retries.bytes += p.entry.size()
	}
	p.at = len(open.records)
	return p.entry
}

// keyIn is the key by which the entry of the progress belongs to the chunk.
func (p *progress) keyIn(c *chunk) []byte {
	if c.info.Range.Contains(p.last) {
		return p.last
	}
	return someKey(c.info.Range)
}
