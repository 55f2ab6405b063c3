package router

import (
	"context"
	"fmt"
	"slices"

	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Ordered statements go to one shard after another: with a key like {_id: "hashed"} nearly
// every statement goes to another one than the statement before. If each such change waited
// until the run before is stored, a thousand inserts would take as long as hundreds of PUTs
// one after another. Therefore a run with others behind it is answered as soon as it is
// decided, and all of them are waited for together at the end:
//
//	shard01   decide 0..3 ------------ PUT ------------+
//	shard02              decide 4 ---------- PUT ------+--> reply
//	shard01                      decide 5..6 --- PUT --+
//
// An owner that dies in between takes with it what it had only decided. Those statements are
// sent again under their OpIDs, as after any lost answer. Should one of them then fail, those
// behind it have been carried out all the same; the client is told of the failure.

// debt is a run that was answered early: its statements are done once the shard's log has
// reached until.
type debt struct {
	shard manifest.ShardID
	until manifest.Position
	works []*work
}

// owe notes what an early answer leaves open; the newest of a shard's log stands for those
// before it. An answer that was not early is that of a run which waited for them too.
func (w *writing) owe(r *run) {
	if !r.early {
		w.owed = slices.DeleteFunc(w.owed, func(d debt) bool { return d.shard == r.shard && d.until == r.after })
	}
	if r.until == (manifest.Position{}) {
		return
	}
	for i := range w.owed {
		if d := &w.owed[i]; d.shard == r.shard && d.until.Epoch == r.until.Epoch {
			d.until, d.works = r.until, append(d.works, r.works...)
			return
		}
	}
	w.owed = append(w.owed, debt{r.shard, r.until, r.works})
}

// debtOf is what a run that is not early can wait for on its way.
func (w *writing) debtOf(shard manifest.ShardID) (until manifest.Position) {
	for _, d := range w.owed {
		if d.shard == shard {
			until = manifest.MaxPosition(until, d.until)
		}
	}
	return until
}

// collect waits for what is owed. The statements of a shard that does not answer that all is
// stored are to be sent again: that is the error.
func (w *writing) collect(ctx context.Context) error {
	if len(w.owed) == 0 {
		return nil
	}
	errs := make([]error, len(w.owed))
	w.r.each(len(w.owed), func(i int) { errs[i] = w.await(ctx, &w.owed[i]) })
	for i := range w.owed {
		w.a.answered(ctx, w.owed[i].shard, errs[i])
		if errs[i] != nil {
			w.owed[i].reopen()
		}
	}
	w.owed, w.first = nil, 0
	return firstError(errs)
}

func (w *writing) await(ctx context.Context, d *debt) error {
	req := &rpc.WriteRequest{Header: w.a.header(w.state, w.coll, d.shard), After: d.until}
	_, err := ask(ctx, w.a, w.state, d.shard, func(o rpc.Owner) (*rpc.WriteReply, error) { return o.Write(ctx, req) })
	if err != nil {
		return fmt.Errorf("%w: %w", errkind.UnknownOutcome, err)
	}
	return nil
}

// reopen makes the statements uncertain ones that are not done.
func (d *debt) reopen() {
	for _, k := range d.works {
		if k.done {
			k.done, k.uncertain, k.result = false, true, rpc.WriteResult{}
		}
	}
}

// abandon is collect for a Write that ends without an answer: what is owed is not known.
func (w *writing) abandon() {
	for i := range w.owed {
		w.owed[i].reopen()
	}
	w.owed, w.first = nil, 0
}
