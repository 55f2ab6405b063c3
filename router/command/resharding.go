package command

import (
	"context"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/reshard"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Collections that are getting another shard key are shown by currentOp beside the commands
// that have it done: how far they are, and the opid that killOp ends them by. Any router shows
// and ends all of them.

// reshardings is what $currentOp says of them.
func (s *Commands) reshardings(ctx context.Context, maxTime time.Duration) ([]bson.Raw, error) {
	list, err := s.router.Reshardings(ctx, maxTime)
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	for _, p := range list {
		docs = append(docs, describeResharding(p))
	}
	return docs, nil
}

// coordinatorStates are MongoDB's words for the phases of a job.
var coordinatorStates = map[string]string{
	"register": "initializing", "read": "cloning", "write": "cloning", "verify": "cloning", "catchUp": "applying", "switch": "blocking-writes",
	"done": "committing", "failed": "aborting", "unknown": "committing",
}

// describeResharding uses the fields of MongoDB's ReshardingMetrics. What a count of theirs
// has no counterpart here is left out; the last three are Granary's own.
func describeResharding(p reshard.Seen) bson.Raw {
	seconds := int64(p.Running / time.Second)
	return bson.Raw(build().
		AppendString("type", "op").
		AppendString("desc", "ReshardingCoordinatorService").
		AppendBoolean("active", true).
		AppendInt64("opid", p.Op).
		AppendInt64("secs_running", seconds).
		AppendInt64("microsecs_running", p.Running.Microseconds()).
		AppendString("op", "command").
		AppendString("ns", p.Namespace).
		AppendDocument("originatingCommand", build().
			AppendString("reshardCollection", p.Namespace).
			AppendDocument("key", bsoncore.Document(p.Key.BSON())).Build()).
		AppendString("opStatus", "running").
		AppendString("coordinatorState", coordinatorStates[p.Phase]).
		AppendInt64("approxDocumentsToCopy", p.RowsTotal).
		AppendInt64("documentsCopied", p.Rows).
		AppendInt64("approxBytesToCopy", p.BytesTotal).
		AppendInt64("bytesCopied", p.Bytes).
		AppendInt64("totalOperationTimeElapsedSecs", seconds).
		AppendInt64("remainingOperationTimeEstimatedSecs", int64(p.Left/time.Second)).
		AppendInt64("totalCriticalSectionTimeElapsedSecs", int64(p.Stopped/time.Second)).
		AppendString("phase", p.Phase).
		AppendInt32("catchUpRounds", int32(p.Round)).
		AppendInt64("takenOver", p.TakenOver).
		AppendBoolean("commitRequested", p.Hurried).Build())
}

// killOp ends what gives a collection another shard key; the collection keeps the one it has.
// Other operations end by their time limit, or when their client leaves.
func (s *Commands) killOp(ctx context.Context, c *call) (bson.Raw, error) {
	id, given := c.int("op"), !absent(c.value("op"))
	switch {
	case c.err != nil:
		return nil, c.err
	case !given:
		return nil, missingField("killOp.op")
	}
	found, err := s.router.Cancel(ctx, id, c.maxTime)
	if err == nil && !found {
		err = mongoerr.New(mongoerr.CommandNotSupported, "killOp: %d is not the opid of a collection that is getting another shard key; "+
			"other operations end by maxTimeMS, or when their client leaves", id)
	}
	if err != nil {
		return nil, err
	}
	return ok(build().AppendString("info", "attempting to kill op")), nil
}

// endResharding is abortReshardCollection, commitReshardCollection and abortUnshardCollection.
func (s *Commands) endResharding(end func(*router.Router, context.Context, router.Namespace, time.Duration) error) func(context.Context, *call) (bson.Raw, error) {
	return func(ctx context.Context, c *call) (bson.Raw, error) {
		ns := c.qualified(c.fields[0].value)
		if c.mayWrite(ns); c.err != nil {
			return nil, c.err
		}
		if err := end(s.router, ctx, ns, c.maxTime); err != nil {
			return nil, err
		}
		return okReply(), nil
	}
}
