package router

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// A drop is one commit, which asks no owner. Where a history is kept it can be taken back to the last
// write that was acknowledged before it:
//
//	mark       owners take no writes of the collections, and answer no reads
//	remember   all owners flush, and a pin keeps what there is, with the drop as its name
//	drop       on condition that the marks still stand
//
// Until the last commit nothing has changed but the marks, which are taken back when it does not
// come: by this router, or after a while by any owner.

// condemned are collections about to be dropped, with what belongs into the same commit: before they
// are gone, and after it.
type condemned struct {
	gone        []*manifest.Collection
	with, after []manifest.Change
}

// changes are those of the commit. Collections that were marked must be so still.
func (x condemned) changes(marked []manifest.Collection) []manifest.Change {
	changes := x.with[:len(x.with):len(x.with)]
	for _, c := range marked {
		changes = append(changes, manifest.AlterCollection{Was: c, Now: c})
	}
	for _, c := range x.gone {
		changes = append(changes, manifest.DropCollection{ID: c.ID})
	}
	return append(changes, x.after...)
}

// names are the collection, or the database that all of them are of, or how many they are.
func (x condemned) names() string {
	first := x.gone[0]
	switch {
	case len(x.gone) == 1:
		return first.Namespace()
	case slices.ContainsFunc(x.gone, func(c *manifest.Collection) bool { return c.Database != first.Database }):
		return fmt.Sprintf("%d collections", len(x.gone))
	}
	return "database " + first.Database
}

// owners are the shards that have a part of the collections, each with one of these.
func (x condemned) owners(s *manifest.State) map[manifest.ShardID]manifest.CollectionID {
	owners := make(map[manifest.ShardID]manifest.CollectionID)
	for _, c := range x.gone {
		for chunk := range s.Chunks(c.ID) {
			owners[chunk.Shard] = c.ID
		}
	}
	return owners
}

// dropsMany is from how many segments on a drop makes a pin although no history is kept: more than
// this might push others out of the root's list of dropped segments, and GC knows them by the pin.
const dropsMany = manifest.DroppedEntries / 2

// segments counts the references of the collections.
func (x condemned) segments(s *manifest.State) (n int) {
	for _, c := range x.gone {
		for chunk := range s.Chunks(c.ID) {
			n += len(chunk.Refs)
		}
	}
	return n
}

// errForgetful ends a drop of what the history does not have yet.
var errForgetful = errors.New("the history does not have it")

// drop removes the collections that which names, together with its other changes. A cluster with a
// history remembers them first.
func (r *Router) drop(ctx context.Context, a *attempts, which func(*manifest.State) (condemned, error)) ([]*manifest.Collection, error) {
	var x condemned
	var owners map[manifest.ShardID]manifest.CollectionID
	s, err := r.change(ctx, a, func(s *manifest.State) (changes []manifest.Change, err error) {
		if x, err = which(s); err != nil {
			return nil, err
		}
		if keep, _ := s.HistoryKept(); len(x.gone) > 0 && (keep > 0 || x.segments(s) >= dropsMany) {
			return nil, errForgetful
		}
		owners = x.owners(s)
		return x.changes(nil), nil
	})
	for errors.Is(err, errForgetful) {
		if s, err = a.load(ctx); err != nil {
			break
		}
		if x, err = which(s); err != nil {
			break
		}
		owners = x.owners(s)
		if s, err = r.dropRemembered(ctx, a, x); err == nil || !moved(err) {
			break
		}
		if err = a.again(ctx, err); err == nil {
			err = errForgetful
		}
	}
	if err != nil {
		return x.gone, err
	}
	r.tell(ctx, a, s, owners)
	return x.gone, nil
}

// dropRemembered is one attempt at a drop that can be taken back.
func (r *Router) dropRemembered(ctx context.Context, a *attempts, x condemned) (*manifest.State, error) {
	marked, marks, back := make([]manifest.Collection, len(x.gone)), []manifest.Change{}, []manifest.Change{}
	for i, c := range x.gone {
		marked[i] = c.WithReshaping(r.host.ID16())
		marks = append(marks, manifest.AlterCollection{Was: *c, Now: marked[i]})
		back = append(back, manifest.AlterCollection{Was: marked[i], Now: marked[i].WithoutReshaping()})
	}
	s, err := r.commit(ctx, marks...)
	if err == nil {
		if err = r.remember(ctx, a, "drop of "+x.names()); err == nil {
			s, err = r.commit(ctx, x.changes(marked)...)
		}
	}
	switch {
	case err == nil:
		a.fresh = true
		return s, nil
	case errors.Is(err, errkind.UnknownOutcome):
		return nil, unknown(nil, err)
	}
	if _, undo := r.commit(ctx, back...); undo != nil && !errors.Is(undo, errkind.Conflict) {
		r.log.Warn("collections stay marked until one of their owners takes the mark back", "drop of", x.names(), "cause", undo)
	}
	return nil, err
}
