package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// sessions: a session is a name that a client's retryable writes and cursors go by. The
// writes' names are kept with the data; here a session is only what ends its cursors.
func (s *Commands) sessions() []Command {
	return []Command{
		{Name: "endSessions", Help: "closes the cursors of sessions", Run: s.endSessions},
		{Name: "killSessions", Help: "closes the cursors of sessions", Run: s.endSessions},
		{Name: "killAllSessions", Help: "closes all cursors that belong to a session", Run: s.killAllSessions},
		{Name: "refreshSessions", Help: "answers ok: a session needs no refreshing", Run: s.ping},
		{Name: "startSession", Help: "draws a session id", Run: s.startSession},
		{Name: "commitTransaction", Help: "there are no transactions to commit", Fields: []string{"*"}, Run: s.noTransaction},
		{Name: "abortTransaction", Help: "there are no transactions to abort", Fields: []string{"*"}, Run: s.noTransaction},
	}
}

func (s *Commands) endSessions(ctx context.Context, c *call) (bson.Raw, error) {
	for _, d := range c.list(c.cmd.Name, c.fields[0].value) {
		if _, id, ok := d.Lookup("id").BinaryOK(); ok {
			s.cursors.endSession(ctx, id)
		}
	}
	return okReply(), nil
}

func (s *Commands) killAllSessions(ctx context.Context, _ *call) (bson.Raw, error) {
	s.cursors.endSession(ctx, nil)
	return okReply(), nil
}

func (s *Commands) startSession(context.Context, *call) (bson.Raw, error) {
	id := s.host.ID16()
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	b := build().
		AppendDocument("id", build().AppendBinary("id", bson.TypeBinaryUUID, id[:]).Build()).
		AppendInt32("timeoutMinutes", sessionMinutes)
	return ok(b), nil
}

func (s *Commands) noTransaction(context.Context, *call) (bson.Raw, error) {
	return nil, mongoerr.New(mongoerr.NoSuchTransaction, "multi-document transactions are not supported: there is none to end")
}
