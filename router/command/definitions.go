package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// definitions make, list and remove collections and indexes.
func (s *Commands) definitions() []Command {
	return []Command{
		{
			Name: "create", Help: "makes a collection", Run: s.create,
			Fields: []string{"capped", "size", "max", "viewOn", "pipeline", "timeseries", "collation", "validator", "clusteredIndex",
				"expireAfterSeconds", "changeStreamPreAndPostImages", "encryptedFields", "requireShardKey", splitWithinKey},
			Ignored: []string{"autoIndexId", "idIndex", "storageEngine", "indexOptionDefaults", "validationLevel", "validationAction", "flags"},
		},
		{Name: "collMod", Help: "changes the options of a collection", Fields: []string{"requireShardKey", splitWithinKey, "index"}, Run: s.collMod},
		{Name: "drop", Help: "removes a collection", Run: s.drop, Ignored: []string{"collectionUUID"}},
		{Name: "dropDatabase", Help: "removes a database and its collections", Run: s.dropDatabase},
		{Name: "listDatabases", Help: "the databases", Admin: true, Fields: []string{"filter", "nameOnly"}, Ignored: []string{"authorizedDatabases"}, Run: s.listDatabases},
		{Name: "listCollections", Help: "the collections of a database", Fields: []string{"filter", "nameOnly", "cursor"}, Ignored: []string{"authorizedCollections"}, Run: s.listCollections},
		{Name: "listIndexes", Help: "the indexes of a collection", Fields: []string{"cursor"}, Ignored: []string{"includeBuildUUIDs", "includeIndexBuildInfo"}, Run: s.listIndexes},
		{
			Name: "createIndexes", Help: "records indexes", Fields: []string{"indexes"},
			Ignored: []string{"ignoreUnknownIndexOptions", "commitQuorum"}, Run: s.createIndexes,
		},
		{Name: "dropIndexes", Aliases: []string{"deleteIndexes"}, Help: "removes recorded indexes", Fields: []string{"index"}, Run: s.dropIndexes},
	}
}

