package command

import (
	"bytes"
	"context"
	"slices"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

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
	presplit := c.bool("presplitHashedZones")
	require, within := c.bool("requireShardKey"), c.bool(splitWithinKey)
	if c.err == nil && spec == nil {
		c.fail(missingField("shardCollection.key"))
	}
	if c.err != nil {
		return nil, c.err
	}
	n, err := s.keyed(ctx, c, ns, spec, unique, within)
	if err != nil {
		return nil, err
	}
	if presplit {
		n.Points, err = s.zonePoints(ctx, c, ns, n.Key, points, chunks)
	} else {
		n.Points, err = s.initialPoints(ctx, c, n.Key, points, chunks)
	}
	if err != nil {
		return nil, err
	}
	n.Only = len(points) > 0 || chunks > 0
	n.Options = manifest.WithRequireShardKey(nil, require)
	warnings := s.keyWarnings(ctx, c, ns, n.Key)
	if err := s.router.ShardCollection(ctx, ns, n, c.maxTime); err != nil {
		return nil, err
	}
	b := build().AppendString("collectionsharded", ns.String())
	if note := uniquenessOfID(n.Key); note != "" {
		b.AppendString("note", note)
	}
	if len(warnings) > 0 {
		b.AppendArray("warnings", stringArray(warnings...))
	}
	return ok(b), nil
}

// keyed is a collection as it is to be under a shard key: with an index of the key, and no
// unique index that could not be kept under it.
func (s *Commands) keyed(ctx context.Context, c *call, ns router.Namespace, spec bson.Raw, unique, within bool) (n router.NewCollection, err error) {
	n.Unique, n.SplitWithinKey, n.Again = unique, within, c.again()
	if n.Key, err = shardkey.ParsePattern(spec); err != nil {
		return n, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	if unique && slices.ContainsFunc(n.Key.Fields, func(f shardkey.Field) bool { return f.Hashed }) {
		return n, mongoerr.New(mongoerr.InvalidOptions, "Shard key %v: a hashed shard key cannot be unique; use %s", n.Key, plainIndex(n.Key))
	}
	if name := indexName(n.Key); name != "_id_1" {
		n.Indexes = []manifest.Index{keyIndex(n.Key, unique)}
	}
	if within {
		asked := manifest.Collection{Database: ns.Database, Name: ns.Collection, Key: n.Key, Sharded: true, Indexes: n.Indexes}
		if err := switchWithinKey(&asked, true, 0); err != nil {
			return n, err
		}
	}
	return n, s.uniqueUnder(ctx, c, ns, n.Key, within)
}

// initialPoints are where a new collection is cut: as asked, and a hashed one in even parts.
func (s *Commands) initialPoints(ctx context.Context, c *call, key shardkey.Pattern, points []bson.Raw, chunks int64) ([]shardkey.Bound, error) {
	hashedFirst := key.Fields[0].Hashed
	switch {
	case len(points) > 0 && chunks > 0:
		return nil, mongoerr.New(mongoerr.InvalidOptions, "%s: give splitPoints or numInitialChunks, not both", c.cmd.Name)
	case len(points) >= initialChunkMax || chunks > initialChunkMax:
		return nil, mongoerr.New(mongoerr.InvalidOptions, "%s: a collection begins with at most %d chunks", c.cmd.Name, initialChunkMax)
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

// zonePoints are where presplitHashedZones cuts a new collection: the hashes within each zone
// range in even parts, for the shards of the zone. MongoDB's conditions: a hashed field, and ranges
// that begin at the least value of it and of the fields behind.
func (s *Commands) zonePoints(ctx context.Context, c *call, ns router.Namespace, key shardkey.Pattern, points []bson.Raw, chunks int64) ([]shardkey.Bound, error) {
	at := slices.IndexFunc(key.Fields, func(f shardkey.Field) bool { return f.Hashed })
	switch {
	case at < 0:
		return nil, mongoerr.New(mongoerr.InvalidOptions, "presplitHashedZones is only supported when the shard key has a hashed field")
	case len(points) > 0:
		return nil, mongoerr.New(mongoerr.InvalidOptions, "shardCollection: give splitPoints or presplitHashedZones, not both")
	case chunks > initialChunkMax:
		return nil, mongoerr.New(mongoerr.InvalidOptions, "shardCollection: a collection begins with at most %d chunks", initialChunkMax)
	}
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	zones, err := router.ZonesOf(st, ns, key)
	if err == nil && len(zones) == 0 {
		err = mongoerr.New(mongoerr.InvalidOptions, "presplitHashedZones needs zone ranges of %s: sh.updateZoneKeyRange(%q, MIN, MAX, ZONE) first", ns, ns.String())
	}
	if err != nil {
		return nil, err
	}
	var cuts []shardkey.Bound
	for _, z := range zones {
		fields, err := z.MinBSON.Elements()
		if err != nil {
			return nil, err
		}
		var prefix []bson.RawValue
		for i, f := range fields {
			if i < at {
				prefix = append(prefix, f.Value())
			} else if f.Value().Type != bson.TypeMinKey {
				return nil, mongoerr.New(mongoerr.InvalidOptions, "presplitHashedZones: the range of zone %s begins at %v; it must begin at MinKey in %s and in the fields behind it", z.Zone, z.MinBSON, key.Fields[at].Path)
			}
		}
		parts := int64(chunksPerShard * len(st.ShardsOf(z.Zone)))
		if chunks > 0 {
			parts = (chunks + int64(len(zones)) - 1) / int64(len(zones))
		}
		for _, p := range shardkey.HashedInitialPoints(key, int(parts), prefix...) {
			if z.Range.Contains(p.Key) {
				cuts = append(cuts, p)
			}
		}
	}
	return cuts, nil
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

// keyIndex is the index of a shard key.
func keyIndex(key shardkey.Pattern, unique bool) manifest.Index {
	name := indexName(key)
	b := build().AppendInt32("v", 2).AppendDocument("key", key.BSON()).AppendString("name", name)
	if unique {
		b.AppendBoolean("unique", true)
	}
	return manifest.Index{Name: name, Spec: bson.Raw(b.Build())}
}

// uniqueUnder refuses a shard key under which a unique index of the collection could not be
// kept.
func (s *Commands) uniqueUnder(ctx context.Context, c *call, ns router.Namespace, key shardkey.Pattern, within bool) error {
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return err
	}
	coll := st.CollectionByName(ns.Database, ns.Collection)
	if coll == nil {
		return nil
	}
	under := *coll
	under.Key, under.Sharded, under.SplitWithinKey = key, true, coll.SplitWithinKey || within
	for _, x := range coll.Indexes {
		if err := checkUnique(&under, x); err != nil {
			return err
		}
	}
	return nil
}
