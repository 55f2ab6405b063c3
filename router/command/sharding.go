package command

import (
	"context"
	"time"

	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// sharding is what the sh helpers of mongosh send.
func (s *Commands) sharding() []Command {
	return []Command{
		{Name: "enableSharding", Help: "records a database", Admin: true, Ignored: []string{"primaryShard"}, Run: s.enableSharding},
		{
			Name: "shardCollection", Help: "gives a collection a shard key and its first chunks", Admin: true, Run: s.shardCollection,
			Fields:  []string{"key", "unique", "splitPoints", "numInitialChunks", "collation", "timeseries", "presplitHashedZones", "requireShardKey", splitWithinKey},
			Ignored: []string{"enforceUniquenessCheck", "implicitlyCreateIndex"},
		},
		{
			Name: "refineCollectionShardKey", Help: "adds fields behind those of the shard key", Admin: true, Run: s.refineCollectionShardKey,
			Fields: []string{"key"}, Ignored: []string{"enforceUniquenessCheck"},
		},
		{Name: "listShards", Help: "the shards and who holds them", Admin: true, Fields: []string{"filter"}, Run: s.listShards},
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

// dataDistribution is $shardedDataDistribution: what each shard owns of each collection.
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
		figures, err := s.router.Figures(ctx, router.Namespace{Database: coll.Database, Collection: coll.Name}, maxTime)
		if err != nil {
			return nil, err
		}
		var shards []bson.Raw
		for _, f := range figures {
			shards = append(shards, bson.Raw(build().
				AppendString("shardName", string(f.Shard)).
				AppendInt64("numOrphanedDocs", 0).
				AppendInt64("numOwnedDocuments", f.Documents).
				AppendInt64("ownedSizeBytes", f.Bytes).
				AppendInt64("orphanedSizeBytes", 0).Build()))
		}
		docs = append(docs, bson.Raw(build().AppendString("ns", coll.Namespace()).AppendArray("shards", array(shards)).Build()))
	}
	return docs, nil
}
