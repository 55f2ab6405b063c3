package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reshard"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Resharding is a collection with documents that this router is giving another shard key.
type Resharding struct {
	ID       int64
	Progress *reshard.Progress
	ns       string
	cancel   context.CancelFunc
	done     chan struct{} // closed when it is over
	err      error         // why it ended; set before done is closed
}

// Reshard writes a collection anew under the key of n, whatever key it has, while it is read
// and written (package reshard). It takes as long as it takes, unless maxTime says otherwise.
// Errors: mongoerr DuplicateKey and BadValue for documents that cannot be under the key,
// ConflictingOperationInProg, Interrupted, MaxTimeMSExpired: the collection keeps its key;
// UnknownOutcome.
func (r *Router) Reshard(ctx context.Context, ns Namespace, n NewCollection, l Layout, maxTime time.Duration) (err error) {
	if r.bucket == nil || r.store == nil {
		return mongoerr.New(mongoerr.IllegalOperation, "collection %s holds documents, and this router cannot write to the store: "+
			"ask another router, or shard it by { _id: 1 }", ns)
	}
	limited := ctx
	if maxTime > 0 {
		var cancel context.CancelFunc
		limited, cancel = r.host.WithTimeout(ctx, maxTime)
		defer cancel()
	}
	limited, job, err := r.startResharding(limited, ns, n.Key, n.Again)
	if err != nil {
		return err
	}
	defer func() { r.endResharding(job, err) }()
	goal, err := r.goal(limited, ns, n, l)
	if err != nil {
		return err
	}
	_, err = reshard.Run(limited, r.reshardConfig(ns), ns.String(), goal, job.Progress)
	return ended(limited, ns, err)
}

// reshardConfig is what a job of a collection works with.
func (r *Router) reshardConfig(ns Namespace) reshard.Config {
	settings := r.settings.Reshard
	if s := r.root.State(); settings.ChunkBytes == 0 && s != nil {
		if c := s.CollectionByName(ns.Database, ns.Collection); c != nil {
			settings.ChunkBytes = s.ChunkSize(c)
		}
	}
	return reshard.Config{
		Root: r.root, Bucket: r.bucket, Store: r.store, Host: r.host, Log: r.log, Holder: "router",
		Flush: r.flushAll, Settings: settings,
	}
}

// ended is how a job under ctx ended, in MongoDB's words.
func ended(limited context.Context, ns Namespace, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errkind.UnknownOutcome):
		return unknown(nil, err)
	case errors.Is(limited.Err(), context.Canceled):
		return mongoerr.New(mongoerr.Interrupted, "operation was interrupted, %s keeps its key: %v", ns, err)
	case limited.Err() != nil:
		return mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit, %s keeps its key: %v", ns, err)
	}
	return err
}

// goal is what shardCollection makes of a collection: zones that were declared before are
// cut out of the key space from the start.
func (r *Router) goal(ctx context.Context, ns Namespace, n NewCollection, l Layout) (reshard.Goal, error) {
	s, _, err := r.root.Load(ctx)
	if err != nil {
		return reshard.Goal{}, err
	}
	c := s.CollectionByName(ns.Database, ns.Collection)
	if c == nil {
		return reshard.Goal{}, mongoerr.New(mongoerr.NamespaceNotFound, "ns does not exist: %s", ns)
	}
	planned, _, err := l.zones(s, c, n.Key)
	if err != nil {
		return reshard.Goal{}, err
	}
	if err := inOnePlace(s, c, planned); err != nil {
		return reshard.Goal{}, err
	}
	kept := uniqueSpecs(c)
	return reshard.Goal{
		Key: n.Key, Unique: n.Unique, Unsharded: l.Unsharded, Points: sortedPoints(append(zoneEnds(planned), n.Points...)), Only: n.Only, Parts: l.Parts, Keep: l.Keep,
		Finish: func(s *manifest.State, c manifest.Collection, points []shardkey.Bound) (f reshard.Final, err error) {
			if !slices.EqualFunc(uniqueSpecs(&c), kept, bytes.Equal) {
				return f, mongoerr.New(mongoerr.ConflictingOperationInProg, "unique indexes of %s were created or dropped while it was getting another shard key: try again", ns)
			}
			f.Collection = n.over(c, r.host.Wall().UnixMilli())
			f.Collection.Indexes = without(f.Collection.Indexes, l.surplus)
			if f.Collection.Zones, f.With, err = l.zones(s, &c, n.Key); err != nil {
				return f, err
			}
			if !slices.EqualFunc(f.Collection.Zones, planned, func(a, b manifest.ZoneRange) bool { return a.Zone == b.Zone && a.Range.Equal(b.Range) }) {
				return f, mongoerr.New(mongoerr.ConflictingOperationInProg, "the zones of %s were changed while it was being sharded: try again", ns)
			}
			if f.Chunks, err = place(s, &f.Collection, points, r.keptUntil(n.Points), ""); err != nil {
				return f, err
			}
			return f, l.house(s, n.Points, f.Chunks)
		},
	}, nil
}

