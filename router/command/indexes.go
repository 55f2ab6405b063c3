package command

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Indexes are recorded and listed: a chunk is sorted by its shard key, which is the one
// index that reads go by.

const idIndexName = "_id_"

// idIndex is the index that every collection has.
var idIndex = build().AppendInt32("v", 2).
	AppendDocument("key", build().AppendInt32("_id", 1).Build()).
	AppendString("name", idIndexName).Build()

func (s *Commands) listIndexes(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.namespace()
	if c.err != nil {
		return nil, c.err
	}
	coll, err := s.existing(ctx, c, ns)
	if err != nil {
		return nil, err
	}
	docs := []bson.Raw{bson.Raw(idIndex)}
	for _, x := range coll.Indexes {
		docs = append(docs, x.Spec)
	}
	return s.listed(ctx, c, docs, ns.String())
}

func (s *Commands) createIndexes(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.written()
	specs := c.list("indexes", c.value("indexes"))
	if c.err == nil && len(specs) == 0 {
		c.fail(mongoerr.New(mongoerr.BadValue, "Must specify at least one index to create"))
	}
	if c.err != nil {
		return nil, c.err
	}
	var fresh []manifest.Index
	for _, spec := range specs {
		x, err := parseIndex(spec)
		if err != nil {
			return nil, err
		}
		if x.Name != idIndexName {
			fresh = append(fresh, x)
		}
	}
	was, now, err := s.router.AlterIndexes(ctx, ns, true, func(coll *manifest.Collection) ([]manifest.Index, error) {
		return withIndexes(coll, fresh)
	}, c.maxTime)
	if err != nil {
		return nil, err
	}
	before := 1
	if was != nil {
		before += len(was.Indexes)
	}
	if err := s.findDuplicates(ctx, c, ns, was, now); err != nil {
		return nil, err
	}
	b := build().
		AppendInt32("numIndexesBefore", int32(before)).
		AppendInt32("numIndexesAfter", int32(1+len(now.Indexes))).
		AppendBoolean("createdCollectionAutomatically", was == nil)
	if before == 1+len(now.Indexes) {
		b.AppendString("note", "all indexes already exist")
	}
	return ok(b), nil
}

