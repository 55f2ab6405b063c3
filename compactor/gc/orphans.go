package gc

import (
	"context"
	"errors"
	"fmt"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// Orphans is what a look at all segments found.
type Orphans struct {
	// Segments and Bytes are all that were listed, Found those of them that neither the root
	// refers to nor a pin, and that were not dropped either: these wait for Sweep.
	Segments, Bytes   int64
	Found, FoundBytes int64
	// Pages are parts of old roots that nothing refers to any more and that went, or would.
	Pages int64
	// Deleted went; in a dry look, they would. The rest of Found stays: whoever made them may
	// still commit them.
	Deleted, DeletedBytes int64
	// Left: the bound was reached, and the next look goes on where this one ended.
	Left bool
}

// orphansMax bounds how many unreferenced segments one look holds in memory.
const orphansMax = 50_000

// orphan is a segment that a listing showed, and no root so far.
type orphan struct {
	id    manifest.SegmentID
	bytes int64
}

// Orphans looks for segments that were uploaded and never committed, and deletes those whose
// creators can commit nothing any more, or only counts them when dry; and for pages of old roots. It
// lists all segments: it is for now and then.
//
// The root is read after the listing. What it and all pins do not refer to then, and whose
// creator it shows as not registered, no root will ever refer to: an epoch or a job that is over
// does not come back, and one that began later has uploaded nothing that the listing shows. So
// that creators do not stay registered for ever, jobs that were abandoned are expelled first,
// and the epoch of a free shard is raised when somebody left segments there by a direct commit
// that never came: those that are still uploading begin again.
//
// Errors: those of the bucket and of the commit; an unreadable pin.
func (s *Sweeper) Orphans(ctx context.Context, dry bool) (o Orphans, err error) {
	w := &sweep{Sweeper: s, dry: dry, budget: s.MaxDeletes}
	if w.budget == 0 {
		w.budget = deletesMax
	}
	root, _, err := s.Root.Load(ctx)
	if err != nil {
		return o, fmt.Errorf("gc: read root: %w", err)
	}
	if s.orphansAfter == nil {
		s.orphansAfter = make(map[manifest.LocationID]string)
	}
	for _, l := range append([]manifest.Location{{}}, root.Locations()...) {
		b, err := s.at(l.ID)
		if err == nil {
			o, err = w.orphansAt(ctx, l.ID, b, o)
		}
		if err != nil {
			return o, err
		}
	}
	o.Pages, err = w.ownPages(ctx)
	o.Left = o.Left || w.Left
	return o, err
}

// orphansAt is Orphans in one location.
func (w *sweep) orphansAt(ctx context.Context, at manifest.LocationID, b bucket.Bucket, o Orphans) (Orphans, error) {
	list, err := w.unreferenced(ctx, at, b, &o)
	if err != nil {
		return o, err
	}
	ended, err := w.unregister(ctx, list)
	if err != nil {
		return o, err
	}
	root, list, err := w.confirmed(ctx, list)
	if err != nil {
		return o, err
	}
	var keys []string
	sizes := make(map[string]int64)
	for _, x := range list {
		o.Found, o.FoundBytes = o.Found+1, o.FoundBytes+x.bytes
		gone, why := judged(root, x.id.Creator)
		if w.dry && ended[x.id.Creator] {
			gone, why = true, "whoever made it is not at work any more, or begins again"
		}
		w.report(Verdict{Key: x.id.Key(), Bytes: x.bytes, Delete: gone, Why: "nothing refers to it, and " + why})
		if gone {
			keys = append(keys, x.id.Key())
			sizes[x.id.Key()] = x.bytes
		}
	}
	done, err := w.delete(ctx, b, keys, w.budget)
	o.Deleted = int64(w.Deleted)
	for _, key := range keys[:done] {
		o.DeletedBytes += sizes[key]
	}
	o.Left = o.Left || w.Left
	if err != nil || w.Left {
		w.orphansAfter[at] = "" // what stayed is before where the listing ended
	}
	return o, err
}

// unreferenced lists segments from where the last look ended, and keeps those that the root does
// not refer to and has not dropped.
func (w *sweep) unreferenced(ctx context.Context, at manifest.LocationID, b bucket.Bucket, o *Orphans) (list []orphan, err error) {
	root, _, err := w.Root.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("gc: read root: %w", err)
	}
	used := references([]*manifest.State{root})
	for _, d := range root.Dropped() {
		used[d.Segment] = true
	}
	for more := true; more; {
		page, further, err := b.List(ctx, "seg/", w.orphansAfter[at], 0)
		if err != nil {
			return nil, fmt.Errorf("gc: list seg/ after %q: %w", w.orphansAfter[at], err)
		}
		for _, a := range page {
			w.orphansAfter[at] = a.Key
			o.Segments, o.Bytes = o.Segments+1, o.Bytes+a.Size
			if id, err := manifest.ParseSegmentKey(a.Key); err == nil && !used[id] { // fsck reports what is no segment
				list = append(list, orphan{id, a.Size})
			}
		}
		if more = further && len(page) > 0; more && len(list) >= orphansMax {
			o.Left = true
			return list, nil
		}
	}
	w.orphansAfter[at] = ""
	return list, nil
}

