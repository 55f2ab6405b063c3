package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
)

// silentFor is how long the record of a resharding must not change for its job to be taken for
// dead. A living one renews it every few seconds; while it waits for owners that may take most of
// a minute.
const silentFor = 10 * time.Minute

// heard is a record as it was when it was last seen to change, on the monotonic clock.
type heard struct {
	body string
	at   time.Duration
}

// silent ends the jobs of processes that died while they gave a collection another key. What
// they stored is garbage from then on; as long as they stood, no dropped segment was deleted, and
// nothing of their collections was compacted.
func (w *sweep) silent(ctx context.Context, root *manifest.State) error {
	now, present := w.Host.Mono(), make(map[manifest.JobID]heard)
	for _, r := range root.Records(manifest.RecordReshard) {
		job := r.ReshardJob()
		if _, stands := root.Job(job); !stands {
			continue
		}
		h, known := w.heard[job]
		if !known || h.body != string(r.Body) {
			h = heard{body: string(r.Body), at: now}
		}
		present[job] = h
		if now-h.at < silentFor || w.dry {
			continue
		}
		_, err := w.Root.Commit(ctx, manifest.Edit{
			Op: w.Host.ID16(), Changes: manifest.EndResharding(r), Background: true, Millis: w.Host.Wall().UnixMilli(),
		})
		if err != nil && !errors.Is(err, errkind.Conflict) { // or it has spoken
			return fmt.Errorf("gc: end the resharding of %s, of which nothing is heard: %w", r.ID, err)
		}
	}
	w.heard = present
	return nil
}
