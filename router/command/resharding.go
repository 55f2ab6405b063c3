package command

import (
	"context"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Collections that are getting another shard key are shown by currentOp beside the commands
// that have it done: how far they are, and the opid that killOp ends them by.

// reshardings is what $currentOp says of them.
func (s *Commands) reshardings() []bson.Raw {
	var docs []bson.Raw
	for _, job := range s.router.Reshardings() {
		docs = append(docs, describeResharding(job))
	}
	return docs
}

// describeResharding uses the fields of MongoDB's ReshardingCoordinatorService.
func describeResharding(job *router.Resharding) bson.Raw {
	p := job.Progress.Seen()
	return bson.Raw(build().
		AppendString("type", "op").
		AppendString("desc", "ReshardingCoordinatorService").
		AppendBoolean("active", true).
		AppendInt64("opid", job.ID).
		AppendInt64("secs_running", int64(p.Running/time.Second)).
		AppendInt64("microsecs_running", p.Running.Microseconds()).
		AppendString("op", "command").
		AppendString("ns", p.Namespace).
		AppendDocument("originatingCommand", build().
			AppendString("reshardCollection", p.Namespace).
			AppendDocument("key", bsoncore.Document(p.Key.BSON())).Build()).
		AppendString("coordinatorState", p.Phase).
		AppendInt64("documentsCopied", p.Rows).
		AppendInt64("approxDocumentsToCopy", p.RowsTotal).
		AppendInt64("bytesCopied", p.Bytes).
		AppendInt64("approxBytesToCopy", p.BytesTotal).
		AppendInt32("catchUpRounds", int32(p.Round)).
		AppendInt64("totalOperationTimeElapsedSecs", int64(p.Running/time.Second)).
		AppendInt64("remainingOperationTimeEstimatedSecs", int64(p.Left/time.Second)).Build())
}

// killOp ends what gives a collection another shard key; the collection keeps the one it has.
// Other operations end by their time limit, or when their client leaves.
func (s *Commands) killOp(_ context.Context, c *call) (bson.Raw, error) {
	id, given := c.int("op"), !absent(c.value("op"))
	switch {
	case c.err != nil:
		return nil, c.err
	case !given:
		return nil, missingField("killOp.op")
	case !s.router.Cancel(id):
		return nil, mongoerr.New(mongoerr.CommandNotSupported, "killOp: %d is not the opid of a collection that is getting another shard key; "+
			"other operations end by maxTimeMS, or when their client leaves", id)
	}
	return ok(build().AppendString("info", "attempting to kill op")), nil
}