// findDuplicates looks for documents that break unique indexes which were just added. Their
// owners refuse new ones from now on; when there are old ones, the indexes go again.
func (s *Commands) findDuplicates(ctx context.Context, c *call, ns router.Namespace, was, now *manifest.Collection) error {
	var fresh []manifest.Index
	for _, x := range now.Indexes {
		known := was == nil || slices.ContainsFunc(was.Indexes, func(old manifest.Index) bool { return old.Name == x.Name })
		if unique, _ := x.Spec.Lookup("unique").BooleanOK(); unique && !known {
			fresh = append(fresh, x)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	err := s.router.CheckUnique(ctx, ns, fresh)
	if err == nil {
		return nil
	}
	_, _, undo := s.router.AlterIndexes(ctx, ns, false, func(coll *manifest.Collection) ([]manifest.Index, error) {
		return slices.DeleteFunc(slices.Clone(coll.Indexes), func(x manifest.Index) bool {
			return slices.ContainsFunc(fresh, func(f manifest.Index) bool { return bytes.Equal(f.Spec, x.Spec) })
		}), nil
	}, c.maxTime)
	if undo != nil {
		s.options.Log.Warn("a unique index stays that documents break", "ns", ns, "cause", undo)
	}
	return err
}

// parseIndex reads a specification, and makes it what listIndexes shows: v, key, name, and
// the options that change what the index is.
func parseIndex(spec bson.Raw) (manifest.Index, error) {
	key, isDoc := spec.Lookup("key").DocumentOK()
	if !isDoc {
		return manifest.Index{}, mongoerr.New(mongoerr.FailedToParse, "The 'key' field is a required property of an index specification")
	}
	pattern, err := shardkey.ParseIndexPattern(key)
	if err != nil {
		return manifest.Index{}, mongoerr.New(mongoerr.CannotCreateIndex, "%v", err)
	}
	name, _ := spec.Lookup("name").StringValueOK()
	if name == "" {
		name = indexName(pattern)
	}
	if len(pattern.Fields) == 1 && pattern.Fields[0] == (shardkey.Field{Path: "_id"}) {
		name = idIndexName
	}
	seconds, err := ttlSeconds(spec, pattern)
	if err != nil {
		return manifest.Index{}, err
	}
	b := build().AppendInt32("v", 2).AppendDocument("key", key).AppendString("name", name)
	es, err := spec.Elements()
	if err != nil {
		return manifest.Index{}, mongoerr.New(mongoerr.FailedToParse, "index specification: %v", err)
	}
	for _, e := range es {
		v := e.Value()
		switch e.Key() {
		case "key", "name", "v", "ns", "background", "collation":
		case "unique", "sparse", "hidden":
			if yes, isBool := asBool(v); isBool && yes {
				b.AppendBoolean(e.Key(), true)
			}
		case expiry.Field:
			b.AppendInt32(e.Key(), seconds)
		case "partialFilterExpression":
			b.AppendValue(e.Key(), core(v))
		default:
			return manifest.Index{}, mongoerr.New(mongoerr.CannotCreateIndex, "index %q: the option %q is not supported", name, e.Key())
		}
	}
	return manifest.Index{Name: name, Spec: bson.Raw(b.Build())}, nil
}

// indexName is the name that drivers give an index: a_1_b_-1.
func indexName(p shardkey.Pattern) string {
	var parts []string
	for _, f := range p.Fields {
		direction := "1"
		switch {
		case f.Hashed:
			direction = "hashed"
		case f.Descending:
			direction = "-1"
		}
		parts = append(parts, f.Path+"_"+direction)
	}
	return strings.Join(parts, "_")
}

// withIndexes adds indexes to those of a collection. Errors: the same name for another key,
// the same key under another name, and a unique index that a shard alone cannot keep.
func withIndexes(coll *manifest.Collection, fresh []manifest.Index) ([]manifest.Index, error) {
	all := slices.Clone(coll.Indexes)
	for _, x := range fresh {
		if err := checkUnique(coll, x); err != nil {
			return nil, err
		}
		same, err := conflicting(all, x)
		if err != nil {
			return nil, err
		}
		if !same {
			all = append(all, x)
		}
	}
	return all, nil
}

func conflicting(all []manifest.Index, x manifest.Index) (same bool, err error) {
	key := x.Spec.Lookup("key")
	for _, old := range all {
		sameKey := bytes.Equal(old.Spec.Lookup("key").Value, key.Value)
		switch {
		case old.Name == x.Name && bytes.Equal(old.Spec, x.Spec):
			return true, nil
		case old.Name == x.Name && sameKey:
			return false, mongoerr.New(mongoerr.IndexOptionsConflict, "An equivalent index already exists with the same name but different options. "+
				"Requested index: %v, existing index: %v", x.Spec, old.Spec)
		case old.Name == x.Name:
			return false, mongoerr.New(mongoerr.IndexKeySpecsConflict, "An existing index has the same name as the requested index. "+
				"Requested index: %v, existing index: %v", x.Spec, old.Spec)
		case sameKey:
			return false, mongoerr.New(mongoerr.IndexOptionsConflict, "Index already exists with a different name: %s", old.Name)
		}
	}
	return false, nil
}

// checkUnique refuses a unique index unless one shard can keep it: documents that it tells
// apart must be on one shard, so it begins with the shard key, or has all of the row's key.
func checkUnique(coll *manifest.Collection, x manifest.Index) error {
	if unique, _ := x.Spec.Lookup("unique").BooleanOK(); !unique {
		return nil
	}
	key, _ := x.Spec.Lookup("key").DocumentOK()
	p, err := shardkey.ParseIndexPattern(key)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(p.Fields, func(f shardkey.Field) bool { return f.Hashed }) {
		return mongoerr.New(mongoerr.CannotCreateIndex, "a hashed index cannot guarantee uniqueness: use %s", plainIndex(p))
	}
	if coll.SplitWithinKey && coll.Sharded && !hasRowKey(coll.Key, p) {
		return mongoerr.New(mongoerr.CannotCreateIndex, "cannot keep an index over %v of %s unique: with splitWithinKey the documents of one shard-key value %v may be on several shards; "+
			"a unique index and splitWithinKey exclude each other", p, coll.Namespace(), coll.Key)
	}
	if keptUnique(coll.Key, p) {
		return nil
	}
	return cannotKeepUnique(coll.Namespace(), coll.Key, p)
}

// keptUnique reports whether the documents of one shard, or rows' keys, keep an index unique.
func keptUnique(key, index shardkey.Pattern) bool {
	n := len(key.Fields)
	if len(index.Fields) >= n && !slices.ContainsFunc(key.Fields, func(f shardkey.Field) bool { return f.Hashed }) &&
		slices.EqualFunc(key.Fields, index.Fields[:n], func(a, b shardkey.Field) bool { return a.Path == b.Path }) {
		return true
	}
	return hasRowKey(key, index)
}

// hasRowKey reports whether an index has all fields of rows' keys, so that it is unique anyway.
func hasRowKey(key, index shardkey.Pattern) bool {
	return !slices.ContainsFunc(key.RowPattern().Fields, func(f shardkey.Field) bool { return !index.Has(f.Path) })
}

// plainIndex is an index without hashed fields, as one types it.
func plainIndex(p shardkey.Pattern) string {
	q := shardkey.Pattern{Fields: slices.Clone(p.Fields)}
	for i := range q.Fields {
		q.Fields[i].Hashed = false
	}
	return q.String()
}

func cannotKeepUnique(ns string, key, index shardkey.Pattern) error {
	return mongoerr.New(mongoerr.CannotCreateIndex, "cannot create unique index over %v with shard key pattern %v of %s: "+
		"a unique index must begin with the shard key, because each shard keeps only its own documents unique. Two ways out: "+
		"shard the collection by what is to be unique, with sh.shardCollection(%q, %s, true); "+
		"or keep the value in a second collection that is sharded so, and insert there first", index, key, ns, ns, plainIndex(index))
}

func (s *Commands) dropIndexes(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.written()
	which := c.value("index")
	if c.err != nil {
		return nil, c.err
	}
	all := false
	was, _, err := s.router.AlterIndexes(ctx, ns, false, func(coll *manifest.Collection) ([]manifest.Index, error) {
		all = false
		switch which.Type {
		case bson.TypeString:
			if all = which.StringValue() == "*"; all {
				return nil, nil
			}
			return withoutIndex(coll.Indexes, which)
		case bson.TypeEmbeddedDocument:
			return withoutIndex(coll.Indexes, which)
		case bson.TypeArray:
			left := coll.Indexes
			for _, v := range elements(which) {
				var err error
				if left, err = withoutIndex(left, v); err != nil {
					return nil, err
				}
			}
			return left, nil
		}
		return nil, wrongType("dropIndexes", "index", which, "'[string, object, array]'")
	}, c.maxTime)
	if err != nil {
		return nil, err
	}
	b := build().AppendInt32("nIndexesWas", int32(len(was.Indexes)+1))
	if all {
		b.AppendString("msg", "non-_id indexes dropped for collection")
	}
	return ok(b), nil
}

// withoutIndex removes an index by its name or its key.
func withoutIndex(list []manifest.Index, which bson.RawValue) ([]manifest.Index, error) {
	name, byName := which.StringValueOK()
	key, byKey := which.DocumentOK()
	if name == idIndexName || byKey && bytes.Equal(key, build().AppendInt32("_id", 1).Build()) {
		return nil, mongoerr.New(mongoerr.InvalidOptions, "cannot drop _id index")
	}
	i := slices.IndexFunc(list, func(x manifest.Index) bool {
		return byName && x.Name == name || byKey && bytes.Equal(x.Spec.Lookup("key").Value, key)
	})
	if i < 0 {
		what := fmt.Sprintf("with name [%s]", name)
		if byKey {
			what = fmt.Sprintf("with key %v", key)
		}
		return nil, mongoerr.New(mongoerr.IndexNotFound, "index not found %s", what)
	}
	return slices.Delete(slices.Clone(list), i, i+1), nil
}
