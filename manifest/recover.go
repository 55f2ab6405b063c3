package manifest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Recovery is what a root is made of, besides a copy of one of its earlier versions, when the
// root itself is lost or cannot be read, or when logs have holes that no takeover may pass.
type Recovery struct {
	// Seen is the highest version that any object names, and Collection the highest id of a
	// collection: the new root counts on from far above both, since processes that know the
	// lost one may be alive.
	Seen       Version
	Collection CollectionID
	// Logs are the logs of all shards of the copy, ended: nothing can be appended to an epoch
	// up to Last any more. Those of shards that it does not have are remembered as of shards
	// that were removed.
	Logs []EndedLog
	// Folded are chunks whose records were taken from the logs into segments.
	Folded []FoldedChunk
	// Gone are pins whose copies are not there: they were given up after the copy was made.
	Gone [][16]byte
	// Holder names who recovers, and LeaseMillis is at least the lease of every process that
	// may still answer reads.
	Holder      string
	LeaseMillis uint32
	Millis      int64
}

// EndedLog is one shard's log, all epochs of which up to Last are sealed.
type EndedLog struct {
	Shard ShardID
	Last  Epoch
	// End covers all of it: every record is at or below.
	End Position
	// Drained: every chunk of the shard that had records above its floor is among the folded,
	// so that nothing is left to replay. Needed where the log has a hole.
	Drained bool
}

// Epoch is the one in which the recovery holds the shard, and uploads segments for its chunks.
func (l EndedLog) Epoch() Epoch { return l.Last + 1 }

// FoldedChunk is a chunk of the copy with what was found for it in logs, of whichever shard.
type FoldedChunk struct {
	At    ChunkAt
	Added Added
}

// How far a recovered root counts on from what was seen of the lost one: versions that the lost
// root may have had, ids that it may have given out.
const (
	versionsAhead    = 1 << 20
	chunksAhead      = 1 << 20
	collectionsAhead = 1 << 10
)

