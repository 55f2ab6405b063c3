package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// What a person does to chunks by hand: cut one, put neighbours together, give one to
// another shard. Splits and merges are one change of the root and touch no document; a move
// is carried out by the shard that owns the chunk, and copies no data.

// manualFor is how long chunks that were cut by hand are left alone by automatic merges.
const manualFor = 24 * time.Hour

// Where names a chunk of a collection, and what of it is meant, in one of three ways.
type Where struct {
	// Find is a document with the shard key: the chunk that it belongs to.
	Find bson.Raw
	// Bounds are the exact lower and upper bound of a chunk, or of a range of them.
	Bounds [2]bson.Raw
	// Middle is a point strictly inside a chunk.
	Middle bson.Raw
}

// SplitChunk cuts a chunk: at Middle, or at the median of the rows of the chunk that Find or
// Bounds name. Errors: mongoerr NamespaceNotSharded, BadValue for a point that cannot be one,
// OperationFailed when all rows have one shard-key value.
func (r *Router) SplitChunk(ctx context.Context, ns Namespace, at Where, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	find := func(s *manifest.State, c *manifest.Collection) (*manifest.Bound, error) {
		return r.median(ctx, a, s, c, ns, at)
	}
	change := r.change
	if at.Middle != nil {
		find = func(_ *manifest.State, c *manifest.Collection) (*manifest.Bound, error) { return boundAt(c, at.Middle) }
		change = r.changeKnown
	}
	_, err := change(ctx, a, func(s *manifest.State) (changes []manifest.Change, err error) {
		c, err := sharded(s, ns)
		if err != nil {
			return nil, err
		}
		point, err := find(s, c)
		if err != nil {
			return nil, err
		}
		chunk := s.ChunkOf(c.ID, point.Key)
		if bytes.Equal(chunk.Range.Min, point.Key) {
			return nil, mongoerr.New(mongoerr.BadValue, "new split key %v is a boundary key of existing chunk [%v, %v)", point.BSON, chunk.MinBSON, chunk.MaxBSON)
		}
		return r.cut(c, chunk, *point)
	})
	return err
}

// keptUntil is until when chunks are left alone that somebody asked for by naming their bounds
// (unix seconds); 0: nobody did.
func (r *Router) keptUntil(points []shardkey.Bound) int64 {
	if len(points) == 0 {
		return 0
	}
	return r.host.Wall().Add(manualFor).Unix()
}

// cut is the change that cuts a chunk by hand. Errors: as cuttable.
func (r *Router) cut(c *manifest.Collection, chunk *manifest.Chunk, at manifest.Bound) ([]manifest.Change, error) {
	return []manifest.Change{manifest.Split{
		Chunk: chunk.At(), Points: []manifest.Bound{at}, ManualUntil: r.host.Wall().Add(manualFor).Unix(),
	}}, r.cuttable(c, at)
}

// cuttable refuses bounds inside a value before they may be. Errors: mongoerr BadValue.
func (r *Router) cuttable(c *manifest.Collection, points ...manifest.Bound) error {
	now := r.host.Wall().UnixMilli()
	if c.CutsWithinKey(now) {
		return nil
	}
	for _, p := range points {
		if !c.WithinKey(p.BSON) {
			continue
		}
		from, _ := c.CutWithinKeyFrom()
		return mongoerr.New(mongoerr.BadValue, "%v lies inside a shard-key value: chunks of %s are cut there from %s on, an hour after splitWithinKey was switched on; "+
			"until then name a bound of %v", p.BSON, c.Namespace(), time.UnixMilli(from).UTC().Format(time.RFC3339), c.Key)
	}
	return nil
}

// sharded finds a collection that commands about chunks make sense for.
func sharded(s *manifest.State, ns Namespace) (*manifest.Collection, error) {
	c := s.CollectionByName(ns.Database, ns.Collection)
	if c == nil || !c.Sharded {
		return nil, mongoerr.New(mongoerr.NamespaceNotSharded, "collection %s is not sharded; shard it first: sh.shardCollection(\"%s\", { ... })", ns, ns)
	}
	return c, nil
}

func boundAt(c *manifest.Collection, doc bson.Raw) (*manifest.Bound, error) {
	key, full, err := c.Bound(doc)
	if err != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	if len(key) == 0 {
		return nil, mongoerr.New(mongoerr.BadValue, "%v is the end of the key space, which is a bound already", doc)
	}
	return &manifest.Bound{Key: key, BSON: full}, nil
}

