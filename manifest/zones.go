package manifest

import (
	"slices"

	"github.com/granarydb/granary/manifest/shardkey"
)

// ZoneOf is the zone range that r lies in, nil when it lies in none. inside is false when r
// reaches over the border of a zone range: it must be cut there before it can be placed.
func (c *Collection) ZoneOf(r shardkey.Range) (z *ZoneRange, inside bool) {
	for i := range c.Zones {
		switch {
		case c.Zones[i].Range.Covers(r):
			return &c.Zones[i], true
		case c.Zones[i].Range.Overlaps(r):
			return nil, false
		}
	}
	return nil, true
}

// InZone tells whether the shard belongs to a zone.
func (h *Shard) InZone(zone string) bool { return slices.Contains(h.Zones, zone) }

// ShardsOf are the shards that belong to a zone, by name.
func (s *State) ShardsOf(zone string) (shards []*Shard) {
	for _, h := range s.Shards() {
		if h.InZone(zone) {
			shards = append(shards, h)
		}
	}
	return shards
}
