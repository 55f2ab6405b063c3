package command

import (
	"bytes"
	"context"
	"math"
	"slices"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// TTL indexes: package expiry says what they mean.

const (
	errTTLRange    = "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a lower number than %d"
	errTTLNegative = "TTL index 'expireAfterSeconds' option cannot be less than 0"
	errTTLCompound = "TTL indexes are single-field indexes, compound indexes do not support TTL"
)

// ttlSeconds is the expireAfterSeconds of a specification; an index without is 0.
func ttlSeconds(spec bson.Raw, pattern shardkey.Pattern) (int32, error) {
	v := spec.Lookup(expiry.Field)
	if absent(v) {
		return 0, nil
	}
	cannot := func(format string, args ...any) (int32, error) {
		return 0, mongoerr.New(mongoerr.CannotCreateIndex, format+". Index spec: %v", append(args, spec)...)
	}
	n, isNumber := asInt(v)
	f, isFloat := v.DoubleOK()
	switch {
	case len(pattern.Fields) == 1 && pattern.Fields[0].Path == "_id":
		return 0, mongoerr.New(mongoerr.InvalidIndexOption, "The field 'expireAfterSeconds' is not valid for an _id index specification. Specification: %v", spec)
	case !isNumber:
		return cannot("TTL index 'expireAfterSeconds' option must be numeric, but received a type of '%s'", typeName(v.Type))
	case isFloat && math.IsNaN(f):
		return cannot("TTL index 'expireAfterSeconds' option must not be NaN")
	case n < 0:
		return cannot(errTTLNegative)
	case n > math.MaxInt32:
		return cannot(errTTLRange, n)
	case len(pattern.Fields) != 1:
		return cannot(errTTLCompound)
	}
	if only, ok := spec.Lookup("partialFilterExpression").DocumentOK(); ok {
		if _, err := document.ParseFilter(only); err != nil {
			return 0, err
		}
	}
	return int32(n), nil
}

// collModIndex changes when the documents of a collection expire.
func (s *Commands) collModIndex(ctx context.Context, c *call, ns router.Namespace, index bson.Raw) (bson.Raw, error) {
	seconds, err := newTTL(index)
	if err != nil {
		return nil, err
	}
	var before bson.RawValue
	_, _, err = s.router.AlterIndexes(ctx, ns, false, func(coll *manifest.Collection) ([]manifest.Index, error) {
		i, err := indexNamed(coll, index)
		if err != nil {
			return nil, err
		}
		all := slices.Clone(coll.Indexes)
		before = all[i].Spec.Lookup(expiry.Field)
		key, _ := all[i].Spec.Lookup("key").DocumentOK()
		if fields, err := key.Elements(); absent(before) && (err != nil || len(fields) != 1) {
			return nil, mongoerr.New(mongoerr.InvalidOptions, errTTLCompound)
		}
		all[i].Spec = withTTL(all[i].Spec, seconds)
		return all, nil
	}, c.maxTime)
	if err != nil {
		return nil, err
	}
	b := build()
	if !absent(before) {
		b.AppendValue("expireAfterSeconds_old", core(before))
	}
	return ok(b.AppendInt64("expireAfterSeconds_new", int64(seconds))), nil
}

// newTTL reads the expireAfterSeconds of a collMod. More than an int32 holds means its largest.
func newTTL(index bson.Raw) (int32, error) {
	v := index.Lookup(expiry.Field)
	n, isNumber := asInt(v)
	switch {
	case absent(v):
		return 0, mongoerr.New(mongoerr.InvalidOptions, "no expireAfterSeconds field: what else an index has cannot be changed; drop it and create it anew")
	case !isNumber:
		return 0, wrongType("collMod", "index.expireAfterSeconds", v, "'[long, int, decimal, double]'")
	case n < 0:
		return 0, mongoerr.New(mongoerr.InvalidOptions, errTTLNegative)
	}
	return int32(min(n, math.MaxInt32)), nil
}

// indexNamed finds an index by its name or keyPattern.
func indexNamed(coll *manifest.Collection, index bson.Raw) (int, error) {
	name, byName := index.Lookup("name").StringValueOK()
	key, byKey := index.Lookup("keyPattern").DocumentOK()
	switch {
	case byName && byKey:
		return 0, mongoerr.New(mongoerr.InvalidOptions, "Cannot specify both key pattern and name.")
	case !byName && !byKey:
		return 0, mongoerr.New(mongoerr.InvalidOptions, "Must specify either index name or key pattern.")
	case name == idIndexName || byKey && bytes.Equal(key, build().AppendInt32("_id", 1).Build()):
		return 0, mongoerr.New(mongoerr.InvalidOptions, "the _id field does not support TTL indexes")
	}
	i := slices.IndexFunc(coll.Indexes, func(x manifest.Index) bool {
		return byName && x.Name == name || byKey && bytes.Equal(x.Spec.Lookup("key").Value, key)
	})
	if i < 0 && byName {
		return 0, mongoerr.New(mongoerr.IndexNotFound, "cannot find index %s for ns %s", name, coll.Namespace())
	} else if i < 0 {
		return 0, mongoerr.New(mongoerr.IndexNotFound, "cannot find index %v for ns %s", key, coll.Namespace())
	}
	return i, nil
}

// withTTL is a specification with another expireAfterSeconds.
func withTTL(spec bson.Raw, seconds int32) bson.Raw {
	b := build()
	es, _ := spec.Elements()
	for _, e := range es {
		if e.Key() != expiry.Field {
			b.AppendValue(e.Key(), core(e.Value()))
		}
	}
	return bson.Raw(bsoncore.Document(b.AppendInt32(expiry.Field, seconds).Build()))
}
