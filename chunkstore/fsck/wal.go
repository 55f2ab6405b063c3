package fsck

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// checkWAL reads every log object above the floors.
func (c *Checker) checkWAL(ctx context.Context, state *manifest.State, r *Report) error {
	logs := map[manifest.ShardID]*logCheck{}
	for _, shard := range state.Shards() {
		logs[shard.ID] = &logCheck{Checker: c, state: state, cluster: state.ClusterID(), shard: shard, report: r}
	}
	for chunk := range state.AllChunks() {
		if log := logs[chunk.Shard]; log != nil {
			log.reach = manifest.MaxPosition(log.reach, chunk.OwnFloor) // it was a position of this log
		}
	}
	err := everywhere(state, func(at manifest.LocationID) error { return c.listLogs(ctx, state, at, logs, r) })
	if err != nil {
		return err
	}
	for _, shard := range state.Shards() {
		if err := logs[shard.ID].end(ctx); err != nil {
			return err
		}
	}
	return nil
}

// listLogs checks the log objects of one location.
func (c *Checker) listLogs(ctx context.Context, state *manifest.State, at manifest.LocationID, logs map[manifest.ShardID]*logCheck, r *Report) error {
	return c.list(ctx, at, "wal/", func(a bucket.Attrs) error {
		shard, epoch, index, err := manifest.ParseWALKey(a.Key)
		if err != nil {
			r.add(Problem{Rule: RuleLogName, Object: a.Key, Detail: "it is no log object; GC leaves it"})
			return nil
		}
		if logs[shard] == nil {
			known, err := c.newcomer(ctx, shard)
			if err != nil {
				return err
			}
			logs[shard] = &logCheck{Checker: c, state: state, cluster: state.ClusterID(), shard: known, report: r}
		}
		if h := logs[shard].shard; h != nil && h.Location != at && !h.Floor.Covers(epoch, index) {
			r.add(Problem{Rule: RuleLocation, Object: a.Key, Detail: fmt.Sprintf("it is in location %d, the shard's is %d", at, h.Location)})
			return nil
		}
		return logs[shard].object(ctx, a.Key, epoch, index)
	})
}

// newcomer is a shard that the root did not have when the check began: one that was added
// since, one that was removed (its log is drained, and GC leaves it), or nil.
func (c *Checker) newcomer(ctx context.Context, id manifest.ShardID) (*manifest.Shard, error) {
	state, err := c.load(ctx)
	if err != nil {
		return nil, err
	}
	return shardIn(state, id), nil
}

func shardIn(state *manifest.State, id manifest.ShardID) *manifest.Shard {
	if s := state.Shard(id); s != nil {
		return s
	}
	for _, r := range state.Retired() {
		if r.ID == id {
			return &manifest.Shard{ID: id, Epoch: r.Epoch, Floor: r.Floor}
		}
	}
	return nil
}

// logCheck walks over the objects of one shard in key order: epoch by epoch, index by index.
type logCheck struct {
	*Checker
	state   *manifest.State // the newest read
	cluster manifest.ClusterID
	shard   *manifest.Shard // of the newest root seen; nil: no root knows it
	report  *Report

	epoch  manifest.Epoch // being walked over
	next   uint64         // index expected in it
	sealed bool           // its seal was seen
	// reach is how far chunks say that the log went, above the shard's floor.
	reach manifest.Position
}

// refresh looks at the newest root.
func (w *logCheck) refresh(ctx context.Context) error {
	state, err := w.load(ctx)
	if err == nil && shardIn(state, w.shard.ID) != nil {
		w.state, w.shard = state, shardIn(state, w.shard.ID)
	}
	return err
}

func (w *logCheck) object(ctx context.Context, key string, epoch manifest.Epoch, index uint64) error {
	if w.shard == nil {
		w.problem(RuleLogShard, key, "no root knows the shard: if it was removed, its records are in segments; if not, they are lost")
		return nil
	}
	if w.shard.Floor.Covers(epoch, index) {
		return nil
	}
	if epoch != w.epoch {
		w.epoch, w.next, w.sealed = epoch, 0, false
	}
	for w.next = max(w.next, w.floorIn(epoch)); w.next < index; w.next++ {
		missing := manifest.WALKey(w.shard.ID, epoch, w.next)
		there, err := w.look(ctx, missing, epoch, w.next)
		if err != nil {
			return err
		}
		if !there {
			w.problem(RuleContiguous, missing, fmt.Sprintf("it is missing, and so may be what follows before %s: acknowledged writes are lost", key))
			break
		}
	}
	there, err := w.look(ctx, key, epoch, index)
	if err == nil && !there {
		w.problem(RuleContiguous, key, "it was listed and is gone: acknowledged writes are lost")
	}
	w.next = index + 1
	return err
}

