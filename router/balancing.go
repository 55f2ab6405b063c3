package router

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/errkind"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// What people tell the balancer: each is one change of the root. The balancers of the cluster
// see it there.

// SwitchBalancer starts or stops all balancing; by is who says so. Stopped, it returns when
// the round under way is over. Errors: mongoerr MaxTimeMSExpired when that takes longer than
// the limit; the balancer is stopped all the same.
func (r *Router) SwitchBalancer(ctx context.Context, stopped bool, by string, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	s, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		if balancing.Of(s).Stopped == stopped {
			return nil, nil
		}
		rec, seen := s.Record(manifest.RecordBalancer, balancing.SettingsID)
		put := manifest.PutRecord{IfAbsent: !seen, IfBody: rec.Body, Record: manifest.Record{
			Kind: manifest.RecordBalancer, ID: balancing.SettingsID, Body: balancing.Switched(s, stopped, by, r.host.Wall().UnixMilli()),
		}}
		what := "balancer.start"
		if stopped {
			what = "balancer.stop"
		}
		detail, err := bson.Marshal(bson.D{{Key: "by", Value: by}})
		return []manifest.Change{put, manifest.Note{What: what, Detail: detail}}, err
	})
	for err == nil && stopped {
		last, _ := balancing.LastRound(s)
		if !last.InRound {
			return nil
		}
		if r.host.Sleep(ctx, roundLook) != nil {
			return mongoerr.New(mongoerr.MaxTimeMSExpired, "the balancer is stopped and begins no round any more, but the last one, of %s, is not over yet: "+
				"balancerStatus shows when it is", last.Holder)
		}
		s, _, err = r.root.Load(ctx)
	}
	return err
}

// roundLook is the time between two looks whether a round is over.
const roundLook = 100 * time.Millisecond

// AlterRecord replaces the document of a setting, {} when there is none yet, by what change
// makes of it; unchanged it is left. Errors: change's.
func (r *Router) AlterRecord(ctx context.Context, kind manifest.RecordKind, id string, change func(bson.Raw, bool) (bson.Raw, error), maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		rec, exists := s.Record(kind, id)
		body, err := change(rec.Body, exists)
		if err != nil || body == nil || bytes.Equal(body, rec.Body) {
			return nil, err
		}
		return []manifest.Change{manifest.PutRecord{Record: manifest.Record{Kind: kind, ID: id, Body: body}, IfAbsent: !exists, IfBody: rec.Body}}, nil
	})
	return err
}

// AlterBalancing changes the switches of a collection: NoBalance, SplitWithinKey, and those of
// its options.
// Errors: mongoerr NamespaceNotFound, change's.
func (r *Router) AlterBalancing(ctx context.Context, ns Namespace, change func(*manifest.Collection) error, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		was := s.CollectionByName(ns.Database, ns.Collection)
		if was == nil {
			return nil, mongoerr.New(mongoerr.NamespaceNotFound, "collection %s not found", ns)
		}
		now := *was
		if err := change(&now); err != nil {
			return nil, err
		}
		if sameSwitches(&now, was) {
			return nil, nil
		}
		return []manifest.Change{manifest.AlterCollection{Was: *was, Now: now}}, nil
	})
	return err
}

func sameSwitches(a, b *manifest.Collection) bool {
	return a.NoBalance == b.NoBalance && a.SplitWithinKey == b.SplitWithinKey && bytes.Equal(a.Options, b.Options)
}

// ClearJumbo takes the mark of one value from a chunk, so that it is tried again to cut it.
// Errors: mongoerr NamespaceNotSharded, BadValue when no chunk is named.
func (r *Router) ClearJumbo(ctx context.Context, ns Namespace, at Where, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		c, err := sharded(s, ns)
		if err != nil {
			return nil, err
		}
		chunk, err := chunkAt(s, c, at)
		if err != nil || chunk.Flags&manifest.ChunkIndivisible == 0 {
			return nil, err
		}
		return []manifest.Change{manifest.MarkChunk{Chunk: chunk.At(), Flags: chunk.Flags &^ manifest.ChunkIndivisible}}, nil
	})
	return err
}

// AddShard adds a free shard, or lets one that is being emptied take chunks again; one that is
// there is left. With a URL, all that the shard will hold is in that bucket, which is made ready
// for it, and never anywhere else. Errors: BadValue for a name that none can have, and a bucket
// that cannot be used; IllegalOperation when the shard is there with another location.
func (r *Router) AddShard(ctx context.Context, id manifest.ShardID, url string, maxTime time.Duration) (cancelled bool, err error) {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	if url != "" {
		if err := r.prepared(ctx, url); err != nil {
			return false, err
		}
	}
	_, err = r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		cancelled = false
		h := s.Shard(id)
		if h == nil {
			return []manifest.Change{manifest.AddShards{IDs: []manifest.ShardID{id}, URL: url}}, nil
		}
		if at, _ := s.Location(h.Location); url != "" && at.URL != url {
			return nil, mongoerr.New(mongoerr.IllegalOperation, "shard %s is there, in %s: a shard stays where it was added; add one of another name", id, cmp.Or(at.URL, "the cluster's own bucket"))
		}
		if _, wish := balancing.Draining(s, id); !wish {
			return nil, nil
		}
		cancelled = true
		return balancing.EndDrain(h), nil
	})
	return cancelled, err
}

