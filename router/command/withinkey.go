package command

import (
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
)

// splitWithinKey is the name of the switch in create, shardCollection, collMod,
// configureCollectionBalancing and config.collections.
const splitWithinKey = "splitWithinKey"

// switchWithinKey gives a collection the switch; nowMillis is 0 for a new one. Errors: mongoerr
// InvalidOptions where it would mean nothing, or could not be; IllegalOperation when it is to be
// taken back.
func switchWithinKey(coll *manifest.Collection, on bool, nowMillis int64) error {
	switch {
	case on == coll.SplitWithinKey:
		return nil
	case !on:
		return mongoerr.New(mongoerr.IllegalOperation, "splitWithinKey of %s cannot be taken back: values may be in several chunks already. "+
			"Chunks of its own for each value come with a finer key: refineCollectionShardKey", coll.Namespace())
	case coll.Sharded && coll.Key.HasID():
		return mongoerr.New(mongoerr.InvalidOptions, "splitWithinKey means nothing for %s: its shard key %v has the _id, so no two documents have one value", coll.Namespace(), coll.Key)
	}
	next := coll.WithSplitWithinKey(nowMillis)
	for _, x := range coll.Indexes {
		if err := checkUnique(&next, x); err != nil {
			return err
		}
	}
	*coll = next
	return nil
}
