package router

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reshard"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// ReshardCollection gives a sharded collection another shard key, and its chunks other places.
// It may be ended from any router (AbortReshard), as long as it has not switched. With the key
// that the collection has it does nothing, unless force says that its documents are to be
// dealt out anew. Errors: as Reshard; mongoerr NamespaceNotSharded; BadValue when the zones of
// the old key would be lost without a word.
func (r *Router) ReshardCollection(ctx context.Context, ns Namespace, n NewCollection, l Layout, force bool, maxTime time.Duration) error {
	c, err := r.sharded(ctx, ns, maxTime)
	if err != nil {
		return err
	}
	switch {
	case c.Key.Equal(n.Key) && c.Unique == n.Unique && !force:
		return nil
	case l.Zones == nil && len(c.Zones) > 0 && !c.Key.PrefixOf(n.Key):
		return mongoerr.New(mongoerr.BadValue, "Must specify value for zones field: %s has %d zone ranges under %v, which mean nothing under %v; "+
			"give those it shall have as zones: [{ zone: ..., min: {...}, max: {...} }], or zones: [] for none", ns, len(c.Zones), c.Key, n.Key)
	}
	return r.Reshard(ctx, ns, n, l, maxTime)
}

// UnshardCollection makes a sharded collection an unsharded one, all of it on one shard, the
// one with the fewest chunks if "". Its documents are written anew in the order of _id, as when
// it got its key; again is as in NewCollection. Errors: as Reshard, DuplicateKey when two of its documents have one _id;
// mongoerr NamespaceNotSharded, ShardNotFound.
func (r *Router) UnshardCollection(ctx context.Context, ns Namespace, to manifest.ShardID, keep time.Duration, again bson.Raw, maxTime time.Duration) error {
	if _, err := r.sharded(ctx, ns, maxTime); err != nil {
		return err
	}
	s := r.root.State()
	if to == "" {
		ids := emptiestFirst(s, "")
		if len(ids) == 0 {
			return mongoerr.New(mongoerr.ShardNotFound, "there is no shard to place a collection on")
		}
		to = ids[0]
	}
	if err := known(s, to); err != nil {
		return err
	}
	return r.Reshard(ctx, ns, NewCollection{Key: idKey, Again: again}, Layout{Unsharded: true, Homes: []manifest.ShardID{to}, Zones: []ZoneBounds{}, Keep: keep}, maxTime)
}

// sharded is a collection that must be, in a root that was just read.
func (r *Router) sharded(ctx context.Context, ns Namespace, maxTime time.Duration) (*manifest.Collection, error) {
	s, err := r.State(ctx, maxTime)
	if err != nil {
		return nil, err
	}
	switch c := s.CollectionByName(ns.Database, ns.Collection); {
	case c == nil:
		return nil, mongoerr.New(mongoerr.NamespaceNotFound, "ns does not exist: %s", ns)
	case !c.Sharded:
		return nil, mongoerr.New(mongoerr.NamespaceNotSharded, "collection %s is not sharded; use sh.shardCollection(%q, { ... })", ns, ns)
	default:
		return c, nil
	}
}

// zones are the zone ranges of a collection under another key.
func (l *Layout) zones(s *manifest.State, c *manifest.Collection, key shardkey.Pattern) (zones []manifest.ZoneRange, changes []manifest.Change, err error) {
	if l.Zones == nil {
		return zonesUnder(s, c, key)
	}
	for _, z := range l.Zones {
		if len(s.ShardsOf(z.Zone)) == 0 {
			return nil, nil, zoneNotFound(z.Zone)
		}
		if zones, err = withRange(Namespace{c.Database, c.Name}, key, zones, z); err != nil {
			return nil, nil, err
		}
	}
	return zones, nil, nil
}

// house puts chunks on the shards that their ranges were given.
func (l *Layout) house(s *manifest.State, points []shardkey.Bound, chunks []manifest.NewChunk) error {
	if len(l.Homes) == 0 {
		return nil
	}
	for _, to := range l.Homes {
		if err := known(s, to); err != nil {
			return err
		}
	}
	at := 0
	for i := range chunks {
		for at < len(points) && string(points[at].Key) <= string(chunks[i].Min.Key) {
			at++
		}
		chunks[i].Shard = l.Homes[at]
	}
	return nil
}

// Reshardings are the collections that are getting another shard key, by namespace: those of
// this router as they are now, others as their routers told the root last.
func (r *Router) Reshardings(ctx context.Context, maxTime time.Duration) ([]reshard.Seen, error) {
	s, err := r.State(ctx, maxTime)
	if err != nil {
		return nil, err
	}
	all := make(map[string]reshard.Seen)
	for _, rec := range s.Records(manifest.RecordReshard) {
		if _, alive := s.Job(rec.ReshardJob()); !alive {
			continue
		}
		if all[rec.ID], err = reshard.Recorded(rec.ID, rec.Body); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, job := range r.resharding {
		all[job.ns] = job.Progress.Seen()
	}
	var list []reshard.Seen
	for _, ns := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[ns])
	}
	return list, nil
}

