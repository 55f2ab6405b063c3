package manifest

import (
	"cmp"
	"maps"
	"slices"
)

// ValidateStep checks what must hold between two versions of one root, next to each other
// or far apart: cluster, counters, epochs, floors, chunk versions and seqs never go back
// (I3, I6), a change of owner has a new version, and no reference appears whose creator
// was not registered (I7; only between neighbouring versions). Errors: Invalid.
func ValidateStep(was, now *State) error {
	const verb = "check step"
	switch {
	case was.cluster != now.cluster:
		return invalid(verb, "root", "cluster id changed from %x to %x", was.cluster, now.cluster)
	case was.version >= now.version:
		return invalid(verb, "root", "version went from %d to %d", was.version, now.version)
	case was.nextChunk > now.nextChunk || was.nextCollection > now.nextCollection || was.recentSince > now.recentSince:
		return invalid(verb, "root", "a counter went back: %d %d %d, then %d %d %d",
			was.nextChunk, was.nextCollection, was.recentSince, now.nextChunk, now.nextCollection, now.recentSince)
	case now.format.MinReader < was.format.MinReader || now.format.MinWriter < was.format.MinWriter:
		return invalid(verb, "root", "format went from %s to %s", was.format, now.format)
	}
	for _, h := range was.shards {
		if err := shardStep(h, now); err != nil {
			return err
		}
	}
	for _, c := range was.collections {
		if d := now.Collection(c.ID); d != nil && (d.DataVersion < c.DataVersion || d.UUID != c.UUID || !d.Key.Equal(c.Key)) {
			return invalid(verb, c.Namespace(), "data version went back, or UUID or key changed under id %d", c.ID)
		}
	}
	for a, b := range ChangedChunks(was, now) {
		if b == nil {
			continue
		}
		if err := chunkStep(was, now, a, b); err != nil {
			return err
		}
	}
	return nil
}

// shardStep: epochs and floors only grow, also across removal and return of the name.
func shardStep(was *Shard, now *State) error {
	var epoch Epoch
	var floor Position
	if h := now.Shard(was.ID); h != nil {
		epoch, floor = h.Epoch, h.Floor
	} else if i, ok := now.searchRetired(was.ID); ok {
		epoch, floor = now.retired[i].Epoch, now.retired[i].Floor
	} else {
		return invalid("check step", was.ID, "shard is gone without a trace of its epoch %d", was.Epoch)
	}
	if epoch < was.Epoch || floor.Less(was.Floor) {
		return invalid("check step", was.ID, "epoch went from %d to %d, floor from %s to %s", was.Epoch, epoch, was.Floor, floor)
	}
	return nil
}

// chunkStep compares a chunk that is new or changed with what covered its keys before; a
// is the chunk of the same id and start, or nil.
func chunkStep(was, now *State, a, b *Chunk) error {
	const verb = "check step"
	if a == nil && b.ID < was.nextChunk {
		return invalid(verb, b.ID, "chunk id was given out before version %d", was.version)
	}
	if a != nil && (b.Version < a.Version || b.Version == a.Version && (a.Shard != b.Shard || !a.Range.Equal(b.Range))) {
		return invalid(verb, b.ID, "version went from %d to %d with owner %s then %s, range %s then %s", a.Version, b.Version, a.Shard, b.Shard, a.Range, b.Range)
	}
	known := map[SegmentID]bool{}
	for c := range was.ChunksIn(b.Collection, b.Range) {
		if b.MaxSeq < c.MaxSeq {
			return invalid(verb, b.ID, "maxSeq %d is below %d of chunk %d before", b.MaxSeq, c.MaxSeq, c.ID)
		}
		if f, g := was.EffectiveFloor(c), now.EffectiveFloor(b); c.Shard == b.Shard && g.Less(f) {
			return invalid(verb, b.ID, "floor %s is below %s of chunk %d before", g, f, c.ID)
		}
		for i := range c.Refs {
			known[c.Refs[i].Segment] = true
		}
	}
	if now.version != was.version+1 || restored(was, now, b.Collection) {
		return nil // creators may have come and gone in between, or before a pin kept their segments
	}
	for i := range b.Refs {
		s := b.Refs[i].Segment
		if !known[s] && !was.Registered(s.Creator) && !now.Registered(s.Creator) {
			return invalid(verb, b.ID, "%s appeared, but its creator was not registered", s)
		}
	}
	return nil
}

// restored tells whether a collection is back that was there before, from a pin that the same
// commit gave up.
func restored(was, now *State, id CollectionID) bool {
	if was.Collection(id) != nil || id >= was.nextCollection {
		return false
	}
	return slices.ContainsFunc(was.pins, func(p Pin) bool {
		_, stands := searchPin(now.pins, p.ID)
		return !stands
	})
}

func compareName(a, b *Collection) int {
	return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Name, b.Name))
}

func compareRecord(a, b Record) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
}

func compareToken(a, b Token) int {
	return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.Batch, b.Batch))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