// floorIn is the first index of an epoch that the floor does not cover.
func (w *logCheck) floorIn(epoch manifest.Epoch) uint64 {
	if epoch == w.shard.Floor.Epoch {
		return w.shard.Floor.Next
	}
	return 0
}

// look reads an object and checks it. It says whether the object is there, or need not be:
// a listing may lack what was written while it was made, and GC may have collected it.
func (w *logCheck) look(ctx context.Context, key string, epoch manifest.Epoch, index uint64) (bool, error) {
	b, err := w.at(w.shard.Location)
	if err != nil {
		return false, err
	}
	o, err := b.Get(ctx, key, bucket.GetOptions{})
	if errors.Is(err, errkind.NotFound) {
		err := w.refresh(ctx)
		return err == nil && w.shard.Floor.Covers(epoch, index), err
	}
	if err != nil {
		return false, fmt.Errorf("fsck: read %s: %w", key, err)
	}
	if w.sealed {
		w.problem(RuleAfterSeal, key, "an object follows the seal of its epoch")
	}
	return true, w.decode(ctx, key, epoch, index, o.Body)
}

func (w *logCheck) decode(ctx context.Context, key string, epoch manifest.Epoch, index uint64, body []byte) error {
	h, records, err := wal.Decode(body)
	switch {
	case err != nil:
		w.problem(RuleLogWhole, key, err.Error())
	case h.Cluster != w.cluster || h.Shard != w.shard.ID || h.Epoch != epoch || h.Index != index:
		w.problem(RuleLogPlace, key, fmt.Sprintf("it says that it is %s of cluster %x", manifest.WALKey(h.Shard, h.Epoch, h.Index), h.Cluster))
	case h.Kind == wal.KindSeal:
		w.sealed = true
	default:
		w.report.WALObjects++
		w.report.WALRecords += len(records)
		return w.replayed(ctx, key, epoch, index)
	}
	return nil
}

// replayed checks that a takeover would read the records of an object above the floor.
func (w *logCheck) replayed(ctx context.Context, key string, epoch manifest.Epoch, index uint64) error {
	read := func() bool {
		s := w.shard
		return s.Epoch == epoch && s.Status != manifest.ShardFree || slices.Contains(s.OpenEpochs, epoch) || s.Floor.Covers(epoch, index)
	}
	if read() {
		return nil
	}
	if err := w.refresh(ctx); err != nil || read() {
		return err
	}
	w.problem(RuleReplayed, key, fmt.Sprintf("epoch %d is above the floor %v and not open: its records are lost", epoch, w.shard.Floor))
	return nil
}

// end checks that the log went as far as chunks know that it did.
func (w *logCheck) end(ctx context.Context) error {
	seen := manifest.MaxPosition(w.shard.Floor, manifest.Position{Epoch: w.epoch, Next: w.next})
	if !seen.Less(w.reach) || w.reach.Next == 0 {
		return nil
	}
	last := w.reach.Next - 1
	key := manifest.WALKey(w.shard.ID, w.reach.Epoch, last)
	there, err := w.look(ctx, key, w.reach.Epoch, last)
	if err == nil && !there {
		w.problem(RuleContiguous, key, fmt.Sprintf("a chunk's floor is %v, the log ends at %v: what is between is lost", w.reach, seen))
	}
	return err
}

// problem reports an object, and the chunks whose records it may hold and no segment has.
func (w *logCheck) problem(rule, key, detail string) {
	p := Problem{Rule: rule, Object: key, Detail: detail}
	if shard, epoch, index, err := manifest.ParseWALKey(key); err == nil {
		p.AtStake, p.More = Above(w.state, shard, epoch, index)
	}
	w.report.add(p)
}
