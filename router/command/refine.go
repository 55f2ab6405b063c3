package command

import (
	"context"
	"slices"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// refineCollectionShardKey adds fields behind those of the shard key. Rows lie in the order of
// the whole key, so that documents of one value of the old key are put in another order: they
// are written anew, while they are read and written, as when a collection is first sharded.
// The chunks are cut where they were, and those that one value filled can be cut from now on.
func (s *Commands) refineCollectionShardKey(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.qualified(c.fields[0].value)
	c.mayWrite(ns)
	spec := c.doc("key")
	if c.err == nil && spec == nil {
		c.fail(missingField("refineCollectionShardKey.key"))
	}
	if c.err != nil {
		return nil, c.err
	}
	key, err := shardkey.ParsePattern(spec)
	if err != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	coll := st.CollectionByName(ns.Database, ns.Collection)
	switch {
	case coll == nil || !coll.Sharded:
		return nil, mongoerr.New(mongoerr.NamespaceNotSharded, "refineCollectionShardKey collection %s is not sharded; use sh.shardCollection(%q, %v)", ns, ns, key)
	case coll.Key.Equal(key):
		return okReply(), nil // it is refined already
	case !coll.Key.PrefixOf(key):
		return nil, mongoerr.New(mongoerr.InvalidOptions, "refineCollectionShardKey shard key %v does not extend the current shard key %v: "+
			"give the same fields first, and others behind them", key, coll.Key)
	}
	if err := s.uniqueUnder(ctx, c, ns, key, false); err != nil {
		return nil, err
	}
	index := keyIndexOf(coll, key)
	if index == nil {
		return nil, mongoerr.New(mongoerr.InvalidOptions, "Please create an index that starts with the proposed shard key before refining the shard key: db.%s.createIndex(%v)", ns.Collection, key)
	}
	n := router.NewCollection{Key: key, Again: c.again()}
	n.Unique, _ = index.Spec.Lookup("unique").BooleanOK()
	if n.Points, err = boundsUnder(st, coll, key); err != nil {
		return nil, err
	}
	if err := s.router.Reshard(ctx, ns, n, router.Layout{}, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}

// keyIndexOf is an index of the collection that begins with the key and has all documents; a
// unique one of exactly the key, when there is one.
func keyIndexOf(coll *manifest.Collection, key shardkey.Pattern) (found *manifest.Index) {
	for i, x := range coll.Indexes {
		spec, _ := x.Spec.Lookup("key").DocumentOK()
		p, err := shardkey.ParseIndexPattern(spec)
		sparse, _ := x.Spec.Lookup("sparse").BooleanOK()
		if err != nil || sparse || x.Spec.Lookup("partialFilterExpression").Type != 0 || !key.PrefixOf(p) {
			continue
		}
		unique, _ := x.Spec.Lookup("unique").BooleanOK()
		if found == nil || unique && key.Equal(p) {
			found = &coll.Indexes[i]
		}
	}
	if found != nil {
		if spec, _ := found.Spec.Lookup("key").DocumentOK(); !slices.Equal(spec, key.BSON()) {
			plain := *found
			plain.Spec = nil // unique, perhaps, but not by the shard key alone
			return &plain
		}
	}
	return found
}

// boundsUnder are the bounds of a collection's chunks as those of a key that extends its own.
func boundsUnder(st *manifest.State, coll *manifest.Collection, key shardkey.Pattern) ([]shardkey.Bound, error) {
	var points []shardkey.Bound
	for chunk := range st.Chunks(coll.ID) {
		if len(chunk.Range.Min) == 0 {
			continue
		}
		k, full, err := key.Bound(chunk.MinBSON)
		if err != nil && coll.WithinKey(chunk.MinBSON) {
			continue // inside a value of the old key, where the new one has another field
		}
		if err != nil {
			return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
		}
		points = append(points, shardkey.Bound{Key: k, BSON: full})
	}
	return points, nil
}
