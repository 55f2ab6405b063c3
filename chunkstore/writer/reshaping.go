package writer

import (
	"context"
	"time"

	"github.com/granarydb/granary/manifest"
)

// reshapingMax is how long a collection may stay marked as getting another key, before an
// owner takes the mark back. Whoever set it may be dead; if not, its commit conflicts.
const reshapingMax = 15 * time.Second

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

// takeBackMarks removes marks that have been there for too long. seen remembers since when,
// on the monotonic clock, by the marked collection's options, which are different for every
// mark.
func (w *Writer) takeBackMarks(ctx context.Context, seen map[string]time.Duration) {
	st := w.root.State()
	if st == nil {
		return
	}
	now := w.host.Mono()
	present := make(map[string]bool)
	for _, c := range st.Collections() {
		if !c.Reshaping() {
			continue
		}
		mark := string(c.Options)
		present[mark] = true
		since, known := seen[mark]
		if !known {
			seen[mark] = now
			continue
		}
		if now < since+reshapingMax {
			continue
		}
		_, err := w.root.Commit(ctx, manifest.Edit{
			Op: w.running.ID16(), Millis: w.host.Wall().UnixMilli(),
			Changes: []manifest.Change{manifest.AlterCollection{Was: *c, Now: c.WithoutReshaping()}},
		})
		w.log.Info("took back the mark of a collection that was getting another key", "ns", c.Namespace(), "cause", err)
	}
	for mark := range seen {
		if !present[mark] {
			delete(seen, mark)
		}
	}
}
