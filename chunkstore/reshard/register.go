package reshard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

const (
	// beatEvery is how often the record of a job is renewed.
	beatEvery = 4 * time.Second
	// commitsMax bounds the attempts at a small commit that others came before.
	commitsMax = 20
	// goodbye bounds the commit that ends a job early.
	goodbye = 10 * time.Second
)

// register makes the job known, and with it the id of the collection to be.
func (w *work) register(ctx context.Context) error {
	w.progress.enter("register")
	for range commitsMax {
		s, _, err := w.Root.Load(ctx)
		if err != nil {
			return err
		}
		c := collectionOf(s, w.progress.ns)
		if c == nil {
			return mongoerr.New(mongoerr.NamespaceNotFound, "collection %s was dropped meanwhile", w.progress.ns)
		}
		w.reserved, w.coll = reserveAhead, c.WithoutReshaping()
		silent, err := w.otherJob(ctx, s)
		if err != nil {
			return err
		}
		var gone []manifest.Change
		if silent != nil {
			inherited, err := w.inherit(ctx, s, *silent, c)
			if errors.Is(err, errkind.Conflict) {
				continue
			}
			if err != nil {
				return err
			}
			if inherited {
				w.begun()
				return nil
			}
			w.Log.Warn("expel the job of a process that is silent", "ns", w.progress.ns, "job", fmt.Sprintf("%x", silent.ReshardJob()))
			gone = manifest.EndResharding(*silent)
		}
		w.id, w.job = s.NextCollection(), w.Host.ID16()
		w.progress.change(func(p *Seen) { p.Collection = c.ID })
		builds := w.id
		if w.restores != nil {
			w.id, builds = w.restores.ID, 0 // it had an id
		}
		changes := append(gone, manifest.RegisterJob{Job: manifest.Job{
			ID: w.job, Kind: manifest.JobReshard, Holder: w.Holder, StartedMillis: w.Host.Wall().UnixMilli(),
			Detail: manifest.JobDetail(builds, w.progress.ns),
		}}, manifest.PutRecord{Record: w.record()})
		_, err = w.Root.Commit(ctx, w.edit(changes...))
		switch {
		case err == nil:
			w.noted = w.Host.Mono()
			w.begun()
			w.Log.Info("a collection is being given another shard key", "ns", w.progress.ns, "key", w.goal.Key, "job", fmt.Sprintf("%x", w.job))
			return nil
		case !errors.Is(err, errkind.Conflict):
			return err
		}
	}
	return fmt.Errorf("register a job: %w: others keep coming before it", errkind.Throttled)
}

// begun: the job is this process's.
func (w *work) begun() {
	w.beat = w.Host.Mono()
	w.image = &image{}
	w.carried = writer.NewCarried(w.id, w.goal.Key)
}

func collectionOf(s *manifest.State, ns string) *manifest.Collection {
	for _, c := range s.Collections() {
		if c.Namespace() == ns {
			return c
		}
	}
	return nil
}

// otherJob looks for a job that works on the collection already: one that lives is an error; of
// one that does not it returns the record.
func (w *work) otherJob(ctx context.Context, s *manifest.State) (*manifest.Record, error) {
	r, ok := s.Record(manifest.RecordReshard, w.progress.ns)
	if !ok {
		return nil, nil
	}
	job := r.ReshardJob()
	if _, ok := s.Job(job); !ok {
		return nil, nil
	}
	until := w.Host.Mono() + w.Settings.SilentFor
	for w.Host.Mono() < until {
		if err := w.Host.Sleep(ctx, min(beatEvery, w.Settings.SilentFor/4)); err != nil {
			return nil, err
		}
		now, _, err := w.Root.Load(ctx)
		if err != nil {
			return nil, err
		}
		other, ok := now.Record(manifest.RecordReshard, w.progress.ns)
		if !ok || string(other.Body) != string(r.Body) {
			return nil, mongoerr.New(mongoerr.ConflictingOperationInProg, "%s is being given another shard key already: %v", w.progress.ns, r.Body)
		}
	}
	return &r, nil
}

func (w *work) edit(changes ...manifest.Change) manifest.Edit {
	return manifest.Edit{Op: w.Host.ID16(), Changes: changes, Millis: w.Host.Wall().UnixMilli()}
}

// record is the job's state for others to see.
func (w *work) record() manifest.Record {
	return manifest.Record{
		Kind: manifest.RecordReshard, ID: w.progress.ns, Body: w.progress.body(w.job, w.reserved, w.saved, w.Host.Wall().UnixMilli()),
	}
}