// inOnePlace refuses to write a collection anew whose documents are, or would be, in another
// location than the cluster's own bucket: sorting them brings them there.
func inOnePlace(s *manifest.State, c *manifest.Collection, planned []manifest.ZoneRange) error {
	if !s.Spread() {
		return nil
	}
	for k := range s.Chunks(c.ID) {
		if at, err := s.Location(s.LocationOf(k.Shard)); err == nil {
			return mongoerr.New(mongoerr.IllegalOperation, "documents of %s are on shard %s, in %s, and giving them another shard key would bring them to the cluster's own bucket: "+
				"copy them to a new collection with that key", c.Namespace(), k.Shard, at.URL)
		}
	}
	for _, z := range planned {
		for _, h := range s.ShardsOf(z.Zone) {
			if at, err := s.Location(h.Location); err == nil {
				return mongoerr.New(mongoerr.IllegalOperation, "zone %s, which [%v, %v) of %s belongs to, has its data in %s: shard the collection without that range "+
					"(sh.removeTagRange), and declare it then: its chunks are copied there", z.Zone, z.MinBSON, z.MaxBSON, c.Namespace(), at.URL)
			}
		}
	}
	return nil
}

// uniqueSpecs are the unique indexes of a collection, which a shard key must go with.
func uniqueSpecs(c *manifest.Collection) (specs [][]byte) {
	for _, x := range c.Indexes {
		if yes, _ := x.Spec.Lookup("unique").BooleanOK(); yes {
			specs = append(specs, x.Spec)
		}
	}
	return specs
}

// zonesUnder are the zone ranges of a collection under another key: those that were declared
// before it was sharded, and those that it has, where the key is its own with more fields
// behind; under any other they mean nothing.
func zonesUnder(s *manifest.State, c *manifest.Collection, key shardkey.Pattern) ([]manifest.ZoneRange, []manifest.Change, error) {
	if !c.Sharded {
		return zonesOfNew(s, Namespace{c.Database, c.Name}, key)
	}
	if !c.Key.PrefixOf(key) {
		return nil, nil, nil
	}
	var zones []manifest.ZoneRange
	for _, z := range c.Zones {
		rng, min, max, err := key.Range(z.MinBSON, z.MaxBSON)
		if err != nil {
			return nil, nil, err
		}
		zones = append(zones, manifest.ZoneRange{Zone: z.Zone, Range: rng, MinBSON: min, MaxBSON: max})
	}
	return zones, nil, nil
}

// flushAll is flushOwners with the patience of an operation of its own.
func (r *Router) flushAll(ctx context.Context, s *manifest.State, c *manifest.Collection) ([]manifest.OwnerAt, error) {
	ctx, a, cancel := r.begin(ctx, 0)
	defer cancel()
	a.begun = true
	for {
		owners, err := r.flushOwners(ctx, a, s, c, shardkey.Range{})
		if err == nil {
			return owners, nil
		}
		if err := a.again(ctx, err); err != nil {
			return nil, fmt.Errorf("flush the owners of %s: %w", c.Namespace(), err)
		}
		if s = r.root.State(); s.Collection(c.ID) == nil {
			return nil, mongoerr.New(mongoerr.NamespaceNotFound, "collection %s was dropped meanwhile", c.Namespace())
		}
	}
}

// startResharding refuses a collection that this router works on already at once; of what
// others do the job hears when it registers.
func (r *Router) startResharding(ctx context.Context, ns Namespace, key shardkey.Pattern, again bson.Raw) (context.Context, *Resharding, error) {
	ctx, cancel := context.WithCancel(ctx)
	job := &Resharding{ID: int64(r.host.Uint64() >> 33), ns: ns.String(), cancel: cancel, done: make(chan struct{})}
	job.Progress = reshard.NewProgress(r.host, job.ns, key, job.ID, again)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resharding == nil {
		r.resharding = make(map[int64]*Resharding)
	}
	for _, other := range r.resharding {
		if other.ns == job.ns {
			cancel()
			return nil, nil, mongoerr.New(mongoerr.ConflictingOperationInProg, "%s is being given the shard key %v already: "+
				"wait for it, or end it with sh.abortReshardCollection(%q)", ns, other.Progress.Seen().Key, job.ns)
		}
	}
	r.resharding[job.ID] = job
	return ctx, job, nil
}

func (r *Router) endResharding(job *Resharding, err error) {
	job.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.resharding, job.ID)
	job.err = err
	close(job.done)
}
