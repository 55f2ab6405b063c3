package router

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// writing is a Writes under way.
type writing struct {
	r       *Router
	a       *attempts
	ns      Namespace
	ordered bool
	retry   *Retry
	works   []work
	first   int // works before it are done
	owed    []debt

	// Of the present step:
	state *manifest.State
	coll  *manifest.Collection

	scratch []byte // of row keys
}

// Write applies statements. A result that is not Done was not tried when the error is nil
// (Ordered stopped before it); otherwise the error says what is known. Statements that failed
// by themselves are Done, with their Err. A missing collection is created by the first
// statement that stores something. Errors: *mongoerr.Error, Corrupt.
func (r *Router) Write(ctx context.Context, ns Namespace, ws Writes) ([]Result, error) {
	ctx, a, cancel := r.begin(ctx, ws.MaxTime)
	defer cancel()
	w := &writing{r: r, a: a, ns: ns, ordered: ws.Ordered, retry: ws.Retry, works: make([]work, len(ws.Statements))}
	id := Retry{}
	if ws.Retry != nil {
		id = *ws.Retry
	} else {
		own := r.lanes.take()
		id = Retry{Session: own.session, Txn: own.txn}
		defer func() {
			if !w.uncertain() {
				r.lanes.put(own)
			}
		}()
	}
	for i := range ws.Statements {
		k := &w.works[i]
		k.Statement = ws.Statements[i]
		k.op.Session, k.op.Txn, k.op.Stmt = id.Session, id.Txn, int32(i)
		if ws.Retry != nil {
			k.op.Stmt = k.Stmt
		}
		k.prepare(r)
	}
	for {
		before := w.first
		err := w.advance(ctx)
		if err == nil {
			w.countInserts()
			return w.results(), nil
		}
		if w.finished() || w.first > before {
			a.progress()
		}
		a.begun = a.begun || w.begun()
		if err := a.again(ctx, err); err != nil {
			w.abandon()
			return w.results(), w.failure(err)
		}
	}
}

// advance takes the statements as far as they go with the newest map: nil when all are done.
func (w *writing) advance(ctx context.Context) error {
	for !w.finished() {
		if err := w.step(ctx); err != nil {
			return err
		}
	}
	return w.collect(ctx)
}

// finished reports whether nothing is left to try.
func (w *writing) finished() bool {
	for ; w.first < len(w.works); w.first++ {
		k := &w.works[w.first]
		if !k.done {
			return false
		}
		if w.ordered && k.result.Err != nil {
			return true
		}
	}
	return true
}

// countInserts counts the documents that were stored, for the figures about targeting.
func (w *writing) countInserts() {
	n := int64(0)
	for i := range w.works {
		if k := &w.works[i]; k.Kind == insert && k.done && k.result.Err == nil {
			n++
		}
	}
	w.r.targeting.inserted(w.ns, w.coll, n)
}

func (w *writing) results() []Result {
	out := make([]Result, len(w.works))
	for i := range w.works {
		out[i] = Result{Done: w.works[i].done, WriteResult: w.works[i].result}
		if w.ordered && out[i].Done && out[i].Err != nil {
			break
		}
	}
	return out
}

// failure is the error of a Write that could not go on.
func (w *writing) failure(err error) error {
	if w.uncertain() {
		return unknown(w.retry, err)
	}
	if m := MongoError(err); w.retry != nil && m.Code == mongoerr.ExceededTimeLimit {
		m.Labels = append(m.Labels, RetryableWrite)
		return m
	}
	return err
}

// begun reports whether something of a statement was done, or may have been.
func (w *writing) begun() bool {
	for i := range w.works {
		k := &w.works[i]
		if k.done && k.result.Err == nil || k.uncertain || k.told || k.goal != nil || k.direct != nil || k.total.N > 0 {
			return true
		}
	}
	return false
}

// uncertain reports whether a statement may have been applied and nobody here knows.
func (w *writing) uncertain() bool {
	for i := range w.works {
		if k := &w.works[i]; !k.done && k.uncertain {
			return true
		}
	}
	return false
}

// step does what can be done with the newest map: for ordered statements the next run of
// them, else all. An error is about the statements that are not done yet.
func (w *writing) step(ctx context.Context) error {
	if err := w.locate(ctx); err != nil {
		return err
	}
	if w.coll == nil {
		w.finishMissing()
		return nil
	}
	if w.ordered {
		return w.stepOrdered(ctx)
	}
	return w.stepUnordered(ctx)
}

// locate finds the collection, and creates it when a statement may store something.
func (w *writing) locate(ctx context.Context) (err error) {
	was := w.coll
	if w.state, err = w.a.state(ctx); err != nil {
		return err
	}
	w.coll = w.state.CollectionByName(w.ns.Database, w.ns.Collection)
	if w.coll == nil && !w.a.fresh {
		if w.state, err = w.a.load(ctx); err != nil {
			return err
		}
		w.coll = w.state.CollectionByName(w.ns.Database, w.ns.Collection)
	}
	if w.coll == nil && w.stores() {
		w.state, w.coll, err = w.r.ensure(ctx, w.a, w.ns)
	}
	if err == nil && was != nil && w.coll != nil && was.ID != w.coll.ID {
		w.forget(was.UUID == w.coll.UUID)
	}
	return err
}

