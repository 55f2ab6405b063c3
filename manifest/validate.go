package manifest

import (
	"bytes"
	"cmp"
)

// Validate checks every invariant that one state can show, over all of it: names, ids and
// counters, shards with floors and epochs, the cover of the key space by each collection's
// chunks, clips, seqs and creators of references, and the bounds of the lists. It is what
// fsck, the simulation and the tests ask; Apply checks what an Edit touched by the same
// rules. Errors: Invalid, with the values.
func Validate(s *State) error {
	if s.version == 0 || s.cluster == (ClusterID{}) || s.nextCollection == 0 || s.nextChunk == 0 {
		return invalid("check", "root", "version, cluster id or a counter is zero")
	}
	if err := checkOrder(s); err != nil {
		return err
	}
	if err := checkTouched(&State{}, s); err != nil {
		return err
	}
	if err := checkBounded(s); err != nil {
		return err
	}
	return checkIDs(s)
}

// checkOrder looks at the order of the lists, on which every lookup rests.
func checkOrder(s *State) error {
	ordered := map[string]bool{
		"shards":         sortedStrictly(s.shards, func(a, b *Shard) int { return cmp.Compare(a.ID, b.ID) }),
		"retired shards": sortedStrictly(s.retired, func(a, b RetiredShard) int { return cmp.Compare(a.ID, b.ID) }),
		"collections":    sortedStrictly(s.collections, compareName),
		"chunk tables":   sortedStrictly(s.tables, func(a, b *table) int { return cmp.Compare(a.collection, b.collection) }),
		"records":        sortedStrictly(s.records, compareRecord),
		"jobs":           sortedStrictly(s.jobs, func(a, b Job) int { return bytes.Compare(a.ID[:], b.ID[:]) }),
		"tokens":         sortedStrictly(s.tokens, compareToken),
		"pins":           sortedStrictly(s.pins, func(a, b Pin) int { return bytes.Compare(a.ID[:], b.ID[:]) }),
		"sections":       sortedStrictly(s.unknown, func(a, b section) int { return cmp.Compare(a.tag, b.tag) }),
	}
	for _, name := range sortedKeys(ordered) {
		if !ordered[name] {
			return invalid("check", name, "they are out of order, or one is there twice")
		}
	}
	for _, r := range s.retired {
		if s.Shard(r.ID) != nil {
			return invalid("check", "retired shards", "%s is there, too", r.ID)
		}
	}
	return nil
}

// checkBounded looks at the lists that grow with time.
func checkBounded(s *State) error {
	switch {
	case len(s.recent) > RecentOps:
		return invalid("check", "recent ops", "%d, at most %d", len(s.recent), RecentOps)
	case len(s.history) > HistoryEntries:
		return invalid("check", "history", "%d entries, at most %d", len(s.history), HistoryEntries)
	case len(s.dropped) > DroppedEntries:
		return invalid("check", "dropped segments", "%d, at most %d", len(s.dropped), DroppedEntries)
	}
	last := s.recentSince
	for _, r := range s.recent {
		if r.Version < last || r.Version > s.version {
			return invalid("check", "recent ops", "version %d after %d, root is at %d", r.Version, last, s.version)
		}
		last = r.Version
	}
	for _, d := range s.dropped {
		if d.Version > s.version {
			return invalid("check", "dropped segments", "%s at version %d, root is at %d", d.Segment, d.Version, s.version)
		}
	}
	for _, p := range s.pins {
		if p.Version > s.version {
			return invalid("check", "pins", "%q pins version %d, root is at %d", p.Name, p.Version, s.version)
		}
	}
	return nil
}

// checkIDs looks for ids that are used twice or were never given out.
func checkIDs(s *State) error {
	if len(s.tables) != len(s.collections) {
		return invalid("check", "collections", "%d, but %d chunk tables", len(s.collections), len(s.tables))
	}
	for i, c := range s.byID {
		switch {
		case c.ID >= s.nextCollection:
			return invalid("check collection", c.Namespace(), "id %d is not below the next id %d", c.ID, s.nextCollection)
		case i > 0 && s.byID[i-1].ID == c.ID || s.tables[i].collection != c.ID:
			return invalid("check collection", c.Namespace(), "id %d is used twice or has no chunks", c.ID)
		}
	}
	seen := make(map[ChunkID]CollectionID)
	pages := make(map[pageID]bool)
	for _, t := range s.tables {
		count := 0
		for _, p := range t.pages {
			if p.id.version == 0 || p.id.version > s.version || pages[p.id] {
				return invalid("check", "pages", "page %v of collection %d is named wrongly or twice", p.id, t.collection)
			}
			pages[p.id] = true
			count += len(p.chunks)
			for _, c := range p.chunks {
				if other, ok := seen[c.ID]; ok {
					return invalid("check chunk", c.ID, "it is in collection %d and in %d", other, t.collection)
				}
				seen[c.ID] = t.collection
			}
		}
		if count != t.count {
			return invalid("check", "pages", "collection %d counts %d chunks, and has %d", t.collection, t.count, count)
		}
	}
	return nil
}
