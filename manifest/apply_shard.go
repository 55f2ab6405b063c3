package manifest

import (
	"slices"
	"strings"
)

func (a AddShards) apply(b *builder) error {
	const verb = "add shard"
	location := LocationID(0)
	if a.URL != "" {
		location = b.location(a.URL)
	}
	for _, id := range a.IDs {
		if b.s.Shard(id) != nil {
			return conflict(verb, id, "it exists")
		}
		h := &Shard{ID: id, Location: location}
		if i, ok := b.s.searchRetired(id); ok {
			old := b.s.retired[i]
			h.Epoch, h.Floor = old.Epoch, old.Floor
			b.s.retired = removed(b.s.retired, i)
		}
		b.putShard(h)
		d := detail().AppendString("name", string(id))
		if a.URL != "" {
			d.AppendString("host", a.URL)
		}
		b.log("addShard", "", d)
	}
	return nil
}

func (r RemoveShard) apply(b *builder) error {
	const verb = "remove shard"
	h, err := b.shard(verb, r.ID)
	if err != nil {
		return err
	}
	if h.Status == ShardHeld {
		return conflict(verb, r.ID, "held by %q, expected free or draining", h.Holder)
	}
	for c := range b.s.AllChunks() {
		if c.Shard == r.ID {
			return conflict(verb, r.ID, "it owns chunk %d of %s, expected none", c.ID, b.namespace(c.Collection))
		}
	}
	b.s.shards = slices.DeleteFunc(slices.Clone(b.s.shards), func(x *Shard) bool { return x == h })
	last := RetiredShard{ID: h.ID, Epoch: h.Epoch, Floor: h.Floor}
	if h.Status == ShardDraining {
		// The log of the epoch that ends here was not drained, so the floor passes it: should
		// the name come back, and chunks with it, no record of before may be theirs.
		last.Epoch++
		last.Floor = Position{Epoch: last.Epoch}
	}
	i, _ := b.s.searchRetired(r.ID)
	b.s.retired = inserted(b.s.retired, i, last)
	b.log("removeShard", "", detail().AppendString("name", string(r.ID)))
	return nil
}

func (z SetShardZones) apply(b *builder) error {
	h, err := b.shard("set zones of shard", z.ID)
	if err != nil {
		return err
	}
	n := *h
	n.Zones = slices.Clone(z.Zones)
	slices.Sort(n.Zones)
	n.Zones = slices.Compact(n.Zones)
	b.putShard(&n)
	b.log("setShardZones", "", detail().AppendString("shard", string(z.ID)).AppendString("zones", strings.Join(n.Zones, ",")))
	return nil
}

func (c Claim) apply(b *builder) error {
	const verb = "claim shard"
	h, err := b.shardAt(verb, c.Shard, c.Epoch)
	if err != nil {
		return err
	}
	if c.Holder == "" {
		return invalid(verb, c.Shard, "no Holder: name the process")
	}
	n := *h
	n.Epoch++
	n.Status, n.Kind = ShardHeld, EpochExclusive
	n.Holder, n.Address, n.LeaseMillis = c.Holder, c.Address, c.LeaseMillis
	if h.Status != ShardFree {
		n.OpenEpochs = inserted(h.OpenEpochs, len(h.OpenEpochs), h.Epoch)
		// The former holders may still count with a longer lease; whoever serves next, be
		// it this holder or one that claims before it served, waits for the longest.
		n.LeaseMillis = max(c.LeaseMillis, h.LeaseMillis)
	}
	b.putShard(&n)
	b.log("claimShard", "", detail().
		AppendString("shard", string(c.Shard)).AppendInt64("epoch", int64(n.Epoch)).
		AppendString("holder", c.Holder).AppendBoolean("takeover", h.Status != ShardFree))
	return nil
}

func (d SetDraining) apply(b *builder) error {
	const verb = "set draining of shard"
	h, err := b.shard(verb, d.Shard)
	if err != nil {
		return err
	}
	if h.Status == ShardFree {
		return conflict(verb, d.Shard, "it is free, expected held")
	}
	n := *h
	n.Status = ShardHeld
	if d.Draining {
		n.Status = ShardDraining
	}
	b.putShard(&n)
	return nil
}

func (a AdvanceFree) apply(b *builder) error {
	h, err := b.freeAt("advance shard", a.Shard, a.Epoch)
	if err != nil {
		return err
	}
	n := *h
	n.Epoch++
	b.putShard(&n)
	return nil
}

