package repair

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/fsck"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/host"
)

// Repairer repairs one store.
type Repairer struct {
	Bucket bucket.Bucket // the cluster's own
	// At is the bucket of a location; nil: the cluster must have none.
	At   func(manifest.Location) bucket.Bucket
	Host host.Host
	// Progress, when not nil, is told what is being done.
	Progress func(what string)
}

// Options say how far a repair goes.
type Options struct {
	// Write does what the plan says; without it a repair only looks.
	Write bool
	// AcceptLoss gives up what is lost, so that the rest is served.
	AcceptLoss bool
	// Deep reads every row of every segment, where only the tails would be.
	Deep bool
	// LeaseMillis is at least the lease of any process that may be alive; 0: 5 s. The first
	// takeover after a rebuilt root waits it out.
	LeaseMillis uint32
}

const leaseDefault = 5000

// Held is a shard that the root, or its newest copy, says is held.
type Held struct {
	Shard   manifest.ShardID `json:"shard"`
	Epoch   manifest.Epoch   `json:"epoch"`
	Holder  string           `json:"holder"`
	Address string           `json:"address,omitempty"`
}

// Unknown is a collection of which logs have records, and that the copy does not know.
type Unknown struct {
	Collection manifest.CollectionID `json:"collection"`
	Records    int                   `json:"records"`
}

// Report is what was found, and what was done about it or would be.
type Report struct {
	DryRun bool `json:"dryRun"`
	// Root is what is wrong with the root; "": nothing.
	Root string `json:"root,omitempty"`
	// Copy is what the root is rebuilt from, of CopyVersion, made at CopyMillis (0: not known).
	Copy        string           `json:"copy,omitempty"`
	CopyVersion manifest.Version `json:"copyVersion,omitempty"`
	CopyMillis  int64            `json:"copyMillis,omitempty"`
	// Unreadable are copies that are newer and cannot be read, and why.
	Unreadable []string `json:"unreadable,omitempty"`
	// Pages are lost or damaged pages of chunk lists that are made again from a copy.
	Pages []string `json:"pages,omitempty"`
	// Needless are objects of logs that are lost or damaged, and of which no chunk needs a
	// record; a takeover cannot pass them, so they are passed here.
	Needless []string `json:"needless,omitempty"`
	// Held are the shards whose holders a rebuild fences.
	Held []Held `json:"held,omitempty"`
	// Records and Objects are what logs hold above the floors; Folded is how many chunks get
	// what no takeover would bring back.
	Records int `json:"records"`
	Objects int `json:"objects"`
	Folded  int `json:"folded"`
	// Unproven are segments that are younger than the copy and not referred to by it: what
	// merges made, which is not missed, and the only place of documents whose shard key was
	// changed to another shard's after the copy.
	Unproven int `json:"unproven,omitempty"`
	// Lost is what is gone, by object, with the documents that were or may have been in it.
	Lost []fsck.Problem `json:"lost"`
	// Unknown are collections that were created after the copy: their documents are lost.
	Unknown []Unknown `json:"unknown,omitempty"`
	// Version is the root's after the repair, 0 when it was not changed.
	Version manifest.Version `json:"version,omitempty"`
	// Healed: something was wrong, and the repair did, or could do, what there is to do.
	Healed bool `json:"healed"`
}

// Clean reports whether nothing was wrong.
func (r *Report) Clean() bool {
	return r.Root == "" && len(r.Pages) == 0 && len(r.Needless) == 0 && len(r.Lost) == 0 && len(r.Unknown) == 0
}

// ErrLoss: what is lost must be accepted before the rest can be repaired.
var ErrLoss = errors.New("documents are lost: what is listed is gone, and --accept-loss serves the rest without it")

// Run surveys the store, and repairs it when Options.Write says so. The report is there also
// with an error, as far as it got. Errors: NotFound for a store without any cluster, or with one
// of which no copy of a root is left; Invalid for a newer format; Conflict when the root changed
// meanwhile: run it again; ErrLoss; those of the store.
func (r *Repairer) Run(ctx context.Context, o Options) (*Report, error) {
	w := &work{Repairer: r, o: o, report: &Report{DryRun: !o.Write, Lost: []fsck.Problem{}}}
	if w.o.LeaseMillis == 0 {
		w.o.LeaseMillis = leaseDefault
	}
	err := w.run(ctx)
	w.report.Healed = err == nil && !w.report.Clean()
	return w.report, err
}

// work is one repair under way.
type work struct {
	*Repairer
	o      Options
	report *Report

	kept  *manifest.State // the root, or the copy that stands for it
	whole bool            // kept is the root
	tag   string          // of the object that is in the root's place; "": none is
	// missed is the newest version of which there is a copy that cannot be read.
	missed manifest.Version
}

