package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// zones is what sh.addShardToZone, sh.updateZoneKeyRange and the helpers with tag in their
// name send.
func (s *Commands) zones() []Command {
	return []Command{
		{Name: "addShardToZone", Help: "makes a shard a member of a zone", Admin: true, Fields: []string{"zone"}, Run: s.addShardToZone},
		{Name: "removeShardFromZone", Help: "ends a shard's membership of a zone", Admin: true, Fields: []string{"zone"}, Run: s.removeShardFromZone},
		{
			Name: "updateZoneKeyRange", Help: "gives a range of a collection to a zone; zone: null takes it back", Admin: true,
			Fields: []string{"min", "max", "zone"}, Run: s.updateZoneKeyRange,
		},
	}
}

// shardAndZone reads the two names of a membership.
func (c *call) shardAndZone() (manifest.ShardID, string) {
	shard, zone := c.string(c.cmd.Name), c.string("zone")
	if c.err == nil && (shard == "" || zone == "") {
		c.fail(mongoerr.New(mongoerr.BadValue, "%s needs the names of a shard and of a zone: { %s: \"shard01\", zone: \"EU\" }", c.cmd.Name, c.cmd.Name))
	}
	return manifest.ShardID(shard), zone
}

func (s *Commands) addShardToZone(ctx context.Context, c *call) (bson.Raw, error) {
	shard, zone := c.shardAndZone()
	if c.err != nil {
		return nil, c.err
	}
	if err := s.router.AddShardToZone(ctx, shard, zone, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}

func (s *Commands) removeShardFromZone(ctx context.Context, c *call) (bson.Raw, error) {
	shard, zone := c.shardAndZone()
	if c.err != nil {
		return nil, c.err
	}
	if err := s.router.RemoveShardFromZone(ctx, shard, zone, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}

func (s *Commands) updateZoneKeyRange(ctx context.Context, c *call) (bson.Raw, error) {
	ns := c.qualified(c.fields[0].value)
	z := router.ZoneBounds{Min: c.doc("min"), Max: c.doc("max")}
	if v := c.value("zone"); v.Type != bson.TypeNull {
		if z.Zone = c.string("zone"); c.err == nil && z.Zone == "" {
			c.fail(mongoerr.New(mongoerr.BadValue, "zone is the name of a zone, or null to take the range from the one that has it"))
		}
	}
	if c.err == nil && (z.Min == nil || z.Max == nil) {
		c.fail(mongoerr.New(mongoerr.BadValue, "updateZoneKeyRange needs min and max, the bounds of the range: min is in it and max is not"))
	}
	if c.mayWrite(ns); c.err != nil {
		return nil, c.err
	}
	if err := s.router.SetZoneRange(ctx, ns, z, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}
