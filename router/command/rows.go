package command

import (
	"bytes"
	"context"
	"iter"
	"math"
	"slices"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/document"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// docRows is rows of documents in memory.
type docRows struct{ docs []bson.Raw }

func (r *docRows) Batch(_ context.Context, docs, size int) ([]bson.Raw, error) {
	n, total := 0, 0
	for n < len(r.docs) && (docs <= 0 || n < docs) {
		if total += len(r.docs[n]); n > 0 && total > size {
			break
		}
		n++
	}
	out := r.docs[:n]
	r.docs = r.docs[n:]
	return out, nil
}

func (r *docRows) Done() bool            { return len(r.docs) == 0 }
func (r *docRows) Close(context.Context) { r.docs = nil }

// queryDocs runs a query over documents in memory.
func queryDocs(all iter.Seq[bson.Raw], q router.Query) (*docRows, error) {
	most := int64(math.MaxInt64)
	if len(q.Sort) <= 5 && q.Limit > 0 && q.Skip < most-q.Limit {
		most = q.Skip + q.Limit
	}
	var docs []bson.Raw
	err := match(all, q.Filter, func(d bson.Raw) bool {
		docs = append(docs, clone(d))
		return int64(len(docs)) < most
	})
	if err != nil {
		return nil, err
	}
	if len(q.Sort) > 5 {
		sort, err := document.ParseSort(q.Sort)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(docs, func(a, b bson.Raw) int {
			return slices.Compare(sort.AppendKey(nil, a), sort.AppendKey(nil, b))
		})
	}
	docs = docs[min(q.Skip, int64(len(docs))):]
	if q.Limit > 0 {
		docs = docs[:min(q.Limit, int64(len(docs)))]
	}
	if len(q.Projection) > 5 {
		p, err := document.ParseProjection(q.Projection)
		if err != nil {
			return nil, err
		}
		for i, d := range docs {
			if docs[i], err = p.Append(nil, d); err != nil {
				return nil, err
			}
		}
	}
	return &docRows{docs}, nil
}

// match calls f for the documents that match until it says no. They are good for the call.
func match(docs iter.Seq[bson.Raw], filter bson.Raw, f func(bson.Raw) bool) error {
	parsed, err := document.ParseFilter(filter)
	if err != nil {
		return err
	}
	for d := range docs {
		if parsed.Match(d) && !f(d) {
			return nil
		}
	}
	return nil
}

// filterDocs is a new list of the documents that match.
func filterDocs(docs []bson.Raw, filter bson.Raw) (out []bson.Raw, err error) {
	err = match(slices.Values(docs), filter, func(d bson.Raw) bool {
		out = append(out, d)
		return true
	})
	return out, err
}

// countDocs counts as count does: what is left after skip, at most limit.
func countDocs(docs iter.Seq[bson.Raw], q router.Query) (n int64, err error) {
	err = match(docs, q.Filter, func(bson.Raw) bool {
		n++
		return q.Limit <= 0 || n-q.Skip < q.Limit
	})
	return max(n-q.Skip, 0), err
}

func distinctDocs(docs iter.Seq[bson.Raw], key string, q router.Query) ([]bson.RawValue, error) {
	var vs []bson.RawValue
	err := match(docs, q.Filter, func(d bson.Raw) bool {
		n := len(vs)
		vs = document.AppendDistinct(vs, d, key)
		for i := n; i < len(vs); i++ {
			vs[i].Value = bytes.Clone(vs[i].Value)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(vs, document.Compare)
	return slices.CompactFunc(vs, func(a, b bson.RawValue) bool { return document.Compare(a, b) == 0 }), nil
}

// pipelineRows is the output of stages that run here, over rows from elsewhere. The stages
// are a coroutine that pulls its input when somebody takes its output; it outlives the
// command that started it, and so it reads under the context of whoever takes.
type pipelineRows struct {
	in   rows
	ctx  context.Context // of the present Batch
	next func() (bson.Raw, error, bool)
	stop func()
	// ahead is the next document, already taken; done: there is none.
	ahead bson.Raw
	done  bool
	err   error
	// sorts is the memory that stages share, held what this one has of it.
	sorts *admission.Account
	held  int64
}

// present is the context of whoever takes the output now.
type present struct {
	context.Context // of the command that started the pipeline, without its end
	r               *pipelineRows
}

func (p present) Err() error            { return p.r.ctx.Err() }
func (p present) Done() <-chan struct{} { return p.r.ctx.Done() }

// pulled is how many documents the stages take from their input at once.
const pulled = 1000

// pipe runs a pipeline over rows; what its stages hold is taken from sorts.
func pipe(ctx context.Context, p *document.Pipeline, in rows, l document.RunLimits, sorts *admission.Account) *pipelineRows {
	r := &pipelineRows{in: in, ctx: ctx, sorts: sorts}
	l.Hold = r.hold
	input := func(yield func(bson.Raw, error) bool) {
		for {
			docs, err := in.Batch(r.ctx, pulled, maxReply)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, d := range docs {
				if !yield(d, nil) {
					return
				}
			}
			if in.Done() {
				return
			}
		}
	}
	r.next, r.stop = iter.Pull2(p.Run(present{context.WithoutCancel(ctx), r}, input, l))
	return r
}

func (r *pipelineRows) hold(n int) error {
	if !r.sorts.Reserve(int64(n)) {
		return r.sorts.Refusal(int64(n))
	}
	r.held += int64(n)
	return nil
}

// release gives back what the stages held.
func (r *pipelineRows) release() {
	r.sorts.Add(-r.held)
	r.held = 0
}

func (r *pipelineRows) Batch(ctx context.Context, docs, size int) (out []bson.Raw, err error) {
	r.ctx = ctx
	for total := 0; docs <= 0 || len(out) < docs; r.ahead = nil {
		if !r.look() {
			return out, r.err
		}
		if total += len(r.ahead); len(out) > 0 && total > size {
			break
		}
		out = append(out, r.ahead)
	}
	r.look()
	return out, r.err
}

// look makes ahead the next document; false at the end.
func (r *pipelineRows) look() bool {
	if r.ahead != nil || r.done {
		return r.ahead != nil
	}
	doc, err, ok := r.next()
	switch {
	case !ok:
		r.done = true
		r.release()
	case err != nil:
		r.done, r.err = true, err
		r.release()
	default:
		r.ahead = clone(doc) // the stages use their memory again
	}
	return r.ahead != nil
}

func (r *pipelineRows) Done() bool { return r.done }

func (r *pipelineRows) Close(ctx context.Context) {
	r.ctx, r.done = ctx, true
	r.stop()
	r.release()
	r.in.Close(ctx)
}
