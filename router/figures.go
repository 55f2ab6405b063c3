package router

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router/plan"
)

// ShardFigures are what one shard has of a collection.
type ShardFigures struct {
	Shard  manifest.ShardID
	Chunks int
	// Documents counts exactly, with those that are in the log only; unless Estimated: then it
	// is what the root says of segments.
	Documents int64
	Estimated bool
	// Bytes is the uncompressed size of the documents: what is in segments, and for those
	// that are not yet the average of the others.
	Bytes int64
	// Stored is what its segments take in the bucket; one that chunks of several shards have
	// rows in counts at each.
	Stored int64
}

// Figures are what each shard that owns a chunk has of a collection, by shard; none when it
// does not exist. Errors: *mongoerr.Error, Corrupt.
func (r *Router) Figures(ctx context.Context, ns Namespace, maxTime time.Duration) ([]ShardFigures, error) {
	rd, err := newRead(ns, Query{})
	if err != nil {
		return nil, err
	}
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	for {
		figures, err := r.figures(ctx, a, rd)
		if err == nil {
			return figures, nil
		}
		if err := a.again(ctx, err); err != nil {
			return nil, err
		}
	}
}

func (r *Router) figures(ctx context.Context, a *attempts, rd *read) ([]ShardFigures, error) {
	exists, err := rd.prepare(ctx, a)
	if err != nil || !exists {
		return nil, err
	}
	groups := rd.plan.ByShard()
	if uncounted(groups) > countedMax {
		return estimates(groups), nil
	}
	q := rd.request(2)
	q.Mode = rpc.Count
	streams, err := r.scatter(ctx, a, rd, groups, q)
	if err != nil {
		return nil, err
	}
	var all []ShardFigures
	for i, g := range groups {
		f := figuresOf(g)
		if f.Documents, err = f.counted(streams[i].n, func() (float64, error) { return r.sample(ctx, a, rd, g) }); err != nil {
			return nil, err
		}
		all = append(all, f.ShardFigures)
	}
	return byShard(all), nil
}

// countedMax bounds what is read to make estimates of rows exact: a listing must not read a
// large collection.
const countedMax = 64 << 20

// uncounted is the size of the chunks whose rows a count would have to read.
func uncounted(groups []plan.Group) (bytes int64) {
	for _, g := range groups {
		for _, t := range g.Targets {
			if t.Chunk.RowsEstimated {
				bytes += t.Chunk.Bytes
			}
		}
	}
	return bytes
}

// estimates are the figures of what is in segments.
func estimates(groups []plan.Group) []ShardFigures {
	var all []ShardFigures
	for _, g := range groups {
		f := figuresOf(g)
		f.Documents, f.Estimated = f.rows, true
		all = append(all, f.ShardFigures)
	}
	return byShard(all)
}

func byShard(all []ShardFigures) []ShardFigures {
	slices.SortFunc(all, func(a, b ShardFigures) int { return strings.Compare(string(a.Shard), string(b.Shard)) })
	return all
}

// flushed are figures of what is in segments: rows documents.
type flushed struct {
	ShardFigures
	rows int64
}

func figuresOf(g plan.Group) flushed {
	f := flushed{ShardFigures: ShardFigures{Shard: g.Shard, Chunks: len(g.Targets)}}
	seen := make(map[manifest.SegmentID]bool)
	for _, t := range g.Targets {
		f.rows += t.Chunk.Rows
		f.Bytes += documentBytes(t.Chunk)
		for _, ref := range t.Chunk.Refs {
			if !seen[ref.Segment] {
				seen[ref.Segment] = true
				f.Stored += int64(ref.Size)
			}
		}
	}
	return f
}

// documentBytes is what of a chunk's bytes are documents, without the keys of their rows: exact
// where all keys are as long as the first and the last.
func documentBytes(c *manifest.Chunk) int64 {
	var keys, all float64
	for i := range c.Refs {
		if r := &c.Refs[i]; r.Rows > 0 {
			keys += float64(r.Rows) * float64(len(r.MinKey)+len(r.MaxKey)) / 2
			all += float64(r.Bytes)
		}
	}
	if all == 0 {
		return c.Bytes
	}
	return int64(math.Round(float64(c.Bytes) * max(0, 1-keys/all)))
}

// counted makes Bytes those of n documents, n.
func (f *flushed) counted(n int64, sample func() (float64, error)) (int64, error) {
	switch {
	case n == f.rows:
	case f.rows > 0:
		f.Bytes = int64(float64(f.Bytes) / float64(f.rows) * float64(n))
	default:
		size, err := sample()
		if err != nil {
			return 0, err
		}
		f.Bytes = int64(size * float64(n))
	}
	return n, nil
}

// sampled is how many documents the average size of a shard's documents is taken from.
const sampled = 100

// sample is the average size of a shard's first documents, in bytes.
func (r *Router) sample(ctx context.Context, a *attempts, rd *read, g plan.Group) (float64, error) {
	st, err := r.openShard(ctx, a, rd, g, rpc.Query{Limit: sampled}, 1)
	a.answered(ctx, g.Shard, err)
	if err != nil {
		return 0, err
	}
	defer st.close(ctx)
	bytes, n := 0, 0
	for {
		doc, err := st.next(ctx, sampled)
		if doc == nil || err != nil {
			return float64(bytes) / float64(max(n, 1)), err
		}
		bytes += len(doc)
		n++
	}
}
