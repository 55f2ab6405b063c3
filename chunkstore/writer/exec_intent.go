package writer

import (
	"context"

	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
)

// intent records where a write goes whose filter does not name a row. The first record of
// an attempt stands, and a higher attempt's stands above it.
func (x *exec) intent(ctx context.Context, op *rpc.WriteOp) (res rpc.WriteResult, err error) {
	return x.note(ctx, op, func(c *chunk) (*retry, bool, error) {
		if e := c.retries.intent(op.Op); e != nil && e.Op.Attempt >= op.Op.Attempt {
			x.depend(e.in)
			res.Value = e.Reply[1:]
			return nil, false, nil
		}
		res.Value = op.Doc
		return x.entry(op, nil, intentReply(op.Doc)), true, c.tooOld(op.Op)
	}, &res)
}

// refuse records that an operation will never be applied here, or answers what it came to.
func (x *exec) refuse(ctx context.Context, op *rpc.WriteOp) (res rpc.WriteResult, err error) {
	return x.note(ctx, op, func(c *chunk) (*retry, bool, error) {
		e, err := c.before(op.Op)
		if err != nil {
			return nil, false, err
		}
		if e != nil {
			res, err = x.recorded(op, e)
			return nil, false, err
		}
		return x.entry(op, nil, refusedReply), true, nil
	}, &res)
}

// note appends an entry without a row, under the latch of its operation. make decides
// whether there is something to append.
func (x *exec) note(ctx context.Context, op *rpc.WriteOp, make func(*chunk) (*retry, bool, error), res *rpc.WriteResult) (rpc.WriteResult, error) {
	h := opLatch(op.Op)
	if err := x.s.acquire(ctx, h); err != nil {
		return rpc.WriteResult{}, err
	}
	defer x.s.release(h)
	err := x.put(ctx, op, func(c *chunk) ([]change, error) {
		path := x.placeOf(op, c)
		if op.Kind == rpc.Intent && !c.info.Range.Contains(op.Key) {
			return nil, errStale
		}
		e, ok, err := make(c)
		if err != nil || !ok || e == nil {
			return nil, err
		}
		return []change{{path: path, op: wal.RetryOnly, retry: e}}, nil
	})
	return *res, err
}
