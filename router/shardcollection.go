package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
)

// ShardCollection gives a collection a shard key. One that does not exist is created with
// its chunks placed. An existing one keeps its documents where they are under the key
// {_id: 1}; under another key they are written anew (package reshard), while it is read and
// written, and without a time limit but maxTime. Sharded the same way already, it is left as
// it is.
//
// Errors: mongoerr AlreadyInitialized when it is sharded otherwise; DuplicateKey and
// BadValue for documents that cannot be under the key.
func (r *Router) ShardCollection(ctx context.Context, ns Namespace, n NewCollection, maxTime time.Duration) error {
	err := r.shardCollection(ctx, ns, n, maxTime)
	if !errors.Is(err, errHoldsDocuments) {
		return err
	}
	return r.Reshard(ctx, ns, n, Layout{}, maxTime)
}

// errHoldsDocuments ends the quick way of a collection that must be empty for it.
var errHoldsDocuments = errors.New("the collection holds documents")

func (r *Router) shardCollection(ctx context.Context, ns Namespace, n NewCollection, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	for {
		s, err := a.load(ctx)
		if err != nil {
			return err
		}
		c := s.CollectionByName(ns.Database, ns.Collection)
		switch {
		case c == nil:
			err = r.createSharded(ctx, a, ns, n)
		case c.Sharded:
			return n.alreadySharded(c)
		case n.Key.Equal(idKey):
			err = r.shardByID(ctx, a, ns, n)
		case holds(s, c):
			return errHoldsDocuments
		default:
			err = r.reshape(ctx, a, c, n)
		}
		if err == nil || errors.Is(err, errHoldsDocuments) {
			return err
		}
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
}

// alreadySharded is what comes of n when the collection is sharded by now: nothing, if it is as n
// wants it. Switches that n does not ask for may be on.
func (n *NewCollection) alreadySharded(c *manifest.Collection) error {
	if !c.Key.Equal(n.Key) || c.Unique != n.Unique {
		return mongoerr.New(mongoerr.AlreadyInitialized, "sharding already enabled for collection %s with the key %s and unique: %t, asked for were %s and unique: %t: sh.reshardCollection(%q, %s, %t) changes it",
			c.Namespace(), c.Key, c.Unique, n.Key, n.Unique, c.Namespace(), n.Key, n.Unique)
	}
	asked, off := manifest.Collection{Options: n.Options}, ""
	switch {
	case asked.RequiresShardKey() && !c.RequiresShardKey():
		off = "requireShardKey"
	case n.SplitWithinKey && !c.SplitWithinKey:
		off = "splitWithinKey"
	default:
		return nil
	}
	return mongoerr.New(mongoerr.AlreadyInitialized, "sharding already enabled for collection %s, without %s: db.getSiblingDB(%q).runCommand({ collMod: %q, %s: true }) switches it on",
		c.Namespace(), off, c.Database, c.Name, off)
}

func (r *Router) createSharded(ctx context.Context, a *attempts, ns Namespace, n NewCollection) error {
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		if s.CollectionByName(ns.Database, ns.Collection) != nil {
			return nil, fmt.Errorf("shard %s: it was created meanwhile: %w", ns, errkind.Conflict)
		}
		return r.creation(s, ns, n)
	})
	return err
}

// shardByID declares an unsharded collection sharded by the key that it has anyway, and
// cuts it at the points.
func (r *Router) shardByID(ctx context.Context, a *attempts, ns Namespace, n NewCollection) error {
	s, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		c := s.CollectionByName(ns.Database, ns.Collection)
		if c == nil || c.Sharded {
			return nil, fmt.Errorf("shard %s: it was changed meanwhile: %w", ns, errkind.Conflict)
		}
		zones, changes, err := zonesOfNew(s, ns, c.Key)
		if err != nil {
			return nil, err
		}
		now := *c
		now.Sharded, now.Unique, now.Zones = true, n.Unique, zones
		now = n.switchesOver(now, r.host.Wall().UnixMilli())
		changes = append(changes, manifest.AlterCollection{Was: *c, Now: now})
		return append(changes, splitsAt(s, c, sortedPoints(append(zoneEnds(zones), n.Points...)), r.keptUntil(n.Points))...), nil
	})
	if err != nil {
		return err
	}
	if c := s.CollectionByName(ns.Database, ns.Collection); c == nil || !c.Sharded {
		return mongoerr.New(mongoerr.OperationFailed, "collection %s was not marked as sharded", ns)
	}
	return nil
}

// switchesOver is an existing collection with what n asks for besides.
func (n *NewCollection) switchesOver(c manifest.Collection, nowMillis int64) manifest.Collection {
	asked := manifest.Collection{Options: n.Options}
	if asked.RequiresShardKey() {
		c.Options = manifest.WithRequireShardKey(c.Options, true)
	}
	if n.SplitWithinKey && !c.SplitWithinKey {
		c = c.WithSplitWithinKey(nowMillis)
	}
	return c
}

