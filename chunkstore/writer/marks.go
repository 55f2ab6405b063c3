package writer

import (
	"context"
	"time"

	"github.com/granarydb/granary/manifest"
)

// markMax is how long a mark may stop writes before an owner takes it back. Whoever set it
// may be dead; if not, its commit conflicts.
const markMax = 15 * time.Second

// reshaping are the collections of a root that take no writes and answer no reads because
// they are getting another key; nil when there are none. Reads wait, too: the commit of the
// new key makes other chunks of the collection, perhaps elsewhere, and whoever answered from
// the old ones after the first write to the new ones would answer from the past.
func reshaping(st *manifest.State) map[manifest.CollectionID]bool {
	var marked map[manifest.CollectionID]bool
	for _, c := range st.Collections() {
		if c.Reshaping() {
			if marked == nil {
				marked = make(map[manifest.CollectionID]bool)
			}
			marked[c.ID] = true
		}
	}
	return marked
}

// mark is something in the root that stops writes until whoever set it is done: a collection
// that is getting another key, or a range that is about to lose its documents.
type mark struct {
	name string // different for every mark
	what string
	undo manifest.Change
}

func marksOf(st *manifest.State) (list []mark) {
	for _, c := range st.Collections() {
		if c.Reshaping() {
			list = append(list, mark{string(c.Options), "of collection " + c.Namespace(), manifest.AlterCollection{Was: *c, Now: c.WithoutReshaping()}})
		}
	}
	for _, h := range st.RangeHolds() {
		list = append(list, mark{"hold " + h.ID, "of a range", manifest.DropRecord{Kind: manifest.RecordHold, ID: h.ID}})
	}
	return list
}

// takeBackMarks removes marks that have been there for too long. seen remembers since when,
// on the monotonic clock.
func (w *Writer) takeBackMarks(ctx context.Context, seen map[string]time.Duration) {
	st := w.root.State()
	if st == nil {
		return
	}
	now := w.host.Mono()
	present := make(map[string]bool)
	for _, m := range marksOf(st) {
		present[m.name] = true
		since, known := seen[m.name]
		if !known {
			seen[m.name] = now
			continue
		}
		if now < since+markMax {
			continue
		}
		_, err := w.root.Commit(ctx, manifest.Edit{
			Op: w.running.ID16(), Millis: w.host.Wall().UnixMilli(), Changes: []manifest.Change{m.undo},
		})
		w.log.Info("took back a mark that stopped writes", "mark", m.what, "cause", err)
	}
	for name := range seen {
		if !present[name] {
			delete(seen, name)
		}
	}
}