// tick renews the record now and then, and notices that the job was expelled.
func (w *work) tick(ctx context.Context) error {
	if w.Host.Mono() < w.beat+beatEvery || w.marked { // while others wait there is nothing to tell
		return ctx.Err()
	}
	w.beat = w.Host.Mono()
	p := w.progress.Seen()
	w.Log.Info("giving a collection another shard key", "ns", w.progress.ns, "phase", p.Phase, "rows", p.Rows, "ofRows", p.RowsTotal, "bytes", p.Bytes, "left", p.Left)
	if s := w.Root.State(); s != nil {
		if _, err := w.present(s); err != nil {
			return err
		}
	}
	changes, err := w.renewed()
	if err != nil {
		return err
	}
	e := w.edit(changes...)
	e.Background = true
	if _, err := w.Root.Commit(ctx, e); err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// reserveAhead is how many segments a job may store before it has to say so.
const reserveAhead = 64

// name is the next segment's. Whoever ends this job when it is dead gives to GC what may have
// been stored: names are said in the root before they are used.
func (w *work) name(ctx context.Context) (manifest.SegmentID, error) {
	if w.named >= w.reserved {
		w.reserved += reserveAhead
		if err := w.renew(ctx); err != nil {
			w.reserved -= reserveAhead
			return manifest.SegmentID{}, fmt.Errorf("reserve names of segments: %w", err)
		}
	}
	w.named++
	return manifest.ReshardSegment(w.job, w.named-1), nil
}

// renew puts a newer record into the root.
func (w *work) renew(ctx context.Context) error {
	for try := 0; ; try++ {
		changes, err := w.renewed()
		if err == nil {
			_, err = w.Root.Commit(ctx, w.edit(changes...))
		}
		if err == nil || !errors.Is(err, errkind.Conflict) || try == commitsMax {
			return err
		}
	}
}

// renewed puts a newer record in the place of the one that was last seen, and so belongs into each
// commit that only the process that has the job may make. If another process has left a wish there
// since, that is seen first. Errors: as present.
func (w *work) renewed() ([]manifest.Change, error) {
	s := w.Root.State()
	if _, err := w.present(s); err != nil {
		return nil, err
	}
	r, _ := s.Record(manifest.RecordReshard, w.progress.ns)
	return []manifest.Change{manifest.PutRecord{Record: w.record(), IfBody: r.Body}}, nil
}

// mark stops writes and reads of the collection, from the root that it returns.
func (w *work) mark(ctx context.Context) (*manifest.State, error) {
	s, _, err := w.Root.Load(ctx)
	if err != nil {
		return nil, err
	}
	c, err := w.present(s)
	if err != nil {
		return nil, err
	}
	changes, err := w.renewed()
	if err != nil {
		return nil, err
	}
	now := c.WithReshaping(w.Host.ID16())
	if s, err = w.Root.Commit(ctx, w.edit(append(changes, manifest.AlterCollection{Was: *c, Now: now})...)); err != nil {
		return nil, err
	}
	w.coll, w.marked = now, true
	return s, nil
}

// unmark takes the job's own mark back; who marked the collection since keeps theirs.
func (w *work) unmark(ctx context.Context) error {
	if w.kept != nil && !w.unclear {
		if err := w.Root.Unpin(ctx, w.kept.Pin, w.Host.Wall().UnixMilli()); err != nil {
			w.Log.Warn("what was kept of a collection that did not switch stays until its time is over", "ns", w.coll.Namespace(), "cause", err)
		}
		w.kept = nil
	}
	if !w.marked {
		return nil
	}
	w.marked = false
	_, err := w.Root.Commit(ctx, w.edit(manifest.AlterCollection{Was: w.coll, Now: w.coll.WithoutReshaping()}))
	if err != nil && !errors.Is(err, errkind.Conflict) {
		return err
	}
	return nil
}

// abandon ends a job that did not come to its commit.
func (w *work) abandon(ctx context.Context, cause error) {
	w.progress.enter("failed")
	if w.image == nil {
		return // not registered
	}
	w.Log.Warn("a collection keeps its shard key", "ns", w.progress.ns, "cause", cause)
	ctx, cancel := w.Host.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	err := w.unmark(ctx)
	if err == nil {
		err = w.leave(ctx)
	}
	if err != nil {
		w.Log.Warn("a job stays registered until the next one for its collection expels it", "ns", w.progress.ns, "job", fmt.Sprintf("%x", w.job), "cause", err)
	}
}

// leave expels the job, with what it uploaded. Its record may be another job's by now, which
// took this one for dead: then it stays. And the job may be another process's.
func (w *work) leave(ctx context.Context) (err error) {
	for range commitsMax {
		s, _, loaded := w.Root.Load(ctx)
		if loaded != nil {
			return loaded
		}
		changes := []manifest.Change{manifest.ExpelJob{ID: w.job, Left: w.uploaded}}
		r, ok := s.Record(manifest.RecordReshard, w.progress.ns)
		if ok && r.ReshardJob() == w.job && !w.mine(r) {
			return nil
		}
		if ok && w.mine(r) {
			changes = append([]manifest.Change{manifest.PutRecord{Record: r, IfBody: r.Body}}, w.farewell(w.uploaded)...)
		}
		if _, err = w.Root.Commit(ctx, w.edit(changes...)); !errors.Is(err, errkind.Conflict) {
			return err
		}
	}
	return err
}

// farewell expels the job, and gives what it left to GC.
func (w *work) farewell(left []manifest.SegmentRef) []manifest.Change {
	return []manifest.Change{
		manifest.ExpelJob{ID: w.job, Left: left},
		manifest.DropRecord{Kind: manifest.RecordReshard, ID: w.progress.ns},
	}
}
