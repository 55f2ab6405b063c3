package command

import (
	"context"
	"slices"
	"strings"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// shards adds and removes shards: names, which writers claim.
func (s *Commands) shards() []Command {
	return []Command{
		{Name: "addShard", Help: "adds a shard, a name that some writer claims; ends the removal of one", Admin: true, Fields: []string{"name"}, Ignored: []string{"maxSize"}, Run: s.addShard},
		{Name: "removeShard", Help: "empties a shard and, sent again when it is empty, removes it", Admin: true, Fields: []string{"cancel"}, Run: s.removeShard},
	}
}

func (s *Commands) addShard(ctx context.Context, c *call) (bson.Raw, error) {
	id, url, located := strings.Cut(c.string("addShard"), "/")
	if name := c.string("name"); name != "" {
		id = name
	}
	_, rest, isURL := strings.Cut(url, ":")
	if c.err == nil && (id == "" || strings.ContainsAny(id, ":,") || located && (!isURL || strings.Trim(rest, "0123456789,") == "")) {
		c.fail(mongoerr.New(mongoerr.BadValue, "%q is no name of a shard: here a shard is a name, such as \"shard04\", that any granary writer on the store claims: "+
			"sh.addShard(\"shard04\"); with the URL of a bucket behind it, all that it holds is there: sh.addShard(\"eu01/s3://granary-eu/prod?region=eu-central-1\")", c.string("addShard")))
	}
	if c.err != nil {
		return nil, c.err
	}
	cancelled, err := s.router.AddShard(ctx, manifest.ShardID(id), url, c.maxTime)
	if err != nil {
		return nil, err
	}
	note := "any writer that runs on the store claims it, and the balancer gives it chunks; granary writer starts another one"
	if cancelled {
		note = "it is not removed any more, and takes chunks again"
	}
	return ok(build().AppendString("shardAdded", id).AppendString("note", note)), nil
}

func (s *Commands) removeShard(ctx context.Context, c *call) (bson.Raw, error) {
	id, cancel := c.string("removeShard"), c.bool("cancel")
	if c.err != nil {
		return nil, c.err
	}
	if cancel {
		if err := s.router.CancelDrain(ctx, manifest.ShardID(id), c.maxTime); err != nil {
			return nil, err
		}
		return ok(build().AppendString("msg", "draining cancelled").AppendString("state", "cancelled").AppendString("shard", id)), nil
	}
	x, err := s.router.RemoveShard(ctx, manifest.ShardID(id), c.who(), c.maxTime)
	if err != nil {
		return nil, err
	}
	b := build()
	switch x.Stage {
	case "started":
		b.AppendString("msg", "draining started successfully")
	case "ongoing":
		b.AppendString("msg", "draining ongoing")
	default:
		b.AppendString("msg", "removeshard completed successfully")
	}
	b.AppendString("state", x.Stage).AppendString("shard", id)
	if x.Stage == "completed" {
		return ok(b), nil
	}
	b.AppendDocument("remaining", build().AppendInt64("chunks", int64(x.Chunks)).AppendInt64("dbs", 0).AppendInt64("jumboChunks", int64(x.Jumbo)).Build())
	if why := s.whyLeft(x); x.Stage == "ongoing" && len(why) > 0 {
		b.AppendArray("why", array(why))
	}
	return ok(b.AppendString("note", "send removeShard again to see how far it is, and to remove the shard when it is empty; "+
		"{ removeShard: \""+id+"\", cancel: true } ends it")), nil
}

// whyLeft says of the collections that are left on a shard what is with them.
func (s *Commands) whyLeft(x router.Removal) (docs []bson.Raw) {
	for _, v := range s.options.Verdicts(x.State) {
		if slices.Contains(x.Namespaces, v.Namespace) {
			docs = append(docs, bson.Raw(build().AppendString("ns", v.Namespace).AppendString("why", v.Sentence).Build()))
		}
	}
	return docs
}
