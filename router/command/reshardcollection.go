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

// resharding is what sh.reshardCollection, sh.unshardCollection and the helpers that end them
// send. As in MongoDB the command is answered when the collection has its new key; unlike there
// it takes no five minutes at least, and no second index of the key.
func (s *Commands) resharding() []Command {
	return []Command{
		{
			Name: "reshardCollection", Help: "gives a sharded collection another shard key, or deals its documents out anew", Admin: true, Run: s.reshardCollection,
			Fields: []string{"key", "unique", "numInitialChunks", "collation", "zones", "forceRedistribution", "splitPoints", "_presplitReshardedChunks", "shardDistribution", keepField},
			// How samples are taken, and what the operation is called, is MongoDB's affair: the
			// rows are sorted here before they are cut.
			Ignored: []string{"numSamplesPerChunk", "reshardingUUID", "enforceUniquenessCheck", "implicitlyCreateIndex", "performVerification"},
		},
		{
			Name: "rewriteCollection", Help: "deals the documents of a sharded collection out anew under its key", Admin: true, Run: s.rewriteCollection,
			Fields: []string{"numInitialChunks", "zones", "splitPoints", keepField}, Ignored: []string{"numSamplesPerChunk", "performVerification"},
		},
		{
			Name: "unshardCollection", Help: "makes a sharded collection an unsharded one, on one shard", Admin: true, Run: s.unshardCollection,
			Fields: []string{"toShard", keepField}, Ignored: []string{"performVerification"},
		},
		{
			Name: "undoReshardCollection", Help: "gives a collection the shard key back that it had before the last change of it", Admin: true, Run: s.undoReshardCollection,
			Fields: []string{keepField},
		},
		{Name: "abortReshardCollection", Help: "ends a reshardCollection; the collection keeps its key", Admin: true, Run: s.endResharding((*router.Router).AbortReshard)},
		{Name: "abortUnshardCollection", Help: "ends an unshardCollection; the collection stays sharded", Admin: true, Run: s.endResharding((*router.Router).AbortReshard)},
		{Name: "commitReshardCollection", Help: "has a reshardCollection switch as soon as it can", Admin: true, Run: s.endResharding((*router.Router).CommitReshard)},
	}
}

// keepField is for how many seconds the collection as it was is kept, for undoReshardCollection;
// a day, unless it is given, and 0 for not at all.
const (
	keepField   = "keepOldVersionSecs"
	keepDefault = 24 * 60 * 60
	keepMax     = 365 * keepDefault
)

func (c *call) keep() time.Duration {
	n := c.count(keepField, keepDefault)
	if n > keepMax {
		c.fail(mongoerr.New(mongoerr.BadValue, "%s: %s is %d at most, which is a year", c.cmd.Name, keepField, keepMax))
	}
	return time.Duration(min(n, keepMax)) * time.Second
}

func (s *Commands) undoReshardCollection(ctx context.Context, c *call) (bson.Raw, error) {
	ns, keep := c.qualified(c.fields[0].value), c.keep()
	if c.mayWrite(ns); c.err != nil {
		return nil, c.err
	}
	restored, err := s.router.UndoReshard(ctx, ns, keep, c.again(), c.maxTime)
	if err != nil {
		return nil, err
	}
	return ok(build().AppendBoolean("restored", restored).AppendBoolean("rewritten", !restored)), nil
}

func (s *Commands) reshardCollection(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.qualified(c.fields[0].value)
	c.mayWrite(ns)
	spec := c.doc("key")
	c.simpleCollation()
	c.refuse("shardDistribution", "; _presplitReshardedChunks: [{recipientShardId: ..., min: {...}, max: {...}}, ...] puts ranges on shards")
	if c.err == nil && spec == nil {
		c.fail(missingField("reshardCollection.key"))
	}
	unique, force := c.bool("unique"), c.bool("forceRedistribution")
	if c.err != nil {
		return nil, c.err
	}
	return s.reshard(ctx, c, ns, spec, unique, force)
}

func (s *Commands) rewriteCollection(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.qualified(c.fields[0].value)
	if c.mayWrite(ns); c.err != nil {
		return nil, c.err
	}
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	coll := st.CollectionByName(ns.Database, ns.Collection)
	if coll == nil || !coll.Sharded {
		return nil, mongoerr.New(mongoerr.NamespaceNotSharded, "rewriteCollection: collection %s is not sharded", ns)
	}
	return s.reshard(ctx, c, ns, coll.Key.BSON(), coll.Unique, true)
}

