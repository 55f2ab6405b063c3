package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// whereabouts is what tells where shards and chunks are, and whether the root is sound.
func (s *Commands) whereabouts() []Command {
	return []Command{
		{Name: "getShardMap", Help: "the shards' hosts", Admin: true, Run: s.getShardMap},
		{Name: "getShardVersion", Help: "the version of a sharded collection's chunks", Admin: true, Fields: []string{"fullMetadata"}, Run: s.getShardVersion},
		{Name: "flushRouterConfig", Help: "reads the root anew", Admin: true, Run: s.flushRouterConfig},
		{
			Name: "checkMetadataConsistency", Help: "what is wrong with the root", Run: s.checkMetadataConsistency,
			Fields: []string{"cursor"}, Ignored: []string{"checkIndexes", "checkUUIDs"},
		},
	}
}

func (s *Commands) getShardMap(ctx context.Context, c *call) (bson.Raw, error) {
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	shards, hosts, strings := build(), build(), build()
	seen := map[string]bool{}
	for _, h := range st.Shards() {
		full := shardHost(h)
		shards.AppendString(string(h.ID), full)
		strings.AppendString(full, string(h.ID))
		if host := full[len(h.ID)+1:]; !seen[host] { // a writer may hold several
			seen[host] = true
			hosts.AppendString(host, string(h.ID))
		}
	}
	return ok(build().AppendDocument("map", shards.Build()).
		AppendDocument("hosts", hosts.Build()).
		AppendDocument("connStrings", strings.Build())), nil
}

// getShardVersion: the version of a collection is the highest of its chunks'.
func (s *Commands) getShardVersion(ctx context.Context, c *call) (bson.Raw, error) {
	ns, full := c.qualified(c.fields[0].value), c.bool("fullMetadata")
	if c.err != nil {
		return nil, c.err
	}
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	coll := st.CollectionByName(ns.Database, ns.Collection)
	if coll == nil || !coll.Sharded {
		return nil, mongoerr.New(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	var version manifest.ChunkVersion
	var chunks []bson.RawValue
	for chunk := range st.Chunks(coll.ID) {
		version = max(version, chunk.Version)
		if full {
			chunks = append(chunks, bson.RawValue{Type: bson.TypeArray, Value: array([]bson.Raw{chunk.MinBSON, chunk.MaxBSON})})
		}
	}
	b := build().
		AppendTimestamp("version", uint32(version>>32), uint32(version)).
		AppendObjectID("versionEpoch", epoch(coll)).
		AppendTimestamp("versionTimestamp", uint32(coll.CreatedMillis/1000), uint32(coll.ID))
	if full {
		b.AppendArray("chunks", values(chunks))
	}
	return ok(b), nil
}

// flushRouterConfig: there is one root, whichever database or collection is named.
func (s *Commands) flushRouterConfig(ctx context.Context, c *call) (bson.Raw, error) {
	if _, err := s.router.State(ctx, c.maxTime); err != nil {
		return nil, err
	}
	return ok(build().AppendBoolean("flushed", true)), nil
}

// checkMetadataConsistency checks all of the root, whatever is named: what a collection needs
// is not right when something else is wrong. What only the objects themselves can tell,
// granary fsck asks them.
func (s *Commands) checkMetadataConsistency(ctx context.Context, c *call) (bson.Raw, error) {
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	name := "$cmd.aggregate"
	if coll, isName := c.fields[0].value.StringValueOK(); isName {
		name = coll
		if _, err := s.existing(ctx, c, c.namespace()); err != nil {
			return nil, err
		}
	}
	return s.listed(ctx, c, inconsistencies(st.Version(), manifest.Validate(st)), c.DB+"."+name)
}

// inconsistencies is what a check found, in MongoDB's form.
func inconsistencies(v manifest.Version, found error) []bson.Raw {
	if found == nil {
		return nil
	}
	return []bson.Raw{bson.Raw(build().
		AppendString("type", "InvalidRoot").
		AppendString("description", found.Error()).
		AppendDocument("details", build().
			AppendInt64("rootVersion", int64(v)).
			AppendString("next", "granary fsck names the objects and the key ranges at stake").Build()).Build())}
}
