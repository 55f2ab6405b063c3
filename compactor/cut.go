package compactor

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/chunkstore/segment"
	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// cut prepares the change that cuts a chunk, or that marks it as indivisible.
func (x *pass) cut(ctx context.Context, job *plan.Job) error {
	c := job.Chunks[0]
	if t, ok := x.futile[c.ID]; ok && t.version == c.Version && job.Bytes < t.bytes+t.bytes/2 {
		return nil
	}
	delete(x.futile, c.ID)
	if job.Kind != plan.SplitByLoad && 2*job.InMemory > job.Bytes {
		x.flush(ctx, c) // where the middle is, segments tell
		return nil
	}
	x.count(func(n *Counts) { n.Attempts++ })
	k := &knife{store: x.Store, c: c, coll: x.s.Collection(c.Collection)}
	k.key = k.coll.Key
	err := k.weigh(ctx, max(job.Pieces, 2))
	var points []manifest.Bound
	if err == nil {
		points, err = x.points(ctx, k, job)
	}
	if err == nil && len(points) == 0 && k.one && k.coll.CutsWithinKey(x.Host.Wall().UnixMilli()) {
		k.key = k.key.RowPattern()
		points, err = x.points(ctx, k, job)
	}
	switch {
	case errors.Is(err, errkind.NotFound):
		return nil // a segment was replaced meanwhile
	case err != nil:
		return fmt.Errorf("cut chunk %d of %s: %w", c.ID, k.coll.Namespace(), err)
	case len(points) > 0:
		x.changes = append(x.changes, manifest.Split{Chunk: c.At(), Points: points, Shares: k.shares(points)})
		x.did = append(x.did, func() {
			x.count(func(n *Counts) { n.Cuts++ })
			x.Log.Info("chunk cut", "ns", k.coll.Namespace(), "from", c.MinBSON.String(), "to", c.MaxBSON.String(), "into", len(points)+1, "at", points[0].BSON.String(), "reason", job.Reason)
		})
	case k.one && 8*job.InMemory > job.Bytes:
		x.flush(ctx, c) // what is in memory may have other values
	case k.one && job.Kind == plan.SplitBySize:
		x.mark(k, job.Bytes)
	default:
		x.futile[c.ID] = try{version: c.Version, bytes: job.Bytes}
	}
	return nil
}

// mark marks a chunk whose rows have one shard-key value, and says so when that is news.
func (x *pass) mark(k *knife, size int64) {
	c := k.c
	news := !bytes.Equal(c.Indivisible.Value, k.first.BSON)
	x.changes = append(x.changes, manifest.MarkChunk{
		Chunk: c.At(), Flags: c.Flags | manifest.ChunkIndivisible,
		Indivisible: manifest.Indivisible{Value: k.first.BSON, Bytes: size},
	})
	x.did = append(x.did, func() {
		x.count(func(n *Counts) { n.Marks++ })
		if news {
			x.Log.Warn("a chunk cannot be cut: its documents have one shard-key value; it can be moved as it is",
				"ns", k.coll.Namespace(), "value", k.first.BSON.String(), "bytes", size,
				"remedy", k.coll.IndivisibleRemedy())
		}
	})
}

// points finds where a job cuts.
func (x *pass) points(ctx context.Context, k *knife, job *plan.Job) ([]manifest.Bound, error) {
	if ok, err := k.begin(ctx); err != nil || !ok {
		return nil, err
	}
	switch job.Kind {
	case plan.SplitByLoad:
		return k.at(ctx, job.At)
	case plan.SplitAhead:
		return k.below(ctx)
	default:
		return k.quantiles(ctx, job, x.s.ChunkSize(k.coll))
	}
}

// knife finds the bounds at which one chunk can be cut: shard-key values of rows that are in
// segments, above that of the first row.
type knife struct {
	store *reader.Store
	c     *manifest.Chunk
	coll  *manifest.Collection
	key   shardkey.Pattern // of the bounds
	first manifest.Bound   // of the chunk's first row
	// one: all rows have the value of the first.
	one bool
	// weights say where how much is, total together.
	weights []segment.Weight
	total   int64
}

// begin finds the chunk's first row; false: it has none.
func (k *knife) begin(ctx context.Context) (bool, error) {
	k.one = false
	b, ok, err := k.row(ctx, k.c.Range, false)
	if err != nil || !ok {
		return false, err
	}
	k.first = b
	next, err := k.next(ctx, b)
	k.one = err == nil && next == nil
	return !k.one, err
}

