package command

import (
	"context"
	"time"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// ran is what carrying a command out came to.
type ran struct {
	trace *router.Trace
	took  time.Duration
	// returned are documents, or the values of a distinct; counted is of a count.
	returned, counted int64
	// Of a write, which was not carried out: the documents that it would concern, change,
	// insert and remove.
	matched, modified, upserted, deleted int64
}

// carryOut does what the command does, up to its end, but writes nothing.
func (s *Commands) carryOut(ctx context.Context, x *explained) (*ran, error) {
	r := &ran{trace: &router.Trace{}}
	q := x.query
	q.Trace = r.trace
	start := s.host.Mono()
	var err error
	switch {
	case x.write != nil:
		err = s.search(ctx, x, q, r)
	case x.cmd.Name == "count":
		r.counted, err = s.countRows(ctx, x.ns, q)
	case x.cmd.Name == "distinct":
		var values []bson.RawValue
		values, err = s.router.Distinct(ctx, x.ns, x.field, q)
		r.returned = int64(len(values))
	case x.cmd.Name == "aggregate":
		x.pipe.query = q
		var rows rows
		if rows, err = s.pipeline(ctx, x.ns, x.pipe); err == nil {
			err = drain(ctx, rows, func(bson.Raw) error { r.returned++; return nil })
		}
	default:
		var rows rows
		if rows, err = s.read(ctx, x.ns, q); err == nil {
			err = drain(ctx, rows, func(bson.Raw) error { r.returned++; return nil })
		}
	}
	r.took = s.host.Mono() - start
	return r, err
}

// drain reads rows to their end.
func drain(ctx context.Context, r rows, each func(bson.Raw) error) error {
	defer r.Close(ctx)
	for {
		docs, err := r.Batch(ctx, pulled, maxReply)
		if err != nil {
			return err
		}
		for _, d := range docs {
			if err := each(d); err != nil {
				return err
			}
		}
		if r.Done() {
			return nil
		}
	}
}

// search finds what a write would concern, and works out what it would do to it.
func (s *Commands) search(ctx context.Context, x *explained, q router.Query, r *ran) error {
	change, err := s.changeOf(x.write)
	if err != nil {
		return err
	}
	rows, err := s.router.Find(ctx, x.ns, q)
	if err != nil {
		return err
	}
	err = drain(ctx, rows, func(d bson.Raw) error {
		r.matched++
		if x.write.Kind == rpc.Delete {
			r.deleted++
			return nil
		}
		_, changed, err := change.Apply(nil, d)
		if changed {
			r.modified++
		}
		return err
	})
	if r.matched == 0 && x.write.Upsert {
		r.upserted = 1
	}
	if x.write.Return != rpc.ReturnNone {
		r.returned = r.matched + r.upserted
	}
	return err
}

// changeOf is the update of a write; nil for a delete.
func (s *Commands) changeOf(st *router.Statement) (*document.Update, error) {
	if st.Kind == rpc.Delete {
		return nil, nil
	}
	f, err := document.ParseFilter(orEmptyDoc(st.Filter))
	if err != nil {
		return nil, err
	}
	return document.ParseUpdate(st.Update, document.UpdateOptions{
		ArrayFilters: st.ArrayFilters, Filter: f, Upsert: st.Upsert, NowMillis: s.host.Wall().UnixMilli(),
	})
}

// stats is the section executionStats. Keys examined are the rows that were found by the key;
// mergeTimeMillis is what was not spent on waiting for shards.
func (r *ran) stats(p *planned, all bool) []byte {
	visits := r.trace.Visits()
	var total rpc.ReadStats
	var requests, keys int64
	var shards, plans []bson.Raw
	for _, v := range visits {
		total.DocsExamined += v.Stats.DocsExamined
		total.BucketRequests += v.Stats.BucketRequests
		total.BucketBytes += v.Stats.BucketBytes
		requests += int64(v.Requests)
		shards = append(shards, r.visit(p, v, &keys))
		plans = append(plans, bson.Raw(build().AppendString("shardName", string(v.Shard)).AppendArray("allPlans", array(nil)).Build()))
	}
	stage := "EOF"
	if p.Plan != nil {
		stage = p.stage(len(p.Plan.ByShard()))
	}
	stages := r.figures(build().AppendString("stage", stage), r.returned, r.took, keys, total).
		AppendInt64("totalChildMillis", r.trace.Waited().Milliseconds())
	r.appendDone(p, stages)
	b := r.figures(build(), r.returned, r.took, keys, total).
		AppendInt64("mergeTimeMillis", (r.took-r.trace.Waited()).Milliseconds()).
		AppendInt64("shardRequests", requests).
		AppendDocument("executionStages", stages.AppendArray("shards", array(shards)).Build())
	if all {
		b.AppendArray("allPlansExecution", array(plans))
	}
	return b.Build()
}

// figures are what the whole, and each shard, have in common.
func (r *ran) figures(b *bsoncore.DocumentBuilder, returned int64, took time.Duration, keys int64, spent rpc.ReadStats) *bsoncore.DocumentBuilder {
	return b.AppendInt64("nReturned", returned).
		AppendInt64("executionTimeMillis", took.Milliseconds()).
		AppendInt64("totalKeysExamined", keys).
		AppendInt64("totalDocsExamined", spent.DocsExamined).
		AppendInt64("bucketRequests", spent.BucketRequests).
		AppendInt64("bucketBytes", spent.BucketBytes)
}

// visit is what one shard did; keys is added to.
func (r *ran) visit(p *planned, v router.Visit, keys *int64) bson.Raw {
	stage, found := "COLLSCAN", int64(0)
	for _, g := range p.Plan.ByShard() {
		if g.Shard == v.Shard && p.ranged(g) {
			stage, found = "FETCH", v.Stats.DocsExamined
		}
	}
	*keys += found
	b := build().AppendString("shardName", string(v.Shard)).AppendBoolean("executionSuccess", true)
	r.figures(b, v.Documents, v.Took, found, v.Stats).
		AppendInt32("requests", int32(v.Requests)).
		AppendInt32("chunks", int32(len(v.Chunks)))
	return bson.Raw(b.AppendDocument("executionStages", build().AppendString("stage", stage).
		AppendInt64("nReturned", v.Documents).AppendInt64("docsExamined", v.Stats.DocsExamined).Build()).Build())
}

// appendDone adds what a count counted, or what a write would do.
func (r *ran) appendDone(p *planned, b *bsoncore.DocumentBuilder) {
	switch {
	case p.write != nil && p.write.Kind == rpc.Delete:
		b.AppendInt64("nWouldDelete", r.deleted)
	case p.write != nil:
		b.AppendInt64("nMatched", r.matched).AppendInt64("nWouldModify", r.modified).AppendInt64("nWouldUpsert", r.upserted)
	case p.cmd.Name == "count":
		b.AppendInt64("nCounted", r.counted)
	}
}
