package router

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reshard"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// UndoReshard gives a collection the key, the chunks and the zones back that it had before it got
// its present key, as long as that is kept (Layout.Keep). When no document was written since, the
// old chunks are put back in one commit: restored is true. Otherwise the collection is rewritten
// under its old key, online, with all that was written since; what it was before is then kept
// for keep; again is as in NewCollection. Indexes and options stay as they are now. Errors: as Reshard; mongoerr
// IllegalOperation when nothing is kept.
func (r *Router) UndoReshard(ctx context.Context, ns Namespace, keep time.Duration, again bson.Raw, maxTime time.Duration) (restored bool, err error) {
	s, err := r.State(ctx, maxTime)
	if err != nil {
		return false, err
	}
	c := s.CollectionByName(ns.Database, ns.Collection)
	if c == nil {
		return false, mongoerr.New(mongoerr.NamespaceNotFound, "ns does not exist: %s", ns)
	}
	if r.bucket == nil || r.store == nil {
		return false, mongoerr.New(mongoerr.IllegalOperation, "this router cannot write to the store: ask another router")
	}
	_, pinned, old, err := reshard.Kept(ctx, r.root, c)
	if err != nil {
		return false, err
	}
	surplus, err := surplusIndex(c, old)
	if err != nil {
		return false, err
	}
	if err = r.restore(ctx, ns, old.Key, surplus, again, maxTime); !errors.Is(err, reshard.ErrWritten) {
		return err == nil, err
	}
	n, l := asItWas(s, pinned, old)
	n.Again, l.Keep, l.surplus = again, keep, surplus
	return false, r.Reshard(ctx, ns, n, l, maxTime)
}

// surplusIndex is the name of the index that made the present key unique, if it came with the
// key; "": there is none. Errors: mongoerr IllegalOperation for another unique index that came
// since, which nobody could keep unique under the old key.
func surplusIndex(c, old *manifest.Collection) (name string, err error) {
	had := uniqueSpecs(old)
	for _, x := range c.Indexes {
		unique, _ := x.Spec.Lookup("unique").BooleanOK()
		if !unique || slices.ContainsFunc(had, func(spec []byte) bool { return bytes.Equal(spec, x.Spec) }) {
			continue
		}
		if key, _ := x.Spec.Lookup("key").DocumentOK(); !c.Unique || !bytes.Equal(key, c.Key.BSON()) {
			return "", mongoerr.New(mongoerr.IllegalOperation, "the unique index %s of %s came with or after its key %v: db.%s.dropIndex(%q) first",
				x.Name, c.Namespace(), c.Key, c.Name, x.Name)
		}
		name = x.Name
	}
	return name, nil
}

// without are the indexes but one.
func without(indexes []manifest.Index, name string) []manifest.Index {
	return slices.DeleteFunc(slices.Clone(indexes), func(x manifest.Index) bool { return x.Name == name })
}

// restore puts the collection back without a rewrite, if nothing was written.
func (r *Router) restore(ctx context.Context, ns Namespace, key shardkey.Pattern, surplus string, again bson.Raw, maxTime time.Duration) (err error) {
	limited := ctx
	if maxTime > 0 {
		var cancel context.CancelFunc
		limited, cancel = r.host.WithTimeout(ctx, maxTime)
		defer cancel()
	}
	limited, job, err := r.startResharding(limited, ns, key, again)
	if err != nil {
		return err
	}
	defer func() { r.endResharding(job, err) }()
	_, err = reshard.Restore(limited, r.reshardConfig(ns), ns.String(), func(c, old *manifest.Collection) error {
		if now, err := surplusIndex(c, old); err != nil || now != surplus {
			return cmp.Or(err, error(mongoerr.New(mongoerr.ConflictingOperationInProg, "unique indexes of %s were created or dropped meanwhile: try again", ns)))
		}
		c.Indexes = without(c.Indexes, surplus)
		return nil
	}, job.Progress)
	if errors.Is(err, reshard.ErrWritten) {
		return err
	}
	return ended(limited, ns, err)
}

// asItWas is a rewrite that leaves a collection as a pin shows it: cut where it was, and on the
// same shards as far as they are there.
func asItWas(s, pinned *manifest.State, old *manifest.Collection) (NewCollection, Layout) {
	n := NewCollection{Key: old.Key, Unique: old.Unique}
	l := Layout{Unsharded: !old.Sharded, Zones: []ZoneBounds{}}
	for _, z := range old.Zones {
		if len(s.ShardsOf(z.Zone)) > 0 {
			l.Zones = append(l.Zones, ZoneBounds{Zone: z.Zone, Min: z.MinBSON, Max: z.MaxBSON})
		}
	}
	there := true
	for k := range pinned.Chunks(old.ID) {
		if len(k.Range.Min) > 0 {
			n.Points = append(n.Points, shardkey.Bound{Key: k.Range.Min, BSON: k.MinBSON})
		}
		l.Homes = append(l.Homes, k.Shard)
		there = there && known(s, k.Shard) == nil
	}
	if !there {
		l.Homes = nil
	}
	return n, l
}
