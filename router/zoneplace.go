package router

import (
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// ZonePlace is where a document belongs, where it goes, and what decided that.
type ZonePlace struct {
	Namespace string
	// Key is the document's shard key, as a bound shows it.
	Key bson.Raw
	// Zone is the one whose range [Min, Max) has the key; "": no range has it, and Min and Max
	// are the ends of the nearest ranges, nil where there is none.
	Zone     string
	Min, Max bson.Raw
	// Chunk is what has the key, and Shard who owns it, in Location; "": the cluster's own
	// bucket. Members are the shards of the zone.
	Chunk    *manifest.Chunk
	Shard    manifest.ShardID
	Location string
	Members  []manifest.ShardID
	// Why is a sentence.
	Why string
}

// Right reports whether the document goes to where it belongs.
func (p *ZonePlace) Right() bool { return p.Zone == "" || slices.Contains(p.Members, p.Shard) }

// PlaceOf tells where a document, or its shard key alone, belongs and goes. Errors: mongoerr
// NamespaceNotFound, BadValue for a document that no chunk can have.
func PlaceOf(s *manifest.State, ns Namespace, doc bson.Raw) (*ZonePlace, error) {
	c := s.CollectionByName(ns.Database, ns.Collection)
	if c == nil {
		return nil, mongoerr.New(mongoerr.NamespaceNotFound, "collection %s not found", ns)
	}
	key, err := c.Key.AppendShardKey(nil, doc)
	if err != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	p := &ZonePlace{Namespace: ns.String(), Chunk: s.ChunkOf(c.ID, key)}
	if _, p.Key, err = c.Key.BoundOf(doc); err != nil {
		return nil, mongoerr.New(mongoerr.BadValue, "%v", err)
	}
	p.Shard = p.Chunk.Shard
	if at, err := s.Location(s.LocationOf(p.Shard)); err == nil {
		p.Location = at.URL
	}
	p.decide(s, c, key)
	return p, nil
}

// decide finds the range, or the nearest ones.
func (p *ZonePlace) decide(s *manifest.State, c *manifest.Collection, key []byte) {
	for i := range c.Zones {
		z := &c.Zones[i]
		switch r := z.Range; {
		case r.Contains(key):
			p.Zone, p.Min, p.Max = z.Zone, z.MinBSON, z.MaxBSON
			for _, h := range s.ShardsOf(z.Zone) {
				p.Members = append(p.Members, h.ID)
			}
		case shardkey.CompareMin(r.Min, key) > 0 && p.Zone == "" && p.Max == nil:
			p.Max = z.MinBSON
		case p.Zone == "" && p.Max == nil:
			p.Min = z.MaxBSON
		}
	}
	switch {
	case p.Zone == "" && len(c.Zones) == 0:
		p.Why = fmt.Sprintf("%s has no zone ranges: any shard may have it", p.Namespace)
	case p.Zone == "":
		p.Why = "no zone range has this key: any shard may have it"
		if p.Min != nil {
			p.Why += fmt.Sprintf("; the range before ends at %v, which does not belong to it", p.Min)
		}
		if p.Max != nil {
			p.Why += fmt.Sprintf("; the next one begins at %v", p.Max)
		}
	default:
		p.Why = fmt.Sprintf("zone %s has the range [%v, %v): its lower bound is not above the key, and its upper bound, which does not belong to it, is", p.Zone, p.Min, p.Max)
		if !p.Right() {
			p.Why += fmt.Sprintf("; %s is not in the zone, whose shards are %v: the balancer moves the chunk there", p.Shard, p.Members)
		}
	}
}