func (s *Commands) create(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.written()
	c.refuse("capped", "")
	for _, name := range []string{"viewOn", "pipeline", "timeseries", "validator", "expireAfterSeconds", "changeStreamPreAndPostImages", "encryptedFields"} {
		if d, isDoc := c.value(name).DocumentOK(); !isDoc || len(d) > 5 {
			c.refuse(name, "")
		}
	}
	c.simpleCollation()
	n := router.NewCollection{Options: manifest.WithRequireShardKey(nil, c.bool("requireShardKey")), SplitWithinKey: c.bool(splitWithinKey)}
	if c.err != nil {
		return nil, c.err
	}
	if err := s.router.Create(ctx, ns, n, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}

// collMod changes options. requireShardKey has owners refuse documents that lack a field of
// the shard key; documents that are there already stay. splitWithinKey lets a shard-key value
// span several chunks. index: {name, expireAfterSeconds} changes when documents expire.
func (s *Commands) collMod(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.written()
	require, within := c.bool("requireShardKey"), c.bool(splitWithinKey)
	requireGiven, withinGiven := !absent(c.value("requireShardKey")), !absent(c.value(splitWithinKey))
	index := c.doc("index")
	if c.err == nil && (requireGiven || withinGiven) && index != nil {
		c.fail(mongoerr.New(mongoerr.InvalidOptions, "collMod changes an index, or requireShardKey and splitWithinKey: send two commands for both"))
	}
	if c.err != nil {
		return nil, c.err
	}
	if index != nil {
		return s.collModIndex(ctx, c, ns, index)
	}
	err := s.router.AlterOptions(ctx, ns, func(coll *manifest.Collection) error {
		if requireGiven {
			coll.Options = manifest.WithRequireShardKey(coll.Options, require)
		}
		if withinGiven {
			return switchWithinKey(coll, within, s.host.Wall().UnixMilli())
		}
		return nil
	}, c.maxTime)
	if err != nil {
		return nil, err
	}
	return okReply(), nil
}

func (s *Commands) drop(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.written()
	if c.err != nil {
		return nil, c.err
	}
	old, err := s.router.Drop(ctx, ns, c.maxTime)
	if err != nil {
		return nil, err
	}
	return ok(build().AppendInt32("nIndexesWas", int32(len(old.Indexes)+1)).AppendString("ns", ns.String())), nil
}

func (s *Commands) dropDatabase(ctx context.Context, c *call) (bson.Raw, error) {
	c.mayWrite(router.Namespace{Database: c.DB})
	if c.err != nil {
		return nil, c.err
	}
	if err := s.router.DropDatabase(ctx, c.DB, c.maxTime); err != nil {
		return nil, err
	}
	return ok(build().AppendString("dropped", c.DB)), nil
}

func (s *Commands) listDatabases(ctx context.Context, c *call) (bson.Raw, error) {
	nameOnly, filter := c.bool("nameOnly"), c.doc("filter")
	if c.err != nil {
		return nil, c.err
	}
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	bytes := make(map[string]int64)
	for chunk := range st.AllChunks() {
		if coll := st.Collection(chunk.Collection); coll != nil {
			bytes[coll.Database] += chunk.Bytes
		}
	}
	var docs []bson.Raw
	var total int64
	for _, name := range append([]string{"admin", "config"}, st.Databases()...) {
		b := build().AppendString("name", name)
		if !nameOnly {
			b.AppendInt64("sizeOnDisk", bytes[name]).AppendBoolean("empty", false)
		}
		total += bytes[name]
		docs = append(docs, bson.Raw(b.Build()))
	}
	if docs, err = filterDocs(docs, filter); err != nil {
		return nil, err
	}
	b := build().AppendArray("databases", array(docs))
	if !nameOnly {
		b.AppendInt64("totalSize", total).AppendInt64("totalSizeMb", total>>20)
	}
	return ok(b), nil
}

// listed answers a list as a cursor that getMore can continue.
func (s *Commands) listed(ctx context.Context, c *call, docs []bson.Raw, ns string) (bson.Raw, error) {
	batch := int64(0)
	if v := c.doc("cursor").Lookup("batchSize"); c.doc("cursor") != nil && !absent(v) {
		batch, _ = asInt(v)
	}
	if c.err != nil {
		return nil, c.err
	}
	if batch <= 0 {
		batch = int64(len(docs)) + 1
	}
	return s.first(ctx, c, &cursor{ns: ns, session: c.session, rows: &docRows{docs}}, int(batch), false)
}

func (s *Commands) listCollections(ctx context.Context, c *call) (bson.Raw, error) {
	nameOnly, filter := c.bool("nameOnly"), c.doc("filter")
	if c.err != nil {
		return nil, c.err
	}
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	for _, coll := range st.Collections() {
		if coll.Database == c.DB {
			docs = append(docs, describeCollection(coll))
		}
	}
	if c.DB == "config" {
		for _, name := range configNames {
			docs = append(docs, describeCollection(&manifest.Collection{Name: name}))
		}
	}
	if docs, err = filterDocs(docs, filter); err != nil {
		return nil, err
	}
	if nameOnly {
		for i, d := range docs {
			docs[i] = bson.Raw(build().AppendValue("name", core(d.Lookup("name"))).AppendString("type", "collection").Build())
		}
	}
	return s.listed(ctx, c, docs, c.DB+".$cmd.listCollections")
}

func describeCollection(coll *manifest.Collection) bson.Raw {
	options := shownOptions(coll)
	info := build().AppendBoolean("readOnly", false).AppendBinary("uuid", bson.TypeBinaryUUID, coll.UUID[:])
	b := build().
		AppendString("name", coll.Name).
		AppendString("type", "collection").
		AppendDocument("options", options).
		AppendDocument("info", info.Build()).
		AppendDocument("idIndex", idIndex)
	return bson.Raw(b.Build())
}

// shownOptions are a collection's options as users gave them.
func shownOptions(coll *manifest.Collection) bson.Raw {
	options := coll.UserOptions()
	if options == nil {
		options = bson.Raw(build().Build())
	}
	if coll.SplitWithinKey {
		options = appended(options, func(d []byte) []byte { return bsoncore.AppendBooleanElement(d, splitWithinKey, true) })
	}
	return options
}

// existing is a collection that must exist.
func (s *Commands) existing(ctx context.Context, c *call, ns router.Namespace) (*manifest.Collection, error) {
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	coll := st.CollectionByName(ns.Database, ns.Collection)
	if coll == nil {
		return nil, mongoerr.New(mongoerr.NamespaceNotFound, "ns does not exist: %s", ns)
	}
	return coll, nil
}
