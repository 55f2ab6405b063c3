package writer

import (
	"context"
	"errors"
	"strings"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/errkind"
)

// runMax bounds the inserts that are handled under one hold of the mutex.
const runMax = 256

// insertion is one insert of a run.
type insertion struct {
	op    *rpc.WriteOp
	path  []byte // row path, in exec.keys
	latch latch
	err   *mongoerr.Error // the document cannot be stored
	// Of the second look:
	chunk *chunk
	view  reader.View // where to look whether the row exists; Chunk nil: nowhere
	dup   bool
	// over: there is an expired document, whose place this one takes.
	over bool
}

// why says what stops a run of inserts.
type why int

const (
	ranOut     why = iota // all are done
	failed                // an ordered request ends here
	latched               // somebody holds the latch of the next
	held                  // its chunk is held, or its retries are not in memory
	fullBatch             // the open batch has no room
	lookNeeded            // whether its row exists is only known by a look into segments
)

// inserts carries out the next inserts. Those whose rows are surely new or surely there, as
// memory alone can tell, need no latch: finding out and appending is one step under the
// mutex. At the first that is not so, the rest of the run takes latches and looks.
func (x *exec) inserts(ctx context.Context) error {
	run := x.prepare()
	for len(run) > 0 {
		done, stop, err := x.insertKnown(run)
		if err != nil {
			return err
		}
		run = run[done:]
		switch stop {
		case ranOut, failed:
			return nil
		case latched:
			if err := x.s.released(ctx, run[0].latch); err != nil {
				return err
			}
			continue
		case held:
			if _, err := x.enter(ctx, run[0].op); err == nil {
				x.s.mu.Unlock()
			} else if !errors.Is(err, errStale) {
				return err
			}
			continue
		case fullBatch:
			x.s.mu.Lock()
			if err := x.s.waitForRoom(ctx); err != nil {
				return err
			}
			continue
		}
		done, more, err := x.insertLooked(ctx, run)
		if err != nil || !more {
			return err
		}
		run = run[done:]
	}
	return nil
}

// prepare makes the row paths of the inserts that come next.
func (x *exec) prepare() []insertion {
	first := len(x.results)
	run := make([]insertion, 0, min(len(x.r.Ops)-first, runMax))
	x.keys = x.keys[:0]
	for i := first; i < len(x.r.Ops) && len(run) < cap(run) && x.r.Ops[i].Kind == rpc.Insert; i++ {
		in := insertion{op: &x.r.Ops[i]}
		from := len(x.keys)
		keys, err := x.coll.Key.AppendKey(appendPath(x.keys, x.r.Collection, nil), in.op.Doc)
		if err == nil {
			x.keys = keys
			in.path = keys[from:len(keys):len(keys)]
			in.latch, err = x.rowLatch(in.path)
		}
		in.err = x.storable(in.op.Doc, in.path, err)
		run = append(run, in)
	}
	return run
}

// storable says why a document cannot be stored; keyErr is why it has no key.
func (x *exec) storable(doc, path []byte, keyErr error) *mongoerr.Error {
	switch {
	case keyErr != nil:
		return mongoerr.New(mongoerr.ShardKeyNotFound, "%v", keyErr)
	case x.required && len(x.coll.Key.Missing(doc)) > 0:
		return mongoerr.New(mongoerr.ShardKeyNotFound, "the document lacks %s of the shard key %v, and collection %s was given requireShardKey: true; "+
			"set the field (null is a value), or collMod with requireShardKey: false lets it count as null",
			strings.Join(x.coll.Key.Missing(doc), ", "), x.coll.Key, x.coll.Namespace())
	case len(path)-4 > segment.MaxKeyBytes:
		return mongoerr.New(mongoerr.BadValue, "shard key and _id take %d bytes, the most is %d", len(path)-4, segment.MaxKeyBytes)
	case len(doc) > segment.MaxDocBytes:
		return mongoerr.New(mongoerr.BSONObjectTooLarge, "object to insert too large. size in bytes: %d, max size: %d", len(doc), segment.MaxDocBytes)
	}
	return nil
}

