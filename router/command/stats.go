package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// statistics is how large things are. Documents are counted exactly, unless that would read many
// of them, after splits. size is that of the documents, uncompressed, and storageSize what they
// take in the store. A document that is in the log only counts with the average size of the
// others.
func (s *Commands) statistics() []Command {
	return []Command{
		{Name: "dbStats", Aliases: []string{"dbstats"}, Help: "how large a database is", Fields: []string{"scale"}, Ignored: []string{"freeStorage"}, Run: s.dbStats},
		{Name: "collStats", Aliases: []string{"collstats"}, Help: "how large a collection is", Fields: []string{"scale"}, Run: s.collStats},
	}
}

// scale is the divisor of sizes.
func (c *call) scale() int64 {
	n := c.count("scale", 1)
	if c.err == nil && n == 0 {
		c.fail(mongoerr.New(mongoerr.BadValue, "scale has to be >= 1"))
	}
	return n
}

// sizes are sums over shards.
type sizes struct {
	chunks               int
	documents, data, all int64
}

func (z *sizes) add(f router.ShardFigures) {
	z.chunks += f.Chunks
	z.documents += f.Documents
	z.data += f.Bytes
	z.all += f.Stored
}

func (z *sizes) average() int64 { return z.data / max(z.documents, 1) }

func (s *Commands) dbStats(ctx context.Context, c *call) (bson.Raw, error) {
	scale := c.scale()
	if c.err != nil {
		return nil, c.err
	}
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	var total sizes
	var collections, indexes int64
	for _, coll := range st.Collections() {
		if coll.Database != c.DB {
			continue
		}
		collections++
		indexes += 1 + int64(len(coll.Indexes))
		figures, err := s.router.Figures(ctx, router.Namespace{Database: coll.Database, Collection: coll.Name}, c.maxTime)
		if err != nil {
			return nil, err
		}
		for _, f := range figures {
			total.add(f)
		}
	}
	return ok(build().
		AppendString("db", c.DB).
		AppendInt64("collections", collections).
		AppendInt64("views", 0).
		AppendInt64("objects", total.documents).
		AppendDouble("avgObjSize", float64(total.data)/float64(max(total.documents, 1))).
		AppendInt64("dataSize", total.data/scale).
		AppendInt64("storageSize", total.all/scale).
		AppendInt64("indexes", indexes).
		AppendInt64("indexSize", 0).
		AppendInt64("totalSize", total.all/scale).
		AppendInt64("scaleFactor", scale)), nil
}

func (s *Commands) collStats(ctx context.Context, c *call) (bson.Raw, error) {
	ns, scale := c.namespace(), c.scale()
	if c.err != nil {
		return nil, c.err
	}
	coll, figures, err := s.figures(ctx, c, ns)
	if err != nil {
		return nil, err
	}
	var total sizes
	shards := build()
	for _, f := range figures {
		total.add(f)
		one := sizes{}
		one.add(f)
		shards.AppendDocument(string(f.Shard), one.append(build().AppendString("ns", ns.String()), coll, scale).Build())
	}
	b := total.append(build().
		AppendBoolean("sharded", coll != nil && coll.Sharded).
		AppendString("ns", ns.String()), coll, scale)
	return ok(b.AppendInt32("nchunks", int32(total.chunks)).AppendDocument("shards", shards.Build())), nil
}

// figures are a collection, nil when it does not exist, and what shards have of it.
func (s *Commands) figures(ctx context.Context, c *call, ns router.Namespace) (*manifest.Collection, []router.ShardFigures, error) {
	figures, err := s.router.Figures(ctx, ns, c.maxTime)
	if err != nil {
		return nil, nil, err
	}
	return s.router.Root().State().CollectionByName(ns.Database, ns.Collection), figures, nil
}

// append adds what MongoDB calls storageStats.
func (z *sizes) append(b *bsoncore.DocumentBuilder, coll *manifest.Collection, scale int64) *bsoncore.DocumentBuilder {
	indexes := build()
	n := 0
	if coll != nil {
		n = 1
		indexes.AppendInt64(idIndexName, 0)
		for _, x := range coll.Indexes {
			n++
			indexes.AppendInt64(x.Name, 0)
		}
	}
	b.AppendInt64("size", z.data/scale).AppendInt64("count", z.documents).AppendInt64("numOrphanDocs", 0)
	if z.documents > 0 {
		b.AppendInt64("avgObjSize", z.average())
	}
	return b.AppendInt64("storageSize", z.all/scale).
		AppendInt64("freeStorageSize", 0).
		AppendBoolean("capped", false).
		AppendInt32("nindexes", int32(n)).
		AppendInt64("totalIndexSize", 0).
		AppendInt64("totalSize", z.all/scale).
		AppendDocument("indexSizes", indexes.Build()).
		AppendInt64("scaleFactor", scale)
}

// collStatsStage is $collStats: a document of each shard that owns a chunk, or one that says
// that there is nothing.
func (s *Commands) collStatsStage(ctx context.Context, c *call, ns router.Namespace, spec bson.Raw) ([]bson.Raw, error) {
	coll, figures, err := s.figures(ctx, c, ns)
	if err != nil {
		return nil, err
	}
	if len(figures) == 0 {
		figures = []router.ShardFigures{{}}
	}
	st := s.router.Root().State()
	var docs []bson.Raw
	for i, f := range figures {
		b := build().AppendString("ns", ns.String())
		if h := st.Shard(f.Shard); h != nil {
			b.AppendString("shard", string(f.Shard)).AppendString("host", shardHost(h)[len(h.ID)+1:])
		}
		b.AppendDateTime("localTime", s.host.Wall().UnixMilli())
		if err := s.appendAsked(b, ns, f, coll, spec, i == 0); err != nil {
			return nil, err
		}
		docs = append(docs, bson.Raw(b.Build()))
	}
	return docs, nil
}

// appendAsked adds the parts of $collStats that were asked for.
func (s *Commands) appendAsked(b *bsoncore.DocumentBuilder, ns router.Namespace, f router.ShardFigures, coll *manifest.Collection, spec bson.Raw, first bool) error {
	es, err := spec.Elements()
	if err != nil {
		return err
	}
	var one sizes
	one.add(f)
	for _, e := range es {
		arg, isDoc := e.Value().DocumentOK()
		if !isDoc {
			return mongoerr.New(mongoerr.TypeMismatch, "%s argument must be an object, but found %s", e.Key(), typeName(e.Value().Type))
		}
		switch e.Key() {
		case "storageStats":
			scale, isInt := asInt(arg.Lookup("scale"))
			if !isInt || scale < 1 {
				scale = 1
			}
			b.AppendDocument("storageStats", one.append(build(), coll, scale).Build())
		case "count":
			b.AppendInt64("count", f.Documents)
		case "latencyStats":
			histograms, _ := asBool(arg.Lookup("histograms"))
			s.appendLatency(b, ns, first, histograms)
		case "queryExecStats":
			b.AppendDocument(e.Key(), build().Build())
		default:
			return mongoerr.New(40168, "unrecognized option to $collStats: %s", e.Key())
		}
	}
	return nil
}
