package command

import (
	"context"

	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Pipelines that begin with what the cluster tells about itself, or with documents that the
// client gives.

// aggregateCluster runs a pipeline that begins with what the cluster tells about itself.
func (s *Commands) aggregateCluster(ctx context.Context, c *call, stages []bson.Raw, batch int) (bson.Raw, error) {
	if len(stages) == 0 {
		return nil, mongoerr.New(mongoerr.InvalidNamespace, "{aggregate: 1} is not valid for an empty pipeline.")
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	name, spec := stage(stages[0])
	docs, err := s.clusterStage(ctx, c, name, spec)
	if err != nil {
		return nil, err
	}
	return s.aggregateDocs(ctx, c, docs, stages, batch, c.DB+".$cmd.aggregate")
}

// aggregateStats runs a pipeline that begins with $collStats.
func (s *Commands) aggregateStats(ctx context.Context, c *call, ns router.Namespace, spec bson.RawValue, stages []bson.Raw, batch int) (bson.Raw, error) {
	arg, isDoc := spec.DocumentOK()
	if !isDoc {
		return nil, mongoerr.New(5447000, "$collStats must take a nested object but found: $collStats: %v", spec)
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	docs, err := s.collStatsStage(ctx, c, ns, arg)
	if err != nil {
		return nil, err
	}
	return s.aggregateDocs(ctx, c, docs, stages, batch, ns.String())
}

// aggregateDocs runs all stages but the first over its output.
func (s *Commands) aggregateDocs(ctx context.Context, c *call, docs, stages []bson.Raw, batch int, ns string) (bson.Raw, error) {
	var r rows = &docRows{docs}
	if len(stages) > 1 {
		rest := make([]bson.Raw, 0, len(stages)-1)
		for _, d := range stages[1:] {
			rest = append(rest, clone(d))
		}
		p, err := document.ParsePipeline(stageArray(rest))
		if err != nil {
			return nil, err
		}
		r = pipe(ctx, p, r, document.RunLimits{MemoryBytes: s.options.PipelineBytes, NowMillis: s.host.Wall().UnixMilli()}, s.options.Sorts)
	}
	return s.first(ctx, c, &cursor{ns: ns, session: c.session, rows: r}, batch, false)
}

// literal is $documents: the documents of an expression.
func (s *Commands) literal(spec bson.RawValue) ([]bson.Raw, error) {
	if spec.Type != bson.TypeArray && spec.Type != bson.TypeEmbeddedDocument && spec.Type != bson.TypeString {
		return nil, mongoerr.New(5858203, "an array is expected: $documents: [{ ... }, ...]")
	}
	stages := []bson.Raw{
		bson.Raw(build().AppendDocument("$project", build().AppendInt32("_id", 0).AppendValue("d", core(spec)).Build()).Build()),
		bson.Raw(build().AppendString("$unwind", "$d").Build()),
		bson.Raw(build().AppendDocument("$replaceRoot", build().AppendString("newRoot", "$d").Build()).Build()),
	}
	p, err := document.ParsePipeline(stageArray(stages))
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	one := func(yield func(bson.Raw, error) bool) { yield(bson.Raw(build().Build()), nil) }
	for d, err := range p.Run(context.Background(), one, document.RunLimits{NowMillis: s.host.Wall().UnixMilli()}) {
		if err != nil {
			return nil, err
		}
		docs = append(docs, clone(d))
	}
	return docs, nil
}

func (s *Commands) clusterStage(ctx context.Context, c *call, name string, spec bson.RawValue) ([]bson.Raw, error) {
	switch name {
	case "$currentOp":
		return s.operations(ctx, c.maxTime)
	case "$listLocalSessions", "$listSessions":
		return nil, nil
	case "$documents":
		return s.literal(spec)
	case "$listClusterCatalog":
		return s.clusterCatalog(ctx, c, spec)
	case "$shardedDataDistribution":
		return s.dataDistribution(ctx, c.maxTime)
	}
	return nil, mongoerr.New(mongoerr.InvalidNamespace, "{aggregate: 1} is not valid for '%s'; a collection is required.", name)
}
