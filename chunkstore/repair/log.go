package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/chunkstore/wal"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// shardLog is which objects of a shard's log are there.
type shardLog struct {
	shard  *manifest.Shard // as the kept root has it
	bucket bucket.Bucket
	epochs map[manifest.Epoch][]uint64
}

// last is the newest epoch that anything tells of.
func (l *shardLog) last() manifest.Epoch {
	last := l.shard.Epoch
	for e := range l.epochs {
		last = max(last, e)
	}
	return last
}

// first is the oldest epoch that may hold records above the floor.
func (l *shardLog) first() manifest.Epoch {
	first := max(l.shard.Epoch, 1)
	switch {
	case len(l.shard.OpenEpochs) > 0:
		first = min(first, l.shard.OpenEpochs[0])
	case l.shard.Status == manifest.ShardFree && l.shard.Epoch > 0:
		first++ // that one was drained
	}
	return max(first, l.shard.Floor.Epoch)
}

// from is the first index of an epoch that the shard's floor does not cover.
func (l *shardLog) from(e manifest.Epoch) uint64 {
	if e == l.shard.Floor.Epoch {
		return l.shard.Floor.Next
	}
	return 0
}

// listLogs lists the logs above the floors, also of shards that the kept root does not have: one
// that was added since may have got chunks, and logged for them.
func (w *work) listLogs(ctx context.Context) (map[manifest.ShardID]*shardLog, error) {
	logs := map[manifest.ShardID]*shardLog{}
	for _, s := range w.kept.Shards() {
		b, err := w.at(s.Location)
		if err != nil {
			return nil, err
		}
		logs[s.ID] = &shardLog{shard: s, bucket: b, epochs: map[manifest.Epoch][]uint64{}}
	}
	err := w.everywhere(func(b bucket.Bucket) error {
		return objects(ctx, b, "wal/", func(a bucket.Attrs) error {
			id, epoch, index, err := manifest.ParseWALKey(a.Key)
			if err != nil {
				return nil // fsck reports it
			}
			log := logs[id]
			if log == nil {
				if log = w.stranger(id, b); log.shard.Floor.Covers(epoch, index) {
					return nil // of a shard that was removed, whose log is drained
				}
				logs[id] = log
			}
			if log.bucket == b && !log.shard.Floor.Covers(epoch, index) {
				log.epochs[epoch] = append(log.epochs[epoch], index)
			}
			return nil
		})
	})
	return logs, err
}

// stranger is the log of a shard that the kept root does not have, or has no more.
func (w *work) stranger(id manifest.ShardID, b bucket.Bucket) *shardLog {
	s := &manifest.Shard{ID: id}
	for _, r := range w.kept.Retired() {
		if r.ID == id {
			s.Epoch, s.Floor = r.Epoch, r.Floor
		}
	}
	return &shardLog{shard: s, bucket: b, epochs: map[manifest.Epoch][]uint64{}}
}

// hole is an object that must have been in a log and is not, or is damaged.
type hole struct {
	shard   manifest.ShardID
	epoch   manifest.Epoch
	index   uint64
	problem fsck.Problem
}

// found is what a walk over all logs came to.
type found struct {
	holes            []hole
	objects, records int
	// fold are the chunks that no takeover would bring back: with records in the log of a shard
	// that is not their owner in the kept root, or behind a hole.
	fold map[manifest.ChunkID]*manifest.Chunk
	// came are the chunks, by shard, of which the shard's log has records although it is not
	// their owner in the kept root.
	came    map[manifest.ShardID]map[manifest.ChunkID]*manifest.Chunk
	unknown map[manifest.CollectionID]int
	// newest is the highest collection id seen.
	newest manifest.CollectionID
}

// visit is told of each record that is above its chunk's floor.
type visit func(c *manifest.Chunk, r wal.Record) error

// walk reads all objects above the floors, shard by shard, epoch by epoch.
func (w *work) walk(ctx context.Context, logs map[manifest.ShardID]*shardLog, fn visit) (*found, error) {
	f := &found{
		fold: map[manifest.ChunkID]*manifest.Chunk{}, unknown: map[manifest.CollectionID]int{},
		came: map[manifest.ShardID]map[manifest.ChunkID]*manifest.Chunk{},
	}
	for _, id := range slices.Sorted(maps.Keys(logs)) {
		log := logs[id]
		for _, epoch := range slices.Sorted(maps.Keys(log.epochs)) {
			x := &walker{work: w, found: f, log: log, epoch: epoch, next: log.from(epoch), fn: fn}
			if err := x.epochOf(ctx, log.epochs[epoch]); err != nil {
				return nil, err
			}
		}
	}
	if len(f.holes) > 0 && w.whole {
		if err := w.collected(ctx, f); err != nil {
			return nil, err
		}
	}
	for i, h := range f.holes {
		came := f.came[h.shard]
		for _, id := range slices.Sorted(maps.Keys(came)) {
			f.holes[i].problem.AtStake = append(f.holes[i].problem.AtStake, fsck.RangeOf(w.kept, came[id]))
		}
		for c := range w.kept.AllChunks() {
			if c.Shard == h.shard {
				f.fold[c.ID] = c // all, so that the floor of the shard can go behind the hole
			}
		}
	}
	return f, nil
}