// unregister ends creators of orphans that are not at work any more, as far as one can tell, and
// says which; when dry, those that it would. One that is at work after all begins again.
func (w *sweep) unregister(ctx context.Context, list []orphan) (ended map[manifest.Creator]bool, err error) {
	s, now := w.Root.State(), w.Host.Wall().UnixMilli()
	var changes []manifest.Change
	ended = make(map[manifest.Creator]bool)
	for _, x := range list {
		c := x.id.Creator
		if ended[c] || !s.Registered(c) {
			continue
		}
		job, _ := s.Job(c.Job)
		switch {
		case c.Kind == manifest.CreatorJob && job.Abandoned(now):
			changes = append(changes, manifest.ExpelJob{ID: c.Job})
		case c.Kind == manifest.CreatorDirect:
			changes = append(changes, manifest.AdvanceFree{Shard: c.Shard, Epoch: c.Epoch})
		default:
			continue
		}
		ended[c] = true
	}
	if len(changes) == 0 || w.dry {
		return ended, nil
	}
	_, err = w.Root.Commit(ctx, manifest.Edit{Op: w.Host.ID16(), Changes: changes, Millis: now, Background: true})
	if err != nil && !errors.Is(err, errkind.Conflict) { // somebody took the shard: its epoch moved by that
		return nil, fmt.Errorf("gc: end %d creators of segments: %w", len(changes), err)
	}
	return ended, nil
}

// confirmed are those of the list that the root, read now, and all pins do not refer to.
func (w *sweep) confirmed(ctx context.Context, list []orphan) (*manifest.State, []orphan, error) {
	if len(list) == 0 {
		return nil, nil, nil
	}
	root, _, err := w.Root.Load(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("gc: read root: %w", err)
	}
	used := references([]*manifest.State{root})
	for _, d := range root.Dropped() {
		used[d.Segment] = true
	}
	for _, pin := range root.Pins() {
		pinned, err := w.rootOf(ctx, pin)
		if err != nil {
			return nil, nil, err
		}
		for id := range references([]*manifest.State{pinned}) {
			used[id] = true
		}
	}
	kept := list[:0]
	for _, x := range list {
		if !used[x.id] {
			kept = append(kept, x)
		}
	}
	return root, kept, nil
}

// rootOf is the root that a pin keeps.
func (s *Sweeper) rootOf(ctx context.Context, pin manifest.Pin) (*manifest.State, error) {
	st, err := s.Root.Copy(ctx, manifest.PinKey(pin.ID))
	if err != nil {
		return nil, fmt.Errorf("gc: pin %q of version %d cannot be read, so nothing is deleted: %w", pin.Name, pin.Version, err)
	}
	return st, nil
}

// judged tells whether what a creator uploaded and nothing refers to can go, and why.
func judged(s *manifest.State, c manifest.Creator) (gone bool, why string) {
	gone = !s.Registered(c)
	if c.Kind == manifest.CreatorJob {
		job, ok := s.Job(c.Job)
		if !ok {
			return gone, "its job is over"
		}
		return gone, fmt.Sprintf("its job (%s, by %s) may still commit it", job.Kind, job.Holder)
	}
	h := s.Shard(c.Shard)
	switch {
	case h == nil:
		return gone, fmt.Sprintf("shard %s is not there any more", c.Shard)
	case h.Epoch != c.Epoch:
		return gone, fmt.Sprintf("epoch %d of shard %s is over: it is at %d", c.Epoch, c.Shard, h.Epoch)
	case gone:
		return gone, fmt.Sprintf("whoever made it could commit it only while shard %s was %s", c.Shard, map[bool]string{true: "free", false: "held"}[c.Kind == manifest.CreatorDirect])
	}
	return gone, fmt.Sprintf("epoch %d of shard %s may still commit it", c.Epoch, c.Shard)
}