// chunkAt is the chunk that Find or Bounds name.
func chunkAt(s *manifest.State, c *manifest.Collection, at Where) (*manifest.Chunk, error) {
	if at.Find != nil {
		key, err := c.Key.AppendKey(nil, at.Find)
		if err != nil {
			return nil, mongoerr.New(mongoerr.ShardKeyNotFound, "no shard key in %v: %v", at.Find, err)
		}
		return s.ChunkOf(c.ID, key), nil
	}
	want, err := c.Bounds(at.Bounds[0], at.Bounds[1])
	if err != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	for chunk := range s.ChunksIn(c.ID, want) {
		if chunk.Range.Equal(want) {
			return chunk, nil
		}
		return nil, mongoerr.New(mongoerr.BadValue, "no chunk has the bounds [%v, %v); the chunk there is [%v, %v)", at.Bounds[0], at.Bounds[1], chunk.MinBSON, chunk.MaxBSON)
	}
	return nil, mongoerr.New(mongoerr.BadValue, "no chunk has the bounds [%v, %v)", at.Bounds[0], at.Bounds[1])
}

// median is the shard-key value in the middle of a chunk's rows, or the first behind it that
// is not the chunk's lowest.
func (r *Router) median(ctx context.Context, a *attempts, s *manifest.State, c *manifest.Collection, ns Namespace, at Where) (*manifest.Bound, error) {
	chunk, err := chunkAt(s, c, at)
	if err != nil {
		return nil, err
	}
	n, _, err := r.inChunk(ctx, a, ns, chunk, rpc.Query{Mode: rpc.Count})
	if err != nil {
		return nil, err
	}
	keys := []shardkey.Pattern{c.Key}
	if c.CutsWithinKey(r.host.Wall().UnixMilli()) {
		keys = append(keys, c.Key.RowPattern())
	}
	for _, key := range keys {
		if b, err := r.medianBy(ctx, a, ns, key, chunk, n); b != nil || err != nil {
			return b, err
		}
	}
	return nil, mongoerr.New(mongoerr.OperationFailed, "chunk [%v, %v) of %s cannot be split: its %d documents have one shard-key value; %s",
		chunk.MinBSON, chunk.MaxBSON, ns, n, c.IndivisibleRemedy())
}

// medianBy is a bound of that pattern in the middle of a chunk's n rows; nil: there is none.
func (r *Router) medianBy(ctx context.Context, a *attempts, ns Namespace, by shardkey.Pattern, chunk *manifest.Chunk, n int64) (*manifest.Bound, error) {
	first, err := r.lowest(ctx, a, ns, by, chunk)
	if err != nil {
		return nil, err
	}
	for skip := n / 2; skip < n; skip += max((n-skip)/2, 1) {
		_, doc, err := r.inChunk(ctx, a, ns, chunk, rpc.Query{KeyOrder: 1, Skip: skip, Limit: 1})
		if err != nil {
			return nil, err
		}
		if doc == nil {
			break
		}
		key, full, err := by.BoundOf(doc)
		if err == nil && bytes.Compare(key, chunk.Range.Min) > 0 && !bytes.Equal(first, key) {
			return &manifest.Bound{Key: key, BSON: full}, nil
		}
	}
	return nil, nil
}

// lowest is the bound below the first row of a chunk.
func (r *Router) lowest(ctx context.Context, a *attempts, ns Namespace, by shardkey.Pattern, chunk *manifest.Chunk) ([]byte, error) {
	_, doc, err := r.inChunk(ctx, a, ns, chunk, rpc.Query{KeyOrder: 1, Limit: 1})
	if err != nil || doc == nil {
		return nil, err
	}
	key, _, err := by.BoundOf(doc)
	return key, err
}