func (w *work) run(ctx context.Context) error {
	w.tell("reading the root and its copies")
	if err := w.survey(ctx); err != nil {
		return err
	}
	w.tell("reading the logs")
	logs, err := w.listLogs(ctx)
	if err != nil {
		return err
	}
	found, err := w.walk(ctx, logs, nil)
	if err != nil {
		return err
	}
	w.book(found)
	w.tell("reading the segments")
	gone, err := w.segments(ctx)
	if err != nil {
		return err
	}
	// Lost segments do not keep a root from being rebuilt: reads of their rows fail, by name.
	lossy := len(w.report.Unknown) > 0 || len(w.report.Lost) > len(gone.problems)
	if lossy && !w.o.AcceptLoss {
		return ErrLoss
	}
	if w.o.Write && (!w.whole || len(found.holes) > 0) {
		if err := w.rebuild(ctx); err != nil {
			return err
		}
	}
	switch {
	case len(gone.problems) == 0:
		return nil
	case !w.o.AcceptLoss:
		return ErrLoss
	case !w.o.Write:
		return nil
	}
	return w.forsake(ctx, gone.keys)
}

// lostSegments are the segments that are missing or damaged.
type lostSegments struct {
	keys     map[string]bool
	problems []fsck.Problem // one for each chunk and segment
}

// at is the bucket of a location of the kept root.
func (w *work) at(id manifest.LocationID) (bucket.Bucket, error) {
	if id == 0 {
		return w.Bucket, nil
	}
	l, err := w.kept.Location(id)
	if err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	return w.place(l)
}

// place is the bucket of a location.
func (w *work) place(l manifest.Location) (bucket.Bucket, error) {
	if w.At == nil {
		return nil, fmt.Errorf("repair: location %s: %w: only the cluster's own bucket is open", l.URL, errkind.Invalid)
	}
	return w.At(l), nil
}

// places is how the manifest package gets at pages that are elsewhere.
func (w *work) places(l manifest.Location) (manifest.Cell, error) {
	b, err := w.place(l)
	if err != nil {
		return nil, err
	}
	return bucket.NewCell(b), nil
}

// everywhere calls fn for the cluster's own bucket and for those of its locations.
func (w *work) everywhere(fn func(bucket.Bucket) error) error {
	if err := fn(w.Bucket); err != nil {
		return err
	}
	for _, l := range w.kept.Locations() {
		b, err := w.place(l)
		if err == nil {
			err = fn(b)
		}
		if err != nil {
			return fmt.Errorf("repair: location %s: %w", l.URL, err)
		}
	}
	return nil
}

func (w *work) tell(what string) {
	if w.Progress != nil {
		w.Progress(what)
	}
}

// segments looks for those that are lost or damaged, and puts them into the report.
func (w *work) segments(ctx context.Context) (gone lostSegments, err error) {
	c := &fsck.Checker{Bucket: w.Bucket, Open: w.at, Deep: w.o.Deep}
	problems, err := c.Segments(ctx, w.kept)
	if err != nil || len(problems) == 0 {
		return gone, err
	}
	now := w.kept
	if w.whole && len(w.report.Pages) == 0 { // a merge may have replaced them meanwhile
		if now, _, err = w.root().Load(ctx); err != nil {
			return gone, fmt.Errorf("repair: read root: %w", err)
		}
	}
	still := referenced(now)
	gone.keys = map[string]bool{}
	for _, p := range problems {
		if still[p.Object] {
			gone.keys[p.Object] = true
			gone.problems = append(gone.problems, p)
		}
	}
	w.report.Lost = append(w.report.Lost, gone.problems...)
	return gone, nil
}

func referenced(s *manifest.State) map[string]bool {
	keys := map[string]bool{}
	for c := range s.AllChunks() {
		for i := range c.Refs {
			keys[c.Refs[i].Segment.Key()] = true
		}
	}
	return keys
}

func (w *work) root() *manifest.Root {
	return manifest.NewRoot(bucket.NewCell(w.Bucket), w.Host, &manifest.RootOptions{Places: w.places})
}

// forsake removes the references to lost segments, chunk by chunk as the root has them now, in
// one commit.
func (w *work) forsake(ctx context.Context, gone map[string]bool) error {
	w.tell("removing the references to what is lost")
	root := w.root()
	for try := 0; ; try++ {
		state, _, err := root.Load(ctx)
		if err != nil {
			return fmt.Errorf("repair: read root: %w", err)
		}
		var changes []manifest.Change
		for c := range state.AllChunks() {
			x := manifest.Forsake{Chunk: c.At()}
			for _, ref := range c.Refs {
				if gone[ref.Segment.Key()] {
					x.Refs = append(x.Refs, ref)
				}
			}
			if len(x.Refs) > 0 {
				changes = append(changes, x)
			}
		}
		if len(changes) == 0 {
			return nil
		}
		next, err := root.Commit(ctx, manifest.Edit{Op: w.Host.ID16(), Changes: changes, Millis: w.Host.Wall().UnixMilli()})
		if err == nil {
			w.report.Version = next.Version()
			return nil
		}
		if !errors.Is(err, errkind.Conflict) || try == forsakeTries {
			return fmt.Errorf("repair: remove references to %d segments: %w", len(gone), err)
		}
	}
}

// forsakeTries bounds how often chunks may change under a repair before it gives up.
const forsakeTries = 10
