package command

import (
	"context"
	"time"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// snapshots are commands of our own: MongoDB has no lasting snapshots.
func (s *Commands) snapshots() []Command {
	return []Command{
		{
			Name: "createSnapshot", Help: "keeps everything as it is now, to be read with readConcern: {level: \"snapshot\", atClusterTime: ...}", Admin: true,
			Fields: []string{"expireAfterSeconds"}, Run: s.createSnapshot,
		},
		{Name: "listSnapshots", Help: "the snapshots there are", Admin: true, Run: s.listSnapshots},
		{
			Name: "undropCollection", Help: "brings a collection back from a snapshot", Admin: true,
			Fields: []string{"as", "snapshot", "dryRun"}, Run: s.undrop,
		},
		{Name: "dropSnapshot", Help: "gives a snapshot up", Admin: true, Run: s.dropSnapshot},
	}
}

func (s *Commands) createSnapshot(ctx context.Context, c *call) (bson.Raw, error) {
	name, seconds := c.string(c.cmd.Name), c.count("expireAfterSeconds", 0)
	if c.err == nil && name == "" {
		c.fail(missingField("createSnapshot"))
	}
	if c.err != nil {
		return nil, c.err
	}
	pin, err := s.router.CreateSnapshot(ctx, name, time.Duration(seconds)*time.Second, c.maxTime)
	if err != nil {
		return nil, err
	}
	return ok(appendPin(build(), pin)), nil
}

func appendPin(b *bsoncore.DocumentBuilder, p manifest.Pin) *bsoncore.DocumentBuilder {
	b.AppendString("name", p.Name).AppendTimestamp("atClusterTime", uint32(p.Version>>32), uint32(p.Version))
	if p.ExpiresAt != 0 {
		b.AppendDateTime("expireAt", p.ExpiresAt*1000)
	}
	return b
}

func (s *Commands) listSnapshots(ctx context.Context, c *call) (bson.Raw, error) {
	st, err := s.router.State(ctx, c.maxTime)
	if err != nil {
		return nil, err
	}
	var list []bson.Raw
	for _, p := range st.Pins() {
		list = append(list, bson.Raw(appendPin(build(), p).Build()))
	}
	return ok(build().AppendArray("snapshots", array(list))), nil
}

func (s *Commands) dropSnapshot(ctx context.Context, c *call) (bson.Raw, error) {
	name := c.string(c.cmd.Name)
	if c.err != nil {
		return nil, c.err
	}
	if err := s.router.DropSnapshot(ctx, name, c.maxTime); err != nil {
		return nil, err
	}
	return okReply(), nil
}
