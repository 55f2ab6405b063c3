package command

import (
	"context"

	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// undrop is a command of our own: in MongoDB what is dropped is gone.
func (s *Commands) undrop(ctx context.Context, c *call) (bson.Raw, error) {
	u := router.Undrop{From: c.qualified(c.fields[0].value), Snapshot: c.string("snapshot"), Dry: c.bool("dryRun"), MaxTime: c.maxTime}
	u.As = u.From
	if as := c.value("as"); as.Type != 0 {
		u.As = c.qualified(as)
	}
	if c.mayWrite(u.As); c.err != nil {
		return nil, c.err
	}
	d, err := s.router.Undrop(ctx, u)
	if err != nil {
		return nil, err
	}
	return ok(build().AppendString("ns", d.NS.String()).AppendString("snapshot", d.Snapshot.Name).AppendInt64("documents", d.Documents)), nil
}
