package rewrite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/granarydb/granary/compactor/plan"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/mutant"
)

const (
	// commitsMax bounds the attempts at the commit of a pass; each drops a chunk at least.
	commitsMax = 8
	// goodbye bounds the commit of a pass that was stopped.
	goodbye = 5 * time.Second
)

// takenBy are the chunks that jobs of this package work on.
func takenBy(s *manifest.State) map[manifest.ChunkID]bool {
	taken := make(map[manifest.ChunkID]bool)
	for _, j := range s.Jobs() {
		if j.Kind != manifest.JobCompact {
			continue
		}
		for _, id := range j.Chunks() {
			taken[id] = true
		}
	}
	return taken
}

// silent are the jobs of this package that have been there for too long, and those that this
// process could not end. How long says nothing about whether a job lives, and need not: see
// the package's comment. byWall: also those that are old by the wall clock.
func (r *Rewriter) silent(s *manifest.State, byWall bool) (ids []manifest.JobID) {
	now, wall := r.Host.Mono(), r.Host.Wall().UnixMilli()
	seen := make(map[manifest.JobID]time.Duration)
	for _, j := range s.Jobs() {
		if j.Kind != manifest.JobCompact {
			continue
		}
		since, ok := r.seen[j.ID]
		if !ok {
			since = now
		}
		seen[j.ID] = since
		old := byWall && j.Abandoned(wall)
		if now-since >= r.Settings.SilentFor || old || r.Holder != "" && j.Holder == r.Holder {
			ids = append(ids, j.ID)
		}
	}
	r.seen = seen
	return ids
}

func (r *Rewriter) edit(changes ...manifest.Change) manifest.Edit {
	return manifest.Edit{Op: r.Host.ID16(), Changes: changes, Millis: r.Host.Wall().UnixMilli(), Background: true}
}

func (r *Rewriter) expulsions(ids []manifest.JobID) (changes []manifest.Change) {
	for _, id := range ids {
		r.Log.Warn("expel a job that does not end; whoever runs it begins again", "job", fmt.Sprintf("%x", id))
		changes = append(changes, manifest.ExpelJob{ID: id})
	}
	return changes
}

// expel ends jobs of others when there is nothing else to commit.
func (r *Rewriter) expel(ctx context.Context, ids []manifest.JobID) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := r.Root.Commit(ctx, r.edit(r.expulsions(ids)...)); err != nil {
		return fmt.Errorf("expel %d jobs: %w", len(ids), err)
	}
	r.count(func(n *Counts) { n.Expelled += int64(len(ids)) })
	return nil
}

// register makes the job known, with the chunks that it works on.
func (p *pass) register(ctx context.Context, todo []plan.Compaction, silent []manifest.JobID) error {
	var chunks []manifest.ChunkID
	for i := range todo {
		chunks = append(chunks, todo[i].Chunk.ID)
	}
	changes := append(p.expulsions(silent), manifest.RegisterJob{Job: manifest.Job{
		ID: p.id, Kind: manifest.JobCompact, Holder: p.Holder, StartedMillis: p.Host.Wall().UnixMilli(), Detail: manifest.ChunksDetail(chunks),
	}})
	if _, err := p.Root.Commit(ctx, p.edit(changes...)); err != nil {
		if ctx.Err() != nil && errors.Is(err, errkind.UnknownOutcome) {
			err = errors.Join(err, p.finish(ctx)) // it may be there: this process ends it, if it can
		}
		return fmt.Errorf("register a job: %w", err)
	}
	p.count(func(n *Counts) { n.Expelled += int64(len(silent)) })
	return nil
}

// finish commits what was merged, and the end of the job. For a pass that was stopped it does so
// soon: what may have been sent already is sent again as it is.
func (p *pass) finish(ctx context.Context) error {
	edit, err := p.conclude(ctx, p.edit(p.changes()...))
	if err == nil || ctx.Err() == nil {
		return err
	}
	ctx, cancel := p.Host.WithTimeout(context.WithoutCancel(ctx), p.parting)
	defer cancel()
	_, err = p.conclude(ctx, edit)
	return err
}

// conclude commits edit, or what is left of it, and returns what it tried last.
func (p *pass) conclude(ctx context.Context, edit manifest.Edit) (manifest.Edit, error) {
	for range commitsMax {
		_, err := p.Root.Commit(ctx, edit)
		if err == nil {
			p.tell()
			return edit, nil
		}
		if !errors.Is(err, errkind.Conflict) {
			return edit, fmt.Errorf("commit %d merges: %w", len(p.done), err)
		}
		s, _, err := p.Root.Load(ctx)
		if err != nil {
			return edit, err
		}
		p.prune(s)
		edit = p.edit(p.changes()...)
	}
	return edit, fmt.Errorf("commit %d merges: %w: others keep coming before it", len(p.done), errkind.Throttled)
}

func (p *pass) changes() (changes []manifest.Change) {
	used := make(map[manifest.SegmentID]bool)
	for _, m := range p.done {
		change := m.change(p)
		if mutant.Broken("compacted-against-head") {
			change = takeHead(change, p.Root.State())
		}
		changes = append(changes, change)
		for _, r := range m.outputs {
			used[r.Segment] = true
		}
	}
	var left []manifest.SegmentRef
	for _, r := range p.stored {
		if !used[r.Segment] {
			left = append(left, r)
		}
	}
	return append(changes, manifest.ExpelJob{ID: p.id, Left: left})
}

// prune gives up the merges that cannot be committed on s.
func (p *pass) prune(s *manifest.State) {
	kept := p.done[:0]
	for _, m := range p.done {
		if _, err := manifest.Apply(s, p.edit(m.change(p)), p.Host.ID16()); err != nil {
			p.count(func(n *Counts) { n.Lost++ })
			p.Log.Debug("a merge came too late", "chunk", m.job.Chunk.ID, "cause", err)
			continue
		}
		kept = append(kept, m)
	}
	p.done = kept
}

// tell counts and logs what is committed.
func (p *pass) tell() {
	for _, m := range p.done {
		inputs := m.job.Inputs()
		p.count(func(n *Counts) {
			n.Merges++
			n.SegmentsIn, n.SegmentsOut = n.SegmentsIn+int64(len(inputs)), n.SegmentsOut+int64(len(m.outputs))
			n.RowsIn, n.RowsOut, n.BytesIn = n.RowsIn+int64(m.job.Rows), n.RowsOut+m.rows, n.BytesIn+int64(m.job.Bytes)
			n.Expired += m.expired
			for _, r := range m.outputs {
				n.BytesOut += int64(r.Size)
			}
		})
		p.Log.Debug("segments merged", "chunk", m.job.Chunk.ID, "why", m.job.Why.String(), "reason", m.job.Reason,
			"in", len(inputs), "out", len(m.outputs), "rows", m.rows, "deletionsDropped", m.job.Oldest, "expired", m.expired)
	}
}