// Recover makes the root that follows a lost one, pure: the copy, with every shard held by the
// recovery in an epoch above all that were sealed, the sealed ones open, so that a takeover
// replays them as ever. What was decided after the copy was made and is not in a log is not in
// it. Errors: Invalid when the recovery does not fit the copy, or the result would break an
// invariant.
func Recover(kept *State, x Recovery, op OpID, nonce [16]byte) (*State, error) {
	const verb = "recover root"
	e := Edit{Op: op, Millis: x.Millis}
	b := newBuilder(kept, &e, nonce, max(kept.version, x.Seen)+versionsAhead)
	s := b.s
	// Of what the lost versions held nothing is known: whoever asks for an Op is told so.
	s.recent, s.recentSince = nil, s.version-1
	s.nextChunk += chunksAhead
	s.nextCollection = max(s.nextCollection, x.Collection+1) + collectionsAhead
	s.pins = slices.DeleteFunc(slices.Clone(s.pins), func(p Pin) bool { return slices.Contains(x.Gone, p.ID) })
	logs := make(map[ShardID]EndedLog, len(x.Logs))
	for _, l := range x.Logs {
		h := s.Shard(l.Shard)
		if h == nil {
			s.retire(l)
			continue
		}
		if l.Last < h.Epoch || l.End.Less(h.Floor) {
			return nil, invalid(verb, l.Shard, "its log was ended at epoch %d, position %s, before where the copy has it", l.Last, l.End)
		}
		logs[l.Shard] = l
		b.putShard(l.held(h, x))
	}
	for _, h := range s.shards {
		if _, ended := logs[h.ID]; !ended {
			return nil, invalid(verb, h.ID, "its log was not ended")
		}
	}
	for _, f := range x.Folded {
		if err := b.fold(verb, f, logs); err != nil {
			return nil, err
		}
	}
	for _, l := range x.Logs {
		if h := s.Shard(l.Shard); h != nil && l.Drained {
			b.raiseFloor(h, l.End)
		}
	}
	b.log("recoverRoot", "", detail().AppendInt64("copy", int64(kept.version)).AppendInt32("folded", int32(len(x.Folded))))
	next, err := b.finish(kept)
	if err == nil {
		err = Validate(next)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	return next, nil
}

// retire remembers the epochs of a shard that is not there: should its name come back, they go on.
func (s *State) retire(l EndedLog) {
	last := RetiredShard{ID: l.Shard, Epoch: l.Epoch(), Floor: Position{Epoch: l.Epoch()}}
	i, ok := s.searchRetired(l.Shard)
	if ok {
		s.retired = replaced(s.retired, i, last)
	} else {
		s.retired = inserted(s.retired, i, last)
	}
}

// held is the shard as the recovery holds it.
func (l EndedLog) held(h *Shard, x Recovery) *Shard {
	n := *h
	n.OpenEpochs = nil
	if !l.Drained {
		n.OpenEpochs = slices.Clone(h.OpenEpochs)
		first := h.Epoch
		if h.Status == ShardFree {
			first++ // that one was drained
		}
		for e := first; e <= l.Last; e++ {
			n.OpenEpochs = append(n.OpenEpochs, e)
		}
	}
	n.Epoch, n.Status, n.Kind = l.Epoch(), ShardHeld, EpochExclusive
	n.Holder, n.Address, n.LeaseMillis = x.Holder, "", max(h.LeaseMillis, x.LeaseMillis)
	return &n
}

// fold gives a chunk what was found for it, and a floor above all of its owner's log.
func (b *builder) fold(verb string, f FoldedChunk, logs map[ShardID]EndedLog) error {
	was, err := b.chunk(verb, f.At)
	if err != nil {
		return err
	}
	c := *was
	if err := b.add(verb, &c, f.Added, c.Shard); err != nil {
		return err
	}
	c.OwnFloor = MaxPosition(c.OwnFloor, logs[c.Shard].End)
	b.replace(&c)
	return nil
}

// PutRecovered makes a recovered state the root of its store: in the place of the object with
// the tag from, or, with from "", where there is none. Pages of chunks that are in other locations
// are written there before. Errors: Conflict when another root is there; UnknownOutcome.
func PutRecovered(ctx context.Context, cell Cell, places Places, h host.Host, s *State, from string) error {
	r := NewRoot(cell, h, &RootOptions{Places: places})
	s, objects, err := r.spill(s, s.version-1)
	if err != nil {
		return fmt.Errorf("recover root: %w", err)
	}
	if err := r.writePages(ctx, objects); err != nil {
		return fmt.Errorf("recover root: %w", err)
	}
	if from == "" {
		_, err := r.begin(ctx, s, s.recent[len(s.recent)-1].Op)
		return err
	}
	body, err := EncodeRoot(s)
	if err != nil {
		return fmt.Errorf("recover root: %w", err)
	}
	for wait := pauseMin; ; wait = min(2*wait, pauseMax) {
		_, err := cell.Swap(ctx, RootKey, body, from)
		if err == nil {
			return nil
		}
		if object, tag, readErr := cell.Load(ctx, RootKey, ""); readErr == nil && tag != from {
			if m, bad := DecodeRoot(object); bad == nil && m.s.nonce == s.nonce {
				return nil
			}
			return fmt.Errorf("recover root: %w: the root has changed meanwhile: look again", errkind.Conflict)
		}
		if sleepErr := h.Sleep(ctx, h.Jitter(wait)); sleepErr != nil {
			return fmt.Errorf("recover root: %w", errors.Join(errkind.UnknownOutcome, err, sleepErr))
		}
	}
}

// Location is a location by its id. Errors: Invalid.
func (m *Image) Location(id LocationID) (Location, error) { return m.s.Location(id) }

// ClusterID names the image's cluster.
func (m *Image) ClusterID() ClusterID { return m.s.cluster }

// Floor is the floor that a shard has at the image's version, or had when it was removed; false
// when the image knows no such shard.
func (m *Image) Floor(id ShardID) (Position, bool) {
	if h := m.s.Shard(id); h != nil {
		return h.Floor, true
	}
	if i, ok := m.s.searchRetired(id); ok {
		return m.s.retired[i].Floor, true
	}
	return Position{}, false
}

// CopiedMillis is when, by its committer's clock, the last version was committed that was to be
// kept as a copy; 0: none was.
func (s *State) CopiedMillis() int64 { return s.copiedMillis }

// RemakePage makes the object of a page that is lost, from an image that has the same page in
// itself: before it was an object, it rode in the root. nil: this image has not.
func (m *Image) RemakePage(ref PageRef) ([]byte, error) {
	for _, t := range m.tables {
		for _, p := range t.pages {
			if t.collection != ref.Collection || p.stored || p.id != ref.id {
				continue
			}
			chunks, err := DecodeChunks(t.collection, p.inline)
			if err != nil {
				return nil, err
			}
			object, err := encodePage(m.s.cluster, ref, chunks)
			if err == nil {
				_, err = DecodePage(m.s.cluster, ref, object)
			}
			return object, err
		}
	}
	return nil, nil
}
