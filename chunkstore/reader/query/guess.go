package query

import (
	"math"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
)

// guess is what a Cursor knows about how much more it will read before it answers.
type guess struct {
	batch   *batch // being filled; nil: none
	matched int64  // rows that the filter let through so far
}

// wanted guesses how many more rows this call looks at: as many as fill the batch, or reach
// the limit, if they go on to match as often as they did. It bounds what a scan reads ahead,
// so that a batch that is full leaves nothing in flight. Whatever has to see every row wants
// all.
func (c *Cursor) wanted() int64 {
	out := c.guess.batch
	if out == nil || c.sort != nil || c.mode == rpc.Count || c.mode == rpc.Distinct {
		return math.MaxInt64
	}
	n := int64(out.maxDocs - len(out.docs))
	if len(out.docs) > 0 {
		size := max(out.bytes/len(out.docs), 1)
		n = min(n, int64((out.maxBytes-out.bytes)/size+1))
	}
	if c.limit >= 0 {
		n = min(n, c.limit)
	}
	rows := float64(n) + float64(c.skip)
	if c.filter != nil {
		rows *= float64(c.rows.examined+1) / float64(max(c.guess.matched, 1))
	}
	if rows >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(rows)
}