// prepared makes a bucket ready to be a location.
func (r *Router) prepared(ctx context.Context, url string) error {
	if r.prepare == nil {
		return mongoerr.New(mongoerr.IllegalOperation, "this router opens no other bucket than the cluster's own: start it with a release that does")
	}
	err := r.prepare(ctx, url)
	if errors.Is(err, errkind.Invalid) {
		return mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	return err
}

// CancelDrain lets a shard that is being emptied take chunks again. Errors: mongoerr
// ShardNotFound, IllegalOperation when it is not being emptied.
func (r *Router) CancelDrain(ctx context.Context, id manifest.ShardID, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		if err := known(s, id); err != nil {
			return nil, err
		}
		if _, wish := balancing.Draining(s, id); !wish {
			return nil, mongoerr.New(mongoerr.IllegalOperation, "shard %s is not being emptied: db.adminCommand({ removeShard: %q }) begins that", id, id)
		}
		return balancing.EndDrain(s.Shard(id)), nil
	})
	return err
}

// Removal is how far the removal of a shard is.
type Removal struct {
	// Stage is MongoDB's: started, ongoing, completed.
	Stage string
	// Chunks are left on the shard, Jumbo of them with a single shard-key value, and Namespaces
	// have them.
	Chunks, Jumbo int
	Namespaces    []string
	// State is the root that says so.
	State *manifest.State
}

// RemoveShard begins to empty a shard, tells how far that is, or removes the shard once it is
// empty, as MongoDB's command does when it is sent again and again. Errors: mongoerr
// ShardNotFound; IllegalOperation for the last shard; ZoneStillInUse when a range needs it.
func (r *Router) RemoveShard(ctx context.Context, id manifest.ShardID, by string, maxTime time.Duration) (x Removal, err error) {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	for {
		x, err = r.removeOnce(ctx, a, id, by)
		if err == nil || !errors.Is(err, errkind.Conflict) {
			return x, err
		}
		if err := a.again(ctx, fmt.Errorf("%w: %w", errkind.StaleVersion, err)); err != nil {
			return x, err
		}
	}
}

func (r *Router) removeOnce(ctx context.Context, a *attempts, id manifest.ShardID, by string) (Removal, error) {
	s, err := a.load(ctx)
	if err == nil {
		err = known(s, id)
	}
	if err != nil {
		return Removal{}, err
	}
	x := left(s, id)
	h := s.Shard(id)
	if _, wish := balancing.Draining(s, id); !wish {
		if err := removable(s, h); err != nil {
			return x, err
		}
		x.Stage = "started"
		_, err := r.commit(ctx, balancing.Drain{By: by, At: bson.DateTime(r.host.Wall().UnixMilli())}.Begin(h)...)
		return x, err
	}
	if x.Chunks > 0 {
		x.Stage = "ongoing"
		return x, nil
	}
	x.Stage = "completed"
	_, err = r.commit(ctx, balancing.Remove(h)...)
	return x, err
}

// left is what a shard still has.
func left(s *manifest.State, id manifest.ShardID) Removal {
	x := Removal{State: s}
	for chunk := range s.AllChunks() {
		if chunk.Shard != id {
			continue
		}
		x.Chunks++
		if chunk.Flags&manifest.ChunkIndivisible != 0 {
			x.Jumbo++
		}
		if ns := s.Collection(chunk.Collection).Namespace(); !slices.Contains(x.Namespaces, ns) {
			x.Namespaces = append(x.Namespaces, ns)
		}
	}
	return x
}

// removable refuses to empty a shard whose chunks could go nowhere.
func removable(s *manifest.State, h *manifest.Shard) error {
	if !slices.ContainsFunc(s.Shards(), func(o *manifest.Shard) bool { return o != h && takes(s, o) }) {
		return mongoerr.New(mongoerr.IllegalOperation, "cannot remove %s: it is the last shard that takes chunks; add another one first: sh.addShard(NAME)", h.ID)
	}
	ranges, err := ZoneRanges(s)
	if err != nil {
		return err
	}
	for _, z := range ranges {
		members := s.ShardsOf(z.Zone)
		if slices.Contains(members, h) && !slices.ContainsFunc(members, func(o *manifest.Shard) bool { return o != h && takes(s, o) }) {
			return mongoerr.New(mongoerr.ZoneStillInUse, "cannot remove %s: it is the last shard of zone %s, which [%v, %v) of %s belongs to; "+
				"add another one with sh.addShardToZone(SHARD, %q), or give the range up with sh.removeRangeFromZone(%q, %v, %v)",
				h.ID, z.Zone, z.Min, z.Max, z.Namespace, z.Zone, z.Namespace, z.Min, z.Max)
		}
	}
	return nil
}

// takes reports whether a shard is not being emptied.
func takes(s *manifest.State, h *manifest.Shard) bool {
	_, wish := balancing.Draining(s, h.ID)
	return !wish && h.Status != manifest.ShardDraining
}