// here is the job of a collection, if this router does it.
func (r *Router) here(ns string) *Resharding {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, job := range r.resharding {
		if job.ns == ns {
			return job
		}
	}
	return nil
}

// AbortReshard ends what gives a collection another shard key, whichever process does it, also
// one that is dead: the collection keeps its key. It returns when nothing of it can be committed
// any more. Errors: mongoerr NoSuchReshardCollection; ReshardCollectionCommitted when the
// collection had switched before.
func (r *Router) AbortReshard(ctx context.Context, ns Namespace, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	if job := r.here(ns.String()); job != nil {
		job.cancel()
		select {
		case <-job.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if job.err == nil {
			return mongoerr.New(mongoerr.ReshardCollectionCommitted, "%s has the shard key %v already: it is too late to abort", ns, job.Progress.Seen().Key)
		}
		return nil
	}
	var seen *manifest.JobID
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		rec, job, err := reshardingOf(s, ns)
		switch {
		case err == nil && (seen == nil || *seen == job):
			seen = &job
			return manifest.EndResharding(rec), nil
		case seen == nil:
			return nil, err
		}
		return nil, mongoerr.New(mongoerr.ReshardCollectionCommitted, "the resharding of %s ended by itself: it is too late to abort", ns)
	})
	return err
}

// reshardingOf is the record of what gives a collection another shard key.
func reshardingOf(s *manifest.State, ns Namespace) (manifest.Record, manifest.JobID, error) {
	rec, ok := s.Record(manifest.RecordReshard, ns.String())
	job := manifest.JobID{}
	if ok {
		job = rec.ReshardJob()
		_, ok = s.Job(job)
	}
	if !ok {
		return rec, job, mongoerr.New(mongoerr.NoSuchReshardCollection, "Could not find in-progress resharding operation of %s; "+
			"those there are: db.getSiblingDB(\"admin\").aggregate([{ $currentOp: {} }, { $match: { desc: /Resharding/ } }])", ns)
	}
	return rec, job, nil
}

// commitPoll is how often CommitReshard looks whether the job is done.
const commitPoll = 250 * time.Millisecond

// CommitReshard has the job of a collection switch after the round of catching up that it is
// in, whichever process does it, and waits for that. Errors: mongoerr NoSuchReshardCollection;
// ReshardCollectionAborted when the job ended otherwise.
func (r *Router) CommitReshard(ctx context.Context, ns Namespace, maxTime time.Duration) error {
	limited := ctx
	if maxTime > 0 {
		var cancel context.CancelFunc
		limited, cancel = r.host.WithTimeout(ctx, maxTime)
		defer cancel()
	}
	if job := r.here(ns.String()); job != nil {
		job.Progress.Hurry()
		select {
		case <-job.done:
			return aborted(ns, job.err)
		case <-limited.Done():
			return context.Cause(limited)
		}
	}
	job, err := r.hasten(ctx, ns, maxTime)
	for err == nil {
		if err = r.host.Sleep(limited, commitPoll); err != nil {
			break
		}
		var s *manifest.State
		if s, err = r.State(ctx, maxTime); err != nil {
			break
		}
		if _, alive := s.Job(job.id); alive {
			continue
		}
		if c := s.CollectionByName(ns.Database, ns.Collection); c != nil && c.Key.Equal(job.key) {
			return nil
		}
		return aborted(ns, errors.New("its job is gone, and the collection has another key than the one asked for"))
	}
	return err
}

func aborted(ns Namespace, cause error) error {
	if cause == nil {
		return nil
	}
	return mongoerr.New(mongoerr.ReshardCollectionAborted, "the resharding of %s was not committed: %v", ns, cause)
}

// elsewhere is a job of another process.
type elsewhere struct {
	id  manifest.JobID
	key shardkey.Pattern
}

// hasten leaves the wish that a job of another process switch soon.
func (r *Router) hasten(ctx context.Context, ns Namespace, maxTime time.Duration) (e elsewhere, err error) {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err = r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		rec, id, err := reshardingOf(s, ns)
		if err != nil {
			return nil, err
		}
		seen, err := reshard.Recorded(rec.ID, rec.Body)
		if e = (elsewhere{id, seen.Key}); err != nil || seen.Hurried {
			return nil, err
		}
		return []manifest.Change{reshard.Hasten(rec)}, nil
	})
	return e, err
}

// Cancel ends what has this ID, here or elsewhere, unless it is committed: its collection keeps
// its key. false: there is none of that ID. Errors: as AbortReshard.
func (r *Router) Cancel(ctx context.Context, id int64, maxTime time.Duration) (bool, error) {
	r.mu.Lock()
	job := r.resharding[id]
	r.mu.Unlock()
	if job != nil {
		job.cancel()
		return true, nil
	}
	list, err := r.Reshardings(ctx, maxTime)
	if err != nil {
		return false, err
	}
	for _, seen := range list {
		if seen.Op == id && id != 0 {
			db, coll, _ := strings.Cut(seen.Namespace, ".")
			return true, r.AbortReshard(ctx, Namespace{db, coll}, maxTime)
		}
	}
	return false, nil
}
