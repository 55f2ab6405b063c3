package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// later are the commands of MongoDB that are not there, and what there is instead. Helpers of
// mongosh send them: they are answered in words, not with "no such command".
func (s *Commands) later() []Command {
	const (
		tidy = "what gives a collection another shard key leaves nothing behind: sh.abortReshardCollection ends it, also when its router is gone"
		done = "a move copies no data and is done when it is answered: there is nothing to abort"
		keys = "shard keys are not analyzed yet; explain shows which chunks a query visits, and why"
		cfg  = "there are no config servers: the root in the store is what they would keep"
	)
	var list []Command
	for _, c := range []struct{ name, why string }{
		{"cleanupReshardCollection", tidy}, {"abortMoveCollection", done},
		{"analyzeShardKey", keys}, {"configureQueryAnalyzer", keys},
		{"movePrimary", "a database has no primary shard: its collections are moved by sh.moveCollection"},
		{"shardDrainingStatus", "removeShard, sent again, says how far it is, and config.shards has draining: true"},
		{"getTransitionToDedicatedConfigServerStatus", cfg}, {"transitionToDedicatedConfigServer", cfg},
		{"transitionFromDedicatedConfigServer", cfg},
	} {
		list = append(list, Command{
			Name: c.name, Help: "not there: " + c.why, Admin: true, Fields: []string{"*"},
			Run: func(context.Context, *call) (bson.Raw, error) {
				return nil, mongoerr.New(mongoerr.CommandNotSupported, "%s is not supported: %s", c.name, c.why)
			},
		})
	}
	return list
}