// row is the bound below the first row in r, or the last; false: there is none.
func (k *knife) row(ctx context.Context, r shardkey.Range, last bool) (b manifest.Bound, ok bool, err error) {
	it := k.store.Scan(ctx, reader.View{Chunk: k.c}, r, last)
	it.Want(func() int64 { return 1 })
	defer it.Rest()
	for it.Next(ctx) {
		key, full, err := k.key.BoundOf(it.Row().Doc)
		if err == nil {
			return manifest.Bound{Key: key, BSON: full}, true, nil
		}
		// A document with MinKey or MaxKey in all fields makes no bound: go on.
	}
	return manifest.Bound{}, false, it.Err()
}

// next is the lowest bound above b, nil when there is none.
func (k *knife) next(ctx context.Context, b manifest.Bound) ([]manifest.Bound, error) {
	r := shardkey.Range{Min: shardkey.PrefixEnd(b.Key), Max: k.c.Range.Max}
	if len(r.Min) == 0 || !k.c.Range.Contains(r.Min) {
		return nil, nil
	}
	n, ok, err := k.row(ctx, r, false)
	if err != nil || !ok {
		return nil, err
	}
	return []manifest.Bound{n}, nil
}

// at is the bound of the row at a key or behind it; if that is the value of the first row, the
// one after it.
func (k *knife) at(ctx context.Context, key []byte) ([]manifest.Bound, error) {
	b, ok, err := k.row(ctx, shardkey.Range{Min: key, Max: k.c.Range.Max}, false)
	if err != nil || !ok {
		return nil, err
	}
	if bytes.Compare(b.Key, k.first.Key) <= 0 {
		return k.next(ctx, k.first)
	}
	return []manifest.Bound{b}, nil
}

// below is the bound below the highest value.
func (k *knife) below(ctx context.Context) ([]manifest.Bound, error) {
	b, ok, err := k.row(ctx, k.c.Range, true)
	if err != nil || !ok || bytes.Compare(b.Key, k.first.Key) <= 0 {
		return nil, err
	}
	return []manifest.Bound{b}, nil
}

// coarse is how many blocks there must be for each part: with fewer the rows are looked at.
const coarse = 8

// weigh finds out what is where.
func (k *knife) weigh(ctx context.Context, pieces int) (err error) {
	k.weights, err = k.store.Weights(ctx, k.c)
	if err == nil && len(k.weights) < coarse*pieces {
		k.weights, err = k.rows(ctx)
	}
	for _, w := range k.weights {
		k.total += w.Bytes
	}
	return err
}

// rows are the live rows of the chunk one by one, for one that has few.
func (k *knife) rows(ctx context.Context) (list []segment.Weight, err error) {
	it := k.store.Scan(ctx, reader.View{Chunk: k.c}, k.c.Range, false)
	defer it.Rest()
	for it.Next(ctx) {
		row := it.Row()
		list = append(list, segment.Weight{Key: row.Key, Rows: 1, Bytes: int64(len(row.Key) + len(row.Doc))})
	}
	return list, it.Err()
}

// quantiles are the bounds that divide the data evenly, into parts of about the target. What
// the size really is has been seen: a chunk that is small enough is left as it is.
func (k *knife) quantiles(ctx context.Context, job *plan.Job, target int64) (points []manifest.Bound, err error) {
	whole := k.total + job.InMemory
	if whole < target {
		return nil, nil
	}
	pieces := max(min(int64(job.Pieces), (whole+target-1)/target), 2)
	last, below, n := k.first.Key, int64(0), int64(1)
	for _, w := range k.weights {
		if below += w.Bytes; n == pieces || below < k.total*n/pieces {
			continue
		}
		for n < pieces && below >= k.total*n/pieces {
			n++
		}
		found, err := k.at(ctx, w.Key)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 && bytes.Compare(found[0].Key, last) > 0 {
			points, last = append(points, found[0]), found[0].Key
		}
	}
	return points, nil
}

// shares are how much lies below, between and above the points.
func (k *knife) shares(points []manifest.Bound) []int64 {
	each := make([]int64, len(points)+1)
	i := 0
	for _, w := range k.weights {
		for i < len(points) && bytes.Compare(w.Key, points[i].Key) >= 0 {
			i++
		}
		each[i] += w.Bytes
	}
	return each
}