// forget: the collection was dropped and made anew, or, with rekeyed, it was given another
// shard key. Rows and chunks that were found in the old one mean nothing. What a statement may
// have done to it is known by its OpID in every chunk of the new key, but for writes of many
// documents: a delete goes through all again, an update is not repeated on documents that it
// may have changed.
func (w *writing) forget(rekeyed bool) {
	for i := range w.works {
		k := &w.works[i]
		if k.done {
			continue
		}
		fresh := work{Statement: k.Statement, op: k.op, filter: k.filter, update: k.update, sort: k.sort, uncertain: k.uncertain}
		switch {
		case !rekeyed || !k.Multi || k.goal != nil:
		case k.Kind == rpc.Delete:
			fresh.total = k.total
		case k.uncertain || k.partly || k.total.N > 0:
			k.total.Err = mongoerr.New(mongoerr.QueryPlanKilled, "collection %s was given the shard key %v while the statement was under way: "+
				"it changed %d documents, perhaps more, and not all that match", w.ns, w.coll.Key, k.total.N)
			k.finish(k.total)
			continue
		}
		*k = fresh
	}
}

// stores reports whether a statement that is left can store a document.
func (w *writing) stores() bool {
	for i := range w.works {
		if k := &w.works[i]; !k.done && (k.Kind == insert || k.Upsert) {
			return true
		}
	}
	return false
}

// finishMissing: nothing matches in a collection that does not exist.
func (w *writing) finishMissing() {
	for i := range w.works {
		if k := &w.works[i]; !k.done {
			k.done, k.uncertain = true, false
		}
	}
}

func (w *writing) stepOrdered(ctx context.Context) error {
	first := &w.works[w.first]
	d, err := w.route(first)
	if err != nil {
		return err
	}
	if d.kind != direct {
		return w.complex(ctx, first, d)
	}
	run := newRun(d.target.Chunk.Shard)
	run.add(first, d)
	for i := w.first + 1; i < len(w.works); i++ {
		k := &w.works[i]
		if k.done { // it failed while it was parsed
			break
		}
		d, err := w.route(k)
		if err != nil || d.kind != direct || d.target.Chunk.Shard != run.shard || run.full(w.r.settings, k) {
			run.early = run.named()
			break
		}
		run.add(k, d)
	}
	if !run.early {
		run.after = w.debtOf(run.shard)
	}
	err = w.send(ctx, run)
	w.a.answered(ctx, run.shard, err)
	w.waited(ctx, run.results)
	return w.settleRun(run, err)
}

func (w *writing) stepUnordered(ctx context.Context) error {
	var runs []*run
	open := make(map[manifest.ShardID]*run)
	var rest *work
	var restWay way
	for i := w.first; i < len(w.works); i++ {
		k := &w.works[i]
		if k.done {
			continue
		}
		d, err := w.route(k)
		if err != nil {
			return err
		}
		if k.done {
			continue
		}
		if d.kind != direct {
			if rest == nil {
				rest, restWay = k, d
			}
			continue
		}
		shard := d.target.Chunk.Shard
		if open[shard] == nil || open[shard].full(w.r.settings, k) {
			open[shard] = newRun(shard)
			runs = append(runs, open[shard])
		}
		open[shard].add(k, d)
	}
	if len(runs) == 0 {
		if rest == nil {
			return nil
		}
		return w.complex(ctx, rest, restWay)
	}
	errs := make([]error, len(runs))
	w.r.each(len(runs), func(i int) { errs[i] = w.send(ctx, runs[i]) })
	for i, run := range runs {
		w.a.answered(ctx, run.shard, errs[i])
		w.waited(ctx, run.results)
		errs[i] = w.settleRun(run, errs[i])
	}
	return firstError(errs)
}

// complex runs a statement that takes more than one request.
func (w *writing) complex(ctx context.Context, k *work, d way) error {
	switch {
	case k.done:
		return nil
	case d.kind == everywhere:
		return w.everywhere(ctx, k)
	}
	return w.twoPhase(ctx, k)
}

// stale is the error that has the statements left tried again on a newer map.
func (w *writing) stale() error {
	return fmt.Errorf("write to %s: planned on root version %d: %w", w.ns, w.state.Version(), errkind.StaleVersion)
}

// lost notes what a failed request means for its statements.
func lost(err error, works ...*work) error {
	if err != nil && !nothingDone(err) {
		for _, k := range works {
			k.uncertain = true
		}
		if !errors.Is(err, errkind.UnknownOutcome) {
			err = fmt.Errorf("%w: %w", err, errkind.UnknownOutcome)
		}
	}
	return err
}