// inChunk asks for a count, or for one document, of one chunk. Errors: StaleVersion when the
// chunk is another by now.
func (r *Router) inChunk(ctx context.Context, a *attempts, ns Namespace, chunk *manifest.Chunk, q rpc.Query) (n int64, doc bson.Raw, err error) {
	rd, err := newRead(ns, Query{})
	if err != nil {
		return 0, nil, err
	}
	if exists, err := rd.prepare(ctx, a); err != nil || !exists {
		return 0, nil, err
	}
	if rd.state.ChunkAt(chunk.At()) == nil {
		return 0, nil, fmt.Errorf("read chunk %d of %s: %w", chunk.ID, ns, errkind.StaleVersion)
	}
	rd.plan = rd.plan.Within(rd.state, rd.coll.ID, chunk.Range)
	streams, err := r.scatter(ctx, a, rd, rd.plan.ByShard(), q)
	if err != nil {
		return 0, nil, err
	}
	defer closeAll(ctx, streams)
	if q.Mode == rpc.Count {
		return streams[0].n, nil, nil
	}
	doc, err = streams[0].next(ctx, 1)
	return 0, doc, err
}

// MergeChunks puts all chunks between two bounds together; they must be of one shard. Errors:
// mongoerr NamespaceNotSharded, BadValue for bounds that are not those of chunks,
// IllegalOperation when they are of several shards.
func (r *Router) MergeChunks(ctx context.Context, ns Namespace, bounds [2]bson.Raw, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	for {
		err := r.mergeOnce(ctx, a, ns, bounds)
		if errors.Is(err, errMerged) {
			return nil
		}
		if err == nil {
			a.progress()
			continue
		}
		if errors.Is(err, errkind.Conflict) {
			err = fmt.Errorf("%w: %w", errkind.StaleVersion, err)
		}
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
}

// errMerged: one chunk is left.
var errMerged = errors.New("one chunk is left")

// mergesMax bounds the merges of one commit.
const mergesMax = 1000

// mergeOnce makes one chunk of every two. Their rows must be in segments up to one floor,
// therefore their owner flushes first.
func (r *Router) mergeOnce(ctx context.Context, a *attempts, ns Namespace, bounds [2]bson.Raw) error {
	s, err := a.load(ctx)
	if err != nil {
		return err
	}
	chunks, err := PlanMerge(s, ns, bounds)
	switch {
	case err != nil:
		return err
	case len(chunks) == 1:
		return errMerged
	}
	if slices.ContainsFunc(chunks, func(x *manifest.Chunk) bool { return s.EffectiveFloor(x) != s.EffectiveFloor(chunks[0]) }) {
		if err := r.flushShard(ctx, a, s, s.Collection(chunks[0].Collection), chunks[0].Shard); err != nil {
			return err
		}
	}
	var changes []manifest.Change
	for i := 0; i+1 < len(chunks) && len(changes) < mergesMax; i += 2 {
		changes = append(changes, manifest.Merge{Left: chunks[i].At(), Right: chunks[i+1].At()})
	}
	_, err = r.commit(ctx, changes...)
	return err
}

// known refuses a shard that there is not.
func known(s *manifest.State, shard manifest.ShardID) error {
	if s.Shard(shard) == nil {
		return mongoerr.New(mongoerr.ShardNotFound, "Shard %s not found; the shards are listed by: db.adminCommand({ listShards: 1 })", shard)
	}
	return nil
}

func (r *Router) flushShard(ctx context.Context, a *attempts, s *manifest.State, c *manifest.Collection, shard manifest.ShardID) error {
	_, err := ask(ctx, a, s, shard, func(o rpc.Owner) (*rpc.FlushReply, error) {
		return o.Flush(ctx, &rpc.FlushRequest{Header: a.header(s, c, shard)})
	})
	a.answered(ctx, shard, err)
	return err
}

// MoveChunk gives a chunk to a shard; one that is there already stays. Errors: mongoerr
// NamespaceNotSharded, ShardNotFound, BadValue when no chunk is named.
func (r *Router) MoveChunk(ctx context.Context, ns Namespace, at Where, to manifest.ShardID, maxTime time.Duration) error {
	_, err := r.moveSome(ctx, ns, to, maxTime, func(s *manifest.State, c *manifest.Collection) ([]*manifest.Chunk, error) {
		chunk, err := chunkAt(s, c, at)
		return []*manifest.Chunk{chunk}, err
	})
	return err
}

// MoveRange gives the range from min to max (nil: the end of the chunk that min is in) to a
// shard: chunks that reach beyond it are cut first, and those of one owner move together.
// Errors as MoveChunk.
func (r *Router) MoveRange(ctx context.Context, ns Namespace, min, max bson.Raw, to manifest.ShardID, maxTime time.Duration) error {
	for _, edge := range []bson.Raw{min, max} {
		if edge == nil {
			continue
		}
		if err := r.cutAt(ctx, ns, edge, maxTime); err != nil {
			return err
		}
	}
	for {
		more, err := r.moveSome(ctx, ns, to, maxTime, func(s *manifest.State, c *manifest.Collection) ([]*manifest.Chunk, error) {
			return chunksIn(s, c, min, max)
		})
		if err != nil || !more {
			return err
		}
	}
}

// chunksIn are the chunks of a range; its end nil: that of the first.
func chunksIn(s *manifest.State, c *manifest.Collection, min, max bson.Raw) ([]*manifest.Chunk, error) {
	key, _, err := c.Bound(min)
	if err != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	if max == nil {
		return []*manifest.Chunk{s.ChunkOf(c.ID, key)}, nil
	}
	want, err := c.Bounds(min, max)
	if err != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	return slices.Collect(s.ChunksIn(c.ID, want)), nil
}

// moveSome moves those of the chunks that pick finds, that are not where they should be, and
// that have the owner of the first of these, in one commit. more is false when there are none.
func (r *Router) moveSome(ctx context.Context, ns Namespace, to manifest.ShardID, maxTime time.Duration, pick func(*manifest.State, *manifest.Collection) ([]*manifest.Chunk, error)) (more bool, err error) {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	for {
		more, err := r.moveOnce(ctx, a, ns, to, pick)
		if err == nil {
			return more, nil
		}
		if errors.Is(err, errkind.Conflict) {
			err = fmt.Errorf("%w: %w", errkind.StaleVersion, err)
		}
		if err := a.again(ctx, err); err != nil {
			return false, err
		}
	}
}

func (r *Router) moveOnce(ctx context.Context, a *attempts, ns Namespace, to manifest.ShardID, pick func(*manifest.State, *manifest.Collection) ([]*manifest.Chunk, error)) (more bool, err error) {
	s, err := a.load(ctx)
	if err != nil {
		return false, err
	}
	c, err := sharded(s, ns)
	if err != nil {
		return false, err
	}
	if err := known(s, to); err != nil {
		return false, err
	}
	if !c.PermitsMigrations() {
		return false, mongoerr.New(mongoerr.ConflictingOperationInProg, "migrations of %s are disabled: sh.enableMigrations(%q) permits them", ns, ns.String())
	}
	found, err := pick(s, c)
	if err != nil {
		return false, err
	}
	var chunks []*manifest.Chunk
	for _, chunk := range found {
		if chunk.Shard == to || len(chunks) > 0 && chunk.Shard != chunks[0].Shard || len(chunks) == rpc.MovesMax {
			continue
		}
		if err := zoneAllows(s, c, chunk, to); err != nil {
			return false, err
		}
		chunks = append(chunks, chunk)
	}
	if len(chunks) == 0 {
		return false, nil
	}
	return true, r.handOver(ctx, a, s, c, chunks, to)
}

// handOver asks the owner of chunks to give them to a shard.
func (r *Router) handOver(ctx context.Context, a *attempts, s *manifest.State, c *manifest.Collection, chunks []*manifest.Chunk, to manifest.ShardID) error {
	from := chunks[0].Shard
	req := &rpc.MoveRequest{Header: a.header(s, c, from), To: to}
	for _, chunk := range chunks {
		req.Chunks = append(req.Chunks, chunk.At())
	}
	_, err := ask(ctx, a, s, from, func(o rpc.Owner) (*rpc.MoveReply, error) { return o.Move(ctx, req) })
	a.answered(ctx, from, err)
	return err
}

// cutAt makes a point a bound of chunks, if it is none.
func (r *Router) cutAt(ctx context.Context, ns Namespace, edge bson.Raw, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		c, err := sharded(s, ns)
		if err != nil {
			return nil, err
		}
		key, full, err := c.Bound(edge)
		if err != nil {
			return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
		}
		chunk := s.ChunkOf(c.ID, key)
		if len(key) == 0 || bytes.Equal(chunk.Range.Min, key) {
			return nil, nil
		}
		return r.cut(c, chunk, manifest.Bound{Key: key, BSON: full})
	})
	return err
}
