package router

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A range of shard keys loses its documents in one change of the root, which costs as much
// for a million of them as for one:
//
//	hold     a record in the root: owners that see it neither read nor write the range
//	flush    each owner has seen it, and what it took before is in segments
//	commit   references of whole segments go, chunks at the ends are cut, the hold ends
//	tell     owners see the new root, and let those go on that waited
//
// manifest.RangeHold says why nobody sees one half of it. When somebody dies on the way, the
// hold is taken back by an owner, and nothing was dropped.

// DropRange removes all documents whose shard key is not below min and below max, and says
// how much that was: exact only where chunks lie wholly inside. With dry it removes nothing,
// and counts. Errors: mongoerr NamespaceNotSharded, BadValue for bounds that are none,
// ConflictingOperationInProgress while the collection is getting another key.
func (r *Router) DropRange(ctx context.Context, ns Namespace, min, max bson.Raw, dry bool, maxTime time.Duration) (manifest.Extent, error) {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	for {
		e, err := r.dropRange(ctx, a, ns, min, max, dry)
		if err == nil {
			return e, nil
		}
		if errors.Is(err, errkind.Conflict) {
			err = fmt.Errorf("%w: %w", errkind.StaleVersion, err)
		}
		if err := a.again(ctx, err); err != nil {
			return e, err
		}
	}
}

func (r *Router) dropRange(ctx context.Context, a *attempts, ns Namespace, min, max bson.Raw, dry bool) (e manifest.Extent, err error) {
	s, err := a.load(ctx)
	if err != nil {
		return e, err
	}
	c, err := sharded(s, ns)
	if err != nil {
		return e, err
	}
	if c.Reshaping() || s.Resharding(c.Namespace()) {
		return e, mongoerr.New(mongoerr.ConflictingOperationInProg, "%s is getting another shard key: try again when that is over", ns)
	}
	part, fullMin, fullMax, err := c.Key.Range(min, max)
	if err != nil {
		return e, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	drop := manifest.DropRange{
		Hold: manifest.RangeHold{Collection: c.ID, Range: part},
		Min:  manifest.Bound{Key: part.Min, BSON: fullMin}, Max: manifest.Bound{Key: part.Max, BSON: fullMax},
	}
	if dry {
		e = s.Extent(c.ID, drop.Min, drop.Max)
		e.Rows, err = r.countIn(ctx, a, ns, part)
		return e, err
	}
	if keep, _ := s.HistoryKept(); keep > 0 && !a.remembered {
		if err := r.remember(ctx, a, "dropRange of "+ns.String()); err != nil {
			return e, err
		}
	}
	id := r.host.ID16()
	drop.Hold.ID = hex.EncodeToString(id[:])
	if s, err = r.commit(ctx, manifest.PutRecord{Record: drop.Hold.Record(), IfAbsent: true}); err == nil {
		e, err = r.dropHeld(ctx, a, s, c, drop)
	}
	if err != nil {
		// Should the drop be under way still, it conflicts from here on.
		if _, undo := r.commit(ctx, manifest.DropRecord{Kind: manifest.RecordHold, ID: drop.Hold.ID}); undo != nil {
			r.log.Warn("a range stays held until one of its owners takes the hold back", "ns", ns, "cause", undo)
		}
	}
	return e, err
}

// dropHeld drops a range that is held in s. Errors: Conflict and those of owners, after which
// the next attempt needs a hold of its own; UnknownOutcome.
func (r *Router) dropHeld(ctx context.Context, a *attempts, s *manifest.State, c *manifest.Collection, drop manifest.DropRange) (e manifest.Extent, err error) {
	if drop.Owners, err = r.flushOwners(ctx, a, s, c, drop.Hold.Range); err != nil {
		return e, err
	}
	if s, err = a.load(ctx); err != nil {
		return e, err
	}
	e = s.Extent(c.ID, drop.Min, drop.Max)
	if s, err = r.commit(ctx, drop); err != nil {
		if errors.Is(err, errkind.UnknownOutcome) {
			err = unknown(nil, err)
		}
		return e, err
	}
	told := make(map[manifest.ShardID]manifest.CollectionID)
	for _, o := range drop.Owners {
		told[o.Shard] = c.ID
	}
	r.tell(ctx, a, s, told)
	return e, nil
}

// countIn counts the documents of a range of shard keys.
func (r *Router) countIn(ctx context.Context, a *attempts, ns Namespace, part shardkey.Range) (n int64, err error) {
	rd, err := newRead(ns, Query{})
	if err != nil {
		return 0, err
	}
	if exists, err := rd.prepare(ctx, a); err != nil || !exists {
		return 0, err
	}
	rd.plan = rd.plan.Within(rd.state, rd.coll.ID, part)
	streams, err := r.scatter(ctx, a, rd, rd.plan.ByShard(), rpc.Query{Mode: rpc.Count})
	for _, s := range streams {
		n += s.n
	}
	return n, err
}
