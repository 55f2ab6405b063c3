package router

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/expiry"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// idKey is the key of an unsharded collection.
var idKey = shardkey.Pattern{Fields: []shardkey.Field{{Path: "_id"}}}

// State is the newest root that was read by a GET after the call began: what listings and
// the config database show.
func (r *Router) State(ctx context.Context, maxTime time.Duration) (*manifest.State, error) {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	return a.load(ctx)
}

// NewCollection is a collection to create.
type NewCollection struct {
	// Key is the shard key; zero: unsharded.
	Key    shardkey.Pattern
	Unique bool
	// Points cut the key space, ascending; none: one chunk. Only: a collection that holds
	// documents is cut nowhere else.
	Points  []shardkey.Bound
	Only    bool
	Options bson.Raw
	Indexes []manifest.Index
	// Zones are its zone ranges; nil: those that were declared for its name.
	Zones []manifest.ZoneRange
	// SplitWithinKey lets one shard-key value span several chunks.
	SplitWithinKey bool
	// Again is the command to send again when this process dies while it writes the documents of
	// the collection anew (Abandoned); nil: nobody does.
	Again bson.Raw
}

// Layout says more about where the documents of a collection go that gets another shard key.
type Layout struct {
	// Unsharded: it is no longer sharded.
	Unsharded bool
	// Parts is about how many chunks there shall be, where no points are given; 0: as many as
	// their usual size makes.
	Parts int
	// Homes are the shards of the ranges between the points, one more than these; none: any.
	Homes []manifest.ShardID
	// Keep is how long UndoReshard can put it back as it was without a rewrite; 0: it is not kept.
	Keep time.Duration
	// Zones are its zone ranges from then on, in place of those it has; nil: those of it that
	// mean something under the key.
	Zones []ZoneBounds
	// surplus is the name of an index that goes with the present key; "": none.
	surplus string
}

// Create makes a collection. Errors: mongoerr NamespaceExists.
func (r *Router) Create(ctx context.Context, ns Namespace, n NewCollection, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		if s.CollectionByName(ns.Database, ns.Collection) != nil {
			return nil, mongoerr.New(mongoerr.NamespaceExists, "Collection %s already exists.", ns)
		}
		return r.creation(s, ns, n)
	})
	return err
}

// ensure creates an unsharded collection unless it exists.
func (r *Router) ensure(ctx context.Context, a *attempts, ns Namespace) (*manifest.State, *manifest.Collection, error) {
	s, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		if s.CollectionByName(ns.Database, ns.Collection) != nil {
			return nil, nil
		}
		return r.creation(s, ns, NewCollection{})
	})
	if err != nil {
		return nil, nil, err
	}
	c := s.CollectionByName(ns.Database, ns.Collection)
	if c == nil {
		return nil, nil, errkind.StaleVersion // dropped again at once
	}
	return s, c, nil
}

func (r *Router) creation(s *manifest.State, ns Namespace, n NewCollection) ([]manifest.Change, error) {
	c := manifest.Collection{
		UUID: r.uuid(), Database: ns.Database, Name: ns.Collection, Key: n.Key, Sharded: len(n.Key.Fields) > 0,
		Unique: n.Unique, Options: n.Options, Indexes: n.Indexes, CreatedMillis: r.host.Wall().UnixMilli(),
		SplitWithinKey: n.SplitWithinKey,
	}
	var changes []manifest.Change
	if !c.Sharded {
		c.Key = idKey
	} else {
		var err error
		if c.Zones, changes, err = zonesOfNew(s, ns, c.Key); err != nil {
			return nil, err
		}
		if n.Zones != nil {
			c.Zones = n.Zones
		}
	}
	near := ""
	if len(n.Points) == 0 { // several chunks are for all shards
		near = r.settings.Zone
	}
	chunks, err := place(s, &c, n.Points, r.keptUntil(n.Points), near)
	if err != nil {
		return nil, err
	}
	return append(changes, manifest.CreateCollection{Collection: c, Chunks: chunks}), nil
}

// uuid draws a version 4 UUID.
func (r *Router) uuid() [16]byte {
	id := r.host.ID16()
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id
}

// change commits what plan makes of the newest state, planning again when somebody else
// changed it first. A plan without changes is done.
func (r *Router) change(ctx context.Context, a *attempts, plan func(*manifest.State) ([]manifest.Change, error)) (*manifest.State, error) {
	s, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	return r.changeFrom(ctx, a, s, plan)
}

// changeKnown is change without a look at the root first: one round trip to the store instead
// of two. It is for changes whose preconditions name all that they were planned on: when the
// root is newer and that is no longer so, they are planned again. Only a newest root refuses.
func (r *Router) changeKnown(ctx context.Context, a *attempts, plan func(*manifest.State) ([]manifest.Change, error)) (*manifest.State, error) {
	if s := r.root.State(); s != nil {
		if changes, err := plan(s); err == nil && len(changes) > 0 {
			return r.changeFrom(ctx, a, s, plan)
		}
	}
	return r.change(ctx, a, plan)
}