func (s *Commands) reshard(ctx context.Context, c *call, ns router.Namespace, spec bson.Raw, unique, force bool) (bson.Raw, error) {
	n, err := s.keyed(ctx, c, ns, spec, unique, false)
	if err != nil {
		return nil, err
	}
	var l router.Layout
	if err := s.layOut(ctx, c, &n, &l); err != nil {
		return nil, err
	}
	if err := s.router.ReshardCollection(ctx, ns, n, l, force, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}

// layOut reads where the collection is to be cut, and where its parts are to be.
func (s *Commands) layOut(ctx context.Context, c *call, n *router.NewCollection, l *router.Layout) (err error) {
	chunks := c.count("numInitialChunks", 0)
	l.Keep = c.keep()
	points, presplit := c.given("splitPoints"), c.given("_presplitReshardedChunks")
	if zones := c.value("zones"); !absent(zones) {
		l.Zones = []router.ZoneBounds{}
		for _, d := range c.list("zones", zones) {
			l.Zones = append(l.Zones, zoneOf(c, d))
		}
	}
	switch {
	case c.err != nil:
		return c.err
	case len(presplit) > 0 && (len(points) > 0 || chunks > 0):
		return mongoerr.New(mongoerr.InvalidOptions, "%s: _presplitReshardedChunks says all chunks: give no splitPoints and no numInitialChunks beside it", c.cmd.Name)
	case len(presplit) > initialChunkMax:
		return mongoerr.New(mongoerr.InvalidOptions, "%s: a collection begins with at most %d chunks", c.cmd.Name, initialChunkMax)
	case len(presplit) > 0:
		n.Points, l.Homes, err = presplitChunks(n.Key, presplit)
	case chunks > 0 && chunks <= initialChunkMax && len(points) == 0 && !n.Key.Fields[0].Hashed:
		l.Parts = int(chunks)
		return nil
	default:
		n.Points, err = s.initialPoints(ctx, c, n.Key, points, chunks)
	}
	n.Only = len(points) > 0 || chunks > 0 || len(presplit) > 0
	return err
}

// given is a list of documents that may be left out.
func (c *call) given(name string) []bson.Raw {
	v := c.value(name)
	if absent(v) {
		return nil
	}
	return c.list(name, v)
}

// zoneOf reads {zone, min, max}.
func zoneOf(c *call, d bson.Raw) (z router.ZoneBounds) {
	var isName, hasMin, hasMax bool
	z.Zone, isName = d.Lookup("zone").StringValueOK()
	z.Min, hasMin = d.Lookup("min").DocumentOK()
	z.Max, hasMax = d.Lookup("max").DocumentOK()
	if !isName || z.Zone == "" || !hasMin || !hasMax {
		c.fail(mongoerr.New(mongoerr.BadValue, "%s: a zone is { zone: \"EU\", min: {...}, max: {...} }, not %v", c.cmd.Name, d))
	}
	return z
}

// presplitChunks are chunks that must cover the key space, each with its shard.
func presplitChunks(key shardkey.Pattern, docs []bson.Raw) (points []shardkey.Bound, homes []manifest.ShardID, err error) {
	type part struct {
		rng  shardkey.Range
		min  bson.Raw
		home manifest.ShardID
	}
	parts := make([]part, 0, len(docs))
	for _, d := range docs {
		min, hasMin := d.Lookup("min").DocumentOK()
		max, hasMax := d.Lookup("max").DocumentOK()
		shard, isName := d.Lookup("recipientShardId").StringValueOK()
		if !hasMin || !hasMax || !isName {
			return nil, nil, mongoerr.New(mongoerr.BadValue, "_presplitReshardedChunks: a chunk is { recipientShardId: \"shard01\", min: {...}, max: {...} }, not %v", d)
		}
		rng, full, _, err := key.Range(min, max)
		if err != nil {
			return nil, nil, mongoerr.New(mongoerr.BadValue, "_presplitReshardedChunks: %v", err)
		}
		parts = append(parts, part{rng, full, manifest.ShardID(shard)})
	}
	slices.SortFunc(parts, func(a, b part) int { return bytes.Compare(a.rng.Min, b.rng.Min) })
	var end []byte
	for i, p := range parts {
		last := i == len(parts)-1
		if !bytes.Equal(p.rng.Min, end) || (len(p.rng.Max) == 0) != last {
			return nil, nil, mongoerr.New(mongoerr.BadValue, "_presplitReshardedChunks must cover the key space from %v to %v without gap or overlap; "+
				"at %v they do not", key.MinBSON(), key.MaxBSON(), p.min)
		}
		if i > 0 {
			points = append(points, shardkey.Bound{Key: p.rng.Min, BSON: p.min})
		}
		homes, end = append(homes, p.home), p.rng.Max
	}
	return points, homes, nil
}

func (s *Commands) unshardCollection(ctx context.Context, c *call) (bson.Raw, error) {
	ns, to, keep := c.qualified(c.fields[0].value), c.string("toShard"), c.keep()
	if c.mayWrite(ns); c.err != nil {
		return nil, c.err
	}
	if err := s.router.UnshardCollection(ctx, ns, manifest.ShardID(to), keep, c.again(), c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}
