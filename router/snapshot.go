package router

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/router/plan"
)

// A snapshot is a pin: a version of the root that keeps all that it refers to. It costs one
// flush of every shard and one commit, and no byte of data is copied. Reads of it go to the
// bucket, through any router, whether or not a writer runs.

// CreateSnapshot makes one. Every write that was acknowledged before the call is in it; of
// those that are acknowledged meanwhile each is or is not. With keep > 0 it ends by itself.
// Errors: mongoerr BadValue when there is one of that name.
func (r *Router) CreateSnapshot(ctx context.Context, name string, keep, maxTime time.Duration) (manifest.Pin, error) {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	s, err := a.load(ctx)
	if err != nil {
		return manifest.Pin{}, err
	}
	if slices.ContainsFunc(s.Pins(), func(p manifest.Pin) bool { return p.Name == name }) {
		return manifest.Pin{}, mongoerr.New(mongoerr.BadValue, "there is a snapshot %q: choose another name, or drop it first", name)
	}
	for _, h := range s.Shards() {
		if err := r.flushed(ctx, a, h.ID); err != nil {
			return manifest.Pin{}, err
		}
	}
	now := r.host.Wall()
	expires := int64(0)
	if keep > 0 {
		expires = now.Add(keep).Unix()
	}
	pin, err := r.root.Pin(ctx, name, expires, now.UnixMilli())
	if errors.Is(err, errkind.UnknownOutcome) {
		err = unknown(nil, err)
	}
	return pin, err
}

// flushed brings into segments what a shard has acknowledged, whoever holds it.
func (r *Router) flushed(ctx context.Context, a *attempts, shard manifest.ShardID) error {
	for {
		s, err := a.state(ctx)
		if err != nil {
			return err
		}
		if h := s.Shard(shard); h == nil || h.Status == manifest.ShardFree && a.fresh {
			return nil
		}
		if err = r.flushShard(ctx, a, s, &manifest.Collection{}, shard); err == nil {
			return nil
		}
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
}

// DropSnapshot gives up the snapshots of a name. Errors: mongoerr BadValue when there is none.
func (r *Router) DropSnapshot(ctx context.Context, name string, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	found := false
	_, err := r.change(ctx, a, func(s *manifest.State) (changes []manifest.Change, err error) {
		for _, p := range s.Pins() {
			if p.Name == name {
				changes = append(changes, manifest.DropPin{ID: p.ID})
			}
		}
		if found = found || len(changes) > 0; !found {
			return nil, mongoerr.New(mongoerr.BadValue, "there is no snapshot %q; the ones there are: db.adminCommand({ listSnapshots: 1 })", name)
		}
		return changes, nil
	})
	return err
}

// pinned are the states of snapshots that were read lately.
type pinned struct {
	mu     sync.Mutex
	states []*manifest.State
}

// pinnedMax is how many are kept; the state of a large cluster takes megabytes.
const pinnedMax = 4

func (p *pinned) get(v manifest.Version) *manifest.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.states {
		if s.Version() == v {
			return s
		}
	}
	return nil
}

func (p *pinned) put(s *manifest.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.states = append(p.states, s)
	p.states = p.states[max(len(p.states)-pinnedMax, 0):]
}

// prepareAt plans rd on the root version of a snapshot.
func (rd *read) prepareAt(ctx context.Context, a *attempts) (bool, error) {
	if a.r.store == nil {
		return false, mongoerr.New(mongoerr.SnapshotUnavailable, "this router does not read the bucket")
	}
	s := a.r.pinned.get(rd.At)
	if s == nil {
		var err error
		if s, err = a.r.root.Pinned(ctx, rd.At); errors.Is(err, errkind.SnapshotUnavailable) {
			return false, mongoerr.New(mongoerr.SnapshotUnavailable, "no snapshot is of version %d; the ones there are: db.adminCommand({ listSnapshots: 1 })", rd.At)
		} else if err != nil {
			return false, err
		}
		a.r.pinned.put(s)
	}
	if rd.state, rd.coll = s, s.CollectionByName(rd.ns.Database, rd.ns.Collection); rd.coll != nil {
		rd.plan = plan.Make(s, rd.coll, rd.filter, sortFields(rd.sort))
	}
	return rd.coll != nil, nil
}

// bucketOwner answers a group's reads straight from the bucket, when that is where they are
// answered; nil otherwise.
func (r *Router) bucketOwner(rd *read, g plan.Group) readOwner {
	h := rd.state.Shard(g.Shard)
	if r.store == nil || rd.At == 0 && (h == nil || h.Status != manifest.ShardFree) {
		return nil
	}
	return &freeShard{r: r, state: rd.state, coll: rd.coll, targets: g.Targets, at: rd.At}
}