// changeFrom is change, beginning with a state.
func (r *Router) changeFrom(ctx context.Context, a *attempts, s *manifest.State, plan func(*manifest.State) ([]manifest.Change, error)) (*manifest.State, error) {
	for {
		changes, err := plan(s)
		if moved(err) { // a plan may ask owners
			if err := a.again(ctx, err); err != nil {
				return s, err
			}
			s = r.root.State()
			continue
		}
		if err != nil {
			return s, err
		}
		if len(changes) == 0 {
			return s, nil
		}
		edit := manifest.Edit{Op: r.host.ID16(), Changes: changes, Millis: r.host.Wall().UnixMilli()}
		next, err := r.root.Commit(ctx, edit)
		switch {
		case err == nil:
			a.fresh = true
			return next, nil
		case errors.Is(err, errkind.UnknownOutcome):
			return nil, unknown(nil, err)
		case errors.Is(err, errkind.Invalid), errors.Is(err, errkind.Corrupt):
			return nil, err
		}
		if err := a.again(ctx, err); err != nil {
			return nil, err
		}
		s = r.root.State()
	}
}

// place puts the chunks between the points and the ends of the zones on shards that may have
// them: a single one on the shard with the fewest chunks, several in turn, beginning there. What
// belongs to no zone goes to shards that are in the zone near, if there are any.
// They are left as they are until manual.
func place(s *manifest.State, c *manifest.Collection, points []shardkey.Bound, manual int64, near string) ([]manifest.NewChunk, error) {
	points = sortedPoints(append(zoneEnds(c.Zones), points...))
	chunks := make([]manifest.NewChunk, 0, len(points)+1)
	turns := make(map[string]*turn) // by zone
	min := manifest.Bound{BSON: c.Key.MinBSON()}
	for i := range len(points) + 1 {
		max := manifest.Bound{BSON: c.Key.MaxBSON()}
		if i < len(points) {
			max = manifest.Bound{Key: points[i].Key, BSON: points[i].BSON}
		}
		zone := ""
		if z, _ := c.ZoneOf(shardkey.Range{Min: min.Key, Max: max.Key}); z != nil {
			zone = z.Zone
		}
		if turns[zone] == nil {
			turns[zone] = &turn{shards: nearest(s, emptiestFirst(s, zone), near)}
		}
		shard, err := turns[zone].next(zone)
		if err != nil {
			return nil, err
		}
		chunks = append(chunks, manifest.NewChunk{Min: min, Max: max, Shard: shard, ManualUntil: manual})
		min = max
	}
	return chunks, nil
}

// turn is shards that take chunks in turn.
type turn struct {
	shards []manifest.ShardID
	at     int
}

func (t *turn) next(zone string) (manifest.ShardID, error) {
	switch {
	case len(t.shards) > 0:
		t.at++
		return t.shards[(t.at-1)%len(t.shards)], nil
	case zone != "":
		return "", zoneNotFound(zone)
	}
	return "", mongoerr.New(mongoerr.ShardNotFound, "there is no shard to place a collection on")
}

// emptiestFirst are the shards of a zone ("": all) that take chunks, by their number of chunks
// and their name. What belongs to no zone is not for shards with a location of their own, as
// long as there are others.
func emptiestFirst(s *manifest.State, zone string) []manifest.ShardID {
	var ids []manifest.ShardID
	for _, h := range s.Shards() {
		if takes(s, h) && (zone == "" || h.InZone(zone)) {
			ids = append(ids, h.ID)
		}
	}
	if zone == "" && s.Spread() {
		elsewhere := func(id manifest.ShardID) bool { return s.LocationOf(id) != 0 }
		if own := slices.DeleteFunc(slices.Clone(ids), elsewhere); len(own) > 0 {
			ids = own
		}
	}
	count := make(map[manifest.ShardID]int)
	for c := range s.AllChunks() {
		count[c.Shard]++
	}
	slices.SortStableFunc(ids, func(a, b manifest.ShardID) int { return count[a] - count[b] })
	return ids
}

// nearest are those of some shards that are in a zone, or all when none is.
func nearest(s *manifest.State, ids []manifest.ShardID, zone string) []manifest.ShardID {
	far := func(id manifest.ShardID) bool { return !s.Shard(id).InZone(zone) }
	if near := slices.DeleteFunc(slices.Clone(ids), far); zone != "" && len(near) > 0 {
		return near
	}
	return ids
}

// Drop removes a collection. Errors: mongoerr NamespaceNotFound.
func (r *Router) Drop(ctx context.Context, ns Namespace, maxTime time.Duration) (*manifest.Collection, error) {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	gone, err := r.drop(ctx, a, func(s *manifest.State) (condemned, error) {
		c := s.CollectionByName(ns.Database, ns.Collection)
		if c == nil {
			return condemned{}, mongoerr.New(mongoerr.NamespaceNotFound, "ns not found")
		}
		return condemned{gone: []*manifest.Collection{c}}, nil
	})
	if err != nil {
		return nil, err
	}
	return gone[0], nil
}