// collected takes out the holes that a collector made while the logs were read.
func (w *work) collected(ctx context.Context, f *found) error {
	now, _, err := w.root().Load(ctx)
	if err != nil {
		return fmt.Errorf("repair: read root: %w", err)
	}
	f.holes = slices.DeleteFunc(f.holes, func(h hole) bool {
		s := now.Shard(h.shard)
		return s == nil || s.Floor.Covers(h.epoch, h.index)
	})
	return nil
}

// walker reads the objects of one epoch.
type walker struct {
	*work
	*found
	log    *shardLog
	epoch  manifest.Epoch
	next   uint64
	sealed bool
	fn     visit
}

// readsAtOnce bounds the objects that are fetched side by side.
const readsAtOnce = 16

func (x *walker) epochOf(ctx context.Context, indexes []uint64) error {
	for part := range slices.Chunk(indexes, readsAtOnce) {
		bodies, errs := make([][]byte, len(part)), make([]error, len(part))
		var all sync.WaitGroup
		for i, index := range part {
			all.Go(func() {
				var o bucket.Object
				o, errs[i] = x.log.bucket.Get(ctx, manifest.WALKey(x.log.shard.ID, x.epoch, index), bucket.GetOptions{})
				bodies[i] = o.Body
			})
		}
		all.Wait()
		for i, index := range part {
			if err := x.object(index, bodies[i], errs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *walker) object(index uint64, body []byte, err error) error {
	key := manifest.WALKey(x.log.shard.ID, x.epoch, index)
	if err != nil && !errors.Is(err, errkind.NotFound) {
		return fmt.Errorf("repair: read %s: %w", key, err)
	}
	for ; x.next < index && !x.sealed; x.next++ {
		x.hole(x.next, "it is missing, and what follows is there: acknowledged writes are lost")
	}
	x.next = index + 1
	if err != nil {
		x.hole(index, "it was listed and is gone")
		return nil
	}
	h, records, err := wal.Decode(body)
	switch {
	case errors.Is(err, errkind.Invalid):
		return fmt.Errorf("repair: read %s: %w", key, err)
	case err != nil:
		x.hole(index, err.Error())
	case h.Cluster != x.kept.ClusterID() || h.Shard != x.log.shard.ID || h.Epoch != x.epoch || h.Index != index:
		x.hole(index, fmt.Sprintf("it says that it is %s of cluster %x", manifest.WALKey(h.Shard, h.Epoch, h.Index), h.Cluster))
	case h.Kind == wal.KindSeal:
		x.sealed = true
	case x.sealed: // never acknowledged: what is acknowledged is below the seal
	default:
		x.objects++
		return x.take(manifest.Position{Epoch: x.epoch, Next: index + 1}, records)
	}
	return nil
}

func (x *walker) hole(index uint64, detail string) {
	key := manifest.WALKey(x.log.shard.ID, x.epoch, index)
	p := fsck.Problem{Rule: fsck.RuleContiguous, Object: key, Detail: detail}
	p.AtStake, p.More = fsck.Above(x.kept, x.log.shard.ID, x.epoch, index)
	x.holes = append(x.holes, hole{x.log.shard.ID, x.epoch, index, p})
}

// take looks at the records of one object. A chunk's owner in the kept root logged what is above
// the chunk's floor. Another shard had the chunk before, and then all of its records are in
// segments and at or below the chunk's maxSeq; or after, and then they are above it.
func (x *walker) take(pos manifest.Position, records []wal.Record) error {
	for _, r := range records {
		x.newest = max(x.newest, r.Collection)
		key := r.Key
		if r.Op == wal.RetryOnly {
			key = r.Retry.Key
		}
		c := x.kept.ChunkOf(r.Collection, key)
		switch {
		case c == nil:
			if r.Collection >= x.kept.NextCollection() {
				x.unknown[r.Collection]++
			}
			continue // or of one that was dropped
		case c.Shard == x.log.shard.ID:
			if !x.kept.EffectiveFloor(c).Less(pos) {
				continue
			}
		case r.Op == wal.RetryOnly:
		case r.Seq <= c.MaxSeq:
			continue
		default:
			x.fold[c.ID] = c
			if x.came[x.log.shard.ID] == nil {
				x.came[x.log.shard.ID] = map[manifest.ChunkID]*manifest.Chunk{}
			}
			x.came[x.log.shard.ID][c.ID] = c
		}
		x.records++
		if x.fn != nil {
			if err := x.fn(c, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// book writes what the logs came to into the report.
func (w *work) book(f *found) {
	r := w.report
	r.Objects, r.Records, r.Folded = f.objects, f.records, len(f.fold)
	for _, h := range f.holes {
		if w.whole && len(h.problem.AtStake) == 0 {
			r.Needless = append(r.Needless, h.problem.Object)
		} else {
			r.Lost = append(r.Lost, h.problem)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(f.unknown)) {
		r.Unknown = append(r.Unknown, Unknown{id, f.unknown[id]})
	}
	if w.whole && len(f.holes) == 0 {
		r.Folded = 0 // every owner has what is its own
		return
	}
	for _, s := range w.kept.Shards() {
		if s.Status != manifest.ShardFree {
			r.Held = append(r.Held, Held{s.ID, s.Epoch, s.Holder, s.Address})
		}
	}
}