func (f Flush) apply(b *builder) error {
	const verb = "flush shard"
	h, err := b.heldAt(verb, f.Shard, f.Epoch)
	if err != nil {
		return err
	}
	if f.Snapshot.Epoch > f.Epoch {
		return invalid(verb, f.Shard, "snapshot %s is of a later epoch than %d", f.Snapshot, f.Epoch)
	}
	if f.Snapshot.Less(h.Floor) {
		return conflict(verb, f.Shard, "floor is %s, beyond the snapshot %s: a later flush was committed", h.Floor, f.Snapshot)
	}
	all := f.Complete
	for _, fc := range f.Chunks {
		c := b.s.ChunkAt(fc.At)
		if c == nil || c.Shard != f.Shard {
			if fc.Tied {
				return conflict(verb, f.Shard, "chunk %d, which is tied to others, is another by now: flush again", fc.At.ID)
			}
			// Split, merged or moved since the snapshot. Its rows stay with the owner of
			// today, so the shard's floor must not pass them.
			all = false
			continue
		}
		if err := b.flushChunk(verb, h, c, f.Snapshot, fc.Added); err != nil {
			return err
		}
	}
	if all {
		b.raiseFloor(h, f.Snapshot)
	}
	return nil
}

// flushChunk adds the rows of one chunk, and raises its own floor to the snapshot.
func (b *builder) flushChunk(verb string, h *Shard, c *Chunk, snapshot Position, a Added) error {
	floor := MaxPosition(c.OwnFloor, h.Floor)
	if len(a.Refs) > 0 && !floor.Less(snapshot) {
		return conflict(verb, h.ID, "floor of chunk %d is %s, not below the snapshot %s: its rows were flushed before", c.ID, floor, snapshot)
	}
	n := *c
	if err := b.add(verb+" "+string(h.ID), &n, a, h.ID); err != nil {
		return err
	}
	if floor.Less(snapshot) {
		n.OwnFloor = snapshot
	}
	b.replace(&n)
	return nil
}

// raiseFloor moves a shard's floor: open epochs below it leave, and own floors that it
// reaches say nothing any more.
func (b *builder) raiseFloor(h *Shard, floor Position) {
	n := *h
	n.Floor = floor
	n.OpenEpochs = slices.DeleteFunc(slices.Clone(h.OpenEpochs), func(e Epoch) bool { return e < floor.Epoch })
	if len(n.OpenEpochs) == 0 {
		n.OpenEpochs = nil
	}
	b.putShard(&n)
	for _, c := range b.s.ownFloors(h.ID) {
		if !floor.Less(c.OwnFloor) {
			c := *c
			c.OwnFloor = Position{}
			b.replace(&c)
		}
	}
}

// ownFloors are the chunks of a shard that have an own floor.
func (s *State) ownFloors(id ShardID) []*Chunk {
	var found []*Chunk
	for _, t := range s.tables {
		for _, p := range t.pages {
			if p.floors == 0 && !p.written() {
				continue
			}
			for _, c := range p.chunks {
				if c.Shard == id && c.OwnFloor != (Position{}) {
					found = append(found, c)
				}
			}
		}
	}
	return found
}

func (f Free) apply(b *builder) error {
	const verb = "free shard"
	h, err := b.heldAt(verb, f.Shard, f.Epoch)
	if err != nil {
		return err
	}
	if f.Snapshot.Epoch != f.Epoch {
		return invalid(verb, f.Shard, "snapshot %s is not of epoch %d: it must be the end of the WAL", f.Snapshot, f.Epoch)
	}
	if f.Snapshot.Less(h.Floor) {
		return conflict(verb, f.Shard, "floor is %s, beyond the snapshot %s", h.Floor, f.Snapshot)
	}
	for _, fc := range f.Chunks {
		c, err := b.chunk(verb+" "+string(f.Shard), fc.At)
		if err != nil {
			return err
		}
		if c.Shard != f.Shard {
			return conflict(verb, f.Shard, "chunk %d is owned by %s", c.ID, c.Shard)
		}
		if err := b.flushChunk(verb, h, c, f.Snapshot, fc.Added); err != nil {
			return err
		}
	}
	b.raiseFloor(h, f.Snapshot)
	if left := b.s.ownFloors(f.Shard); len(left) > 0 {
		return conflict(verb, f.Shard, "floor of chunk %d is %s, beyond the snapshot %s: that is not the end of the WAL", left[0].ID, left[0].OwnFloor, f.Snapshot)
	}
	n := *b.s.Shard(f.Shard)
	n.Status, n.OpenEpochs = ShardFree, nil
	n.Holder, n.Address, n.LeaseMillis = "", "", 0
	b.putShard(&n)
	b.log("freeShard", "", detail().AppendString("shard", string(f.Shard)).AppendInt64("epoch", int64(f.Epoch)))
	return nil
}
