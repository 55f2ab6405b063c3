package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// clusterCatalog is $listClusterCatalog: the collections of a database, or of all from the
// database admin. spec asks for more: {shards: true, balancingConfiguration: true}.
func (s *Commands) clusterCatalog(ctx context.Context, c *call, spec bson.RawValue) ([]bson.Raw, error) {
	d, isDoc := spec.DocumentOK()
	if !isDoc {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "$listClusterCatalog must take a nested object but found: %s", typeName(spec.Type))
	}
	shards, _ := asBool(d.Lookup("shards"))
	balancing, _ := asBool(d.Lookup("balancingConfiguration"))
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	for _, coll := range st.Collections() {
		if c.DB == "admin" || coll.Database == c.DB {
			docs = append(docs, catalogEntry(st, coll, shards, balancing))
		}
	}
	return docs, nil
}

func catalogEntry(st *manifest.State, coll *manifest.Collection, shards, balancing bool) bson.Raw {
	b := build().
		AppendString("ns", coll.Namespace()).
		AppendString("db", coll.Database).
		AppendString("type", "collection").
		AppendDocument("idIndex", idIndex).
		AppendDocument("info", build().AppendBoolean("readOnly", false).AppendBinary("uuid", bson.TypeBinaryUUID, coll.UUID[:]).Build()).
		AppendDocument("options", shownOptions(coll)).
		AppendBoolean("sharded", coll.Sharded).
		AppendBoolean("tracked", true)
	if coll.Sharded {
		b.AppendDocument("shardKey", coll.Key.BSON()).AppendBoolean("shardKeyUnique", coll.Unique)
	}
	if shards {
		b.AppendArray("shards", stringArray(owners(st, coll)...))
	}
	if balancing && coll.Sharded {
		b.AppendBoolean("balancingEnabled", !coll.NoBalance && coll.PermitsMigrations()).
			AppendDocument("balancingEnabledReason", build().AppendBoolean("enableBalancing", !coll.NoBalance).AppendBoolean("allowMigrations", coll.PermitsMigrations()).Build()).
			AppendBoolean("autoMergingEnabled", st.AutoMerge(coll)).
			AppendInt64("chunkSize", st.ChunkSize(coll)>>20)
	}
	return bson.Raw(b.Build())
}

// owners are the shards that have a chunk of a collection, by name.
func owners(st *manifest.State, coll *manifest.Collection) (names []string) {
	has := make(map[manifest.ShardID]bool)
	for chunk := range st.Chunks(coll.ID) {
		has[chunk.Shard] = true
	}
	for _, h := range st.Shards() {
		if has[h.ID] {
			names = append(names, string(h.ID))
		}
	}
	return names
}
