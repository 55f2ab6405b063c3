package command

import (
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest/shardkey"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/plan"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// planned is a command with its plan. The documents that it makes have MongoDB's names where
// MongoDB has them. There is no SHARDING_FILTER: a shard never has a document that it does
// not own. Of our own are:
//
//	targeting    targeted, range, broadcast or nothing, and reason: why
//	advice       what to add to the filter so that fewer chunks are visited
//	visit        "in key order" or "all shards at once"
//	hints        what is often meant otherwise
//	chunks       how many, and at each shard which
type planned struct {
	*explained
	*router.Explanation
}

// planner is the section queryPlanner. r is nil when nothing was carried out.
func (p *planned) planner(r *ran) []byte {
	filter := p.query.Filter
	if filter == nil {
		filter = bson.Raw(build().Build())
	}
	return build().
		AppendInt32("mongosPlannerVersion", 1).
		AppendString("namespace", p.ns.String()).
		AppendDocument("parsedQuery", filter).
		AppendDocument("winningPlan", p.winning(r)).
		AppendArray("rejectedPlans", array(nil)).Build()
}

func (p *planned) winning(r *ran) []byte {
	b := build()
	switch {
	case p.Plan == nil && p.ns.Database == "config":
		return b.AppendString("stage", "COLLSCAN").AppendString("reason", "config shows the cluster's root: no shard is asked").Build()
	case p.Plan == nil:
		return b.AppendString("stage", "EOF").AppendString("reason", "the collection does not exist").Build()
	}
	groups := p.Plan.ByShard()
	b.AppendString("stage", p.stage(len(groups))).
		AppendString("targeting", p.Plan.Kind.String()).
		AppendString("reason", p.why())
	if advice := p.Plan.Advice(); advice != "" {
		b.AppendString("advice", advice)
	}
	b.AppendInt32("chunks", int32(len(p.Plan.Targets)))
	switch {
	case len(groups) == 0:
	case p.Way != "":
		b.AppendString("visit", p.Way)
	case p.inOrder():
		b.AppendInt32("inKeyOrder", int32(p.Plan.Order))
		if len(groups) > 1 {
			b.AppendString("visit", "in key order, one shard after another, until the limit")
		}
	case len(groups) > 1:
		b.AppendString("visit", "all shards at once")
	}
	if hints := p.hints(r); len(hints) > 0 {
		b.AppendArray("hints", stringArray(hints...))
	}
	var shards []bson.Raw
	for _, g := range groups {
		shards = append(shards, p.shard(g, len(groups)))
	}
	return b.AppendArray("shards", array(shards)).Build()
}

// why is the plan's reason.
func (p *planned) why() string {
	if !p.Collection.Sharded && p.Plan.Kind == plan.Broadcast {
		return "the collection is not sharded: all of it is one chunk"
	}
	return p.Plan.Reason()
}

// inOrder reports whether the order of the key is that of the sort.
func (p *planned) inOrder() bool { return len(p.query.Sort) > 5 && p.write == nil && p.Plan.Order != 0 }

// stage is MongoDB's name for how the shards' answers come together.
func (p *planned) stage(shards int) string {
	switch {
	case shards == 0:
		return "EOF"
	case shards == 1:
		return "SINGLE_SHARD"
	case p.write != nil:
		return "SHARD_WRITE"
	case len(p.query.Sort) > 5 && p.Plan.Order == 0:
		return "SHARD_MERGE_SORT"
	}
	return "SHARD_MERGE"
}

// shard is one shard's part: its chunks, and how each is read.
func (p *planned) shard(g plan.Group, shards int) bson.Raw {
	b := build().AppendString("shardName", string(g.Shard))
	if h := p.State.Shard(g.Shard); h != nil {
		b.AppendString("connectionString", shardHost(h))
	}
	var chunks []bson.Raw
	for _, t := range g.Targets {
		chunks = append(chunks, bson.Raw(build().
			AppendDocument("min", t.Chunk.MinBSON).AppendDocument("max", t.Chunk.MaxBSON).
			AppendInt32("ranges", int32(len(t.Ranges))).Build()))
	}
	return bson.Raw(b.AppendDocument("winningPlan", p.tree(g, shards)).
		AppendArray("rejectedPlans", array(nil)).
		AppendArray("chunks", array(chunks)).Build())
}

// ranged reports whether a part of the shard's chunks is read, found by the key, or all in
// key order; else they are read as they come.
func (p *planned) ranged(g plan.Group) bool {
	for _, t := range g.Targets {
		if t.Ranges != nil {
			return true
		}
	}
	return p.inOrder()
}

// tree is what a shard does, the last stage outermost.
func (p *planned) tree(g plan.Group, shards int) []byte {
	if p.cmd.Name == "count" && len(p.query.Filter) <= 5 && p.query.Limit == 0 {
		return build().AppendString("stage", "RECORD_STORE_FAST_COUNT").Build()
	}
	doc := p.scan(g)
	over := func(stage string, more func(*bsoncore.DocumentBuilder)) {
		b := build().AppendString("stage", stage)
		if more != nil {
			more(b)
		}
		doc = b.AppendDocument("inputStage", doc).Build()
	}
	q := p.query
	limit := q.Limit
	if limit > 0 && shards > 1 {
		limit += q.Skip
	}
	if len(q.Sort) > 5 && !p.inOrder() {
		over("SORT", func(b *bsoncore.DocumentBuilder) {
			b.AppendDocument("sortPattern", q.Sort)
			if limit > 0 {
				b.AppendInt64("limitAmount", limit)
			}
		})
	}
	if q.Skip > 0 && shards == 1 {
		over("SKIP", func(b *bsoncore.DocumentBuilder) { b.AppendInt64("skipAmount", q.Skip) })
	}
	if limit > 0 {
		over("LIMIT", func(b *bsoncore.DocumentBuilder) { b.AppendInt64("limitAmount", limit) })
	}
	switch {
	case p.write != nil && p.write.Kind == rpc.Delete:
		over("DELETE", nil)
	case p.write != nil:
		over("UPDATE", nil)
	case p.cmd.Name == "count" || p.pipe.count != nil:
		over("COUNT", nil)
	case p.cmd.Name == "distinct":
		over("DISTINCT", func(b *bsoncore.DocumentBuilder) { b.AppendString("key", p.field) })
	case len(q.Projection) > 5:
		over("PROJECTION_DEFAULT", func(b *bsoncore.DocumentBuilder) { b.AppendDocument("transformBy", q.Projection) })
	}
	return doc
}

// scan is how a shard reads its chunks.
func (p *planned) scan(g plan.Group) []byte {
	direction := "forward"
	if p.inOrder() && p.Plan.Order < 0 {
		direction = "backward"
	}
	filtered := func(b *bsoncore.DocumentBuilder) *bsoncore.DocumentBuilder {
		if len(p.query.Filter) > 5 {
			b.AppendDocument("filter", p.query.Filter)
		}
		return b
	}
	if !p.ranged(g) {
		return filtered(build().AppendString("stage", "COLLSCAN")).AppendString("direction", direction).Build()
	}
	index := build().
		AppendString("stage", "IXSCAN").
		AppendDocument("keyPattern", p.Collection.Key.BSON()).
		AppendString("indexName", keyIndexName(p.Collection.Key)).
		AppendString("direction", direction)
	return filtered(build().AppendString("stage", "FETCH")).AppendDocument("inputStage", index.Build()).Build()
}

// keyIndexName is the name of the index that the order of a chunk's rows is.
func keyIndexName(key shardkey.Pattern) string {
	if name := indexName(key); name != "_id_1" {
		return name
	}
	return idIndexName
}

// appendSplit is how an aggregate is cut between the shards and this router.
func (p *planned) appendSplit(b *bsoncore.DocumentBuilder) {
	var shards []plan.Group
	if p.Plan != nil {
		shards = p.Plan.ByShard()
	}
	pushed := len(p.shardStages())
	if len(shards) < 2 && pushed == len(p.stages) {
		b.AppendNull("splitPipeline")
	} else {
		b.AppendString("mergeType", "mongos")
		b.AppendDocument("splitPipeline", build().
			AppendArray("shardsPart", array(p.shardStages())).
			AppendArray("mergerPart", array(p.merger(len(shards)))).Build())
	}
	parts := build()
	for _, g := range shards {
		d := build()
		if h := p.State.Shard(g.Shard); h != nil {
			d.AppendString("host", shardHost(h))
		}
		parts.AppendDocument(string(g.Shard), d.AppendDocument("queryPlanner", build().
			AppendString("namespace", p.ns.String()).
			AppendDocument("winningPlan", p.tree(g, len(shards))).Build()).Build())
	}
	b.AppendDocument("shards", parts.Build())
}

// shardStages are the stages that shards carry out.
func (p *planned) shardStages() []bson.Raw {
	return p.stages[:len(p.stages)-len(p.pipe.rest)]
}

// merger are the stages that this router carries out: what is left, and what has to be done
// once more over the answers of several shards.
func (p *planned) merger(shards int) []bson.Raw {
	var again []bson.Raw
	if shards > 1 {
		for _, d := range p.shardStages() {
			if name, _ := stage(d); name != "$match" {
				again = append(again, d)
			}
		}
	}
	return append(again, p.pipe.rest...)
}