// DropDatabase removes a database and its collections in one commit; a missing one is no
// error.
func (r *Router) DropDatabase(ctx context.Context, db string, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.drop(ctx, a, func(s *manifest.State) (x condemned, err error) {
		for _, c := range s.Collections() {
			if c.Database == db {
				x.gone = append(x.gone, c)
			}
		}
		if _, ok := s.Record(manifest.RecordDatabase, db); ok {
			x.with = append(x.with, manifest.DropRecord{Kind: manifest.RecordDatabase, ID: db})
		}
		return x, nil
	})
	return err
}

// tell makes the owners of what was dropped see the root that shows it, so that no other
// router, on an older map, reads or writes it any more. A holder that does not answer learns
// it when it reads the root next.
func (r *Router) tell(ctx context.Context, a *attempts, s *manifest.State, owners map[manifest.ShardID]manifest.CollectionID) {
	shards := slices.Sorted(maps.Keys(owners))
	r.each(len(shards), func(i int) {
		h := s.Shard(shards[i])
		if h == nil || h.Status == manifest.ShardFree {
			return
		}
		var err error
		for n := range UnreachableMax {
			if n > 0 && r.host.Sleep(ctx, r.host.Jitter(r.settings.BackoffMax)) != nil {
				break
			}
			req := &rpc.ReadRequest{Header: a.header(s, &manifest.Collection{ID: owners[h.ID]}, h.ID)}
			_, err = ask(ctx, a, s, h.ID, func(o rpc.Owner) (*rpc.ReadReply, error) { return o.Read(ctx, req) })
			if err == nil || errors.Is(err, errkind.StaleVersion) || errors.Is(err, errkind.Fenced) {
				return
			}
		}
		r.log.Warn("the holder of a shard was not told of a drop, it will see it in the root", "shard", h.ID, "cause", err)
	})
}

// EnableSharding records a database; it needs nothing else here.
func (r *Router) EnableSharding(ctx context.Context, db string, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		if _, ok := s.Record(manifest.RecordDatabase, db); ok {
			return nil, nil
		}
		body := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "_id", db))
		return []manifest.Change{manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordDatabase, ID: db, Body: body}, IfAbsent: true}}, nil
	})
	return err
}

// AlterIndexes replaces a collection's recorded indexes by what change makes of them. With
// create, a missing collection is created, else it is NamespaceNotFound. It returns how many
// indexes there were, and whether the collection is new.
func (r *Router) AlterIndexes(ctx context.Context, ns Namespace, create bool, change func(*manifest.Collection) ([]manifest.Index, error), maxTime time.Duration) (was *manifest.Collection, now *manifest.Collection, err error) {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	owners := make(map[manifest.ShardID]manifest.CollectionID)
	s, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		clear(owners)
		was = s.CollectionByName(ns.Database, ns.Collection)
		if was == nil {
			if !create {
				return nil, mongoerr.New(mongoerr.NamespaceNotFound, "ns not found %s", ns)
			}
			indexes, err := change(&manifest.Collection{Database: ns.Database, Name: ns.Collection, Key: idKey})
			if err != nil {
				return nil, err
			}
			return r.creation(s, ns, NewCollection{Indexes: indexes})
		}
		indexes, err := change(was)
		if err != nil {
			return nil, err
		}
		if slices.EqualFunc(indexes, was.Indexes, sameIndex) {
			return nil, nil
		}
		if expiry.Of(was) != nil || expiry.Of(&manifest.Collection{Indexes: indexes}) != nil {
			for chunk := range s.Chunks(was.ID) {
				owners[chunk.Shard] = was.ID
			}
		}
		n := *was
		n.Indexes = indexes
		return []manifest.Change{manifest.AlterCollection{Was: *was, Now: n}}, nil
	})
	if err != nil {
		return nil, nil, err
	}
	r.tell(ctx, a, s, owners)
	return was, s.CollectionByName(ns.Database, ns.Collection), nil
}

// AlterOptions changes the options and switches of a collection, and has its owners see that. Errors: mongoerr NamespaceNotFound, change's.
func (r *Router) AlterOptions(ctx context.Context, ns Namespace, change func(*manifest.Collection) error, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	owners := make(map[manifest.ShardID]manifest.CollectionID)
	s, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		was := s.CollectionByName(ns.Database, ns.Collection)
		if was == nil {
			return nil, mongoerr.New(mongoerr.NamespaceNotFound, "ns does not exist: %s", ns)
		}
		n := *was
		if err := change(&n); err != nil || sameSwitches(&n, was) {
			return nil, err
		}
		for chunk := range s.Chunks(was.ID) {
			owners[chunk.Shard] = was.ID
		}
		return []manifest.Change{manifest.AlterCollection{Was: *was, Now: n}}, nil
	})
	if err == nil {
		r.tell(ctx, a, s, owners)
	}
	return err
}

func sameIndex(a, b manifest.Index) bool { return a.Name == b.Name && bytes.Equal(a.Spec, b.Spec) }