// pointsIn are the points strictly inside r.
func pointsIn(r shardkey.Range, points []shardkey.Bound) []manifest.Bound {
	var in []manifest.Bound
	for _, p := range points {
		if r.Contains(p.Key) && string(r.Min) != string(p.Key) {
			in = append(in, manifest.Bound{Key: p.Key, BSON: p.BSON})
		}
	}
	return in
}

// holds reports whether the root shows that the collection has data.
func holds(s *manifest.State, c *manifest.Collection) bool {
	for chunk := range s.Chunks(c.ID) {
		if len(chunk.Refs) > 0 {
			return true
		}
	}
	return false
}

// reshape gives an empty collection another key: it is marked, its owners flush what they
// took before they saw the mark, and when the root still shows no document it is changed.
func (r *Router) reshape(ctx context.Context, a *attempts, c *manifest.Collection, n NewCollection) error {
	marked := c.WithReshaping(r.host.ID16())
	s, err := r.commit(ctx, manifest.AlterCollection{Was: *c, Now: marked})
	if err != nil {
		return err
	}
	err = r.reshapeMarked(ctx, a, s, &marked, n)
	if err != nil {
		// Whoever marked the collection since keeps their mark.
		unmarked := marked.WithoutReshaping()
		if _, undo := r.commit(ctx, manifest.AlterCollection{Was: marked, Now: unmarked}); undo != nil {
			r.log.Warn("a collection stays marked as being sharded until one of its owners takes the mark back", "ns", c.Namespace(), "cause", undo)
		}
	}
	return err
}

// over is an existing collection as n has it.
func (n *NewCollection) over(c manifest.Collection, nowMillis int64) manifest.Collection {
	c.Key, c.Sharded, c.Unique = n.Key, true, n.Unique
	c = n.switchesOver(c, nowMillis)
	for _, x := range n.Indexes {
		if !slices.ContainsFunc(c.Indexes, func(old manifest.Index) bool { return old.Name == x.Name }) {
			c.Indexes = append(slices.Clone(c.Indexes), x)
		}
	}
	return c
}

func (r *Router) reshapeMarked(ctx context.Context, a *attempts, s *manifest.State, c *manifest.Collection, n NewCollection) error {
	owners, err := r.flushOwners(ctx, a, s, c, shardkey.Range{})
	if err != nil {
		return err
	}
	if s, err = a.load(ctx); err != nil {
		return err
	}
	reshape := manifest.ReshapeCollection{Collection: c.WithoutReshaping(), Owners: owners}
	reshape.Collection = n.over(reshape.Collection, r.host.Wall().UnixMilli())
	for chunk := range s.Chunks(c.ID) {
		if len(chunk.Refs) > 0 {
			return errHoldsDocuments
		}
		reshape.At = append(reshape.At, chunk.At())
	}
	zones, changes, err := zonesOfNew(s, Namespace{c.Database, c.Name}, n.Key)
	if err != nil {
		return err
	}
	reshape.Collection.Zones = zones
	if reshape.Chunks, err = place(s, &reshape.Collection, n.Points, r.keptUntil(n.Points), ""); err != nil {
		return err
	}
	_, err = r.commit(ctx, append(changes, manifest.AlterCollection{Was: *c, Now: *c}, reshape)...)
	return err
}

// flushOwners makes every owner of a part of the collection see root s, and flush.
func (r *Router) flushOwners(ctx context.Context, a *attempts, s *manifest.State, c *manifest.Collection, part shardkey.Range) ([]manifest.OwnerAt, error) {
	owners := ownersOf(s, c, part)
	errs := make([]error, len(owners))
	r.each(len(owners), func(i int) {
		_, errs[i] = ask(ctx, a, s, owners[i].Shard, func(o rpc.Owner) (*rpc.FlushReply, error) {
			return o.Flush(ctx, &rpc.FlushRequest{Header: a.header(s, c, owners[i].Shard)})
		})
	})
	for i := range owners {
		a.answered(ctx, owners[i].Shard, errs[i])
	}
	return owners, firstError(errs)
}

// ownersOf are the holders of a part of the collection, by shard.
func ownersOf(s *manifest.State, c *manifest.Collection, part shardkey.Range) (owners []manifest.OwnerAt) {
	seen := make(map[manifest.ShardID]bool)
	for chunk := range s.ChunksIn(c.ID, part) {
		h := s.Shard(chunk.Shard)
		if h == nil || seen[h.ID] || h.Status == manifest.ShardFree {
			continue
		}
		seen[h.ID] = true
		owners = append(owners, manifest.OwnerAt{Shard: h.ID, Epoch: h.Epoch})
	}
	slices.SortFunc(owners, func(a, b manifest.OwnerAt) int { return strings.Compare(string(a.Shard), string(b.Shard)) })
	return owners
}

// commit makes one Edit of changes, once.
func (r *Router) commit(ctx context.Context, changes ...manifest.Change) (*manifest.State, error) {
	return r.root.Commit(ctx, manifest.Edit{Op: r.host.ID16(), Changes: changes, Millis: r.host.Wall().UnixMilli()})
}