// insertKnown appends inserts as long as memory alone can tell. It returns how many it
// has results for, and what stops it.
func (x *exec) insertKnown(run []insertion) (done int, stop why, err error) {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	for i := range run {
		in := &run[i]
		c, known, stop, err := x.insertable(in)
		if err != nil || stop != ranOut {
			return i, stop, err
		}
		if !known {
			r, b := x.s.unflushedRow(c, in.path)
			switch {
			case r != nil && r.live() && !x.takesOver(in, r):
				x.depend(b)
				if !x.duplicate(c, in) {
					return i, fullBatch, nil
				}
			case len(x.uniques) > 0 || r == nil && mayHold(c.info, in.path[4:]):
				return i, lookNeeded, nil
			case !x.store(c, in):
				return i, fullBatch, nil
			}
		}
		if x.r.Ordered && x.stopped() {
			return i + 1, failed, nil
		}
	}
	return len(run), ranOut, nil
}

// insertable looks at everything but whether the row exists. known: the result is there
// already. Requires: the mutex.
func (x *exec) insertable(in *insertion) (c *chunk, known bool, stop why, err error) {
	c, g, err := x.writable(in.op.Target)
	switch {
	case errors.Is(err, errStale) || err == nil && g == nil && in.err == nil && !c.info.Range.Contains(in.path[4:]):
		x.results = append(x.results, rpc.WriteResult{Stale: true})
		return c, true, ranOut, nil
	case err != nil:
		return nil, false, 0, err
	case g != nil || in.op.Op != rpc.OpID{} && !c.retries.loaded:
		return nil, false, held, nil
	case in.err != nil:
		x.results = append(x.results, rpc.WriteResult{Err: in.err})
		return c, true, ranOut, nil
	case x.s.latches.busy(in.latch):
		return nil, false, latched, nil
	}
	known, err = x.insertedBefore(c, in)
	return c, known, ranOut, err
}

// insertedBefore takes the recorded result of a retry. Requires: the mutex.
func (x *exec) insertedBefore(c *chunk, in *insertion) (bool, error) {
	e, err := c.before(in.op.Op)
	if e == nil && err == nil {
		return false, nil
	}
	var res rpc.WriteResult
	if e != nil {
		res, err = x.recorded(in.op, e)
	}
	if err := x.result(&res, err); err != nil {
		return false, err
	}
	x.results = append(x.results, res)
	return true, nil
}

// store appends the insert; false when the open batch has no room. Requires: the mutex.
func (x *exec) store(c *chunk, in *insertion) bool {
	ch := change{path: in.path, op: insertOver(in.over), doc: in.op.Doc}
	if x.s.room(ch) {
		ch.retry = x.entry(in.op, nil, insertedReply)
		x.add(c, ch)
		x.results = append(x.results, rpc.WriteResult{N: 1})
		return true
	}
	return false
}

// duplicate is store for an insert whose key is taken. That is recorded too, for the reason
// that fail gives.
func (x *exec) duplicate(c *chunk, in *insertion) bool {
	ch := change{path: in.path, op: wal.RetryOnly}
	if in.op.Op == (rpc.OpID{}) {
		x.unproved = true
	} else if !x.s.room(ch) {
		return false
	} else {
		ch.retry = x.entry(in.op, nil, duplicatedReply)
		x.add(c, ch)
	}
	x.results = append(x.results, rpc.WriteResult{Err: duplicateKey(x.coll, in.op.Doc)})
	return true
}

// clashes is duplicate for an insert that cannot be, for another reason.
func (x *exec) clashes(c *chunk, in *insertion) bool {
	res := rpc.WriteResult{Err: in.err}
	if in.op.Op != (rpc.OpID{}) && in.err.Code == mongoerr.DuplicateKey {
		ch := change{path: in.path, op: wal.RetryOnly}
		if !x.s.room(ch) {
			return false
		}
		ch.retry = x.entry(in.op, nil, erroredReply(&res))
		x.add(c, ch)
	}
	x.results = append(x.results, res)
	return true
}

// insertLooked takes the latches of as many inserts as are free and differ, looks into
// segments for their rows, and appends. more is false when the request ends here.
func (x *exec) insertLooked(ctx context.Context, run []insertion) (done int, more bool, err error) {
	looked, err := x.latchRun(run)
	if err != nil || looked == 0 {
		return 0, true, err
	}
	defer func() {
		x.s.mu.Lock()
		for i := range looked {
			x.s.latches.release(run[i].latch)
		}
		x.s.mu.Unlock()
	}()
	if err := x.look(ctx, run[:looked]); errors.Is(err, errOtherRefs) || errors.Is(err, errStale) {
		return 0, true, nil
	} else if err != nil {
		return 0, false, err
	}
	return x.appendLooked(ctx, run[:looked])
}

