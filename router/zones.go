package router

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Zones say where data may be: a shard belongs to any number of zones, and a range of a
// collection's shard key to at most one. The chunks of such a range live on shards of its
// zone. Declaring a range cuts the chunks at its ends, which moves nothing yet: the balancer
// does that.

// AddShardToZone makes a shard a member of a zone, which comes into being by that. Errors:
// mongoerr ShardNotFound.
func (r *Router) AddShardToZone(ctx context.Context, shard manifest.ShardID, zone string, maxTime time.Duration) error {
	return r.alterZones(ctx, shard, maxTime, func(s *manifest.State, h *manifest.Shard) ([]string, error) {
		return append(slices.Clone(h.Zones), zone), nil
	})
}

// RemoveShardFromZone ends a membership; one that is none is left as it is. Errors: mongoerr
// ShardNotFound, ZoneNotFound when no shard is in the zone, ZoneStillInUse when this is the
// last one and a range needs it.
func (r *Router) RemoveShardFromZone(ctx context.Context, shard manifest.ShardID, zone string, maxTime time.Duration) error {
	return r.alterZones(ctx, shard, maxTime, func(s *manifest.State, h *manifest.Shard) ([]string, error) {
		members := s.ShardsOf(zone)
		switch {
		case len(members) == 0:
			return nil, zoneNotFound(zone)
		case len(members) == 1 && members[0].ID == shard:
			ranges, err := ZoneRanges(s)
			if err != nil {
				return nil, err
			}
			if i := slices.IndexFunc(ranges, func(z ZoneRange) bool { return z.Zone == zone }); i >= 0 {
				z := ranges[i]
				return nil, mongoerr.New(mongoerr.ZoneStillInUse, "%s is the only shard of zone %s, which [%v, %v) of %s belongs to: "+
					"add another shard with sh.addShardToZone, or give the range up with sh.removeRangeFromZone(%q, %v, %v)",
					shard, zone, z.Min, z.Max, z.Namespace, z.Namespace, z.Min, z.Max)
			}
		}
		return slices.DeleteFunc(slices.Clone(h.Zones), func(x string) bool { return x == zone }), nil
	})
}

func zoneNotFound(zone string) error {
	return mongoerr.New(mongoerr.ZoneNotFound, "zone %s does not exist: no shard belongs to it; add one with sh.addShardToZone(SHARD, %q)", zone, zone)
}

// ZoneRange is a range of a collection, sharded or not yet, that a zone has.
type ZoneRange struct {
	Namespace string
	ZoneBounds
}

// ZoneRanges are all of them, by namespace and bound; those of collections that are not
// sharded yet come last, in the order in which they were declared. Errors: those of a record
// that cannot be read.
func ZoneRanges(s *manifest.State) (list []ZoneRange, err error) {
	for _, c := range s.Collections() {
		for _, z := range c.Zones {
			list = append(list, ZoneRange{c.Namespace(), ZoneBounds{Zone: z.Zone, Min: z.MinBSON, Max: z.MaxBSON}})
		}
	}
	for _, rec := range s.Records(manifest.RecordZones) {
		var words zoneRecord
		if err := bson.Unmarshal(rec.Body, &words); err != nil {
			return nil, err
		}
		for _, z := range words.Ranges {
			list = append(list, ZoneRange{rec.ID, ZoneBounds(z)})
		}
	}
	return list, nil
}

func (r *Router) alterZones(ctx context.Context, shard manifest.ShardID, maxTime time.Duration, to func(*manifest.State, *manifest.Shard) ([]string, error)) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		if err := known(s, shard); err != nil {
			return nil, err
		}
		h := s.Shard(shard)
		zones, err := to(s, h)
		if err != nil {
			return nil, err
		}
		slices.Sort(zones)
		if zones = slices.Compact(zones); slices.Equal(zones, h.Zones) {
			return nil, nil
		}
		return []manifest.Change{manifest.SetShardZones{ID: shard, Zones: zones}}, nil
	})
	return err
}

