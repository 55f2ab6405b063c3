package router

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// CheckUnique looks through a collection for documents that break unique indexes which it has
// by now, and which begin with its shard key: it visits all in the order of the shard key, and
// holds the index keys of one shard-key value at a time. First it has every owner see the
// indexes, and waits until what was stored without them is visible, so that it sees every
// document that nobody else has checked. Errors: mongoerr DuplicateKey, with both _ids.
func (r *Router) CheckUnique(ctx context.Context, ns Namespace, indexes []manifest.Index) error {
	s, _, err := r.root.Load(ctx)
	if err != nil {
		return err
	}
	c := s.CollectionByName(ns.Database, ns.Collection)
	if c == nil {
		return mongoerr.New(mongoerr.NamespaceNotFound, "ns does not exist: %s", ns)
	}
	if _, err := r.flushAll(ctx, s, c); err != nil {
		return err
	}
	order := bsoncore.NewDocumentBuilder()
	for _, f := range c.Key.Fields {
		order.AppendInt32(f.Path, 1)
	}
	cur, err := r.Find(ctx, ns, Query{Sort: bson.Raw(order.Build())})
	if err != nil {
		return err
	}
	defer cur.Close(ctx)
	v := visit{ns: ns, key: c.Key, indexes: indexes}
	for {
		doc, err := cur.Next(ctx, firstBatch)
		if err != nil || doc == nil {
			return err
		}
		if err := v.see(doc); err != nil {
			return err
		}
	}
}

// visit holds the index keys of the documents of the present shard-key value.
type visit struct {
	ns      Namespace
	key     shardkey.Pattern
	indexes []manifest.Index
	prefix  []byte
	seen    map[string]bson.RawValue // index and key to the _id
}

func (v *visit) see(doc bson.Raw) error {
	prefix, err := v.key.AppendShardKey(nil, doc)
	if err != nil {
		return err
	}
	if v.seen == nil || !bytes.Equal(prefix, v.prefix) {
		v.prefix, v.seen = prefix, make(map[string]bson.RawValue)
	}
	id, _ := document.Lookup(doc, "_id")
	id.Value = slices.Clone(id.Value)
	for i, x := range v.indexes {
		keys, err := document.IndexKeys(x.Spec, doc)
		if err != nil {
			return err
		}
		for _, k := range keys {
			slot := fmt.Sprint(i, " ", string(k))
			if other, taken := v.seen[slot]; taken && !other.Equal(id) {
				return mongoerr.New(mongoerr.DuplicateKey, "E11000 duplicate key error collection: %s index: %s: the documents with the _ids %v and %v have one key; "+
					"the index was not created", v.ns, x.Name, other, id)
			}
			v.seen[slot] = id
		}
	}
	return nil
}