// look finds out which of the rows are in segments, those of a chunk together. Errors:
// errOtherRefs, those of a read; a corrupt object fails only what it may hold.
func (x *exec) look(ctx context.Context, run []insertion) error {
	var part []*insertion
	for i := range run {
		view := run[i].view
		if view.Chunk == nil {
			continue
		}
		part = part[:0]
		for j := i; j < len(run); j++ {
			if in := &run[j]; in.view.Chunk == view.Chunk {
				part = append(part, in)
				in.view.Chunk = nil
			}
		}
		for j, f := range x.s.flushedRows(ctx, view, part) {
			err := f.Err
			if err != nil {
				err = x.s.missing(ctx, err, view.Chunk)
			}
			switch {
			case errors.Is(err, errkind.Corrupt):
				part[j].err = mongoerr.New(mongoerr.DataCorruptionDetected, "%v", err)
			case err != nil:
				return err
			}
			part[j].dup = f.Live
			part[j].over = !f.Live && f.Row.Key != nil && !f.Row.Delete
		}
	}
	return x.lookForClashes(ctx, run)
}

// lookForClashes finds out which documents break a rule of a unique index.
func (x *exec) lookForClashes(ctx context.Context, run []insertion) error {
	for i := range run {
		in := &run[i]
		if in.dup || in.err != nil || len(x.uniques) == 0 {
			continue
		}
		if err := x.keepsUnique(ctx, in.path, in.op.Doc, nil); err != nil && !errors.As(err, &in.err) {
			return err
		}
	}
	return nil
}

// latchRun takes latches, and notes for each insert where its row could be.
func (x *exec) latchRun(run []insertion) (n int, err error) {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	for i := range run {
		in := &run[i]
		c, g, err := x.writable(in.op.Target)
		if err != nil && !errors.Is(err, errStale) {
			return n, err
		}
		if c == nil || g != nil || in.err != nil || !c.info.Range.Contains(in.path[4:]) ||
			in.op.Op != (rpc.OpID{}) && !c.retries.loaded || x.s.latches.busy(in.latch) {
			return n, nil // the run ends here; the next one begins with it
		}
		in.chunk, in.view, in.dup, in.over = c, reader.View{}, false, false
		if r, b := x.s.unflushedRow(c, in.path); r == nil && mayHold(c.info, in.path[4:]) {
			in.view = reader.View{Chunk: c.info, Moment: x.s.moment(x.r.Collection)}
		} else if r != nil && r.live() {
			x.depend(b)
			in.dup = !x.takesOver(in, r)
		}
		x.s.latches.take(in.latch)
		n++
	}
	return n, nil
}

// appendLooked appends the inserts of which it is known now whether their rows exist. Since
// their latches are held, that is as true as when it was looked up, unless the chunk has
// become another one.
func (x *exec) appendLooked(ctx context.Context, run []insertion) (done int, more bool, err error) {
	x.s.mu.Lock()
	for i := 0; i < len(run); {
		in := &run[i]
		c, g, err := x.writable(in.op.Target)
		switch {
		case err != nil && !errors.Is(err, errStale) || g != nil || c != nil && c != in.chunk:
			x.s.mu.Unlock()
			return i, true, err
		case err != nil:
			x.results = append(x.results, rpc.WriteResult{Stale: true})
		default:
			known, err := x.insertedBefore(c, in)
			if err != nil {
				x.s.mu.Unlock()
				return i, false, err
			}
			if !known && !x.appendOne(c, in) {
				if err := x.s.waitForRoom(ctx); err != nil {
					return i, false, err
				}
				x.s.mu.Lock()
				continue
			}
		}
		i++
		if x.r.Ordered && x.stopped() {
			x.s.mu.Unlock()
			return i, false, nil
		}
	}
	x.s.mu.Unlock()
	return len(run), true, nil
}

// appendOne gives one insert its result; false when the open batch has no room.
func (x *exec) appendOne(c *chunk, in *insertion) bool {
	switch {
	case in.err != nil:
		return x.clashes(c, in)
	case in.dup:
		return x.duplicate(c, in)
	default:
		return x.store(c, in)
	}
}