// ZoneBounds are a range of a shard key as users write it.
type ZoneBounds struct {
	Zone     string // "": none, the range is given up
	Min, Max bson.Raw
}

// SetZoneRange gives a range of a collection to a zone, or takes exactly that range from the
// one that it belongs to. A collection that is not sharded, or does not exist, keeps it until
// it is. Errors: mongoerr ZoneNotFound, RangeOverlapConflict, BadValue for bounds that do not
// fit the shard key.
func (r *Router) SetZoneRange(ctx context.Context, ns Namespace, z ZoneBounds, maxTime time.Duration) error {
	ctx, a, cancel := r.begin(ctx, maxTime)
	defer cancel()
	_, err := r.change(ctx, a, func(s *manifest.State) ([]manifest.Change, error) {
		if z.Zone != "" && len(s.ShardsOf(z.Zone)) == 0 {
			return nil, zoneNotFound(z.Zone)
		}
		c := s.CollectionByName(ns.Database, ns.Collection)
		if c == nil || !c.Sharded {
			return keepForLater(s, ns, z)
		}
		was := c.Zones
		now, err := withRange(ns, c.Key, was, z)
		if err != nil || slices.EqualFunc(was, now, sameZone) {
			return nil, err
		}
		n := *c
		n.Zones = now
		return append([]manifest.Change{manifest.AlterCollection{Was: *c, Now: n}}, splitsAt(s, c, zoneEnds(now), 0)...), nil
	})
	return err
}

func sameZone(a, b manifest.ZoneRange) bool { return a.Zone == b.Zone && a.Range.Equal(b.Range) }

// withRange are the zone ranges was, ascending, after z.
func withRange(ns Namespace, key shardkey.Pattern, was []manifest.ZoneRange, z ZoneBounds) ([]manifest.ZoneRange, error) {
	rng, min, max, err := key.Range(z.Min, z.Max)
	if err != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "zone range of %s with the shard key %s: %v", ns, key, err)
	}
	now := slices.DeleteFunc(slices.Clone(was), func(old manifest.ZoneRange) bool { return old.Range.Equal(rng) })
	if z.Zone == "" {
		return now, nil
	}
	for _, old := range now {
		if old.Range.Overlaps(rng) {
			return nil, mongoerr.New(mongoerr.RangeOverlapConflict, "the range [%v, %v) of zone %s overlaps [%v, %v) of zone %s in %s: "+
				"give that up first with sh.removeRangeFromZone(%q, %v, %v)", min, max, z.Zone, old.MinBSON, old.MaxBSON, old.Zone, ns, ns.String(), old.MinBSON, old.MaxBSON)
		}
	}
	now = append(now, manifest.ZoneRange{Zone: z.Zone, Range: rng, MinBSON: min, MaxBSON: max})
	slices.SortFunc(now, func(a, b manifest.ZoneRange) int { return shardkey.CompareMin(a.Range.Min, b.Range.Min) })
	return now, nil
}

// splitsAt are the splits after which no chunk reaches over a point; what they make is left
// alone until manual.
func splitsAt(s *manifest.State, c *manifest.Collection, points []shardkey.Bound, manual int64) (changes []manifest.Change) {
	for chunk := range s.Chunks(c.ID) {
		if inside := pointsIn(chunk.Range, points); len(inside) > 0 {
			changes = append(changes, manifest.Split{Chunk: chunk.At(), Points: inside, ManualUntil: manual})
		}
	}
	return changes
}

// zoneEnds are the points at which ranges begin and end, ascending, each once.
func zoneEnds(zones []manifest.ZoneRange) (ends []shardkey.Bound) {
	for _, z := range zones {
		ends = append(ends, shardkey.Bound{Key: z.Range.Min, BSON: z.MinBSON}, shardkey.Bound{Key: z.Range.Max, BSON: z.MaxBSON})
	}
	return sortedPoints(slices.DeleteFunc(ends, func(p shardkey.Bound) bool { return len(p.Key) == 0 }))
}

