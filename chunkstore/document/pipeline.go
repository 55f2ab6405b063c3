package document

import (
	"context"
	"iter"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// maxStages bounds a pipeline.
	maxStages = 100
	// defaultMemoryBytes is what a run may hold unless its limits say otherwise.
	defaultMemoryBytes = 64 << 20
)

// Stage is one stage of a pipeline as it was written.
type Stage struct {
	Name string        // with its dollar sign
	Spec bson.RawValue // its argument
}

// RunLimits bounds what one run of a pipeline may hold; zero fields mean defaults.
type RunLimits struct {
	MemoryBytes int   // of all its $sort and $group stages together; 64 MiB
	NowMillis   int64 // what $$NOW says
	// Hold is asked before memory is taken from others, in steps of some size; its error ends
	// the run. nil: nobody is asked. What was held is the caller's to give back.
	Hold func(bytes int) error
}

// Pipeline is a parsed aggregation pipeline.
type Pipeline struct {
	written []Stage
	stages  []stage
	leading bson.Raw
}

// stage turns a stream of documents into another. A document is valid until the next one
// is asked for; after an error nothing follows.
type stage interface {
	run(r *running, in documents) documents
}

type documents = iter.Seq2[bson.Raw, error]

// running is one run of a pipeline.
type running struct {
	now    int64
	memory int // bytes that are left
	held   int // bytes that hold was asked for and that are not used yet
	ask    func(bytes int) error
	ended  func() error // why the run's context ended, or nil
}

// stages are the known ones. A new one is a row here.
var stages = map[string]func(v bson.RawValue) ([]stage, error){
	"$match": parseMatch, "$project": parseProject, "$sort": parseSortStage, "$limit": parseLimit,
	"$skip": parseSkip, "$count": parseCount, "$group": parseGroup, "$unwind": parseUnwind,
	"$addFields": addFieldsParser("$addFields"), "$set": addFieldsParser("$set"), "$unset": parseUnsetStage,
	"$replaceRoot": parseReplaceRoot, "$replaceWith": parseReplaceWith, "$sortByCount": parseSortByCount,
}

// ParsePipeline compiles an array of stages: $match $project $addFields ($set) $unset
// $replaceRoot ($replaceWith) $sort $limit $skip $count $group $sortByCount $unwind. Stages
// that are sources of documents ($collStats and the like) are their commands' business,
// and taken off before.
//
// Errors: UnknownPipelineStage (40324) for any other stage, 168 for an unknown expression,
// and MongoDB's own code for whatever is wrong inside a stage.
func ParsePipeline(v bson.RawValue) (*Pipeline, error) { return parsePipeline(v, nil) }

// parsePipeline parses stages, of which only some may be allowed.
func parsePipeline(v bson.RawValue, allowed func(name string) error) (*Pipeline, error) {
	if v.Type != bson.TypeArray {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "'pipeline' option must be specified as an array")
	}
	p := &Pipeline{}
	for w := walkOf(v.Value); ; {
		e, ok := w.next()
		if !ok {
			break
		}
		if len(p.written) == maxStages {
			return nil, mongoerr.New(mongoerr.FailedToParse, "Pipeline length must be no longer than %d stages", maxStages)
		}
		if err := p.parseStage(e.value, allowed); err != nil {
			return nil, err
		}
	}
	for i, s := range p.stages {
		if s, ok := s.(*sortStage); ok {
			s.most = mostAfter(p.stages[i+1:])
		}
	}
	p.leading = p.leadingMatch()
	return p, nil
}

func (p *Pipeline) parseStage(v bson.RawValue, allowed func(name string) error) error {
	switch {
	case v.Type != bson.TypeEmbeddedDocument:
		return mongoerr.New(mongoerr.TypeMismatch, "Each element of the 'pipeline' array must be an object")
	case count(v.Value) != 1:
		return mongoerr.New(40323, "A pipeline stage specification object must contain exactly one field.")
	}
	e, _ := first(v.Value)
	name := string(e.name)
	parse, ok := stages[name]
	if !ok {
		return mongoerr.New(mongoerr.UnknownPipelineStage, "Unrecognized pipeline stage name: '%s'", quotable(e.name))
	}
	if allowed != nil {
		if err := allowed(name); err != nil {
			return err
		}
	}
	parsed, err := parse(e.value)
	p.stages = append(p.stages, parsed...)
	p.written = append(p.written, Stage{Name: name, Spec: e.value})
	return err
}

