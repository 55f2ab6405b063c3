package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// chunks is what sh.splitAt, sh.splitFind, sh.moveChunk, sh.moveRange and mergeChunks send.
func (s *Commands) chunks() []Command {
	return []Command{
		{
			Name: "split", Help: "cuts a chunk: at middle, or at the median of the chunk that find or bounds name", Admin: true,
			Fields: []string{"find", "bounds", "middle"}, Run: s.split,
		},
		{
			Name: "dropRange", Help: "removes all documents of a shard-key range at once", Admin: true,
			Fields: []string{"min", "max", "dryRun"}, Run: s.dropRange,
		},
		{
			Name: "mergeChunks", Help: "makes one chunk of those between two bounds, all of one shard", Admin: true,
			Fields: []string{"bounds"}, Run: s.mergeChunks,
		},
		{
			Name: "mergeAllChunksOnShard", Help: "makes one chunk of all neighbours that a shard owns", Admin: true, Run: s.mergeAllChunksOnShard,
			Fields: []string{"shard", "maxNumberOfChunksToMerge"}, Ignored: []string{"maxTimeProcessingChunksMS"},
		},
		{
			Name: "moveCollection", Help: "gives an unsharded collection to a shard", Admin: true, Run: s.moveCollection,
			Fields: []string{"toShard"},
		},
		{
			Name: "moveChunk", Help: "gives the chunk that find or bounds name to a shard", Admin: true, Run: s.moveChunk,
			Fields:  []string{"find", "bounds", "to"},
			Ignored: []string{"forceJumbo", "_waitForDelete", "waitForDelete", "_secondaryThrottle", "secondaryThrottle"},
		},
		{
			Name: "moveRange", Help: "gives a range to a shard, cutting chunks at its ends", Admin: true, Run: s.moveRange,
			Fields:  []string{"toShard", "min", "max"},
			Ignored: []string{"forceJumbo", "waitForDelete", "secondaryThrottle"},
		},
	}
}

// where reads how a command names a chunk: exactly one of the ways.
func (c *call) where(ways ...string) (at router.Where) {
	named := 0
	for _, way := range ways {
		if absent(c.value(way)) {
			continue
		}
		named++
		switch way {
		case "find":
			at.Find = c.doc(way)
		case "middle":
			at.Middle = c.doc(way)
		case "bounds":
			at.Bounds = c.bounds()
		}
	}
	if named != 1 {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "need to specify exactly one of %v", ways))
	}
	return at
}

func (c *call) bounds() (b [2]bson.Raw) {
	list := c.docs("bounds")
	if len(list) != 2 {
		c.fail(mongoerr.New(mongoerr.BadValue, "bounds has %d documents: give the lower and the upper bound, bounds: [{ ... }, { ... }]", len(list)))
		return b
	}
	return [2]bson.Raw(list)
}

func (s *Commands) split(ctx context.Context, c *call) (bson.Raw, error) {
	ns, at := c.qualified(c.fields[0].value), c.where("find", "bounds", "middle")
	if c.mayWrite(ns); c.err != nil {
		return nil, c.err
	}
	if err := s.router.SplitChunk(ctx, ns, at, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}

// dropRange is a command of our own: MongoDB would delete the documents one by one.
func (s *Commands) dropRange(ctx context.Context, c *call) (bson.Raw, error) {
	ns, min, max, dry := c.qualified(c.fields[0].value), c.doc("min"), c.doc("max"), c.bool("dryRun")
	if c.mayWrite(ns); c.err == nil && (min == nil || max == nil) {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "dropRange needs min and max, the bounds of what to remove: min: { ... }, max: { ... }"))
	}
	if c.err != nil {
		return nil, c.err
	}
	e, err := s.router.DropRange(ctx, ns, min, max, dry, c.maxTime)
	if err != nil {
		return nil, err
	}
	return ok(build().AppendInt32("chunks", int32(e.Chunks)).AppendInt64("rows", e.Rows).AppendInt64("bytes", e.Bytes).
		AppendBoolean("estimated", e.Estimated)), nil
}

func (s *Commands) mergeChunks(ctx context.Context, c *call) (bson.Raw, error) {
	ns, bounds := c.qualified(c.fields[0].value), c.bounds()
	if c.mayWrite(ns); c.err != nil {
		return nil, c.err
	}
	if err := s.router.MergeChunks(ctx, ns, bounds, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}

func (s *Commands) mergeAllChunksOnShard(ctx context.Context, c *call) (bson.Raw, error) {
	ns, shard, most := c.qualified(c.fields[0].value), c.string("shard"), c.count("maxNumberOfChunksToMerge", 0)
	if c.mayWrite(ns); c.err == nil && shard == "" {
		c.fail(missingField("mergeAllChunksOnShard.shard"))
	}
	if c.err == nil && most == 1 {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "maxNumberOfChunksToMerge must be 2 at least"))
	}
	if c.err != nil {
		return nil, c.err
	}
	if err := s.router.MergeOnShard(ctx, ns, manifest.ShardID(shard), int(most), c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}

func (s *Commands) moveCollection(ctx context.Context, c *call) (bson.Raw, error) {
	ns, to := c.qualified(c.fields[0].value), c.string("toShard")
	if c.mayWrite(ns); c.err == nil && to == "" {
		c.fail(missingField("moveCollection.toShard"))
	}
	if c.err != nil {
		return nil, c.err
	}
	return s.moved(func() error { return s.router.MoveCollection(ctx, ns, manifest.ShardID(to), c.maxTime) })
}

func (s *Commands) moveChunk(ctx context.Context, c *call) (bson.Raw, error) {
	ns, at, to := c.qualified(c.fields[0].value), c.where("find", "bounds"), c.string("to")
	if c.mayWrite(ns); c.err == nil && to == "" {
		c.fail(missingField("moveChunk.to"))
	}
	if c.err != nil {
		return nil, c.err
	}
	return s.moved(func() error { return s.router.MoveChunk(ctx, ns, at, manifest.ShardID(to), c.maxTime) })
}

func (s *Commands) moveRange(ctx context.Context, c *call) (bson.Raw, error) {
	ns, to, min, max := c.qualified(c.fields[0].value), c.string("toShard"), c.doc("min"), c.doc("max")
	c.mayWrite(ns)
	switch {
	case c.err != nil:
	case to == "":
		c.fail(missingField("moveRange.toShard"))
	case min == nil:
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "moveRange needs min, the lower bound of what to move; max may be left out"))
	}
	if c.err != nil {
		return nil, c.err
	}
	return s.moved(func() error { return s.router.MoveRange(ctx, ns, min, max, manifest.ShardID(to), c.maxTime) })
}

// moved answers how long a move took.
func (s *Commands) moved(move func() error) (bson.Raw, error) {
	clock := s.router.Host()
	start := clock.Mono()
	if err := move(); err != nil {
		return nil, err
	}
	return ok(build().AppendInt64("millis", (clock.Mono() - start).Milliseconds())), nil
}