// sortedPoints sorts points, and keeps each once.
func sortedPoints(points []shardkey.Bound) []shardkey.Bound {
	slices.SortFunc(points, func(a, b shardkey.Bound) int { return bytes.Compare(a.Key, b.Key) })
	return slices.CompactFunc(points, func(a, b shardkey.Bound) bool { return bytes.Equal(a.Key, b.Key) })
}

// Ranges of a collection that is not sharded are a record, in the words of their user: only
// the shard key says what they mean.

type zoneRecord struct {
	Ranges []zoneWords `bson:"ranges"`
}

type zoneWords struct {
	Zone string   `bson:"zone"`
	Min  bson.Raw `bson:"min"`
	Max  bson.Raw `bson:"max"`
}

func recordedZones(s *manifest.State, ns Namespace) (rec zoneRecord, err error) {
	if stored, ok := s.Record(manifest.RecordZones, ns.String()); ok {
		err = bson.Unmarshal(stored.Body, &rec)
	}
	return rec, err
}

func keepForLater(s *manifest.State, ns Namespace, z ZoneBounds) ([]manifest.Change, error) {
	rec, err := recordedZones(s, ns)
	if err != nil {
		return nil, err
	}
	before := len(rec.Ranges)
	rec.Ranges = slices.DeleteFunc(rec.Ranges, func(old zoneWords) bool {
		return bytes.Equal(old.Min, z.Min) && bytes.Equal(old.Max, z.Max)
	})
	switch {
	case z.Zone != "":
		rec.Ranges = append(rec.Ranges, zoneWords(z))
	case len(rec.Ranges) == before:
		return nil, nil
	case len(rec.Ranges) == 0:
		return []manifest.Change{manifest.DropRecord{Kind: manifest.RecordZones, ID: ns.String()}}, nil
	}
	body, err := bson.Marshal(rec)
	if err != nil {
		return nil, err
	}
	return []manifest.Change{manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordZones, ID: ns.String(), Body: body}}}, nil
}

// ZonesOf are the zone ranges that a collection will have that is sharded by key now. Errors:
// mongoerr BadValue for ranges that are none under that key.
func ZonesOf(s *manifest.State, ns Namespace, key shardkey.Pattern) ([]manifest.ZoneRange, error) {
	zones, _, err := zonesOfNew(s, ns, key)
	return zones, err
}

// zonesOfNew are the zone ranges that were declared before the collection was sharded, and
// the change that ends their record.
func zonesOfNew(s *manifest.State, ns Namespace, key shardkey.Pattern) (zones []manifest.ZoneRange, changes []manifest.Change, err error) {
	rec, err := recordedZones(s, ns)
	if err != nil || len(rec.Ranges) == 0 {
		return nil, nil, err
	}
	for _, z := range rec.Ranges {
		if zones, err = withRange(ns, key, zones, ZoneBounds(z)); err != nil {
			return nil, nil, err
		}
	}
	return zones, []manifest.Change{manifest.DropRecord{Kind: manifest.RecordZones, ID: ns.String()}}, nil
}

// zoneAllows refuses a move of a chunk to a shard outside of its zone.
func zoneAllows(s *manifest.State, c *manifest.Collection, chunk *manifest.Chunk, to manifest.ShardID) error {
	z, _ := c.ZoneOf(chunk.Range)
	if z == nil || s.Shard(to).InZone(z.Zone) {
		return nil
	}
	var members []string
	for _, h := range s.ShardsOf(z.Zone) {
		members = append(members, string(h.ID))
	}
	return mongoerr.New(mongoerr.IllegalOperation, "shard %s is not in zone %s, which [%v, %v) of %s belongs to; its shards are %v: "+
		"move the chunk to one of them, or sh.addShardToZone(%q, %q)", to, z.Zone, z.MinBSON, z.MaxBSON, c.Namespace(), members, to, z.Zone)
}