// LeadingMatch is the filter that the pipeline begins with, all of its first $match stages
// in one, or nil. Documents that do not match it may be left out of the input.
func (p *Pipeline) LeadingMatch() bson.Raw { return p.leading }

func (p *Pipeline) leadingMatch() bson.Raw {
	var all []bson.RawValue
	for _, s := range p.written {
		if s.Name != "$match" {
			break
		}
		all = append(all, s.Spec)
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0].Value
	}
	doc, at := begin(nil)
	doc = appendArray(appendHeader(doc, bson.TypeArray, "$and"), all)
	return finish(doc, at)
}

// Stages are the stages as they were written; do not modify.
func (p *Pipeline) Stages() []Stage { return p.written }

// Run is the pipeline's output for these documents. It may be ranged over once. A document
// is valid until the next one is asked for. An error of in, the end of ctx, or a
// failure of a stage comes out as the last pair: QueryExceededMemoryLimit when $sort and
// $group would hold more than they may.
func (p *Pipeline) Run(ctx context.Context, in iter.Seq2[bson.Raw, error], l RunLimits) iter.Seq2[bson.Raw, error] {
	if l.MemoryBytes == 0 {
		l.MemoryBytes = defaultMemoryBytes
	}
	r := &running{now: l.NowMillis, memory: l.MemoryBytes, held: holdFree, ask: l.Hold, ended: func() error {
		if ctx.Err() == nil {
			return nil
		}
		return context.Cause(ctx)
	}}
	out := r.untilEnded(in)
	for _, s := range p.stages {
		out = s.run(r, out)
	}
	return out
}

// untilEnded ends the documents with the context's cause when it ends. It looks now and
// then: at the input, and behind stages that make many documents of one.
func (r *running) untilEnded(in documents) documents {
	return func(yield func(bson.Raw, error) bool) {
		n := 0
		for doc, err := range in {
			if n++; n%64 == 0 && err == nil {
				err = r.ended()
			}
			if !yield(doc, err) || err != nil {
				return
			}
		}
	}
}

// hold takes n bytes of the run's memory; a negative n gives them back.
func (r *running) hold(n int, stage string) error {
	if r.memory -= n; r.memory < 0 {
		return mongoerr.New(mongoerr.QueryExceededMemoryLimit,
			"Exceeded memory limit for %s; there is no spilling to disk. Narrow the input with $match, or sort with a $limit", stage)
	}
	if r.held -= n; r.held < 0 && r.ask != nil {
		step := max(holdStep, -r.held)
		if err := r.ask(step); err != nil {
			return err
		}
		r.held += step
	}
	return nil
}

// holdFree is what every run may hold unasked, holdStep what it asks for at once.
const (
	holdFree = 64 << 10
	holdStep = 256 << 10
)

// transformer makes one document of each.
type transformer interface {
	transform(e *evaluation, dst []byte, doc bson.Raw) ([]byte, error)
}

// mapped is the stage of a transformer.
type mapped struct{ transformer }

func (s mapped) run(r *running, in documents) documents {
	return func(yield func(bson.Raw, error) bool) {
		e := evaluation{now: r.now}
		var buf []byte
		for doc, err := range in {
			if err == nil {
				e.begin(doc)
				buf, err = s.transform(&e, buf[:0], doc)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(buf, nil) {
				return
			}
		}
	}
}

// parseUpdatePipeline parses the pipeline of an update, all of whose stages are transformers.
func parseUpdatePipeline(v bson.RawValue) (*Pipeline, error) {
	return parsePipeline(v, func(name string) error {
		switch name {
		case "$addFields", "$set", "$project", "$unset", "$replaceRoot", "$replaceWith":
			return nil
		}
		return mongoerr.New(mongoerr.InvalidOptions, "%s is not allowed to be used within an update", name)
	})
}

// update appends what a pipeline of transformers makes of doc.
func (p *Pipeline) update(dst []byte, doc bson.Raw, now int64) ([]byte, error) {
	e := evaluation{now: now}
	for _, s := range p.stages {
		e.begin(doc)
		next, err := s.(mapped).transform(&e, nil, doc)
		if err != nil {
			return dst, err
		}
		doc = next
	}
	return append(dst, doc...), nil
}
