package command

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// sharding is what the sh helpers of mongosh send.
func (s *Commands) sharding() []Command {
	return []Command{
		{Name: "enableSharding", Help: "records a database", Admin: true, Ignored: []string{"primaryShard"}, Run: s.enableSharding},
		{
			Name: "shardCollection", Help: "gives a collection a shard key and its first chunks", Admin: true, Run: s.shardCollection,
			Fields:  []string{"key", "unique", "splitPoints", "numInitialChunks", "collation", "timeseries"},
			Ignored: []string{"presplitHashedZones", "enforceUniquenessCheck", "implicitlyCreateIndex"},
		},
		{Name: "listShards", Help: "the shards and who holds them", Admin: true, Fields: []string{"filter"}, Run: s.listShards},
		{Name: "balancerStatus", Help: "whether chunks are moved by themselves", Admin: true, Run: s.balancerStatus},
	}
}

func (s *Commands) enableSharding(ctx context.Context, c *call) (bson.Raw, error) {
	db, isString := c.fields[0].value.StringValueOK()
	if !isString {
		return nil, wrongType("enableSharding", "enableSharding", c.fields[0].value, "'string'")
	}
	if err := checkDatabase(db); err != nil {
		return nil, err
	}
	c.mayWrite(router.Namespace{Database: db})
	if c.err != nil {
		return nil, c.err
	}
	if err := s.router.EnableSharding(ctx, db, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}

const (
	chunksPerShard  = 2 // of a new hashed collection
	initialChunkMax = 8192
)

func (s *Commands) shardCollection(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.qualified(c.fields[0].value)
	c.mayWrite(ns)
	spec := c.doc("key")
	unique := c.bool("unique")
	chunks := c.count("numInitialChunks", 0)
	c.simpleCollation()
	if len(c.doc("timeseries")) > 5 {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "shardCollection: timeseries is not supported"))
	}
	var points []bson.Raw
	if v := c.value("splitPoints"); !absent(v) {
		points = c.list("splitPoints", v)
	}
	if c.err == nil && spec == nil {
		c.fail(missingField("shardCollection.key"))
	}
	if c.err != nil {
		return nil, c.err
	}
	n := router.NewCollection{Unique: unique}
	var err error
	if n.Key, err = shardkey.ParsePattern(spec); err != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	if unique && !n.Key.HasID() {
		return nil, cannotKeepUnique(ns.String(), n.Key, n.Key)
	}
	if n.Points, err = s.initialPoints(ctx, c, n.Key, points, chunks); err != nil {
		return nil, err
	}
	if name := indexName(n.Key); name != "_id_1" {
		n.Indexes = []manifest.Index{{Name: name, Spec: bson.Raw(build().
			AppendInt32("v", 2).AppendDocument("key", n.Key.BSON()).AppendString("name", name).Build())}}
	}
	if err := s.router.ShardCollection(ctx, ns, n, c.maxTime); err != nil {
		return nil, err
	}
	return ok(build().AppendString("collectionsharded", ns.String())), nil
}

// initialPoints are where a new collection is cut: as asked, and a hashed one in even parts.
func (s *Commands) initialPoints(ctx context.Context, c *call, key shardkey.Pattern, points []bson.Raw, chunks int64) ([]shardkey.Bound, error) {
	hashedFirst := key.Fields[0].Hashed
	switch {
	case len(points) > 0 && chunks > 0:
		return nil, mongoerr.New(mongoerr.InvalidOptions, "shardCollection: give splitPoints or numInitialChunks, not both")
	case len(points) >= initialChunkMax || chunks > initialChunkMax:
		return nil, mongoerr.New(mongoerr.InvalidOptions, "shardCollection: a collection begins with at most %d chunks", initialChunkMax)
	case len(points) > 0:
		return splitPoints(key, points)
	case chunks > 0 && !hashedFirst:
		return nil, mongoerr.New(mongoerr.InvalidOptions, "numInitialChunks is not supported when the first field of the shard key is not hashed; "+
			"give splitPoints: [{%s: ...}, ...] instead", key.Fields[0].Path)
	case !hashedFirst:
		return nil, nil
	}
	if chunks == 0 {
		st, err := s.router.State(ctx, c.maxTime)
		if err != nil {
			return nil, err
		}
		chunks = int64(chunksPerShard * len(st.Shards()))
	}
	return shardkey.HashedInitialPoints(key, int(chunks)), nil
}

func splitPoints(key shardkey.Pattern, docs []bson.Raw) ([]shardkey.Bound, error) {
	var points []shardkey.Bound
	for _, d := range docs {
		k, full, err := key.Bound(d)
		if err != nil {
			return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
		}
		if len(k) == 0 {
			return nil, mongoerr.New(mongoerr.BadValue, "split point %v is the end of the key space", d)
		}
		points = append(points, shardkey.Bound{Key: k, BSON: full})
	}
	slices.SortFunc(points, func(a, b shardkey.Bound) int { return bytes.Compare(a.Key, b.Key) })
	for i := 1; i < len(points); i++ {
		if bytes.Equal(points[i-1].Key, points[i].Key) {
			return nil, mongoerr.New(mongoerr.BadValue, "split point %v is given twice", points[i].BSON)
		}
	}
	return points, nil
}

func (s *Commands) listShards(ctx context.Context, c *call) (bson.Raw, error) {
	filter := c.doc("filter")
	if c.err != nil {
		return nil, c.err
	}
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	docs, err := filterDocs(configShards(st), filter)
	if err != nil {
		return nil, err
	}
	return ok(build().AppendArray("shards", array(docs))), nil
}

func (s *Commands) balancerStatus(context.Context, *call) (bson.Raw, error) {
	return ok(build().AppendString("mode", "off").AppendBoolean("inBalancerRound", false).AppendInt64("numBalancerRounds", 0)), nil
}

// dataDistribution is $shardedDataDistribution: what each shard owns of each collection,
// by the counts in the root.
func (s *Commands) dataDistribution(ctx context.Context, maxTime time.Duration) ([]bson.Raw, error) {
	st, err := s.router.State(ctx, maxTime)
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	for _, coll := range st.Collections() {
		if !coll.Sharded {
			continue
		}
		rows, size := make(map[manifest.ShardID]int64), make(map[manifest.ShardID]int64)
		for chunk := range st.Chunks(coll.ID) {
			rows[chunk.Shard] += chunk.Rows
			size[chunk.Shard] += chunk.Bytes
		}
		var shards []bson.Raw
		for _, h := range st.Shards() {
			if _, owns := rows[h.ID]; owns {
				shards = append(shards, bson.Raw(build().
					AppendString("shardName", string(h.ID)).
					AppendInt64("numOrphanedDocs", 0).
					AppendInt64("numOwnedDocuments", rows[h.ID]).
					AppendInt64("ownedSizeBytes", size[h.ID]).
					AppendInt64("orphanedSizeBytes", 0).Build()))
			}
		}
		docs = append(docs, bson.Raw(build().AppendString("ns", coll.Namespace()).AppendArray("shards", array(shards)).Build()))
	}
	return docs, nil
}
