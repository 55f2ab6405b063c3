package manifest

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// InitOptions is what a new cluster starts with.
type InitOptions struct {
	// ClusterID is drawn at random when zero.
	ClusterID ClusterID
	// Shards are created free, at epoch 0.
	Shards []ShardID
	// Records are settings and the like.
	Records []Record
	// Millis is the creator's wall clock, for the history.
	Millis int64
}

// Create makes the first root, version 1. Errors: Conflict when there is one, Invalid for
// options that no cluster may have, UnknownOutcome when the store gives no clear answer for
// a long time or ctx ends after the first send.
func Create(ctx context.Context, cell Cell, h host.Host, o InitOptions) (*State, error) {
	r := NewRoot(cell, h, nil)
	s, op, err := r.first(o)
	if err != nil {
		return nil, fmt.Errorf("create root: %w", err)
	}
	return r.begin(ctx, s, op)
}

// Restore makes a root of a version that was kept, such as a pin's, in a store that has the
// pages and segments that it refers to and no root. It is the same cluster at that version,
// with every shard free, and without the jobs, pins and candidates for GC of then; what was
// not in segments is not there. Errors: as Create.
func Restore(ctx context.Context, cell Cell, h host.Host, kept *State, millis int64) (*State, error) {
	r := NewRoot(cell, h, nil)
	e := Edit{Op: h.ID16(), Changes: detach(kept), Millis: millis}
	s, err := Apply(kept, e, h.ID16())
	if err != nil {
		return nil, fmt.Errorf("restore root: %w", err)
	}
	return r.begin(ctx, s, e.Op)
}

// detach are the changes after which a state holds on to nothing but its chunks.
func detach(s *State) (changes []Change) {
	for _, h := range s.shards {
		if h.Status == ShardFree {
			continue
		}
		end := Position{Epoch: h.Epoch}
		for _, c := range s.ownFloors(h.ID) {
			end = MaxPosition(end, c.OwnFloor)
		}
		changes = append(changes, Free{Shard: h.ID, Epoch: h.Epoch, Snapshot: MaxPosition(end, h.Floor)})
	}
	for _, j := range s.jobs {
		changes = append(changes, ExpelJob{ID: j.ID})
	}
	for _, p := range s.pins {
		changes = append(changes, DropPin{ID: p.ID})
	}
	return append(changes, ForgetDropped{Segments: s.dropped})
}

// begin writes the first root of a store.
func (r *Root) begin(ctx context.Context, s *State, op OpID) (*State, error) {
	body, err := EncodeRoot(s)
	if err != nil {
		return nil, fmt.Errorf("create root: %w", err)
	}
	p := &patience{r: r, left: r.o.Attempts, wait: pauseMin}
	unclear := func(err error) error {
		return fmt.Errorf("create root: %w: %w", errkind.UnknownOutcome, err)
	}
	for {
		_, err := r.cell.Swap(ctx, RootKey, body, "")
		if err == nil {
			return s, nil
		}
		now, readErr := r.readPatiently(ctx, p)
		switch {
		case readErr == nil:
			if _, ok := now.state.HasOp(op); ok {
				return now.state, nil
			}
			return nil, fmt.Errorf("create root: %w: there is one, of cluster %x, at version %d", errkind.Conflict, now.state.cluster, now.state.version)
		case !errors.Is(readErr, errkind.NotFound):
			return nil, unclear(readErr)
		}
		if err := p.pause(ctx, err); err != nil {
			return nil, unclear(err)
		}
	}
}

// first is the state of version 1, and the op that made it.
func (r *Root) first(o InitOptions) (*State, OpID, error) {
	zero := &State{
		cluster: o.ClusterID, nextCollection: 1, nextChunk: 1,
		format: Format{MinReader: formatFirst, MinWriter: formatFirst},
	}
	if zero.cluster == (ClusterID{}) {
		zero.cluster = r.host.ID16()
	}
	e := Edit{Op: r.host.ID16(), Millis: o.Millis, Changes: []Change{AddShards{IDs: o.Shards}}}
	for _, x := range o.Records {
		e.Changes = append(e.Changes, PutRecord{Record: x, IfAbsent: true})
	}
	s, err := Apply(zero, e, r.host.ID16())
	return s, e.Op, err
}
